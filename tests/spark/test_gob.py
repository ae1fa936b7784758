"""Gob: what Go wrote is understood, and what is anything else is refused without harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.spark.pull.gob import (
    BOOL,
    INT,
    INTERFACE,
    MAX_TYPES,
    MAX_VALUES,
    TEXT,
    UINT,
    Boxed,
    Decoder,
    Slice,
    Struct,
    decode_uint,
    encode_definition,
    encode_fields,
    encode_int,
    encode_message,
    encode_text,
    encode_uint,
)
from tests.spark.test_pull import source

A, B, C = 64, 65, 66


def decoder(*parts: bytes, raw: tuple[str, ...] = ()) -> Decoder:
    return Decoder(source(b"".join(map(encode_message, parts))), raw)


def read_all(stream: Decoder) -> None:
    """Read until that fails, at the end of the stream at the latest."""
    while True:
        stream.read()


def define(number: int, name: str, *fields: tuple[str, int]) -> bytes:
    return encode_definition(number, Struct(name, fields))


def value(number: int, *fields: tuple[int, bytes]) -> bytes:
    return encode_int(number) + encode_fields(fields)


@pytest.mark.parametrize(
    ("number", "encoded"), [(0, "00"), (127, "7f"), (128, "ff80"), (256, "fe0100"), (2**64 - 1, "f8" + "ff" * 8)]
)
def test_numbers_are_encoded_as_by_go(number: int, encoded: str) -> None:
    assert encode_uint(number).hex() == encoded
    assert decode_uint(bytes.fromhex(encoded), 0) == (number, len(encoded) // 2)


@given(st.integers(-(2**63), 2**63 - 1))
def test_signed_numbers_survive(number: int) -> None:
    fields = decoder(define(A, "t", ("n", INT)), value(A, (0, encode_int(number)))).read()
    assert fields == {"n": number}


def test_all_kinds_of_values() -> None:
    read = decoder(
        define(A, "t", *[(each, kind) for each, kind in zip("abcde", (BOOL, INT, UINT, TEXT, B), strict=True)]),
        define(B, "s", ("x", UINT)),
        value(
            A,
            (0, encode_uint(1)),
            (1, encode_int(-3)),
            (2, encode_uint(300)),
            (3, encode_text("Zürich")),
            (4, encode_fields([(0, encode_uint(7))])),
        ),
    )
    assert read.read() == {"a": True, "b": -3, "c": 300, "d": "Zürich", "e": {"x": 7}}


def test_a_definition_may_come_in_the_middle_of_a_value() -> None:
    read = decoder(
        define(A, "t", ("i", INTERFACE), ("after", UINT)),
        encode_int(A) + b"\x01" + encode_text("*u") + define(B, "u", ("n", UINT)),
        encode_int(B) + encode_message(encode_fields([(0, b"\x05")])) + b"\x01\x09\0",
        value(A, (0, encode_text("*u") + encode_int(B) + encode_message(encode_fields([]))), (1, b"\x01")),
        value(A, (0, encode_text(""))),
        value(A),
    )
    assert read.read() == {"i": Boxed("*u", {"n": 5}), "after": 9}
    assert read.read() == {"i": Boxed("*u", {}), "after": 1}
    assert read.read() == {"i": None}
    assert read.read() == {}
    assert read.types == {A: Struct("t", (("i", INTERFACE), ("after", UINT))), B: Struct("u", (("n", UINT),))}


DEFINED = define(A, "t", ("n", UINT), ("m", A), ("i", INTERFACE), ("l", B)), encode_definition(B, Slice("[]t", A))


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ((), "the stream ends"),
        ((b"",), "a value that is cut"),
        ((define(A, "t") + b"\0",), "data after the definition"),
        ((define(A, "t"), define(A, "t")), "too many types, or one twice"),
        (tuple(define(A + n, "t") for n in range(MAX_TYPES + 1)), "too many types"),
        ((define(A, "t", *[("f", INT)] * 4097),), "too many fields"),
        ((encode_int(-A) + b"\x04",), "another type than a struct or a slice"),
        ((encode_int(-A) + b"\x03\x02",), "another type than a struct or a slice"),
        ((encode_int(-A) + b"\x03\x01\x03\x01\0",), "an unknown part of a type"),
        ((encode_int(-A) + b"\x03\x01\0\x01\0\x01\0\0",), "an unknown part of a type"),
        ((encode_int(-A) + b"\x02\x01\0\x02\0\0\0",), "an unknown part of a type"),
        ((encode_int(-A) + b"\x02\x01\0\x01\x04\0\x01",), "an unknown part of a type"),
        ((encode_int(-A) + b"\x03\x01\x01\x05ab",), "a value that is cut"),
        ((value(A),), "a value of type 64"),
        ((*DEFINED, value(B)), "a value of type 65"),
        ((*DEFINED, value(INT)), "a value of type 2"),
        ((*DEFINED, value(A) + b"\0"), "data after the end of a value"),
        ((*DEFINED, encode_int(A) + b"\x01"), "a value that is cut"),
        ((*DEFINED, encode_int(A) + b"\x01\xfe\x01"), "a value that is cut"),
        ((*DEFINED, encode_int(A) + b"\x01\xf7" + bytes(9)), "a number of 9 bytes"),
        ((*DEFINED, encode_int(A) + b"\x05"), "a t with more than 4 fields"),
        ((*DEFINED, encode_int(A) + b"\x02" * 100 + b"\0" * 101), "a value of type 64"),
        ((*DEFINED, encode_int(A) + (b"\x03\x01x" + encode_int(A) + b"\x01") * 100), "a value of type 64"),
        ((*DEFINED, encode_int(A) + b"\x04"), "a value of type 65"),
    ],
)
def test_what_is_not_understood_is_refused(parts: tuple[bytes, ...], problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        read_all(decoder(*parts))


def test_a_message_of_many_small_values_is_refused() -> None:
    """An empty struct is one byte, and a dict here: a message of 64 MiB would take gigabytes."""
    inner = define(B, "u", *[("f", C)] * 100), define(C, "v")
    read = decoder(
        define(A, "t", *[("s", B)] * 100), *inner, value(A, *[(n, (b"\x01" + b"\0") * 100 + b"\0") for n in range(100)])
    )
    with pytest.raises(RemoteProtocolError, match=f"more than {MAX_VALUES} values in one"):
        read.read()


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_any_bytes_are_read_or_refused(parts: list[bytes]) -> None:
    with pytest.raises(RemoteProtocolError):
        read_all(decoder(*DEFINED, *parts))
