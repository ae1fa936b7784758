"""Connections for httpx that close without a turn of their caller, and that resolve names apart.

This module imports httpcore, so import it only where httpx is needed.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpcore

from nsq_ha.engine.names import addresses, first_open


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
