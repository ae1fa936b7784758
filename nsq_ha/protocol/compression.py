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
from typing import Final

import cramjam
import snappy

from nsq_ha.errors import RemoteProtocolError

PIECE_BYTES: Final = 256 * 1024
"""Bytes that the event loop gets at a time: of one read, and of what ``pieces`` yields, which expands nothing ahead."""

PACKED_BYTES: Final = 16 * 1024
"""The same of compressed data. Publishers choose the bodies, which may expand a thousandfold: one read then takes the
event loop some 20 ms."""

_RAW: Final = -zlib.MAX_WBITS
_STREAM_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_MAX_CHUNK: Final = 4 + 65536 + 65536 // 6 + 32  # checksum and the worst case of snappy


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
        if self._in.unused_data:
            raise RemoteProtocolError("deflate stream continues after its end")


class SnappyCodec:
    """Snappy's framing format, as nsqd's ``snappy``."""

    def __init__(self) -> None:
        self._out = snappy.StreamCompressor()
        self._tail = bytearray()

    def compress(self, data: bytes) -> bytes:
        """Return ``data`` as whole chunks; the first call begins with the stream identifier."""
        packed: bytes = self._out.compress(data)
        return packed

    def pieces(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yield the decompressed data of the complete chunks, piece by piece, without a limit.

        Raises:
            RemoteProtocolError: A chunk is damaged, of a forbidden type or too large. Drop the connection.
        """
        tail = self._tail
        tail += data
        position = 0
        try:
            while len(tail) - position >= 4:
                length = int.from_bytes(tail[position + 1 : position + 4], "little")
                if length > _MAX_CHUNK:  # before waiting for the rest of it
                    raise RemoteProtocolError(f"snappy chunk of {length} bytes has no legal size")
                stop = position + 4 + length
                if stop > len(tail):
                    break
                chunk = bytes(tail[position:stop])
                position = stop
                try:
                    # The library checks the chunk and its checksum. Each one is a stream of its own to it,
                    # since a decoder keeps earlier data.
                    block = snappy.StreamDecompressor().decompress(_STREAM_IDENTIFIER + chunk)
                except (OSError, cramjam.DecompressionError, snappy.UncompressError) as error:
                    raise RemoteProtocolError(f"snappy stream is damaged: {error}") from error
                if block:
                    yield block
        finally:
            del tail[:position]


Codec = DeflateCodec | SnappyCodec
"""Compression of one connection, in both directions."""
