"""Gob: what Go did not write is refused without harm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.spark.pull.gob import (
    INTERFACE,
    MAX_VALUES,
    UINT,
    Decoder,
    Slice,
    Struct,
    encode_definition,
    encode_fields,
    encode_int,
    encode_message,
)
from tests.spark.test_pull import source

A, B, C = 64, 65, 66


def decoder(*parts: bytes) -> Decoder:
    return Decoder(source(b"".join(map(encode_message, parts))), ())


def read_all(stream: Decoder) -> None:
    """Read until that fails, at the end of the stream at the latest."""
    while True:
        stream.read()


def define(number: int, name: str, *fields: tuple[str, int]) -> bytes:
    return encode_definition(number, Struct(name, fields))


def value(number: int, *fields: tuple[int, bytes]) -> bytes:
    return encode_int(number) + encode_fields(fields)


DEFINED = define(A, "t", ("n", UINT), ("m", A), ("i", INTERFACE), ("l", B)), encode_definition(B, Slice("[]t", A))


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
