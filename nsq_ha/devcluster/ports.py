"""Ports on the loopback, for TCP and HTTP, that can close, freeze and reopen with the same number.

The invariant: a port belongs to its node for the node's whole life. While the
node is down, a second socket that never listens reserves the number, so no other
process gets it and connection attempts are refused.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable, MutableMapping
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from nsq_ha.devcluster.security import App

log: logging.Logger = logging.getLogger("nsq_ha.devcluster")

HOST: Final = "127.0.0.1"
_BACKLOG: Final = 512
_LONGEST_LINE: Final = 65536


class Listener:
    """One TCP port. Creating it reserves the port; :meth:`open` listens.

    Args:
        factory: Creates the protocol of a new connection.
        port: The number of the port, 0 for a free one.

    Attributes:
        port: The number of the port.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, factory: Callable[[], asyncio.Protocol], port: int = 0) -> None:
        self._factory = factory
        self._keeper: socket.socket | None = _bound(port)
        self.port: int = self._keeper.getsockname()[1]
        self._socket: socket.socket | None = None
        self._accepting: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """Listen and accept."""
        if self._socket is None:
            self._socket = self._listening()
            self.thaw()

    def close(self) -> None:
        """Stop listening; connection attempts are refused from now on."""
        if self._socket is not None:
            self.freeze()
            self._socket.close()
            self._socket = None
        for task in self._accepting:
            task.cancel()

    def cut(self) -> None:
        """Close the connections that wait to be accepted, and continue to listen."""
        for task in self._accepting:
            task.cancel()
        while (connection := self._next()) is not None:
            connection.close()

    def release(self) -> None:
        """Close, and release the port."""
        self.close()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None

    def freeze(self) -> None:
        """Accept no more connections; the kernel still completes them, and they wait."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())

    def thaw(self) -> None:
        """Accept the waiting connections, and continue."""
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
            task = loop.create_task(loop.connect_accepted_socket(self._factory, connection))
            self._accepting.add(task)
            task.add_done_callback(functools.partial(self._accepted, connection))

    def _accepted(self, connection: socket.socket, task: asyncio.Task[Any]) -> None:
        self._accepting.discard(task)
        if task.cancelled() or task.exception() is not None:
            connection.close()


class WebServer:
    """The HTTP port of one node. Creating it reserves the port; :meth:`open` listens.

    It uses uvicorn's protocol without its server: tests kill, freeze and restart
    nodes, and a server that owns its sockets and signals cannot do this.

    Args:
        app: Answers the requests.
        delay: Returns the seconds to wait before an answer, for each request.
        port: The number of the port, 0 for a free one.

    Attributes:
        port: The number of the port.

    Raises:
        OSError: The port is taken.
    """

    def __init__(self, app: App, delay: Callable[[], float], port: int = 0) -> None:
        self._app = app
        self._delay = delay
        self._awake = asyncio.Event()
        self._state = ServerState()
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
        self._listener = Listener(self._protocol, port)
        self.port: int = self._listener.port

    def open(self) -> None:
        """Listen and answer."""
        self._awake.set()
        self._listener.open()

    def abort(self) -> None:
        """Stop at once: reset connections, refuse new ones."""
        self._listener.close()
        self.cut()
        for task in tuple(self._state.tasks):
            task.cancel()

    def release(self) -> None:
        """Stop, and release the port."""
        self.abort()
        self._listener.release()

    def cut(self) -> None:
        """Reset the open connections, also those that wait to be accepted."""
        self._listener.cut()
        for protocol in tuple(self._state.connections):
            protocol.transport.abort()

    def freeze(self) -> None:
        """Accept connections like a hanging process, and answer no requests."""
        self._awake.clear()
        self._listener.freeze()

    def thaw(self) -> None:
        """Answer the waiting requests."""
        self._awake.set()
        self._listener.thaw()

    def _protocol(self) -> asyncio.Protocol:
        protocol = _PatientProtocol(self._config, self._state, {})
        protocol.logger = cast("logging.Logger", _Named(log, {"port": self.port}))
        return protocol

    async def _gate(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        except asyncio.CancelledError:
            # The node ended and closed the connection. uvicorn would report this as a failure of the application.
            return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._awake.wait()
        if (delay := self._delay()) > 0:
            await asyncio.sleep(delay)
            await self._awake.wait()

        async def dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [(b"date", formatdate(usegmt=True).encode()), *message.get("headers", [])]
            await send(message)

        await self._app(scope, receive, dated)


class _PatientProtocol(H11Protocol):
    """Waits for the first whole line, as Go's server does, before it refuses what is no HTTP.

    A client that takes this port for one of nsqd's protocol thus reads the refusal.
    """

    _line: bytes | None = b""

    def data_received(self, data: bytes) -> None:
        """Take bytes."""
        if self._line is not None:
            data = self._line + data
            if b"\n" not in data and len(data) < _LONGEST_LINE:
                self._line = data
                return
            self._line = None
        super().data_received(data)


class _Named(logging.LoggerAdapter[logging.Logger]):
    """Names the port in log lines; uvicorn's own logger would only print "Invalid HTTP request received."."""

    level = logging.WARNING

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:  # noqa: ANN401
        """Put the port before uvicorn's text."""
        port = self.extra["port"] if self.extra else 0
        return f"embedded cluster, HTTP port {port}: {msg}", kwargs


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
    except BaseException:
        bound.close()
        raise
    return bound
