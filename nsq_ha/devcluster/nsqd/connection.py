"""One TCP connection of an nsqd: bytes in, bytes out, buffering, heartbeats, TLS and compression.

A connection does not know what commands mean; the sessions that it is the base of do. All
answers to the bytes of one read go out in one write.

The invariant: while an operation waits (for a replica, for TLS), the connection
reads no later command, so answers keep the order of the commands.

Source: server protocol 1, 3, 7; youzan/nsq ``protocol_v2.go`` ``IOLoop``, ``messagePump``.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from nsq_ha.devcluster.nodes import Accepted, ClusterNode
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol.frames import HEARTBEAT, OK, FrameType, encode_frame

if TYPE_CHECKING:
    from nsq_ha.protocol.compression import Codec
    from nsq_ha.protocol.server.identify import SessionSettings
    from nsq_ha.protocol.server.stream import StreamDecoder

HEARTBEAT_FRAME: Final = encode_frame(FrameType.RESPONSE, HEARTBEAT)
OK_FRAME: Final = encode_frame(FrameType.RESPONSE, OK)
_MUTE: Final = frozenset(("frozen", "handshake"))
"""Pauses in which nothing is written: what is written during a TLS handshake would not be part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How the nsqds of one kind treat a connection.

    Attributes:
        settings: The settings of a client that did not identify.
        consumer_buffer: Bytes to which SUB enlarges the default buffer.
        silent_intervals: Heartbeat intervals without a byte of the client after which the connection ends.
        flushes_at_zero: Gathering for 0 seconds means writing at once. Otherwise it means waiting for a reason to
            write: a full buffer, a client that can take no more messages, an answer or a heartbeat.
        has_write_deadline: A write that the client does not read within a heartbeat interval fails, as do all later
            ones: no message and no heartbeat comes any more, and an answer ends the connection.
    """

    settings: SessionSettings
    consumer_buffer: int
    silent_intervals: int
    flushes_at_zero: bool = True
    has_write_deadline: bool = False


class ServerConnection(Accepted, ABC):
    """The socket's side of one client.

    Args:
        node: The nsqd.
        connections: The open connections of the node.
        client_id: Number of the connection on its node.
        decoder: Reads the commands.
        manner: How the node treats its connections.

    Attributes:
        node: The nsqd.
        client_id: Number of the connection on its node, as in error texts.
        settings: The settings from IDENTIFY.
        gather_bytes: Bytes of messages that it gathers before it writes; SUB enlarges the small default.
        peer: Address of the client, ``host:port``.
        connected_time: Seconds since the epoch.
        is_secured: The connection has switched to TLS.
    """

    def __init__(
        self, node: ClusterNode, connections: set[Self], client_id: int, decoder: StreamDecoder[Any], manner: Manner
    ) -> None:
        super().__init__(node, connections)
        self.client_id = client_id
        self.peer: str = ""
        self.connected_time: float = time.time()
        self.is_secured: bool = False
        self._host = node.host
        self._decoder = decoder
        self._manner = manner
        self._codec: Codec | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._urgent = False  # something must be written in this turn of the loop
        self._timer: asyncio.TimerHandle | None = None
        self._working = False
        self._pauses: set[str] = set()
        self._delayed: deque[tuple[float, bytes]] = deque()
        self._has_ended = False  # the client closed its side
        self._last_read = node.host.now()
        self._tls_task: asyncio.Task[None] | None = None
        self._deadline: float | None = None  # every write from this time on fails
        self._full_since = 0.0
        self._answering = False  # the gathered frames include an answer
        self._heartbeat = 0.0
        self.settle(manner.settings)

    def settle(self, settings: SessionSettings) -> None:
        """Use new settings; another heartbeat interval starts now."""
        self.settings = settings
        size = settings.output_buffer_size
        manner = self._manner
        self.gather_bytes: int = manner.consumer_buffer if size == manner.settings.output_buffer_size else size
        self._gather_timeout = settings.output_buffer_timeout / 1000
        heartbeat = settings.heartbeat_interval / 1000
        if heartbeat != self._heartbeat:
            self._heartbeat = heartbeat
            self._next_heartbeat = self._host.now() + heartbeat

    # ------------------------------------------------------------ what the sessions do

    @abstractmethod
    def _run(self) -> None:
        """Execute all complete commands, until one waits."""

    @property
    @abstractmethod
    def is_consumer(self) -> bool:
        """Whether the client is subscribed."""

    @abstractmethod
    def _fall_silent(self) -> None:
        """Take no more messages: writes fail from now on."""

    @abstractmethod
    def _end(self) -> None:
        """Release what the client held, and execute no more commands."""

    # ------------------------------------------------------------ asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the port."""
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = f"{host}:{port}"
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the client held."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        self._end()

    def data_received(self, data: bytes) -> None:
        """Interpret data after the node's delay."""
        if self.is_full and self._transport is not None:
            self._transport.pause_reading()  # the client is alive; see tick()
        delay = self.node.delay
        if delay <= 0 and not self._delayed:
            self._take(data)
            return
        due = self._host.now() + delay
        self._delayed.append((due, data))
        self._host.after(delay, self._take_delayed)

    def eof_received(self) -> bool:
        """Return whether to stay open: the client's end comes after the data that is still delayed."""
        self._has_ended = True
        return bool(self._delayed)

    def pause_writing(self) -> None:
        """Execute no more commands: the client reads too slowly."""
        self._full_since = self._host.now()
        self._pause("writing")

    def resume_writing(self) -> None:
        """Continue: the client has read."""
        self._last_read = self._host.now()
        self._resume("writing")
        self._host.loop.call_soon(self.work)

    # ------------------------------------------------------------ input

    def _take_delayed(self) -> None:
        if self.node.frozen:
            return
        while self._delayed and self._delayed[0][0] <= self._host.now() + 0.001:
            _, data = self._delayed.popleft()
            self._take(data)
        if self._has_ended and not self._delayed:
            self.close()

    def _take(self, data: bytes) -> None:
        self._last_read = self._host.now()
        try:
            for piece in (data,) if self._codec is None else self._codec.pieces(data):
                self._decoder.feed(piece)
                self.work()
        except RemoteProtocolError:
            self.abort()

    def work(self) -> None:
        """Execute the complete commands, unless an operation waits or the client reads too slowly."""
        if self._working or self._transport is None or self.is_full:
            return
        self._working = True
        try:
            self._run()
        finally:
            self._working = False
        if self._urgent:
            self.flush()

    def block(self) -> None:
        """Execute no more commands: an operation waits."""
        self._pause("waiting")

    def unblock(self) -> None:
        """Continue with the waiting commands: the operation ended."""
        self._last_read = self._host.now()
        self._resume("waiting")
        self.flush()
        self._host.loop.call_soon(self.work)

    @property
    def is_full(self) -> bool:
        """Whether the client reads too slowly."""
        return "writing" in self._pauses

    @property
    def blocked(self) -> bool:
        """Whether an operation waits."""
        return "waiting" in self._pauses

    def freeze(self) -> None:
        """Stop reading."""
        self._pause("frozen")

    def thaw(self) -> None:
        """Continue reading; the client's silence counts from now on."""
        now = self._host.now()
        self._last_read = now
        self._next_heartbeat = min(self._next_heartbeat, now)
        self._resume("frozen")
        # The node first learns what changed meanwhile.
        self._host.loop.call_soon(self._take_delayed)
        self._host.loop.call_soon(self.flush)

    def _pause(self, why: str) -> None:
        if not self._pauses and self._transport is not None:
            self._transport.pause_reading()
        self._pauses.add(why)

    def _resume(self, why: str) -> None:
        self._pauses.discard(why)
        if not self._pauses and self._transport is not None:
            self._transport.resume_reading()

    # ------------------------------------------------------------ output

    def send(self, frame: bytes) -> None:
        """Send an answer, in one write with the other frames of this turn."""
        self._answering = True
        self._out.append(frame)
        self._flush_soon()

    def refuse(self, data: bytes) -> None:
        """Send an error after which the connection continues.

        Args:
            data: The code, a blank, and a text that may be empty.
        """
        self.send(encode_frame(FrameType.ERROR, data))

    def fail(self, data: bytes) -> None:
        """Send an error (none if empty) and close."""
        if data:
            self.refuse(data)
        self.close()

    def send_message(self, frame: bytes, *, at_once: bool) -> None:
        """Deliver a message; gather it with others for a while unless ``at_once``."""
        self._out.append(frame)
        self._out_bytes += len(frame)
        if at_once or self._out_bytes >= self.gather_bytes:
            self._flush_soon()
        elif self._timer is None and not self._urgent and (self._gather_timeout or self._manner.flushes_at_zero):
            self._timer = self._host.loop.call_later(self._gather_timeout, self.flush)

    def _flush_soon(self) -> None:
        if not self._urgent:
            self._urgent = True
            if not self._working:
                self._host.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the gathered frames."""
        self._urgent = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._out or not self._pauses.isdisjoint(_MUTE):
            return
        data = b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        answering, self._answering = self._answering, False
        if self._deadline is not None and self._host.now() >= self._deadline:
            self._fail_to_write(answering=answering)
            return
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data if self._codec is None else self._codec.compress(data))

    def _fail_to_write(self, *, answering: bool) -> None:
        """Lose the data of a failed write: nsqd ends the connection only if it was an answer.

        Source: youzan/nsq ``UpgradeTLS``, ``messagePump``, ``handleRequestReponseForClient``.
        """
        if answering:
            self.abort()
        else:
            self._fall_silent()

    def close(self) -> None:
        """Write the gathered frames, then close."""
        self.flush()
        # asyncio's TLS transport forgets its connection when it is closed again.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
        self._end()

    def abort(self) -> None:
        """Reset the connection."""
        super().abort()
        self._end()

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Send a heartbeat when it is due; disconnect a client that was silent for some intervals."""
        interval = self._heartbeat
        if interval <= 0 or self._transport is None:
            return
        silence = now - self._last_read
        if self.is_full:
            if self._manner.has_write_deadline and now - self._full_since > interval:
                self._deadline = now
                self._fall_silent()
            if not self.is_consumer:  # nsqd reads no command before it has written the last answer
                return
            if silence > interval and self._pauses == {"writing"}:
                self._transport.resume_reading()  # to hear whether the client is alive
        elif now >= self._next_heartbeat:
            self._next_heartbeat = max(self._next_heartbeat + interval, now)
            self._out.append(HEARTBEAT_FRAME)
            self._flush_soon()
        if silence <= self._manner.silent_intervals * interval + 0.02 or self.blocked:
            return
        if self.is_full:
            self.abort()
        else:
            self.close()

    # ------------------------------------------------------------ layers

    def switch(self, *, tls: bool, codec: Codec | None) -> None:
        """Switch to TLS, then to compression; send ``OK`` inside each new layer."""
        self.flush()
        self._delayed.clear()
        self._decoder.take_buffered()  # dropped, as by nsqd: its reader belongs to the old layer
        if not tls:
            self._switch_codec(codec)
            return
        self._pauses |= {"waiting", "handshake"}
        if self._transport is not None:
            # The next bytes belong to the handshake, which resumes reading; they must not be read as a command.
            self._transport.pause_reading()
        self._tls_task = self._host.loop.create_task(self._switch_tls(codec))

    async def _switch_tls(self, codec: Codec | None) -> None:
        security, transport = self._host.security, self._transport
        if security.tls is None or transport is None:
            return
        after = security.write_deadline
        deadline = None if after is None else self._host.now() + after
        try:
            secured = await self._host.loop.start_tls(
                transport, self, security.tls, server_side=True, ssl_handshake_timeout=5.0
            )
        except (OSError, asyncio.CancelledError):
            transport.abort()
            return
        self._transport, self._deadline = secured, deadline
        self.is_secured = True
        self._pauses.discard("handshake")
        self.send(OK_FRAME)
        self.flush()
        self._switch_codec(codec)
        self._pauses.discard("waiting")
        self.work()

    def _switch_codec(self, codec: Codec | None) -> None:
        if codec is None:
            return
        self._codec = codec
        self.send(OK_FRAME)
        self.flush()
