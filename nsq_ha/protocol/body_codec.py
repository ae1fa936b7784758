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
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import cramjam
import snappy

from nsq_ha.protocol.compression import PACKED_BYTES, PIECE_BYTES

CODEC_HEADER: Final = "nsq.client.compress"
SIZE_HEADER: Final = "nsq.msg.size"
MARK: Final = CODEC_HEADER.encode()
"""Part of the header of each message with a compressed body."""

_NUMBERS: Final[Mapping[str, str]] = {"gzip": "1", "snappy": "2", "lz4": "3"}
_CODECS: Final = {number: codec for codec, number in _NUMBERS.items()}
_NOT_COMPRESSED: Final = "0"
_GZIP: Final = zlib.MAX_WBITS | 16
_MOST_BY: Final[Mapping[str, int]] = {"gzip": 1032, "lz4": 255}
"""To how many bytes a byte can expand."""
AT_ONCE_BYTES: Final = PIECE_BYTES
"""A body that may expand to more is decompressed in a thread: nothing else would run meanwhile."""


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


class PackedBody(NamedTuple):
    """A compressed body.

    Attributes:
        body: The body as received.
        codec: ``gzip``, ``snappy`` or ``lz4``. Empty if it is not compressed after all.
        size: What its header says of its size. None if it says nothing.
        bound: The most bytes that :meth:`expand` can return.
        ext: The extension header without the two headers.
    """

    body: bytes
    codec: str
    size: int | None
    bound: int
    ext: bytes

    def expand(self) -> bytes:
        """Return the body before compression. This takes time in proportion to ``bound``.

        Raises:
            ValueError: It cannot be decompressed; the text completes "the body ...".
        """
        if not self.codec:
            return self.body
        found = _EXPAND[self.codec](self.body, self.bound)
        if self.size is not None and len(found) != self.size:
            count = f"more than {self.size}" if len(found) > self.size else len(found)
            raise ValueError(f"has {count} bytes decompressed, but its header {SIZE_HEADER} says {self.size}")
        if len(found) > self.bound:
            raise _too_large(self.bound)
        return found


def packed_body(body: bytes, ext: bytes, most: int) -> PackedBody | None:
    """Return what the headers say of a body. None if it is not compressed.

    Args:
        body: The body as received.
        ext: The extension header as received.
        most: Maximum size of what it expands to.

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
    rest = {key: value for key, value in header.items() if key not in (CODEC_HEADER, SIZE_HEADER)}
    without = json.dumps(rest, separators=(",", ":")).encode()
    if number == _NOT_COMPRESSED:
        return PackedBody(body, "", None, len(body), without)
    codec = _CODECS.get(number)
    if codec is None:
        raise ValueError(f"has the header {CODEC_HEADER}={number[:20]!r}, which is no known compression")
    return PackedBody(body, codec, size, _bound(body, codec, size, most), without)


def _size_of(header: dict[str, object], most: int) -> int | None:
    size = header.get(SIZE_HEADER)
    if not isinstance(size, str):
        return None
    if not (size.isascii() and size.isdigit() and len(size) <= 18):
        raise ValueError(f"has the header {SIZE_HEADER}={size[:20]!r}, which is no size")
    if int(size) > most:
        raise _too_large(most)
    return int(size)


def _bound(body: bytes, codec: str, size: int | None, most: int) -> int:
    if codec == "snappy":  # the block itself says it
        try:
            announced = cramjam.snappy.decompress_raw_len(body)
        except cramjam.DecompressionError as error:
            raise _invalid(codec, error) from error
        if announced > most:
            raise _too_large(most)
        return int(announced)
    return min(most, len(body) * _MOST_BY[codec]) if size is None else size


def _too_large(most: int) -> ValueError:
    return ValueError(f"has more than max_decompressed_bytes={most} bytes decompressed")


def _invalid(codec: str, reason: object) -> ValueError:
    return ValueError(f"is not a valid {codec} block, or larger than its header or the limit allows: {reason}")


def _expand_snappy(body: bytes, _most: int) -> bytes:
    try:
        found: bytes = snappy.decompress(body)
    except snappy.UncompressError as error:
        raise _invalid("snappy", error.__cause__ or error) from error  # python-snappy's error has no text
    return found


def _expand_lz4(body: bytes, most: int) -> bytes:
    room = bytearray(most)
    try:
        # Without output_len it takes the first four bytes for a size if they look like one.
        size = cramjam.lz4.decompress_block_into(body, room, output_len=most)
    except cramjam.DecompressionError as error:
        raise _invalid("lz4", error) from error
    return bytes(memoryview(room)[:size])


def _expand_gzip(body: bytes, most: int) -> bytes:
    """Expand all members, up to one byte more than ``most``.

    This takes linear time: at the end of a member zlib copies what is left of the chunk, not of the body.
    """
    view = memoryview(body)
    found: list[bytes] = []
    position = 0
    while position < len(view) and most >= 0:
        expander = zlib.decompressobj(_GZIP)
        while not expander.eof and most >= 0:
            chunk = view[position : position + PACKED_BYTES]
            if not chunk:
                raise ValueError("is not valid gzip data: it is cut off")
            try:
                piece = expander.decompress(chunk, most + 1)
            except zlib.error as error:
                raise ValueError(f"is not valid gzip data: {error}") from error
            most -= len(piece)
            found.append(piece)
            position += len(chunk) - len(expander.unused_data)
    return b"".join(found)


_EXPAND: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _expand_gzip,
    "snappy": _expand_snappy,
    "lz4": _expand_lz4,
}
