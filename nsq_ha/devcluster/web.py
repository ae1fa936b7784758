"""An HTTP server for one node, on a port of ours.

Uses uvicorn's protocol directly instead of its server: a node must be killed,
frozen and restarted in the middle of a test, which a server that owns its
sockets and signals does not offer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from nsq_ha.devcluster.ports import Listener

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from nsq_ha.devcluster.security import App


class WebServer:
    """One node's HTTP.

    Args:
        app: What answers.
        delay: Seconds to wait before each answer, asked anew for each request.
        port: Where to listen. 0 for a free port.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, app: App, delay: Callable[[], float], port: int = 0) -> None:
        """Reserve the port; nothing listens yet.

        Raises:
            OSError: Somebody else has it.
        """
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
        self.port = self._listener.port

    def open(self) -> None:
        """Listen and answer."""
        self._awake.set()
        self._listener.open()

    def abort(self) -> None:
        """Stop at once: connections are reset, attempts refused."""
        self._listener.close()
        self.cut()
        for task in tuple(self._state.tasks):
            task.cancel()

    def release(self) -> None:
        """Stop and give up the port."""
        self.abort()
        self._listener.release()

    def cut(self) -> None:
        """Reset the open connections, those that wait to be accepted too."""
        self._listener.cut()
        for protocol in tuple(self._state.connections):
            protocol.transport.abort()

    def freeze(self) -> None:
        """Accept connections as a hanging process would, and answer nothing."""
        self._awake.clear()
        self._listener.freeze()

    def thaw(self) -> None:
        """Answer what waits."""
        self._awake.set()
        self._listener.thaw()

    def _protocol(self) -> asyncio.Protocol:
        return H11Protocol(self._config, self._state, {})

    async def _gate(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        except asyncio.CancelledError:
            # Cancelled when the node ends, behind its connection: nobody waits for an answer any more, and uvicorn
            # would report a failure of the application.
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
