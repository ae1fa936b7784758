"""Compression of a connection: any chunking, damage, bombs."""

import zlib
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol.compression import PIECE_BYTES, Codec, DeflateCodec, SnappyCodec

IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
Make = Callable[[], Codec]
both = pytest.mark.parametrize("make", [DeflateCodec, SnappyCodec])


def chunk(kind: int, data: bytes) -> bytes:
    return bytes((kind,)) + len(data).to_bytes(3, "little") + data


def snappy_after_identifier() -> SnappyCodec:
    codec = SnappyCodec()
    assert b"".join(codec.pieces(IDENTIFIER)) == b""
    return codec


@both
def test_what_is_compressed_comes_out_however_it_was_cut(make: Make) -> None:
    @given(st.lists(st.binary(max_size=100), max_size=5), st.integers(1, 30))
    def check(written: list[bytes], size: int) -> None:
        codec = make()
        stream = b"".join(codec.compress(data) for data in written)
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert b"".join(b"".join(codec.pieces(piece)) for piece in pieces) == b"".join(written)

    check()


@both
@given(garbage=st.binary(min_size=1, max_size=60))
def test_random_bytes_raise_nothing_else(make: Make, garbage: bytes) -> None:
    codec = make()
    for piece in (garbage, garbage):
        try:
            b"".join(codec.pieces(piece))
        except RemoteProtocolError:
            return


@given(st.integers(0, 8 * 60))
def test_a_flipped_bit_is_never_handed_on_as_snappy_data(flipped: int) -> None:
    stream = bytearray(SnappyCodec().compress(b"paid " * 10))
    at = flipped % (8 * len(stream))
    stream[at // 8] ^= 1 << at % 8
    try:
        got = b"".join(SnappyCodec().pieces(bytes(stream)))
    except RemoteProtocolError:
        return
    # Where the head of a chunk was hit, the rest may still be awaited, or be skippable; never other data.
    assert got in (b"", b"paid " * 10)


def test_a_deflate_stream_may_end_but_not_go_on() -> None:
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    codec = DeflateCodec()
    assert b"".join(codec.pieces(deflater.compress(b"bye") + deflater.flush())) == b"bye"
    with pytest.raises(RemoteProtocolError, match="continues after its end"):
        b"".join(codec.pieces(b"more"))


def test_a_snappy_block_that_announces_too_much_is_not_expanded() -> None:
    huge = b"\xff\xff\xff\xff\x0f" + b"\x00a"  # 4 GiB announced
    with pytest.raises(RemoteProtocolError, match="is damaged"):
        b"".join(snappy_after_identifier().pieces(chunk(0x00, bytes(4) + huge)))
    honest = bytes(cramjam.snappy.compress_raw(bytes(65537)))
    with pytest.raises(RemoteProtocolError, match="is damaged"):
        b"".join(snappy_after_identifier().pieces(chunk(0x00, bytes(4) + honest)))


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"\x01\x05\x00\x00abcde", "is damaged"),
        (b"\xff\x06\x00\x00sNaPpX", "is damaged"),
        (IDENTIFIER + b"\x02\x00\x00\x00", "is damaged"),
        (IDENTIFIER + b"\x7f\x00\x00\x00", "is damaged"),
        (IDENTIFIER + b"\x00\x03\x00\x00abc", "is damaged"),
        (IDENTIFIER + b"\x00\xff\xff\xff", "no legal size"),
        (IDENTIFIER + b"\xfe\xff\xff\xff", "no legal size"),
        (IDENTIFIER + chunk(0x01, b"\0\0\0\0abc"), "is damaged"),
        (IDENTIFIER + chunk(0x00, b"\0\0\0\0"), "is damaged"),
    ],
    ids=range(9),
)
def test_a_chunk_is_judged_by_its_head(stream: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        b"".join(SnappyCodec().pieces(stream))


def test_padding_and_repeated_identifiers_are_skipped() -> None:
    stream = SnappyCodec().compress(b"paid")
    assert b"".join(SnappyCodec().pieces(IDENTIFIER + chunk(0xFE, b"\0\0") + chunk(0x80, b"") + stream)) == b"paid"


# ---------------------------------------------------------------- piece by piece


def codecs() -> list[tuple[Codec, Codec]]:
    return [(DeflateCodec(), DeflateCodec()), (SnappyCodec(), SnappyCodec())]


@pytest.mark.parametrize("which", [0, 1], ids=["deflate", "snappy"])
def test_a_piece_has_a_bounded_size_whatever_its_bytes_expand_to(which: int) -> None:
    writer, reader = codecs()[which]
    data = bytes(20 * PIECE_BYTES + 7)
    sizes = [len(piece) for piece in reader.pieces(writer.compress(data))]
    assert sum(sizes) == len(data)
    assert max(sizes) < PIECE_BYTES + 65536
    assert min(sizes) > 0


def test_bytes_behind_the_end_of_a_large_deflate_stream_are_refused() -> None:
    codec = zlib.compressobj(wbits=-15)
    pieces = DeflateCodec().pieces(codec.compress(bytes(300_000)) + codec.flush() + b"x")
    assert [len(next(pieces)), len(next(pieces))] == [PIECE_BYTES, 300_000 - PIECE_BYTES]
    with pytest.raises(RemoteProtocolError, match="continues after its end"):
        next(pieces)
