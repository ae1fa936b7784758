"""Compression of a connection: any chunking, damage, bombs."""

from __future__ import annotations

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
def test_each_write_can_be_read_at_once(make: Make) -> None:
    ours, theirs = make(), make()
    for data in (b"first", b"second", bytes(200_000)):
        assert b"".join(theirs.pieces(ours.compress(data))) == data


@both
def test_a_stream_of_its_own_bytes_is_smaller(make: Make) -> None:
    assert len(make().compress(b"abcd" * 10_000)) < 4000


@both
@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(255, 0, -1)), b"\xff" * 100])
def test_garbage_is_a_broken_rule(make: Make, garbage: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"deflate|snappy"):
        b"".join(make().pieces(garbage))


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
    assert got == b""


def test_a_deflate_stream_may_end_but_not_go_on() -> None:
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15)
    codec = DeflateCodec()
    assert b"".join(codec.pieces(deflater.compress(b"bye") + deflater.flush())) == b"bye"
    with pytest.raises(RemoteProtocolError, match="continues after its end"):
        b"".join(codec.pieces(b"more"))


def test_a_snappy_block_that_announces_too_much_is_not_expanded() -> None:
    huge = b"\xff\xff\xff\xff\x0f" + b"\x00a"  # 4 GiB announced
    with pytest.raises(RemoteProtocolError, match="announces more than 64 KiB"):
        b"".join(snappy_after_identifier().pieces(chunk(0x00, bytes(4) + huge)))
    honest = bytes(cramjam.snappy.compress_raw(bytes(65537)))
    with pytest.raises(RemoteProtocolError, match="announces more than 64 KiB"):
        b"".join(snappy_after_identifier().pieces(chunk(0x00, bytes(4) + honest)))


def test_an_uncompressed_snappy_block_has_at_most_64_kib() -> None:
    with pytest.raises(RemoteProtocolError, match="no legal size"):
        b"".join(snappy_after_identifier().pieces(chunk(0x01, bytes(4) + bytes(65537))))


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"\x01\x05\x00\x00abcde", "does not begin with its identifier"),
        (b"\xff\x07\x00\x00", "does not begin with its identifier"),
        (b"\xff\x06\x00\x00sNaPpX", "identifier is damaged"),
        (IDENTIFIER + b"\x02\x00\x00\x00", "chunk type 0x02 is reserved"),
        (IDENTIFIER + b"\x7f\x00\x00\x00", "chunk type 0x7f is reserved"),
        (IDENTIFIER + b"\x00\x03\x00\x00", "no legal size"),
        (IDENTIFIER + b"\x00\xff\xff\xff", "no legal size"),
        (IDENTIFIER + b"\xfe\xff\xff\xff", "no legal size"),
        (IDENTIFIER + chunk(0x01, b"\0\0\0\0abc"), "is damaged"),
        (IDENTIFIER + chunk(0x00, b"\0\0\0\0"), "is damaged"),
    ],
    ids=range(10),
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


@given(st.lists(st.binary(max_size=300).map(lambda data: data * 40)), st.integers(1, 997))
def test_pieces_are_what_was_compressed_however_it_is_cut(sent: list[bytes], cut: int) -> None:
    for writer, reader in codecs():
        stream = b"".join(writer.compress(data) for data in sent)
        parts = [stream[at : at + cut] for at in range(0, len(stream), cut)]
        assert b"".join(piece for part in parts for piece in reader.pieces(memoryview(part))) == b"".join(sent)


@pytest.mark.parametrize("which", [0, 1], ids=["deflate", "snappy"])
def test_a_piece_has_a_bounded_size_whatever_its_bytes_expand_to(which: int) -> None:
    writer, reader = codecs()[which]
    data = bytes(20 * PIECE_BYTES + 7)
    sizes = [len(piece) for piece in reader.pieces(writer.compress(data))]
    assert sum(sizes) == len(data)
    assert max(sizes) < PIECE_BYTES + 65536
    assert min(sizes) > 0


@pytest.mark.parametrize("which", [0, 1], ids=["deflate", "snappy"])
def test_damage_in_a_piece_is_told_and_what_came_before_it_is_given(which: int) -> None:
    writer, reader = codecs()[which]
    pieces = reader.pieces(writer.compress(b"good") + b"\x07" * 50)
    with pytest.raises(RemoteProtocolError):
        list(pieces)


def test_bytes_behind_the_end_of_a_large_deflate_stream_are_refused() -> None:
    codec = zlib.compressobj(wbits=-15)
    pieces = DeflateCodec().pieces(codec.compress(bytes(300_000)) + codec.flush() + b"x")
    assert [len(next(pieces)), len(next(pieces))] == [PIECE_BYTES, 300_000 - PIECE_BYTES]
    with pytest.raises(RemoteProtocolError, match="continues after its end"):
        next(pieces)


def test_half_a_block_gives_no_piece_yet() -> None:
    writer, reader = codecs()[1]
    block = writer.compress(b"whole")
    assert list(reader.pieces(block[:-1])) == []
    assert list(reader.pieces(block[-1:])) == [b"whole"]


def test_damage_that_is_found_piece_by_piece_is_named() -> None:
    with pytest.raises(RemoteProtocolError, match=r"^deflate stream is damaged: Error -3 while"):
        list(DeflateCodec().pieces(b"\xff" * 100))


def ended() -> DeflateCodec:
    codec, packer = DeflateCodec(), zlib.compressobj(wbits=-15)
    b"".join(codec.pieces(packer.compress(b"x") + packer.flush()))
    return codec


@pytest.mark.parametrize(
    ("codec", "data", "text"),
    [
        (ended(), b"y", "deflate stream continues after its end"),
        (SnappyCodec(), chunk(0xFE, b"sNaPpY"), "snappy stream does not begin with its identifier"),
        (SnappyCodec(), chunk(0xFF, b"sNaPpX"), "snappy stream identifier is damaged"),
        (
            snappy_after_identifier(),
            chunk(0, bytes(4) + b"\x81\x80\x04" + bytes(9)),
            "snappy block announces more than 64 KiB",
        ),
        (snappy_after_identifier(), chunk(1, bytes(3)), "snappy chunk of 3 bytes has no legal size"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_a_stream_is_said(codec: Codec, data: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        b"".join(codec.pieces(data))
    assert str(caught.value) == text
