"""The smallest HTTP server that can also be rude."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Answer = tuple[int, bytes] | bytes | None
"""Status and body; or bytes to send as they are, instead of HTTP; or None to close without a word."""

NONSENSE: Final[tuple[Answer, ...]] = (
    (200, b"<html><body>It works!</body></html>"),
    (200, b""),
    (200, b"null"),
    (200, b"[]"),
    (200, b'{"partitions":null,"producers":null,"channels":null,"meta":null}'),
    (200, b'{"partitions":{"0":{"broadcast_address":5,"tcp_port":"x"}},"meta":{"partition_num":"two"}}'),
    (200, b'{"partitions":{},"meta":{"partition_num":1,"replica":1}}'),
    (200, b'{"channels":[],"producers":[],"partitions":{"-1":{}},"meta":{"partition_num":-5}}'),
    (200, b'{"partitions":' + b"[" * 5000),
    (500, b"internal error"),
    (404, b'{"message":"TOPIC_NOT_FOUND"}'),
    (302, b""),
    b"\x00\xff\xfe nonsense without HTTP\r\n\r\n",
    None,
)
"""What an nsqlookupd must not say."""


class Web:
    """Answers each GET by a function of its path.

    Args:
        answer: The function. It may take its time.

    Attributes:
        asked: Number of questions.
    """

    def __init__(self, answer: Callable[[str], Awaitable[Answer]]) -> None:
        self.port = self.asked = 0
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen on a free port of the loopback."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            while await self._exchange(await reader.readuntil(b"\r\n\r\n"), writer):
                pass
        except (OSError, EOFError, asyncio.CancelledError):
            return
        finally:
            writer.transport.abort()

    async def _exchange(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        self.asked += 1
        answer = await self._answer(head.split(b" ")[1].decode("ascii", "replace"))
        if answer is None:
            return False
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
            return False
        status, body = answer
        location = b"Location: http://127.0.0.1:1/\r\n" if status == 302 else b""
        writer.write(b"HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n%s" % (status, location, len(body), body))
        await writer.drain()
        return True


def hanging() -> Web:
    """Return one that accepts and never answers."""

    async def answer(_: str) -> Answer:
        await asyncio.Event().wait()
        return None

    return Web(answer)


def nonsense() -> Web:
    """Return one that says something else that is wrong each time."""
    turn = itertools.cycle(NONSENSE)

    async def answer(_: str) -> Answer:
        return next(turn)

    return Web(answer)
