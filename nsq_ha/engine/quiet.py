"""An httpx client that logs nothing, closes connections without a turn of their caller, and resolves names apart.

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
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any, Final

from nsq_ha.engine.names import addresses, first_open

# It looks as if it were not installed, unless it is loaded already.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
import httpx  # noqa: E402 - as above

if sys.modules.get("httpx._main") is None:
    del sys.modules["httpx._main"]

import httpcore  # noqa: E402 - after httpx, as above

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


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that closes although its request was cancelled."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, closing: list[asyncio.Future[None]]) -> None:
        self._stream = stream
        self._closing = closing

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        # Without a turn of the caller: httpcore closes several connections one after another, and shields that from
        # anyio's cancellations alone, so any other would leave those that follow open.
        self._closing[:] = [each for each in self._closing if not each.done()]
        self._closing.append(asyncio.ensure_future(self._stream.aclose()))

    async def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:  # noqa: ANN401 - passed on
        async with AsyncExitStack() as undo:
            # httpcore does not close it if the request is cancelled, as at its time limit: the event loop would keep
            # the socket until the server closes it.
            undo.push_async_callback(self.aclose)
            stream = _Stream(await self._stream.start_tls(*args, **kwargs), self._closing)
            undo.pop_all()
        return stream

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as httpcore has it
        return self._stream.get_extra_info(info)


class Backend(httpcore.AnyIOBackend):
    """Connects as httpcore does on asyncio.

    Attributes:
        closing: Ends with the close of each connection that is being closed.
    """

    def __init__(self) -> None:
        self.closing: list[asyncio.Future[None]] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        *args: Any,  # noqa: ANN401 - passed on
        **kwargs: Any,  # noqa: ANN401 - passed on
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that answers; each address but the last has a share of ``timeout``."""
        connect = super().connect_tcp
        try:
            found = await addresses(host, port)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        stream = await first_open(
            found, timeout or 1.0, lambda each: connect(each, port, None, *args, **kwargs), (httpcore.ConnectError,)
        )
        return _Stream(stream, self.closing)


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
