"""Compression of a whole connection, as bytes to bytes.

Both codecs flush after every ``compress``, since the server answers only commands
that it has received. IDENTIFY decides which codec is used (``protocol.identify``).

The invariant: received data uses no more memory than a piece of ``PIECE_BYTES`` at
a time; damaged data is an error and is never passed on.

Source: server protocol 3.2; snappy's framing format
(github.com/google/snappy, ``framing_format.txt``); RFC 1951.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, Protocol

import snappy

from nsq_ha.errors import RemoteProtocolError

PIECE_BYTES: Final = 256 * 1024
"""Maximum number of bytes that ``pieces`` yields at a time, plus one block. It expands nothing ahead of the caller."""

_RAW: Final = -15
_STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_BLOCK: Final = 65536
_COMPRESSED: Final = 0x00
_UNCOMPRESSED: Final = 0x01
_RESERVED_UNSKIPPABLE: Final = range(0x02, 0x80)
_IDENTIFIER: Final = 0xFF
_MAX_CHUNK: Final = 4 + _BLOCK + _BLOCK // 6 + 32  # checksum and the worst case of snappy


class Codec(Protocol):
    """Compression of one connection, in both directions."""

    def compress(self, data: bytes) -> bytes:
        """Return ``data`` compressed and flushed."""

    def pieces(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yield the decompressed data piece by piece, so that a caller holds little of it."""


class DeflateCodec:
    """Raw DEFLATE, as nsqd's ``deflate``.

    Args:
        level: 1..9 for sent data; IDENTIFY sets the server's level.
    """

    def __init__(self, level: int = 6) -> None:
        self._out = zlib.compressobj(level, zlib.DEFLATED, _RAW)
        self._in = zlib.decompressobj(_RAW)

    def compress(self, data: bytes) -> bytes:
        """Return ``data`` compressed, ended by a sync flush."""
        return self._out.compress(data) + self._out.flush(zlib.Z_SYNC_FLUSH)

    def pieces(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yield all decompressed data piece by piece, without a limit.

        Raises:
            RemoteProtocolError: It is damaged, or continues after the stream's end. Drop the connection.
        """
        while True:
            try:
                output = self._in.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise RemoteProtocolError(f"deflate stream is damaged: {error}") from error
            if output:
                yield output
            data = self._in.unconsumed_tail
            if self._in.eof or (not data and len(output) < PIECE_BYTES):  # at the end zlib does not clear that tail
                break
        self._check_end()

    def _check_end(self) -> None:
        if self._in.unused_data:
            raise RemoteProtocolError("deflate stream continues after its end")


class SnappyCodec:
    """Snappy's framing format, as nsqd's ``snappy``."""

    def __init__(self) -> None:
        self._out = snappy.StreamCompressor()
        self._expander = snappy.StreamDecompressor
        self._tail = bytearray()
        self._identified = False

    def compress(self, data: bytes) -> bytes:
        """Return ``data`` as whole chunks; the first call begins with the stream identifier."""
        packed: bytes = self._out.compress(data)
        return packed

    def pieces(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yield the decompressed data of the complete chunks, piece by piece, without a limit.

        Raises:
            RemoteProtocolError: A chunk is damaged, of a forbidden type or too large, or the identifier is missing.
                Drop the connection.
        """
        output: list[bytes] = []
        size = 0
        for block in self._blocks(data):
            output.append(block)
            size += len(block)
            if size >= PIECE_BYTES:
                yield b"".join(output)
                output.clear()
                size = 0
        if rest := b"".join(output):
            yield rest

    def _blocks(self, data: bytes | memoryview) -> Iterator[bytes]:
        tail = self._tail
        tail += data
        position = 0
        try:
            while len(tail) - position >= 4:
                kind = tail[position]
                length = int.from_bytes(tail[position + 1 : position + 4], "little")
                self._check_chunk(kind, length)
                stop = position + 4 + length
                if stop > len(tail):
                    break
                chunk = bytes(tail[position:stop])
                position = stop
                yield self._expand(kind, chunk)
        finally:
            del tail[:position]

    def _check_chunk(self, kind: int, length: int) -> None:
        """Check a chunk's header before waiting for the rest of it."""
        if not self._identified and (kind != _IDENTIFIER or length != 6):
            raise RemoteProtocolError("snappy stream does not begin with its identifier")
        if kind in _RESERVED_UNSKIPPABLE:
            raise RemoteProtocolError(f"snappy chunk type {kind:#04x} is reserved")
        largest = 4 + _BLOCK if kind == _UNCOMPRESSED else _MAX_CHUNK
        if length > largest or (kind <= _UNCOMPRESSED and length < 4):
            raise RemoteProtocolError(f"snappy chunk of {length} bytes has no legal size")

    def _expand(self, kind: int, chunk: bytes) -> bytes:
        if kind == _IDENTIFIER:
            if chunk != _STREAM_IDENTIFIER:
                raise RemoteProtocolError("snappy stream identifier is damaged")
            self._identified = True
            return b""
        if kind > _UNCOMPRESSED:
            return b""  # padding and skippable chunks
        if kind == _COMPRESSED and _announced(chunk, 8) > _BLOCK:
            raise RemoteProtocolError("snappy block announces more than 64 KiB")
        try:
            # The library checks the block and its checksum. Each chunk is a stream of its own to it,
            # since a decoder keeps earlier data.
            block: bytes = self._expander().decompress(_STREAM_IDENTIFIER + chunk)
        except Exception as error:
            raise RemoteProtocolError(f"snappy stream is damaged: {error}") from error
        return block


def _announced(chunk: bytes, position: int) -> int:
    """Return the length at the start of a snappy block: little-endian groups of 7 bits."""
    value = 0
    for shift, byte in enumerate(chunk[position : position + 5]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            break
    return value
