"""An event loop without waiting: its clock jumps to the next timer, and its connections stay in memory.

A test that waits for a time-out of ten seconds takes a moment, and no busy machine changes what it sees: between two
timers, everything that can run has run. Connections behave as TCP on the loopback does: bounded buffers, writes that
pause, an end that is in order or a reset; TLS runs over them as over sockets.

While a thread works for the loop, the clock shows real time. From the first connection to a server of another loop on,
such as the embedded cluster's, it always does.
"""

import asyncio
import contextlib
import errno
import functools
import itertools
import os
import selectors
import socket
import sys
import time
from asyncio.events import Handle
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

import pytest

from nsq_ha.base import clock
from nsq_ha.base.threads import HandlerThreads
from tests.support.loops import LOOPS, QuickLoop

_BUFFER: Final = 512 * 1024
"""Bytes that a peer's side takes while nobody reads."""

_READ: Final = 256 * 1024
_HIGH: Final = 64 * 1024
_LATENCY: Final = 0.002
"""Seconds that bytes are under way."""

_TURN: Final = 0.00005
"""Seconds that a turn of the loop takes, so that what goes round and round until some time is over gets there."""

_LOOPBACK: Final = ("127.0.0.1", "localhost")
_BEGINS: Final = 1000.0

# Another one for each server: what the library has learnt about an address must not reach the next test.
_ports: Final = itertools.cycle(range(10_000, 60_000))

_NOTHING_TO_READ, _ = os.pipe()
_SOMETHING_TO_READ, _end = os.pipe()
os.write(_end, b"x")


class VirtualLoop(QuickLoop):
    """The loop.

    Attributes:
        transports: The open connections, both sides.
    """

    def __init__(self) -> None:
        self._now = _BEGINS
        self._offset: float | None = None
        self._busy_threads = 0
        self._ports: set[int] = set()
        self._listeners: dict[int, _Server] = {}
        self.transports: set[_MemoryTransport] = set()
        super().__init__(_Selector(self))

    # ------------------------------------------------------------ time

    def time(self) -> float:
        """Return the virtual time."""
        return self._now if self._offset is None else time.monotonic() + self._offset

    @property
    def is_virtual(self) -> bool:
        """Whether the clock jumps."""
        return self._offset is None

    def _become_real(self) -> None:
        if self._offset is None:
            self._offset = self._now - time.monotonic()

    def advance(self, seconds: float) -> None:
        """Let time pass at once, without a turn of the loop in between: as if something had blocked it."""
        self._now += seconds

    @property
    def is_thread_at_work(self) -> bool:
        """Whether a thread may come with a result at any moment."""
        return self._busy_threads > 0

    @contextlib.contextmanager
    def real_time(self) -> Iterator[None]:
        """Have the clock show real time in the block."""
        self._busy_threads += 1
        try:
            yield
        finally:
            self._busy_threads -= 1

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ANN401
        """Run in a thread, in real time."""
        future = super().run_in_executor(executor, func, *args)
        self._busy_threads += 1
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: object) -> None:
        self._busy_threads -= 1

    async def shutdown_default_executor(self, *timeout: Any) -> None:  # noqa: ANN401 - none before Python 3.12
        """Wait for the threads in real time."""
        with self.real_time():
            await super().shutdown_default_executor(*timeout)

    # ------------------------------------------------------------ connections

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:  # noqa: ANN401
        """Connect to a server of this loop; others are left to the real network."""
        if host not in _LOOPBACK or not 0 < port < 65536:
            with self.real_time():
                return await super().create_connection(protocol_factory, host, port, **more)
        if port not in self._ports:
            self._become_real()
            return await super().create_connection(protocol_factory, host, port, **more)
        await asyncio.sleep(0)  # a turn of the loop, which a connection takes at least
        server = self._listeners.get(port)
        if server is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed ({host!r}, {port})")
        ours, theirs = _MemoryTransport.pair(self, port)
        protocol = protocol_factory()
        connected = self.create_future()
        try:
            ours.attach(protocol)
            theirs.attach(server.protocol_factory())
            self.call_soon(_settle, connected)
            await connected
        except BaseException:
            ours.abort()
            raise
        return ours, protocol

    def refuse(self, port: int) -> None:
        """Refuse connections to a port in memory, as if a server had listened there."""
        self._ports.add(port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:  # noqa: ANN401
        """Listen in memory."""
        assert host in _LOOPBACK, "other servers are not for tests"
        if not port:
            port = next(_ports)
        if port in self._listeners:
            raise OSError(errno.EADDRINUSE, "address already in use")
        self._ports.add(port)
        server = self._listeners[port] = _Server(self._listeners, protocol_factory, port)
        return server


_LOOK: Final = 16
"""Turns with work after which the loop looks for what comes from outside: a look is a call of the system."""

DAY: Final = 86_400.0
"""Seconds from the loop's start; no test is about more."""


class _Selector(selectors.DefaultSelector):
    """Jumps instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._turns = 0

    def select(self, timeout: float | None = None) -> Any:  # noqa: ANN401 - the selector's own type
        if not self._loop.is_virtual:
            return super().select(timeout)
        is_busy = timeout is not None and timeout <= 0
        self._turns += 1
        ready = [] if is_busy and self._turns % _LOOK else super().select(0)
        if ready or is_busy:
            self._loop.advance(_TURN)
            return ready
        if timeout is None:
            return super().select(None)  # only a thread or a signal can go on
        if self._loop.time() > DAY:
            # Timers that come again and again would go on for ever: pytest's time limit is swallowed by callbacks.
            raise AssertionError("a day of virtual time has passed: the test waits for something that never comes")
        if self._loop.is_thread_at_work:
            began = time.monotonic()
            ready = super().select(timeout)
            self._loop.advance(time.monotonic() - began)
            return ready
        self._loop.advance(timeout)
        return ready


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Server:
    """A listening port."""

    def __init__(self, listeners: "dict[int, _Server]", protocol_factory: Callable[[], Any], port: int) -> None:
        self.protocol_factory = protocol_factory
        self._listeners = listeners
        self._port = port

    @property
    def sockets(self) -> "tuple[_Server, ...]":
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None:
        if self._listeners.get(self._port) is self:
            del self._listeners[self._port]

    def is_serving(self) -> bool:
        return self._listeners.get(self._port) is self

    async def wait_closed(self) -> None:
        return


class _FakeSocket:
    """What httpx wants to know of a connection."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, transport: "_MemoryTransport", port: int) -> None:
        self._transport = transport
        self._port = port

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    getsockname = getpeername

    def setsockopt(self, *_: object) -> None: ...

    def fileno(self) -> int:
        return _SOMETHING_TO_READ if self._transport.has_unread else _NOTHING_TO_READ


class _MemoryTransport(asyncio.Transport):
    """One side of a connection."""

    _start_tls_compatible = True

    def __init__(self, loop: VirtualLoop, port: int, *, is_client: bool) -> None:
        names = {"peername" if is_client else "sockname": ("127.0.0.1", port)}
        super().__init__({"socket": _FakeSocket(self, port), **names})
        self._loop = loop
        self._protocol: Any = None
        self._peer: _MemoryTransport | None = None
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._high = _HIGH
        self._low = _HIGH // 4
        self._is_closing = False
        self._is_lost = False
        self._sent_eof = False
        self._is_paused = False  # reading
        self._is_held = False  # the protocol was asked to write no more
        self._eof: BaseException | bool = False
        self._reading: Handle | None = None

    @classmethod
    def pair(cls, loop: VirtualLoop, port: int) -> "tuple[_MemoryTransport, _MemoryTransport]":
        """Return the client's and the server's side."""
        ours, theirs = cls(loop, port, is_client=True), cls(loop, port, is_client=False)
        ours._peer, theirs._peer = theirs, ours
        loop.transports |= {ours, theirs}
        return ours, theirs

    def attach(self, protocol: Any) -> None:  # noqa: ANN401 - asyncio's own protocols have no common type
        """Give it to its protocol."""
        self._protocol = protocol
        self._loop.call_soon(protocol.connection_made, self)
        self._loop.call_soon(self._read_soon)

    @property
    def has_unread(self) -> bool:
        return bool(self._incoming or self._eof)

    # ------------------------------------------------------------ reading

    def get_protocol(self) -> Any:  # noqa: ANN401
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:  # noqa: ANN401
        self._protocol = protocol

    def is_reading(self) -> bool:
        return not (self._is_paused or self._is_closing)

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read_soon()

    def _read_soon(self) -> None:
        if self._reading is None and self.has_unread and not self._is_lost:
            self._reading = self._loop.call_later(_LATENCY, self._read)

    def _read(self) -> None:
        self._reading = None
        if self._is_paused or self._is_closing:
            return
        try:
            if self._incoming:
                self._deliver()
            elif isinstance(self._eof, BaseException):
                self._end(self._eof)
            elif not self._protocol.eof_received():
                self.close()
            else:
                self._eof = False
        except Exception as error:  # noqa: BLE001 - as a socket's transport does
            self._loop.call_exception_handler({"message": "a protocol failed", "exception": error, "transport": self})
            self._end(error)
        self._read_soon()

    def _deliver(self) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1))
            count = min(len(buffer), len(self._incoming))
            buffer[:count] = self._incoming[:count]
            del self._incoming[:count]
            protocol.buffer_updated(count)
        else:
            data = bytes(self._incoming[:_READ])
            del self._incoming[:_READ]
            protocol.data_received(data)
        if self._peer is not None:
            self._peer._send()

    # ------------------------------------------------------------ writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_lost or self._sent_eof or not data or (self._is_closing and not self._outgoing):
            return
        self._outgoing += data
        self._send()
        if len(self._outgoing) > self._high and not self._is_held:
            self._is_held = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:  # noqa: ANN401
        self.write(b"".join(list_of_data))

    def _send(self) -> None:
        """Move what the peer's side takes."""
        peer = self._peer
        if self._is_lost or peer is None:
            return
        if peer._is_lost:
            # What it sent before is read first.
            if self._outgoing:
                self._outgoing.clear()
                self._ended(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            if self._is_closing:
                self._end(None)
            return
        if room := max(_BUFFER - len(peer._incoming), 0):
            peer._incoming += self._outgoing[:room]
            del self._outgoing[:room]
            peer._read_soon()
        if self._is_held and len(self._outgoing) <= self._low:
            self._is_held = False
            self._protocol.resume_writing()
        if not self._outgoing:
            if self._sent_eof:
                peer._ended(True)
            if self._is_closing:
                self._end(None)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._sent_eof = True
        self._send()

    def get_write_buffer_size(self) -> int:
        return len(self._outgoing)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    # ------------------------------------------------------------ the end

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            if not self._outgoing:
                self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _force_close(self, error: BaseException | None) -> None:
        """End it (called by asyncio's TLS)."""
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._is_lost:
            return
        self._is_closing = self._is_lost = True
        self._outgoing.clear()
        self._loop.call_soon(self._gone, error)

    def _gone(self, error: BaseException | None) -> None:
        peer, self._peer = self._peer, None
        # A socket that is closed with unread bytes resets the connection.
        reset = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer") if self._incoming else True
        self._incoming.clear()
        self._loop.transports.discard(self)
        self._protocol.connection_lost(error)
        if peer is not None:
            peer._ended(reset)

    def _ended(self, how: BaseException | bool) -> None:
        """Learn that the peer sends no more."""
        self._eof = how if isinstance(how, BaseException) else self._eof or how
        self._read_soon()

    def __repr__(self) -> str:
        return f"<memory connection {self._extra}>"  # type: ignore[attr-defined]


def loop_for(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loop for a test: a virtual one, unless the test is marked ``real_time``."""
    if item.get_closest_marker("real_time"):
        return LOOPS
    return {"virtual": VirtualLoop}


@functools.lru_cache(maxsize=1)
def _with_clock(_loaded: int) -> list[ModuleType]:
    """Return the modules of the library that read the clock, of this number that are loaded."""
    of_library = [each for name, each in sys.modules.items() if name.startswith("nsq_ha.") and each is not clock]
    return [module for module in of_library if getattr(module, "monotonic", None) is clock.monotonic]


@contextlib.contextmanager
def one_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the library's clock show the running loop's virtual time, if it has one.

    The handlers' threads are counted, too: while one works, time is real.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        for module in _with_clock(len(sys.modules)):
            monkeypatch.setattr(module, "monotonic", loop.time)
        call = HandlerThreads.call

        async def counted(self: HandlerThreads, function: Callable[[Any], object], argument: object) -> object:
            with loop.real_time():
                return await call(self, function, argument)

        monkeypatch.setattr(HandlerThreads, "call", counted)
    yield
