"""An httpx client that logs nothing.

httpx logs each request at INFO, so an application that logs at INFO would get a line for each lookup of each client,
several a second. The lines come from the part of httpx's client that handles cookies, redirects, authentication and
hooks, none of which nsq_ha uses; this client calls the transport instead. The logger ``httpx`` is not touched, since
it belongs to the application.

This module imports httpx, so import it only where it is needed, and before httpx itself: it leaves out httpx's command
line, which loads rich, click and pygments wherever they are installed. That would take 6 MB and 60 ms. Clients import
it when they are made, with all that the first request would load: in an event loop that would be a turn of 70 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    """Let a module look as if it were not installed, unless it is loaded already."""
    is_loaded = name in sys.modules
    if not is_loaded:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if not is_loaded:
            del sys.modules[name]


with _without("httpx._main"):
    import httpx

import httpcore  # noqa: E402 - after httpx, as above

from nsq_ha.engine.http_backend import Backend  # noqa: E402 - it imports httpcore

for _name in ("anyio._backends._asyncio", "httpcore._backends.anyio", "sniffio"):
    with contextlib.suppress(ImportError):  # a later version may lack a private one
        import_module(_name)

_HEADERS: Final = {
    # Without the version the server wraps its answers and sends every refusal as a 500.
    "Accept": "application/vnd.nsq; version=1.0",
    # A small body must not grow a thousandfold in our memory.
    "Accept-Encoding": "identity",
    "User-Agent": "nsq_ha",
}


class _Transport(httpx.AsyncHTTPTransport):
    """Maps httpcore's errors and answers to httpx's, with a pool of our own: httpx cannot be given one."""

    def __init__(self, pool: httpcore.AsyncConnectionPool) -> None:
        self._pool = pool


class QuietClient(httpx.AsyncClient):
    """Sends requests with one transport, and nothing around it. It keeps no state but open connections.

    Args:
        verify: Checks certificates. None if no server uses https.
        server_name: Name that a certificate must contain. None for the host of the URL.
        local_addr: Host of the source address. None lets the system choose.
    """

    def __init__(self, verify: ssl.SSLContext | None, server_name: str | None, local_addr: str | None) -> None:
        backend = Backend()
        transport = _Transport(
            httpcore.AsyncConnectionPool(
                ssl_context=verify,
                max_connections=None,
                max_keepalive_connections=64,
                keepalive_expiry=60.0,
                local_address=local_addr,
                network_backend=backend,
            )
        )
        super().__init__(
            headers=_HEADERS,
            transport=transport,
            trust_env=False,
            timeout=None,  # the limit is on the whole exchange, see http.ask()
        )
        self._own_transport = transport
        self._closing = backend.closing
        self._server_name = server_name

    async def send(self, request: httpx.Request, **_: Any) -> httpx.Response:  # noqa: ANN401 - nothing of it is used
        """Send ``request``; the caller reads and closes the response.

        Raises:
            RuntimeError: The client was closed.
        """
        if self.is_closed:
            raise RuntimeError("Cannot send a request, as the client has been closed.")
        if self._server_name and request.url.scheme == "https":
            request.extensions["sni_hostname"] = self._server_name
        response = await self._own_transport.handle_async_request(request)
        response.request = request
        return response

    async def aclose(self) -> None:
        """Close all connections. Over TLS that takes an answer: one that is late is left to a task."""
        await super().aclose()
        if self._closing:
            await asyncio.wait(self._closing, timeout=1.0)
