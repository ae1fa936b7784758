"""Go's spelling, against what Go prints."""

import pytest

from nsq_ha.protocol.server.gotext import byte_list, byte_lists, int64, parse_digits, parse_int, quote


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (b"bad!", '"bad!"'),
        (b"", '""'),
        (b'a"b\\', '"a\\"b\\\\"'),
        (b"\n\r\t", '"\\n\\r\\t"'),
        (b"\x00\x1f\x7f", '"\\x00\\x1f\\x7f"'),
        ("é€".encode(), '"é€"'),
        ("\u200b\U000e0001".encode(), '"\\u200b\\U000e0001"'),
        (b"\xff\xc3", '"\\xff\\xc3"'),
    ],
)
def test_quote(text: bytes, quoted: str) -> None:
    assert quote(text) == quoted


def test_bytes_are_printed_as_numbers() -> None:
    assert byte_list(b"\x00\xff") == "[0 255]"
    assert byte_lists([b"AB", b""]) == "[[65 66] []]"


@pytest.mark.parametrize(
    ("text", "value"),
    [(b"0", 0), (b"-7", -7), (b"+7", 7), (b"007", 7), (b"9223372036854775807", 2**63 - 1), (b"-" + b"0" * 5000, 0)],
)
def test_integers(text: bytes, value: int) -> None:
    assert parse_int(text, "Atoi") == value


@pytest.mark.parametrize("text", [b"", b"abc", b"1_000", b"1.0", b" 1", b"+", b"--1", "\u0661".encode()])
def test_what_is_no_integer(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"strconv.Atoi: parsing .*: invalid syntax"):
        parse_int(text, "Atoi")


@pytest.mark.parametrize("text", [b"9223372036854775808", b"-9223372036854775809", b"1" * 5000])
def test_integers_out_of_range(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"strconv.ParseInt: parsing .*: value out of range"):
        parse_int(text, "ParseInt")


def test_digits_wrap_at_64_bits() -> None:
    assert parse_digits(b"") == 0
    assert parse_digits(b"2500") == 2500
    assert parse_digits(str(2**64 + 5).encode()) == 5
    assert [parse_digits(text) for text in (b"-1", b"+1", b"a")] == [None] * 3


def test_unsigned_numbers_become_signed_ones() -> None:
    assert [int64(value) for value in (5, 2**63, 2**64 - 1, 2**64 + 1)] == [5, -(2**63), -1, 1]
