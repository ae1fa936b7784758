"""Bodies compressed by clients."""

import gzip
import json
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.protocol.body_codec import AT_ONCE_BYTES, compress_body, packed_body

MOST = 100_000
BODY = b"the same again, " * 100
SEVERAL = gzip.compress(b"one", mtime=0) + gzip.compress(b"two", mtime=0)
# b"go go " * 20, compressed by the libraries of Go programs.
BY_GO = {
    "1": "1f8b08000000000000ff4acf57181004080000ffffbf9f6b6278000000",
    "2": "7808676f20fe0300d20300",
    "3": "3f676f20030052006300c0676f20676f20676f20676f20",
}
NUMBERS = {"gzip": "1", "snappy": "2", "lz4": "3"}


def header(number: object = None, size: object = None, **more: object) -> bytes:
    found = {"nsq.client.compress": number, "nsq.msg.size": size, **more}
    return json.dumps({key: value for key, value in found.items() if value is not None}).encode()


def decompress_body(body: bytes, ext: bytes, most: int) -> tuple[bytes, bytes] | None:
    packed = packed_body(body, ext, most)
    if packed is None:
        return None
    found = packed.expand()
    assert len(found) <= packed.bound <= max(most, len(body))
    return found, packed.ext


@pytest.mark.parametrize("codec", NUMBERS)
def test_there_and_back(codec: str) -> None:
    packed, marks = compress_body(BODY, codec)
    assert len(packed) < len(BODY)
    assert marks == {"nsq.client.compress": NUMBERS[codec], "nsq.msg.size": str(len(BODY))}
    ext = json.dumps({"a": [1, "é"], **marks, "##trace_id": "7"}).encode()
    assert decompress_body(packed, ext, MOST) == (BODY, b'{"a":[1,"\\u00e9"],"##trace_id":"7"}')


@pytest.mark.parametrize("number", BY_GO)
@pytest.mark.parametrize("size", ["120", None])
def test_what_go_programs_compress(number: str, size: str | None) -> None:
    assert decompress_body(bytes.fromhex(BY_GO[number]), header(number, size), MOST) == (b"go go " * 20, b"{}")


@pytest.mark.parametrize("codec", NUMBERS)
def test_what_does_not_become_smaller_is_not_compressed(codec: str) -> None:
    body = random.Random(1).randbytes(1000)
    assert compress_body(body, codec) == (body, {})


@pytest.mark.parametrize("codec", NUMBERS)
@pytest.mark.parametrize("size", [None, "10000000"])
def test_nothing_expands_beyond_the_limit(codec: str, size: str | None) -> None:
    packed, _ = compress_body(bytes(10_000_000), codec)
    with pytest.raises(ValueError, match=r"limit allows|max_decompressed_bytes=100000"):
        decompress_body(packed, header(NUMBERS[codec], size), MOST)


@pytest.mark.parametrize("codec", NUMBERS)
@pytest.mark.parametrize("size", [None, str(len(BODY))])
def test_truncated_data_is_refused(codec: str, size: str | None) -> None:
    packed, _ = compress_body(BODY, codec)
    for cut in (1, len(packed) // 2, len(packed) - 1):
        try:
            found = decompress_body(packed[:cut], header(NUMBERS[codec], size), MOST)
        except ValueError as error:
            assert str(error).startswith(("is ", "has "))  # noqa: PT017 - an LZ4 block without a size may be cut
        else:
            assert (codec, size) == ("lz4", None)
            assert found is not None
            assert BODY.startswith(found[0])


@pytest.mark.parametrize("codec", NUMBERS)
@pytest.mark.parametrize("size", [str(len(BODY) - 1), str(len(BODY) + 1), "0", "-1", "1.5", "x", "", "9" * 30])
def test_a_wrong_size_is_refused(codec: str, size: str) -> None:
    packed, _ = compress_body(BODY, codec)
    with pytest.raises(ValueError, match=r"^(is|has) "):
        decompress_body(packed, header(NUMBERS[codec], size), MOST)


@pytest.mark.parametrize("number", ["4", "gzip", " 1", "1" * 1000])
def test_an_unknown_number_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="which is no known compression"):
        decompress_body(BODY, header(number), MOST)


@pytest.mark.parametrize(
    "ext",
    [
        b"{}",
        b'{"a":1}',
        b"[]",
        b'"nsq.client.compress"',
        b"{",
        b"\xff",
        b"[" * 100_000,
        header(1),
        header(""),
        header([]),
    ],
)
def test_a_body_that_is_not_marked_stays(ext: bytes) -> None:
    assert decompress_body(BODY, ext, MOST) is None


def test_a_mark_without_compression_is_removed() -> None:
    assert decompress_body(BODY, header("0", "7", a=1), MOST) == (BODY, b'{"a":1}')


def test_gzip_may_have_several_members() -> None:
    assert decompress_body(SEVERAL, header("1"), MOST) == (b"onetwo", b"{}")
    with pytest.raises(ValueError, match="max_decompressed_bytes=5"):
        decompress_body(SEVERAL, header("1"), 5)
    with pytest.raises(ValueError, match="is not valid gzip data"):
        decompress_body(SEVERAL + b"more", header("1"), MOST)
    with pytest.raises(ValueError, match="is not valid gzip data"):
        decompress_body(zlib.compress(BODY), header("1"), MOST)


@given(st.binary(max_size=200), st.sampled_from(["1", "2", "3"]), st.sampled_from([None, "0", "5", "99999"]))
def test_any_data_gives_a_body_or_a_value_error(body: bytes, number: str, size: str | None) -> None:
    try:
        found = decompress_body(body, header(number, size), MOST)
    except ValueError:
        return
    assert found is not None
    assert len(found[0]) <= MOST


@pytest.mark.parametrize("codec", NUMBERS)
def test_what_a_body_may_expand_to_is_known_before(codec: str) -> None:
    body = bytes(AT_ONCE_BYTES + 1)
    packed, marks = compress_body(body, codec)
    found = packed_body(packed, json.dumps(marks).encode(), 10 * len(body))
    assert found is not None
    assert found.bound == len(body)
    unsized = packed_body(packed, header(NUMBERS[codec]), 10 * len(body))
    assert unsized is not None
    assert len(body) <= unsized.bound <= 10 * len(body)


def test_a_size_that_is_too_small_ends_the_expansion() -> None:
    packed, _ = compress_body(bytes(10_000_000), "gzip")
    with pytest.raises(ValueError, match=r"^has more than 5 bytes decompressed, but its header nsq.msg.size says 5$"):
        decompress_body(packed, header("1", "5"), 20_000_000)


@pytest.mark.parametrize("sized", [True, False])
def test_an_lz4_block_that_begins_like_a_size(sized: bool) -> None:
    body = bytes(3) + b"\xff" * 75 + b"\0\1" + bytes(10) + b"PPPPP\0\xff"
    packed, marks = compress_body(body, "lz4")
    assert decompress_body(packed, json.dumps(marks).encode() if sized else header("3"), MOST) == (body, b"{}")
