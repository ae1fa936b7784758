"""Standard input as lines, without blocking the event loop.

The invariants: every byte belongs to a line or is a newline, even if the last
line has no newline; no line, however long, takes more memory than the limit.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from collections.abc import AsyncIterator, Callable
from typing import BinaryIO, Final, NamedTuple

from nsq_ha.base.threads import HandlerThreads

READ_BYTES: Final = 512 * 1024


class Line(NamedTuple):
    """One line, or one row of CSV.

    Attributes:
        number: Counted from 1.
        data: The line without its newline. None if it is longer than the limit, or cannot be published.
        reason: Why it cannot be published; empty if it can, or is only too long.
    """

    number: int
    data: bytes | None
    reason: str = ""


class Splitter:
    """Cuts a stream into lines.

    Args:
        limit: Maximum length of a line in bytes.
        delimiter: The byte that ends a line. None if the whole stream is one line.
    """

    def __init__(self, limit: int, delimiter: bytes | None = b"\n") -> None:
        self._limit = limit
        self._delimiter = delimiter
        self._number = 0
        self._rest = bytearray()
        self._is_too_long = False

    def feed(self, chunk: bytes) -> list[Line]:
        """Return the lines that end in ``chunk``."""
        *ended, rest = [chunk] if self._delimiter is None else chunk.split(self._delimiter)
        lines = []
        for piece in ended:
            if self._rest or self._is_too_long or len(piece) > self._limit:
                self._add(piece)
                lines.append(self._cut())
            else:  # nearly every line, so without a copy
                self._number += 1
                lines.append(Line(self._number, piece))
        self._add(rest)
        return lines

    def end(self) -> list[Line]:
        """Return the last line if it has no newline."""
        return [self._cut()] if self._rest or self._is_too_long else []

    def _add(self, piece: bytes) -> None:
        if len(self._rest) + len(piece) > self._limit:
            self._is_too_long = True
            self._rest.clear()
        elif not self._is_too_long:
            self._rest += piece

    def _cut(self) -> Line:
        self._number += 1
        data = None if self._is_too_long else bytes(self._rest)
        self._rest.clear()
        self._is_too_long = False
        return Line(self._number, data)


async def read_lines(stream: BinaryIO, limit: int, delimiter: bytes | None = b"\n") -> AsyncIterator[list[Line]]:
    """Yield the lines of a stream as they arrive, all that one read gave together.

    ``limit`` and ``delimiter`` are those of :class:`Splitter`.

    A separate thread reads a chunk when the lines of the one before are taken. A read that never returns (a terminal)
    does not prevent the process from ending.

    Raises:
        OSError: The stream cannot be read.
    """
    splitter = Splitter(limit, delimiter)
    threads = HandlerThreads(1)
    read = _reader(stream)
    try:
        while chunk := await threads.call(read, READ_BYTES):
            yield splitter.feed(chunk)
        yield splitter.end()
    finally:
        threads.close()


def _reader(stream: BinaryIO) -> Callable[[int], bytes]:
    """Return a function that reads some bytes as soon as they are available.

    It reads the descriptor directly: a thread that blocks in a buffered read
    holds a lock that the interpreter needs when it ends.
    """
    try:
        descriptor = stream.fileno()
    except (io.UnsupportedOperation, AttributeError):
        return stream.read
    with contextlib.suppress(OSError, AttributeError):  # no pipe, or not Linux
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, READ_BYTES)
    return lambda size: os.read(descriptor, size)
