"""Connections for httpx that bound the head of an answer, and its trailers.

h11 parses a head in one turn of the event loop: one of 95 KB takes 95 ms, and thousands of ``100 Continue``, which
nobody asked for, as much for each read, until the time limit. Trailers, which may follow the last chunk, cost as much.
h11's own limit of 100 KiB cannot be changed through httpx.

This module imports httpcore, so import it only where httpx is needed.

Source: server failures 5.2.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Container
from typing import Any, Final

import httpcore

from nsq_ha.engine.names import MOST_AT_ONCE, addresses, first_open
from nsq_ha.errors import RemoteProtocolError

MAX_HEAD_BYTES: Final = 16 * 1024
"""Maximum size of the head of an answer, interim answers included, and of its trailers. Heads of both servers have less
than 1 KiB, and no trailers follow."""

CONNECT_LIMIT: Final = 1.0
"""Seconds for all addresses of a host if the request has no limit of its own."""

_AT_ONCE: Final = 4 * 1024
"""Bytes of a head that are read, and so parsed, in one turn of the event loop."""

_END: Final = re.compile(rb"\n\r?\n")
_LENGTH: Final = re.compile(rb"\ncontent-length:[ \t]*([0-9]{1,18})\s")
_INTERIM: Final = re.compile(rb"HTTP/\S* 1")
_LAST_CHUNK: Final = re.compile(rb"\n0+[\r; \t]")  # no line of the JSON that Go writes begins like this
_LONGEST_SIZE: Final = 24
"""Bytes that may belong to a size of a chunk whose end has not come yet."""


class _Stream(httpcore.AsyncNetworkStream):
    """A connection whose answers have heads and trailers of a bounded size."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, closing: set[asyncio.Task[None]]) -> None:
        self._stream = stream
        self._closing = closing
        self._head = bytearray()
        self._read_bytes = 0
        self._in_head = True
        self._is_chunked = False
        self._left: int | None = None  # of the body. None if the head does not say it
        self._end = b""
        self._trailer_bytes = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self._in_head:
            # What follows a body is not read: h11 would keep it, and parse it in one turn before the next answer.
            data = await self._stream.read(min(max_bytes, self._left or max_bytes), timeout)
            if self._is_chunked:
                self._watch(data)
            elif self._left:
                self._left -= len(data)
            return data
        data = await self._stream.read(min(max_bytes, _AT_ONCE), timeout)
        self._read_bytes += len(data)
        self._head += data
        while end := _END.search(self._head):
            if not _INTERIM.match(self._head):
                self._in_head = False
                head = self._head[: end.end()].lower()
                self._is_chunked = b"chunked" in head
                length = _LENGTH.search(head)
                self._left = max(0, int(length[1]) - len(self._head) + len(head)) if length else None
                if self._is_chunked:
                    self._watch(self._head[end.end() - 1 :])
                self._head.clear()
                return data
            del self._head[: end.end()]
        if self._read_bytes > MAX_HEAD_BYTES:
            raise RemoteProtocolError(f"the headers of the answer are longer than {MAX_HEAD_BYTES} bytes")
        return data

    def _watch(self, body: bytes | bytearray) -> None:
        """Raise RemoteProtocolError if the trailers of a chunked body are too long."""
        if self._trailer_bytes:
            self._trailer_bytes += len(body)
        else:
            self._end += body
            if last := _LAST_CHUNK.search(self._end):
                self._trailer_bytes = len(self._end) - last.start()
            self._end = self._end[-_LONGEST_SIZE:]
        if self._trailer_bytes > MAX_HEAD_BYTES:
            raise RemoteProtocolError(f"the trailers of the answer are longer than {MAX_HEAD_BYTES} bytes")

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._in_head, self._read_bytes = True, 0
        self._end, self._trailer_bytes = b"", 0
        self._head.clear()
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        # Without a turn of the caller: httpcore closes several connections one after another, and shields that from
        # anyio's cancellations alone, so any other would leave those that follow open.
        task = asyncio.ensure_future(self._stream.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:  # noqa: ANN401 - passed on
        try:
            return _Stream(await self._stream.start_tls(*args, **kwargs), self._closing)
        except BaseException:
            # httpcore does not close it if the request is cancelled, as at its time limit: the event loop would keep
            # the socket until the server closes it.
            await self.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as httpcore has it
        return self._stream.get_extra_info(info)


class BoundedHeads(httpcore.AnyIOBackend):
    """Connects as httpcore does on asyncio.

    Args:
        known: Hosts that the user gave; their names wait for no others.

    Attributes:
        closing: Ends with the close of each connection that is being closed.
    """

    def __init__(self, known: Container[str]) -> None:
        self.closing: set[asyncio.Task[None]] = set()
        self._known = known
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._places_of_known = asyncio.Semaphore(MOST_AT_ONCE)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        *args: Any,  # noqa: ANN401 - passed on
        **kwargs: Any,  # noqa: ANN401 - passed on
    ) -> httpcore.AsyncNetworkStream:
        """Connect, and bound the heads that come; each address but the last has a share of ``timeout``."""
        connect = super().connect_tcp
        places = self._places_of_known if host in self._known else self._places
        try:
            found = await addresses(host, port, places)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        stream = await first_open(
            found,
            timeout or CONNECT_LIMIT,
            lambda each: connect(each, port, None, *args, **kwargs),
            (httpcore.ConnectError,),
        )
        return _Stream(stream, self.closing)
