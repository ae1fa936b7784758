"""One TCP connection of an nsqd: bytes in, bytes out, buffering, heartbeats, TLS and compression.

Does not know what commands mean (``session``). Everything that one read makes us
say goes out in one write.

The invariant: while an operation waits (for a replica, for TLS), no later
command of this connection is looked at, so answers keep the order of commands.

Source: protocol reference 1, 3, 7; youzan/nsq ``protocol_v2.go`` ``IOLoop``, ``messagePump``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from nsq_ha.devcluster.nsqd.session import Session
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol.frames import HEARTBEAT, OK, FrameType, encode_frame

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.node import Nsqd
    from nsq_ha.protocol.compression import Codec

HEARTBEAT_FRAME: Final = encode_frame(FrameType.RESPONSE, HEARTBEAT)
OK_FRAME: Final = encode_frame(FrameType.RESPONSE, OK)
_SILENT_INTERVALS: Final = 3


class Connection(asyncio.Protocol):
    """The socket's side of one client.

    Attributes:
        node: The nsqd.
        session: Interprets the commands.
        peer: Address of the client, ``host:port``.
        connected_time: When it connected, in seconds since the epoch.
        is_secured: It has switched to TLS.
    """

    def __init__(self, node: Nsqd) -> None:
        """Wait for the transport."""
        self.node = node
        self.session = Session(self)
        self.peer = ""
        self.connected_time = time.time()
        self.is_secured = False
        self.codec: Codec | None = None
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._urgent = False  # something was said that must not wait
        self._timer: asyncio.TimerHandle | None = None
        self._working = False
        self._pauses: set[str] = set()
        self._delayed: deque[tuple[float, bytes]] = deque()
        self._last_read = node.now()
        self._next_heartbeat = self._last_read + self.session.terms.heartbeat
        self._tls_task: asyncio.Task[None] | None = None
        self._deadline: float | None = None  # when writes start to fail
        self._answering = False  # the gathered bytes include an answer

    # ------------------------------------------------------------ asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = f"{host}:{port}"
        self.node.connections.add(self)
        if not self.node.alive:
            self.abort()
        elif self.node.frozen:
            self.freeze()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back what this client held."""
        self._transport = None
        self.node.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self.session.end()

    def data_received(self, data: bytes) -> None:
        """Take what was read."""
        delay = self.node.delay
        if delay <= 0 and not self._delayed:
            self._take(data)
            return
        due = self.node.now() + delay
        self._delayed.append((due, data))
        self.node.coordinator.after(delay, self._take_delayed)

    def pause_writing(self) -> None:
        """The client reads too slowly: look at no more commands until it did."""
        self._pause("writing")

    def resume_writing(self) -> None:
        """The client read."""
        self._resume("writing")

    # ------------------------------------------------------------ input

    def _take_delayed(self) -> None:
        while self._delayed and self._delayed[0][0] <= self.node.now() + 0.001:
            _, data = self._delayed.popleft()
            self._take(data)

    def _take(self, data: bytes) -> None:
        self._last_read = self.node.now()
        if self.codec is not None:
            try:
                data = self.codec.decompress(data)
            except RemoteProtocolError:
                self.abort()
                return
        self.session.feed(data)
        self.work()

    def work(self) -> None:
        """Do the commands that are whole, unless one waits."""
        if self._working or self._transport is None:
            return
        self._working = True
        try:
            self.session.run()
        finally:
            self._working = False
        if self._urgent:
            self.flush()

    def block(self) -> None:
        """An operation waits: look at no more commands."""
        self._pause("waiting")

    def unblock(self) -> None:
        """The operation ended: go on with the commands that wait."""
        self._last_read = self.node.now()
        self._resume("waiting")
        self.flush()
        self.node.coordinator.loop.call_soon(self.work)

    @property
    def blocked(self) -> bool:
        """Whether an operation waits."""
        return "waiting" in self._pauses

    def freeze(self) -> None:
        """Read nothing any more."""
        self._pause("frozen")

    def thaw(self) -> None:
        """Read what waits; silence is counted from now on."""
        now = self.node.now()
        self._last_read = now
        self._next_heartbeat = min(self._next_heartbeat, now)
        self._resume("frozen")

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
        """Write an answer, together with other frames of this turn."""
        self._answering = True
        self._out.append(frame)
        self._flush_soon()

    def send_message(self, frame: bytes, *, at_once: bool) -> None:
        """Deliver a message, gathered with others for a while unless ``at_once``."""
        self._out.append(frame)
        self._out_bytes += len(frame)
        terms = self.session.terms
        if at_once or self._out_bytes >= terms.gather_bytes:
            self._flush_soon()
        elif self._timer is None and not self._urgent:
            self._timer = self.node.coordinator.loop.call_later(terms.gather_timeout, self.flush)

    def _flush_soon(self) -> None:
        if not self._urgent:
            self._urgent = True
            if not self._working:
                self.node.coordinator.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what was gathered."""
        self._urgent = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._out:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        answering, self._answering = self._answering, False
        if self._deadline is not None and self.node.now() >= self._deadline:
            self._fail_to_write(answering=answering)
            return
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data if self.codec is None else self.codec.compress(data))

    def _fail_to_write(self, *, answering: bool) -> None:
        """Lose the bytes to write; nsqd ends the connection only if they include an answer.

        Source: youzan/nsq ``UpgradeTLS``, ``messagePump``, ``handleRequestReponseForClient``.
        """
        if answering:
            self.abort()
        else:
            self.session.fall_silent()

    def close(self) -> None:
        """Write what was said, then close."""
        self.flush()
        if self._transport is not None:
            self._transport.close()
        self.session.end()

    def abort(self) -> None:
        """Reset the connection."""
        if self._transport is not None:
            self._transport.abort()
        self.session.end()

    # ------------------------------------------------------------ time

    def heartbeat_from_now(self) -> None:
        """Begin a new rhythm, after IDENTIFY."""
        self._next_heartbeat = self.node.now() + self.session.terms.heartbeat

    def tick(self, now: float) -> None:
        """Send a heartbeat when it is time; cut a client that has been silent for three."""
        interval = self.session.terms.heartbeat
        if interval <= 0 or self._transport is None:
            return
        if now >= self._next_heartbeat:
            self._next_heartbeat = max(self._next_heartbeat + interval, now)
            self._out.append(HEARTBEAT_FRAME)
            self._flush_soon()
        if now - self._last_read > _SILENT_INTERVALS * interval + 0.02 and not self.blocked:
            self.close()

    # ------------------------------------------------------------ layers

    def switch(self, *, tls: bool, codec: Codec | None) -> None:
        """Switch to TLS, then to compression; each says ``OK`` inside the new layer."""
        self.flush()
        self._delayed.clear()
        self.session.forget_unread()
        if not tls:
            self._switch_codec(codec)
            return
        self._pauses.add("waiting")
        if self._transport is not None:
            # The following bytes belong to the handshake, which resumes reading; none of them may count as a command.
            self._transport.pause_reading()
        self._tls_task = self.node.coordinator.loop.create_task(self._switch_tls(codec))

    async def _switch_tls(self, codec: Codec | None) -> None:
        context, transport = self.node.security.tls, self._transport
        if context is None or transport is None:
            return
        after = self.node.security.write_deadline
        deadline = None if after is None else self.node.now() + after
        try:
            secured = await self.node.coordinator.loop.start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=5.0
            )
        except (OSError, asyncio.CancelledError):
            transport.abort()
            return
        self._transport, self._deadline = secured, deadline
        self.is_secured = True
        self.send(OK_FRAME)
        self.flush()
        self._switch_codec(codec)
        self._pauses.discard("waiting")
        self.work()

    def _switch_codec(self, codec: Codec | None) -> None:
        if codec is None:
            return
        self.codec = codec
        self.send(OK_FRAME)
        self.flush()
