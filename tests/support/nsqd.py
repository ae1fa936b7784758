"""A scripted nsqd: it does what the real one does until a test wants something else."""

import asyncio
import contextlib
import json
import math
import ssl
from collections.abc import Callable, Iterable
from typing import Final, Self

import msgspec

from nsq_ha.message import Message, MessageSource
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import (
    Close,
    Command,
    Finish,
    Identity,
    Layout,
    Mpub,
    Pub,
    Ready,
    Requeue,
    Sub,
    SubAdvanced,
    SubOrdered,
    Touch,
    Traced,
)
from nsq_ha.protocol.commands import Auth, Identify, MpubExt, MpubTrace, PubExt, PubTrace
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.server.answers import encode_identity, encode_traced
from nsq_ha.protocol.server.command_lines import Malformed
from nsq_ha.protocol.server.decoder import CommandDecoder, PublishHeader
from tests.support.message_frames import encode_message

LIMIT: Final = 20.0
"""Seconds that a test waits for something that must happen."""

Publish = (Pub, PubTrace, PubExt, Mpub, MpubTrace, MpubExt)
Subscribe = (Sub, SubOrdered, SubAdvanced)

Script = Callable[["Peer", Command], object]
"""Takes a command; True when it has answered it itself, anything else leaves that to the default."""


def response(data: bytes) -> bytes:
    return encode_frame(FrameType.RESPONSE, data)


def error(text: str | bytes) -> bytes:
    return encode_frame(FrameType.ERROR, text.encode() if isinstance(text, str) else text)


OK: Final = response(b"OK")


def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection, if it is not closed yet: asyncio cannot abort a TLS connection that was closed twice."""
    if not writer.is_closing():
        writer.close()


class NoSource:
    """The source of messages that are only encoded."""

    topic = channel = nsqd = ""
    partition = 0

    def finish(self, message: Message) -> None: ...

    def requeue(self, message: Message, delay: float | None) -> None: ...

    def touch(self, message: Message) -> None: ...


_NO_SOURCE: Final[MessageSource] = NoSource()


def message_id(number: int, partition: int = 0, trace_id: int = 0) -> bytes:
    return (partition << 50 | number).to_bytes(8, "big") + trace_id.to_bytes(8, "big")


def message_data(
    body: bytes,
    id: bytes = message_id(2),  # noqa: A002 - the protocol's own word
    *,
    layout: Layout = Layout.DETAIL,
    attempts: int = 1,
    timestamp_ns: int = 1,
    offset: int = 0,
    ext: bytes | None = None,
) -> bytes:
    """Return the data of a message frame."""
    raw_size = 30 + len(body) + layout.ext * (1 if ext is None else 3 + len(ext))
    return encode_message(Message(id, body, attempts, timestamp_ns, _NO_SOURCE, offset, raw_size, ext), layout)


class Peer:
    """One connection that a client made.

    Attributes:
        commands: What came, in order; NOPs are counted in ``nops`` instead.
        malformed: What came and is no command.
        ready: RDY that came last.
    """

    def __init__(self, nsqd: "FakeNsqd", writer: asyncio.StreamWriter) -> None:
        self.nsqd = nsqd
        self.commands: list[Command] = []
        self.malformed: list[Malformed] = []
        self.nops = 0
        self.ready = 0
        self.reads: list[bytes] = []
        self.is_open = True
        self.upgrades = False
        self.is_between_layers = False
        self._writer = writer
        self._beat: asyncio.TimerHandle | None = None
        self._mute_at = math.inf

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        if self.is_open and not self.is_mute:
            self._writer.write(data)

    @property
    def host(self) -> str:
        """The client's address."""
        host: str = self._writer.get_extra_info("peername")[0]
        return host

    @property
    def is_mute(self) -> bool:
        """Whether writes are lost, as on a TLS connection of the partitioned nsqd after 5 s."""
        return asyncio.get_running_loop().time() >= self._mute_at

    @property
    def has_gone(self) -> bool:
        """Whether the connection has ended, as far as this side knows: one that reads nothing learns it by writing."""
        return not self.is_open or self._writer.is_closing()

    def mute(self) -> None:
        """Lose all further writes."""
        self._mute_at = 0.0

    async def upgrade(self, context: ssl.SSLContext, writes_for: float) -> None:
        """Switch to TLS; writes work for the given number of seconds."""
        self.upgrades = False
        self._mute_at = asyncio.get_running_loop().time() + writes_for
        self.is_between_layers = True
        await self._writer.start_tls(context)
        self.is_between_layers = False
        self.write(OK)

    async def drain(self) -> None:
        await self._writer.drain()

    def message(self, body: bytes, *args: bytes, **fields: object) -> None:
        """Deliver a message, see :func:`message_data`."""
        self.write(encode_frame(FrameType.MESSAGE, message_data(body, *args, **fields)))  # type: ignore[arg-type]

    async def feed(self, bodies: Iterable[bytes], first: int = 2) -> None:
        """Deliver messages numbered from ``first``, never more in flight than RDY allows."""
        answered = len(self.of(Finish, Requeue))
        for delivered, body in enumerate(bodies):

            def has_room(delivered: int = delivered) -> bool:
                return answered + delivered - len(self.of(Finish, Requeue)) < self.ready

            await self.nsqd.until(has_room)
            self.message(body, message_id(first + delivered))

    def close(self) -> None:
        """Close in good order, after what was written."""
        close(self._writer)

    def abort(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()

    def pause(self) -> None:
        """Read no more: the client's socket fills up."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def of(self, *kinds: type[Command]) -> list[Command]:
        """Return the commands of these kinds."""
        return [command for command in self.commands if isinstance(command, kinds)]

    def start_heartbeats(self, interval: float) -> None:
        self._beat = asyncio.get_running_loop().call_later(interval, self._heartbeat, interval)

    def stop_heartbeats(self) -> None:
        if self._beat is not None:
            self._beat.cancel()

    def _heartbeat(self, interval: float) -> None:
        self.write(response(b"_heartbeat_"))
        self.start_heartbeats(interval)


class FakeNsqd:
    """Listens on the loopback. Use it with ``async with``.

    Attributes:
        peers: The connections, in the order in which they came.
        script: Asked first for each command. None for the default answers.
        identity: The answer to IDENTIFY.
        is_silent: Accept and read, and say nothing at all.
        accepts: False closes each connection as it comes.
        tls: Context of the offered TLS; None for none.
        writes_for: Seconds after the answer to IDENTIFY during which writes to a TLS connection work.
    """

    def __init__(self, identity: Identity | None = None) -> None:
        self.peers: list[Peer] = []
        self.script: Script | None = None
        self.identity = identity or Identity(version="fake")
        self.is_silent = False
        self.accepts = True
        self.tls: ssl.SSLContext | None = None
        self.writes_for = math.inf
        self.port = 0
        self._sequence = 1
        self._offset = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections and reset the open ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in self.peers:
            peer.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def node(self) -> Node:
        return Node("127.0.0.1", self.port, 1)

    @property
    def open_peers(self) -> list[Peer]:
        return [peer for peer in self.peers if peer.is_open]

    @property
    def commands(self) -> list[Command]:
        """What came over all connections; of several the order is by connection."""
        return [command for peer in self.peers for command in peer.commands]

    async def until(self, condition: Callable[[], object], limit: float = LIMIT) -> None:
        """Return when ``condition``, asked whenever something came or went, is true."""
        async with asyncio.timeout(limit):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def peer(self, number: int = 0) -> Peer:
        """Return the n-th connection, once it has come."""
        await self.until(lambda: len(self.peers) > number)
        return self.peers[number]

    async def subscriber(self, number: int = 0) -> Peer:
        """Return the n-th connection that is subscribed and has sent RDY above 0."""
        await self.until(lambda: len([peer for peer in self.peers if peer.ready]) > number)
        return [peer for peer in self.peers if peer.ready][number]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = Peer(self, writer)
        self.peers.append(peer)
        self._changed.set()
        decoder = CommandDecoder()
        try:
            while self.accepts and (data := await reader.read(65536)):
                peer.reads.append(data)
                decoder.feed(data)
                self._take(peer, decoder)
                if peer.upgrades and self.tls is not None:
                    await peer.upgrade(self.tls, self.writes_for)
                self._changed.set()
        except (ConnectionError, ssl.SSLError, asyncio.CancelledError):
            # The end of a test and the end of a client look the same here.
            pass
        finally:
            peer.is_open = False
            peer.stop_heartbeats()
            close(writer)
            # asyncio does not report the end of a connection whose TLS handshake was cut short.
            if not peer.is_between_layers:
                with contextlib.suppress(ConnectionError, asyncio.CancelledError, ssl.SSLError):
                    await writer.wait_closed()
            self._tasks.discard(task)
            self._changed.set()

    def _take(self, peer: Peer, decoder: CommandDecoder) -> None:
        while (event := decoder.next_event()) is not None:
            if isinstance(event, PublishHeader):
                decoder.accept(extended=True)
            elif isinstance(event, Malformed):
                peer.malformed.append(event)
                if not self.is_silent:
                    peer.write(error(event.data))
            elif isinstance(event, Command):
                self._handle(peer, event)

    def _handle(self, peer: Peer, command: Command) -> None:
        if command.word == b"NOP":
            peer.nops += 1
            return
        peer.commands.append(command)
        if isinstance(command, Ready):
            peer.ready = command.count
        if self.is_silent or (self.script is not None and self.script(peer, command) is True):
            return
        self.answer(peer, command)

    def answer(self, peer: Peer, command: Command) -> None:
        """Answer as a real one would."""
        if isinstance(command, Identify):
            peer.upgrades = self.tls is not None
            identity = msgspec.structs.replace(self.identity, tls_v1=peer.upgrades or self.identity.tls_v1)
            peer.write(response(encode_identity(identity)))
            peer.start_heartbeats(json.loads(command.body)["heartbeat_interval"] / 1000)
        elif isinstance(command, Auth):
            peer.write(response(b'{"identity":"","identity_url":"","permission_count":1}'))
        elif isinstance(command, PubTrace):
            stored = self._stored(command.partition, command.trace_id, len(command.body) + 30)
            peer.write(response(encode_traced(stored)))
        elif isinstance(command, Publish) or isinstance(command, Subscribe):  # noqa: SIM101 - each is a tuple
            peer.write(OK)
        elif isinstance(command, Close):
            peer.write(response(b"CLOSE_WAIT"))

    def _stored(self, partition: int | None, trace_id: int, raw_size: int) -> Traced:
        self._sequence += 1
        self._offset += raw_size
        return Traced((partition or 0) << 50 | self._sequence, trace_id, self._offset - raw_size, raw_size)


def instead(kind: type[Command] | tuple[type[Command], ...], data: bytes) -> Script:
    """Return a script that answers each command of a kind with these bytes."""

    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, kind):
            peer.write(data)
            return True
        return False

    return script


class Refusing:
    """Refuses the first commands of a kind with these texts, one after the other; ``closes`` as the real one may."""

    def __init__(self, kind: type[Command] | tuple[type[Command], ...], *texts: str, closes: bool = False) -> None:
        self._kind = kind
        self._texts = list(texts)
        self._closes = closes

    def __call__(self, peer: Peer, command: Command) -> bool:
        if not isinstance(command, self._kind) or not self._texts:
            return False
        peer.write(error(self._texts.pop(0)))
        if self._closes:
            peer.close()
        return True


class Holding:
    """Holds back the answers to publishes until they are released."""

    def __init__(self) -> None:
        self.held: list[tuple[Peer, Command]] = []

    def __call__(self, peer: Peer, command: Command) -> bool:
        if isinstance(command, Publish):
            self.held.append((peer, command))
            return True
        return False

    def bodies(self) -> list[bytes]:
        return [command.body for _, command in self.held if isinstance(command, Pub | PubTrace)]

    def has(self, count: int) -> bool:
        return len(self.held) == count

    def release(self, count: int = 1) -> None:
        """Answer the oldest."""
        for _ in range(count):
            peer, command = self.held.pop(0)
            peer.nsqd.answer(peer, command)


ANSWERS: Final = (Finish, Requeue, Touch)
"""What a client answers a message with."""
