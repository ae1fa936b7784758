"""Bodies that a client has compressed, as Go programs do: two headers say how.

``nsq.client.compress`` is ``"1"`` (gzip), ``"2"`` (a snappy block) or ``"3"`` (an LZ4 block), and ``nsq.msg.size`` the
size of the body before compression; both are text. nsqd knows neither. A block, unlike a stream, has no frames and no
checksum.

The invariant: no more memory is used than the limit allows, whatever the body says.

Source: youzan/go-nsq ``compress.go``, ``message.go`` ``tryDecompress``, ``removeCompressHeader``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Final

import cramjam
import snappy

CODEC_HEADER: Final = "nsq.client.compress"
SIZE_HEADER: Final = "nsq.msg.size"
MARK: Final = CODEC_HEADER.encode()
"""Part of the header of each message with a compressed body."""

_NUMBERS: Final[Mapping[str, str]] = {"gzip": "1", "snappy": "2", "lz4": "3"}
_CODECS: Final = {number: codec for codec, number in _NUMBERS.items()}
_NOT_COMPRESSED: Final = "0"
_GZIP: Final = zlib.MAX_WBITS | 16
_MOST_BY_LZ4: Final = 255
"""How often a byte of an LZ4 block can be expanded."""


def compress_body(body: bytes, codec: str) -> tuple[bytes, dict[str, str]]:
    """Return the compressed body and the headers that say so; the same body without headers if that is not smaller.

    Args:
        body: The body.
        codec: ``gzip``, ``snappy`` or ``lz4``.
    """
    if codec == "gzip":
        packed = zlib.compress(body, wbits=_GZIP)
    elif codec == "snappy":
        packed = snappy.compress(body)
    else:
        packed = bytes(cramjam.lz4.compress_block(body, store_size=False))
    if len(packed) >= len(body):
        return body, {}
    return packed, {CODEC_HEADER: _NUMBERS[codec], SIZE_HEADER: str(len(body))}


def decompress_body(body: bytes, ext: bytes, most: int) -> tuple[bytes, bytes] | None:
    """Return the body before compression, and the extension header without the two headers.

    Args:
        body: The body as received.
        ext: The extension header as received.
        most: Maximum size of the result.

    Returns:
        None if the body is not compressed.

    Raises:
        ValueError: It cannot be decompressed; the text completes "the body ...".
    """
    try:
        header = json.loads(ext)
    except (ValueError, RecursionError):
        return None
    number = header.get(CODEC_HEADER) if isinstance(header, dict) else None
    if not isinstance(number, str) or not number:  # Go programs look at text only
        return None
    size = _size_of(header, most)
    found = body if number == _NOT_COMPRESSED else _decompressed(body, number, size, most)
    if number != _NOT_COMPRESSED and size is not None and len(found) != size:
        raise ValueError(f"has {len(found)} bytes decompressed, but its header {SIZE_HEADER} says {size}")
    rest = {key: value for key, value in header.items() if key not in (CODEC_HEADER, SIZE_HEADER)}
    return found, json.dumps(rest, separators=(",", ":")).encode()


def _size_of(header: dict[str, object], most: int) -> int | None:
    size = header.get(SIZE_HEADER)
    if not isinstance(size, str):
        return None
    if not (size.isascii() and size.isdigit() and len(size) <= 18):
        raise ValueError(f"has the header {SIZE_HEADER}={size[:20]!r}, which is no size")
    if int(size) > most:
        raise _too_large(most)
    return int(size)


def _too_large(most: int) -> ValueError:
    return ValueError(f"has more than max_decompressed_bytes={most} bytes decompressed")


def _decompressed(body: bytes, number: str, size: int | None, most: int) -> bytes:
    codec = _CODECS.get(number)
    if codec is None:
        raise ValueError(f"has the header {CODEC_HEADER}={number[:20]!r}, which is no known compression")
    if codec == "gzip":
        return _gunzip(body, most)
    try:
        if codec == "snappy":
            # python-snappy does not tell what a block expands to.
            if cramjam.snappy.decompress_raw_len(body) > most:
                raise _too_large(most)
            found: bytes = snappy.decompress(body)
            return found
        room = bytearray(min(most, len(body) * _MOST_BY_LZ4) if size is None else size)
        return bytes(room[: cramjam.lz4.decompress_block_into(body, room)])
    except (cramjam.DecompressionError, snappy.UncompressError) as error:
        reason = error.__cause__ or error  # python-snappy's error has no text
        raise ValueError(
            f"is not a valid {codec} block, or larger than its header or the limit allows: {reason}"
        ) from error


def _gunzip(body: bytes, most: int) -> bytes:
    """Expand all members, one after another."""
    found: list[bytes] = []
    room = most
    while body:
        expander = zlib.decompressobj(_GZIP)
        try:
            piece = expander.decompress(body, room + 1)
        except zlib.error as error:
            raise ValueError(f"is not valid gzip data: {error}") from error
        if len(piece) > room:
            raise _too_large(most)
        if not expander.eof:
            raise ValueError("is not valid gzip data: it is cut off")
        room -= len(piece)
        found.append(piece)
        body = expander.unused_data
    return b"".join(found)
