"""A process of the cluster, and its ports on the loopback, which close, freeze and reopen with the same number.

The invariant: a port belongs to its node for the node's whole life. While the
node is down, a second socket that never listens reserves the number, so no other
process gets it and connection attempts are refused.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from nsq_ha.devcluster.host import App, Host

HOST: Final = "127.0.0.1"
_BACKLOG: Final = 512


class PortConnection(asyncio.Protocol):
    """A connection that a port accepted."""

    def freeze(self) -> None:
        """Stop reading."""

    def thaw(self) -> None:
        """Continue reading."""

    def abort(self) -> None:
        """Reset the connection."""

    def tick(self, now: float) -> None:
        """Let time pass."""


_Connected = TypeVar("_Connected", bound=PortConnection)
_AnyListener = TypeVar("_AnyListener", bound="Listener[Any]")


class Listener(Generic[_Connected]):
    """One TCP port and its connections. Creating it reserves the port; :meth:`open` listens.

    Args:
        make: Creates the protocol of a new connection, which adds itself to the open connections, and removes itself.
        port: The number of the port, 0 for a free one.

    Attributes:
        connections: The open connections.
        port: The number of the port.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, make: Callable[[set[_Connected]], _Connected], port: int = 0) -> None:
        self._make = make
        self._keeper: socket.socket | None = _bound(port)
        self.connections: set[_Connected] = set()
        self.port: int = self._keeper.getsockname()[1]
        self._socket: socket.socket | None = None
        self._accepting: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """Listen and accept."""
        if self._socket is None:
            self._socket = self._listening()
            self._watch()

    def abort(self) -> None:
        """Stop at once: refuse attempts, and reset the connections."""
        if self._socket is not None:
            self._ignore()
            self._socket.close()
            self._socket = None
        self.cut()

    def cut(self) -> None:
        """Reset the connections, also those that wait to be accepted, and continue to listen."""
        for task in self._accepting:
            task.cancel()
        while (waiting := self._next()) is not None:
            waiting.close()
        for connection in tuple(self.connections):
            connection.abort()

    def release(self) -> None:
        """Stop, and release the port."""
        self.abort()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def freeze(self) -> None:
        """Accept and read nothing; the kernel still completes connections, and they wait."""
        self._ignore()
        for connection in self.connections:
            connection.freeze()

    def thaw(self) -> None:
        """Continue, beginning with what waits."""
        self._watch()
        for connection in tuple(self.connections):
            connection.thaw()

    def tick(self, now: float) -> None:
        """Let time pass."""
        for connection in tuple(self.connections):
            connection.tick(now)

    def _ignore(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())

    def _watch(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)

    def _listening(self) -> socket.socket:
        try:
            listening = _bound(self.port)
        except OSError:  # Not every system lets two sockets share a bound port.
            if self._keeper is not None:
                self._keeper.close()
                self._keeper = None
            listening = _bound(self.port)
        listening.listen(_BACKLOG)
        return listening

    def _next(self) -> socket.socket | None:
        """Return a connection that waits to be accepted. None if there is none."""
        if self._socket is None:
            return None
        try:
            return self._socket.accept()[0]
        except OSError:  # No connection waits, or the peer is already gone.
            return None

    def _accept(self) -> None:
        while (connection := self._next()) is not None:
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            task = loop.create_task(loop.connect_accepted_socket(lambda: self._make(self.connections), connection))
            self._accepting.add(task)
            task.add_done_callback(functools.partial(self._accepted, connection))

    def _accepted(self, connection: socket.socket, task: asyncio.Task[Any]) -> None:
        self._accepting.discard(task)
        if task.cancelled() or task.exception() is not None:
            connection.close()


class Accepted(PortConnection):
    """A connection to a node that shares its fate.

    Args:
        node: The node.
        connections: The open connections of the port.
    """

    def __init__(self, node: ClusterNode, connections: set[Self]) -> None:
        self.node = node
        self._connections: set[Any] = connections
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the port."""
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        if not self.node.alive:
            self.abort()
        elif self.node.frozen:
            self.freeze()
            # Python 3.11.2 begins to read after this call, even if reading was paused in it.
            self.node.host.loop.call_soon(self._pause_again)

    def _pause_again(self) -> None:
        if self.node.frozen and self._transport is not None:
            self._transport.resume_reading()
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the port."""
        self._transport = None
        self._connections.discard(self)

    def freeze(self) -> None:
        """Stop reading."""
        if self._transport is not None:
            self._transport.pause_reading()

    def thaw(self) -> None:
        """Continue reading."""
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Reset the connection."""
        if self._transport is not None:
            self._transport.abort()


class Reserved(Listener[PortConnection]):
    """A port whose number lookups name, and that refuses everything: the embedded nodes talk without it."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(lambda _: PortConnection(), port)

    def open(self) -> None:
        """Refuse attempts."""


class WebServer(Listener["_WebConnection"]):
    """The HTTP port of one node. Creating it reserves the port; :meth:`open` listens.

    It uses uvicorn's protocol without its server: tests kill, freeze and restart
    nodes, and a server that owns its sockets and signals cannot do this.

    Args:
        app: Answers the requests.
        node: The node; its delay counts for each request.
        port: The number of the port, 0 for a free one.
        needs_tls: Refuse everything if TLS is required, as an nsqd does, and an nsqlookupd does not.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, app: App, node: ClusterNode, port: int = 0, *, needs_tls: bool = False) -> None:
        super().__init__(lambda _: _WebConnection(self._config, self._state, {}), port)
        self._app = node.host.security.guarded(app, needs_tls=needs_tls)
        self._node = node
        self._awake = asyncio.Event()
        self._state = ServerState()
        self._state.connections = cast("set[Any]", self.connections)
        self._config = uvicorn.Config(
            self._gate,
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=60,
        )
        self._config.load()

    def open(self) -> None:
        """Listen and answer."""
        self._awake.set()
        super().open()

    def abort(self) -> None:
        """Stop at once: refuse attempts, reset the connections, and answer nothing any more."""
        super().abort()
        for task in tuple(self._state.tasks):
            task.cancel()

    def freeze(self) -> None:
        """Accept connections like a hanging process, and answer no requests."""
        self._awake.clear()
        super().freeze()

    def thaw(self) -> None:
        """Answer the waiting requests."""
        self._awake.set()
        super().thaw()

    async def _gate(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        except asyncio.CancelledError:
            # The node ended and closed the connection. uvicorn would report this as a failure of the application.
            return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._awake.wait()
        if (delay := self._node.delay) > 0:
            await asyncio.sleep(delay)
            await self._awake.wait()

        async def dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(b"date", formatdate(usegmt=True).encode()), *message.get("headers", [])]
            await send(message)

        await self._app(scope, receive, dated)


class _WebConnection(H11Protocol, PortConnection):
    """Reads on while its node is frozen: the server answers no request then."""

    def abort(self) -> None:
        """Reset the connection."""
        self.transport.abort()


def _bound(port: int) -> socket.socket:
    # Without the protocol's name asyncio leaves Nagle's algorithm on for accepted connections, and answers wait 40 ms.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind((HOST, port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"port {port} of {HOST}: {error.strerror}") from error
    return bound


class ClusterNode:
    """A process of the cluster: an nsqd or an nsqlookupd. What is done to it is done to its ports, too.

    Attributes:
        name: Its name in controls, ``nsqd-0`` or ``nsqlookupd-0``.
        host: Its environment.
        alive: The process runs.
        frozen: The process runs but does nothing.
        exiting: The process (an nsqd) is shutting down cleanly.
        writes_disabled: An operator disabled writing on this node (an nsqd).
        delay: Seconds by which everything that arrives is delayed.
        start_time: When the process was started, in seconds since the epoch.
        absence: Since when the node is away. None while it is there. What was planned for another absence is void.
        tcp_port: The port of its TCP.
        http_port: The port of its HTTP.
    """

    tcp_port: int
    http_port: int

    def __init__(self, name: str, host: Host) -> None:
        self.name = name
        self.host = host
        self._ports: list[Listener[Any]] = []
        self.alive: bool = False
        self.frozen: bool = False
        self.exiting: bool = False
        self.writes_disabled: bool = False
        self.delay: float = 0.0
        self.start_time: float = time.time()
        self.absence: float | None = None

    def __repr__(self) -> str:
        return f"<{self.name} {HOST}:{self.tcp_port}>"

    def _reserve(self, make: Callable[[], _AnyListener]) -> _AnyListener:
        """Return a new port of this node. If it cannot be had, release those before it."""
        try:
            port = make()
        except BaseException:
            self.release()
            raise
        self._ports.append(port)
        return port

    @property
    def reachable(self) -> bool:
        """Whether the node answers."""
        return self.alive and not self.frozen

    @property
    def refuses_writes(self) -> bool:
        """Whether an operator disabled writing on this node or in the cluster."""
        return self.writes_disabled or self.host.writes_disabled

    def start(self) -> None:
        """Start the process."""
        self.alive, self.frozen, self.exiting = True, False, False
        self.start_time = time.time()
        for port in self._ports:
            port.open()

    def leave(self) -> None:
        """Begin a clean shutdown."""
        self.exiting = True

    def kill(self) -> None:
        """End the process at once, and reset its connections."""
        self.alive = self.frozen = self.exiting = False
        for port in self._ports:
            port.abort()

    def freeze(self) -> None:
        """Stop doing anything, as on a hanging machine."""
        self.frozen = True
        for port in self._ports:
            port.freeze()

    def thaw(self) -> None:
        """Continue, beginning with what waits."""
        self.frozen = False
        for port in self._ports:
            port.thaw()

    def cut(self) -> None:
        """Reset the connections, also those that wait to be accepted."""
        for port in self._ports:
            port.cut()

    def release(self) -> None:
        """Stop, and release the ports."""
        self.kill()
        for port in self._ports:
            port.release()

    def tick(self, now: float) -> None:
        """Let time pass, unless the process ended or is frozen."""
        if self.reachable:
            for port in self._ports:
                port.tick(now)
            self._tick(now)

    def _tick(self, now: float) -> None:
        """Let time pass; the nsqds do something."""
