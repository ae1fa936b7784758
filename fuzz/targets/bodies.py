"""Compressed connections, and compressed bodies of messages."""

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from fuzz import seeds
from fuzz.target import Target, pieces
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol.body_codec import CODEC_HEADER, SIZE_HEADER, compress_body, packed_body
from nsq_ha.protocol.compression import PIECE_BYTES, Codec, DeflateCodec, SnappyCodec

_BLOCK: Final = 65536
_MOST: Final = 256 * 1024
_MOST_OUTPUT: Final = 8 * 1024 * 1024
"""Bytes that are expanded of one input; the rest is left compressed, as a caller may leave it."""
_CODECS: Final = ("gzip", "snappy", "lz4")


def _expanded(codec: Codec, stream: Iterable[bytes]) -> tuple[bytes, str]:
    """Return the data before an error, and how it ended."""
    found = bytearray()
    try:
        for each in stream:
            for piece in codec.pieces(each):
                assert len(piece) <= PIECE_BYTES + _BLOCK
                found += piece
                if len(found) > _MOST_OUTPUT:
                    return bytes(found), "much"
    except RemoteProtocolError:
        return bytes(found), "error"
    return bytes(found), "ok"


def _connection(create: Callable[[], Codec]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        """A stream that is cut anywhere; and data, there and back."""
        cut, stream = *data[:1].ljust(1, b"\1"), data[1:]
        whole, ending = _expanded(create(), [stream])
        parts, ended = _expanded(create(), pieces(stream, cut))
        shorter = min(len(whole), len(parts))
        assert whole[:shorter] == parts[:shorter]
        assert ended == ending or "much" in (ended, ending)
        assert ending != "ok" or whole == parts
        codec = create()
        sent = [codec.compress(piece) for piece in pieces(stream, cut or 4)]
        other = create()
        assert b"".join(piece for each in sent for piece in other.pieces(each)) == stream

    return run


def _deflate() -> Codec:
    return DeflateCodec(1)


def seeds_of_connections(create: Callable[[], Codec]) -> Callable[[], Iterator[bytes]]:
    """Return a function that yields what was recorded, and some that real servers would not send."""

    def found() -> Iterator[bytes]:
        for number, stream in enumerate(seeds.compressed()):
            yield bytes((number,)) + stream
        codec = create()
        yield b"\1" + codec.compress(b"OK" * 20) + codec.compress(b"") + codec.compress(bytes(1000))
        yield b"\2" + create().compress(bytes(1_000_000))[:4000]
        yield b"\0" + zlib.compress(b"ended", wbits=-15) + b"more"

    return found


def run_bodies(data: bytes) -> None:
    """A body with headers of its own, one with the headers of a codec, and one there and back."""
    how, size, rest = *data[:2].ljust(2, b"\1"), data[2:]
    if how & 128:
        ext, body = rest[:size], rest[size:]
    else:
        ext, body = json.dumps({CODEC_HEADER: str(how % 5)} | _size(how, size)).encode(), rest
    try:
        packed = packed_body(body, ext, _MOST)
        if packed is not None:
            assert packed.bound <= max(_MOST, len(body))
            assert len(packed.expand()) <= packed.bound
            assert CODEC_HEADER not in json.loads(packed.ext)
    except ValueError as error:
        assert str(error)
    sent, headers = compress_body(rest, _CODECS[how % 3])
    if headers:
        again = packed_body(sent, json.dumps({**headers, "a": "b"}).encode(), len(rest))
        assert again is not None
        assert (again.expand(), again.ext) == (rest, b'{"a":"b"}')


def _size(how: int, size: int) -> dict[str, str]:
    return {SIZE_HEADER: str(size << (how >> 3 & 7))} if how & 64 else {}


def seeds_of_bodies() -> Iterator[bytes]:
    """Yield bodies of each codec, with and without their size."""
    for body in (b"paid " * 30, bytes(200), b'{"order":1}' * 9):
        for number, codec in enumerate(_CODECS):
            packed, headers = compress_body(body, codec)
            ext = json.dumps(headers).encode()
            yield bytes((128 + number, len(ext))) + ext + packed
            yield bytes((int(headers[CODEC_HEADER]), 0)) + packed
            yield bytes((64 + 5 * 12 + int(headers[CODEC_HEADER]) & 127, len(body) >> 1 & 255)) + packed
    yield bytes((1, 0)) + zlib.compress(b"", wbits=31) * 3
    yield bytes((129, 30)) + b'{"nsq.client.compress":"0"}   body'


TARGETS: Final = (
    Target("deflate", "a connection with DEFLATE", _connection(_deflate), seeds_of_connections(_deflate)),
    Target("snappy", "a connection with snappy", _connection(SnappyCodec), seeds_of_connections(SnappyCodec)),
    Target("bodies", "the compressed body of a message", run_bodies, seeds_of_bodies),
)
