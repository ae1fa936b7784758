"""A stream over a socket: TCP, TLS over it, a codec over that.

Owns the socket and does not know frames: data goes to ``receiver`` as it is read,
and all data written in one turn of the event loop is sent in one write.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import mmap
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self, cast

from nsq_ha.base.redaction import harmless
from nsq_ha.base.unexpected import report_unexpected, without_frames
from nsq_ha.engine.names import addresses, first_open
from nsq_ha.engine.tls import trust_hint
from nsq_ha.errors import ConnectError, ConnectionLostError, NsqError
from nsq_ha.policy.liveness import SLOW_LINK
from nsq_ha.protocol.compression import PACKED_BYTES, PIECE_BYTES

if TYPE_CHECKING:
    import ssl

    from nsq_ha.protocol.compression import Codec

log: logging.Logger = logging.getLogger("nsq_ha.connection")

Receiver = Callable[[bytes | memoryview], None]
"""Takes data that was read, decrypted and decompressed; must not keep a memoryview. If it raises, the stream ends."""

OnLost = Callable[[NsqError], None]
"""Takes the reason of the end, exactly once for each opened stream; nothing is received afterwards."""

MAX_UNREAD_BYTES: Final = SLOW_LINK
"""Maximum number of bytes to write while the peer reads nothing. Publishes wait for the socket, so these are answers to
messages and heartbeats only: enough for 50,000 messages in flight."""

_PARTS_AT_ONCE: Final = 0 if sys.platform == "win32" else 1024
"""Maximum number of buffers of one ``writev``, which Windows does not have."""


def _new_buffer() -> memoryview:
    if sys.platform == "win32":
        return memoryview(bytearray(PIECE_BYTES))
    # A page uses memory only after a read has reached it, and most reads are small. Private, so that a forked process
    # has its own pages.
    return memoryview(mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


class _Buffers(threading.local):
    """One read buffer for each thread: each read is processed before the next one begins."""

    def __init__(self) -> None:
        self.shared = _new_buffer()


_buffers: Final = _Buffers()


def _read_buffer() -> memoryview:
    # Windows' event loop gets a buffer and fills it later, when data arrives: there each stream needs its own.
    return _buffers.shared if sys.platform != "win32" else _new_buffer()


REACHABLE: Final = (
    "this machine must be able to reach the address that nsqd gives to nsqlookupd (nsqd's -broadcast-address)"
)
"""Advice for an unreachable address, such as one inside a cluster's own network."""

_OUT_OF_REACH: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})


def _always() -> bool:
    return True


def _ignore(_: object) -> None:
    """Take data that nobody waits for."""


class TcpStream(asyncio.BufferedProtocol):
    """An open stream. Call :meth:`open` to get one.

    Attributes:
        receiver: Takes the data that is read.
        peer: The address, for errors.
        last_received: The loop's time of the last read.
        is_paused: Whether the peer accepts no more data for now.
        is_closing: Returns whether the end is decided, shortly before ``on_lost``.
        on_resume: Called when ``is_paused`` ends. None calls nothing.
    """

    def __init__(self, receiver: Receiver, on_lost: OnLost) -> None:
        self.receiver: Receiver = receiver
        self._on_lost: OnLost | None = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._codec: Codec | None = None
        self._fd: int | None = None  # the socket, if data is written to it as it is
        self._in = _read_buffer()
        self._out: list[bytes] = []
        self._flushing = False
        self._reason: NsqError | None = None
        self._is_closed_here = False
        self.peer: str = "nsqd"
        self.last_received: float = self._loop.time()
        self.is_paused: bool = False
        self.is_closing: Callable[[], bool] = _always
        self.on_resume: Callable[[], None] | None = None

    @classmethod
    async def open(
        cls,
        receiver: Receiver,
        on_lost: OnLost,
        host: str,
        port: int,
        *,
        limit: float,
        hint: str = REACHABLE,
        local_addr: str | None = None,
    ) -> Self:
        """Connect by TCP with Nagle's algorithm off (asyncio's default), to the first address of ``host`` that answers.

        Args:
            receiver: Takes the data that is read.
            on_lost: Takes the reason of the end.
            host: Name or address.
            port: The port.
            limit: Seconds until the caller gives up; each address of ``host`` but the last has a share of it.
            hint: Advice if no host answers at the address; may be empty.
            local_addr: Host of the source address. None lets the system choose.

        Raises:
            ConnectError: Refused, unreachable, or the name cannot be resolved.
                Look the leader up again.
        """
        loop = asyncio.get_running_loop()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        source = None if local_addr is None else (local_addr, 0)
        try:
            found = await addresses(host, port)
            _, stream = await first_open(
                found,
                limit,
                lambda each: loop.create_connection(lambda: cls(receiver, on_lost), each, port, local_addr=source),
            )
        except (OSError, ValueError, OverflowError) as error:
            # A resolver raises the latter two for an invalid name or port.
            is_out_of_reach = isinstance(error, socket.gaierror) or getattr(error, "errno", None) in _OUT_OF_REACH
            advice = f"; {hint}" if hint and is_out_of_reach else ""
            if local_addr is not None:
                advice += f"; the source address is local_addr={local_addr!r}, which must belong to this machine"
            raise ConnectError(f"cannot connect to {address}: {_text_of(error)}{advice}") from harmless(error)
        stream.peer = address
        return stream

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Continue inside TLS.

        Raises:
            ConnectError: The TLS handshake failed; the stream is unusable.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectError("the connection is closed")
        self._fd = None
        self.flush()
        upgraded = None
        try:
            upgraded = await self._loop.start_tls(transport, self, context, server_hostname=server_name)
        except (OSError, ValueError, TypeError) as error:  # ssl raises the latter two for names that it rejects
            text = f"TLS with nsqd {self.peer} failed: {_text_of(error)}{trust_hint(error)}"
            raise ConnectError(text) from harmless(without_frames(error))
        finally:
            if upgraded is None:
                # asyncio does not report the end of a connection whose TLS handshake failed.
                transport.abort()
                self.connection_lost(None)
        if upgraded is None:
            raise ConnectError(f"TLS with nsqd {self.peer} failed: it closed the connection")
        self._transport = upgraded
        # asyncio's TLS transport does not tell that the connection below it has failed.
        self.is_closing = lambda: transport.is_closing() or upgraded.is_closing()

    def start_codec(self, codec: Codec, trailing: bytes = b"") -> None:
        """Compress both directions from now on; ``trailing`` was read already, and is compressed."""
        self.flush()
        self._codec, self._fd = codec, None
        for piece in codec.pieces(trailing):
            self.receiver(piece)

    def write(self, data: bytes) -> None:
        """Buffer ``data``; all data of this turn of the event loop is sent together, once the socket has space.

        After the end of the stream it is dropped: the end was reported, or will be.
        """
        self._out.append(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._end_turn)

    def write_now(self, data: bytes) -> None:
        """Send buffered data and ``data`` now."""
        transport = self._transport
        if self._out or self.is_paused or self._codec is not None or transport is None:
            self._out.append(data)
            self._end_turn()
        elif not self.is_closing():
            transport.write(data)

    def write_parts(self, parts: Sequence[bytes]) -> None:
        """Send buffered data and all parts now, in their order.

        The system gathers them from where they are; only what the socket has no space for may be copied.
        """
        if self._out:
            self._end_turn()
        transport = self._transport
        if transport is None or self._fd is None or self.is_paused:
            self.write_now(b"".join(parts))  # TLS and codecs need the bytes themselves
            return
        if not self.is_closing():
            self._send(parts if transport.get_write_buffer_size() else _unsent(self._fd, parts))

    def _send(self, parts: Iterable[bytes | memoryview]) -> None:
        """Write parts, until the end is decided."""
        for part in parts:
            if self._transport is None or self.is_closing():
                return
            self._transport.write(self._codec.compress(bytes(part)) if self._codec else part)

    def _end_turn(self) -> None:
        """Send buffered data; while the socket is full, keep it, so that what is unsent is the end of one write."""
        self._flushing = False
        if not self.is_paused:
            self.flush()
            return
        self._out = [b"".join(self._out)]
        if len(self._out[0]) > MAX_UNREAD_BYTES:
            self.abort(ConnectionLostError(f"nsqd does not read: {len(self._out[0])} bytes are waiting to be sent"))

    def flush(self) -> None:
        """Send buffered data now, even if the socket is full."""
        if not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._send((data,))

    def close(self) -> None:
        """Send buffered data, then close; ``on_lost`` follows."""
        self.flush()
        self._is_closed_here = True
        # asyncio's TLS transport forgets its connection when it is closed again; nothing could abort it then.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def abort(self, reason: NsqError | None = None) -> None:
        """End the stream at once; ``on_lost`` follows with ``reason``."""
        if self._reason is None:
            self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (called by the event loop)."""
        self._transport = cast("asyncio.Transport", transport)
        self.is_closing = transport.is_closing
        if (plain := transport.get_extra_info("socket")) is not None and _PARTS_AT_ONCE:
            self._fd = plain.fileno()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory to read into (called by the event loop)."""
        return self._in if self._codec is None else self._in[:PACKED_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the data that was read, decompressed (called by the event loop). If that raises, the stream ends."""
        if self._reason is not None:
            return
        data = self._in[:nbytes]
        self.last_received = self._loop.time()
        try:
            if self._codec is None:
                self.receiver(data)
                return
            for piece in self._codec.pieces(data):
                self.receiver(piece)
                if self._reason is not None:
                    return
        except Exception as error:  # noqa: BLE001 - of a bug in what takes the data
            if not isinstance(error, NsqError):
                report_unexpected(log, "connection", error)
                error = ConnectionLostError(f"closing the connection after an unexpected error: {_text_of(error)}")
            # The error is kept as the reason of the end, but its frames would keep the data that was read.
            self.abort(without_frames(error))

    def pause_writing(self) -> None:
        """Record that the socket is full (called by the event loop)."""
        self.is_paused = True

    def resume_writing(self) -> None:
        """Record that the socket has space again (called by the event loop)."""
        self.is_paused = False
        self.flush()
        if self.on_resume is not None and not self.is_paused:
            self.on_resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end, once (called by the event loop)."""
        on_lost, self._on_lost = self._on_lost, None
        self._fd = None  # the number may become another file's
        # With these, each ended TLS connection would be in a cycle, and its buffers would wait for the collector.
        self._transport = self.on_resume = None
        self.is_closing = _always
        self.receiver = _ignore
        if on_lost is None:
            return
        self._out.clear()
        reason = self._reason
        if reason is None:
            # TLS reports an error if data of the peer arrives during an orderly close.
            lost = f"connection to {self.peer} lost: {exc or 'closed by the peer'}{trust_hint(exc)}"
            reason = ConnectionLostError("closed by this client" if self._is_closed_here else lost)
            reason.__cause__ = exc if exc is None else without_frames(exc)
        on_lost(reason)


def _unsent(fd: int, parts: Sequence[bytes]) -> list[bytes | memoryview]:
    """Send parts to a socket without a copy; return those that it has no space for. Errors are the event loop's."""
    left: list[bytes | memoryview] = list(parts)
    start = 0
    while start < len(left):
        some = left[start : start + _PARTS_AT_ONCE]
        try:
            sent = os.writev(fd, some)
        except OSError:  # no space, or the connection is lost, which the event loop will report
            break
        for part in some:
            if sent < len(part):
                left[start] = memoryview(part)[sent:]
                return left[start:]
            sent -= len(part)
            start += 1
    return left[start:]


def _text_of(error: Exception) -> str:
    """Return the text of a foreign error, with its type unless it is an OSError."""
    return str(error) if isinstance(error, OSError) and str(error) else f"{type(error).__name__}: {error}"
