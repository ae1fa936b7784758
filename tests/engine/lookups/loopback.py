"""Small HTTP servers on the loopback that behave as badly as a test wants."""

import asyncio
import json
import re
import ssl
from collections.abc import Awaitable, Callable
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from tests.support.waiting import dawdle

Behave = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Answers one request by writing whatever it likes."""

LIMIT = 5.0
"""Seconds that a test waits for something that must happen."""


def peer(port: int, host: str = "127.0.0.1") -> dict[str, object]:
    """An nsqd as the lookups name it."""
    return {
        "broadcast_address": host,
        "tcp_port": port,
        "http_port": port + 1,
        "distributed_id": f"{host}:{port + 2}:{port}:7",
    }


def lookup_body(
    partitions: dict[int, int], partition_num: int | None = None, *, ordered: bool = False
) -> dict[str, object]:
    """The content of a lookup: TCP port of the leader by partition."""
    number = len(partitions) if partition_num is None else partition_num
    return {
        "channels": [],
        "meta": {"partition_num": number, "replica": 3, "ordered": ordered, "extend_support": False},
        "partitions": {str(partition): peer(port) for partition, port in partitions.items()},
        "producers": [peer(port) for port in sorted(set(partitions.values()))],
    }


def list_body(leader: str | None, *nodes: str) -> dict[str, object]:
    """The content of ``/listlookup`` for base URLs."""

    def entry(url: str) -> dict[str, object]:
        parts = urlsplit(url)
        return {"ID": url, "NodeIP": parts.hostname, "TcpPort": "1", "HttpPort": str(parts.port), "Epoch": 0}

    return {
        "lookupdleader": entry(leader) if leader is not None else None,
        "lookupdnodes": [entry(url) for url in nodes],
    }


def http_answer(body: bytes, status: int = 200, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


class Fake:
    """An HTTP server whose answers are set by path; unknown paths give 404.

    Attributes:
        requests: ``(loop time, path, query)`` of each request.
        bodies: Of the requests that had one.
        behave: Answers every request instead. None for the answers by path.
        delay: Seconds before each answer.
        tls: For https. None speaks plain HTTP.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.requests: list[tuple[float, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.behave: Behave | None = None
        self.delay = 0.0
        self.port = 0
        self._answers: dict[str, list[tuple[int, bytes]]] = {}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def answer(self, path: str, content: object, status: int = 200) -> None:
        """Answer ``path`` with JSON, or with bytes as they are, from now on."""
        self._answers[path] = []
        self.then(path, content, status)

    def then(self, path: str, content: object, status: int = 200) -> None:
        """Answer ``path`` so after what is set already was given once; the last one stays."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._answers.setdefault(path, []).append((status, body))

    def count(self, path: str) -> int:
        return sum(asked == path for _, asked, _ in self.requests)

    def queries(self, path: str) -> list[dict[str, str]]:
        return [query for _, asked, query in self.requests if asked == path]

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Refuse connections and reset the open ones."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: *(\d+)", head.lower())
                if length is not None and int(length[1]):
                    self.bodies.append(await reader.readexactly(int(length[1])))
                await self._answer(head, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            # The end of a test and the end of a client look the same here.
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    def note(self, head: bytes) -> str:
        """Note a request, and return its path."""
        parts = urlsplit(head.split(b" ", 2)[1].decode())
        self.requests.append((asyncio.get_running_loop().time(), parts.path, dict(parse_qsl(parts.query))))
        return parts.path

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        path = self.note(head)
        await dawdle(self.delay)
        if self.behave is not None:
            await self.behave(writer)
        else:
            prepared = self._answers.get(path, [(404, b'{"message":"NOT_FOUND"}')])
            status, body = prepared.pop(0) if len(prepared) > 1 else prepared[0]
            writer.write(http_answer(body, status))
        await writer.drain()


def writes(data: bytes, *, close: bool = True) -> Behave:
    """Return what answers with these bytes, and then closes the connection or keeps it."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if close:
            writer.close()

    return behave


async def hang(_writer: asyncio.StreamWriter) -> None:
    """Accept and never answer."""
    await asyncio.Event().wait()
