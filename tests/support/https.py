"""An end of TLS in front of a plain HTTP server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.support.certificates import server_context
from tests.support.nsqd import close


@contextlib.asynccontextmanager
async def https_of(url: str) -> AsyncIterator[str]:
    """Pass connections by TLS on to a plain HTTP server; yield the https URL."""
    port = int(url.rpartition(":")[2])
    ends: set[asyncio.StreamWriter] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.add(writer)
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            close(writer)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(OSError, asyncio.CancelledError):  # an end of a connection, or of the test
            await asyncio.gather(copy(reader, onward[1]), copy(onward[0], writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=server_context())
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for end in ends:
            end.transport.abort()
