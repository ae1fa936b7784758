"""Encode and decode gob, Go's format for values, as far as the calls between nsqds need it.

A stream is a sequence of messages, each a length and that many bytes. A message begins with the id of a
type. A negative id means that the definition of the type ``-id`` follows; a positive one, that a value of that
type follows. A stream defines a type once, before its first value. A value in an interface carries the type's
name, and there a definition cuts the value in two: the rest follows in the next message.

Numbers have variable length. A struct has only the fields that are not zero, each after its distance from
the last one, and ends with a zero. This module decodes numbers, texts, structs and interfaces. It
refuses everything else, and limits depth and number of what it reads.

Source: the package ``encoding/gob`` of Go (its documentation; ``decodeTypeSequence`` for the interfaces).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nsq_ha.errors import RemoteProtocolError

BOOL: Final = 1
INT: Final = 2
UINT: Final = 3
BYTES: Final = 5
TEXT: Final = 6
INTERFACE: Final = 8

MAX_DEPTH: Final = 8
"""Values inside each other."""

MAX_TYPES: Final = 64
"""Types that a stream may define."""

MAX_VALUES: Final = 4096
"""Fields of one value that are decoded. Each may be one byte, and becomes an object; calls have a few."""


LARGEST_DIGIT: Final = 128
"""Numbers below are one byte."""

MAX_BYTES: Final = 9
"""Of an encoded number."""


# ---------------------------------------------------------------- encoding


def encode_uint(number: int) -> bytes:
    """Encode a number from 0: below 128 in one byte, otherwise after a byte with its negated length."""
    if number < LARGEST_DIGIT:
        return bytes((number,))
    digits = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return bytes((256 - len(digits),)) + digits


def encode_int(number: int) -> bytes:
    """Encode a number; the last bit is the sign."""
    return encode_uint(~number << 1 | 1 if number < 0 else number << 1)


def encode_bytes(data: bytes) -> bytes:
    """Encode bytes, or a text as UTF-8."""
    return encode_uint(len(data)) + data


def encode_text(text: str) -> bytes:
    """Encode a text."""
    return encode_bytes(text.encode())


def encode_message(*parts: bytes) -> bytes:
    """Encode a message of the stream, or a value in an interface: the length, and the bytes."""
    return encode_bytes(b"".join(parts))


@dataclass(frozen=True, slots=True)
class Struct:
    """A type with fields.

    Attributes:
        name: Its name in Go.
        fields: Name and type of each field.
    """

    name: str
    fields: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """A type of lists.

    Attributes:
        name: Its name in Go.
        element: The type of the elements.
    """

    name: str
    element: int


# The types of a definition, which no stream defines, with Go's names and numbers.
_SLICE, _STRUCT = "SliceT", "StructT"
_WIRE_TYPE, _COMMON, _SLICE_TYPE, _STRUCT_TYPE, _FIELD_TYPE, _FIELDS = 16, 18, 19, 20, 21, 22
_KNOWN: Final[Mapping[int, Struct]] = {
    _WIRE_TYPE: Struct("wireType", (("ArrayT", 0), (_SLICE, _SLICE_TYPE), (_STRUCT, _STRUCT_TYPE))),
    _COMMON: Struct("CommonType", (("Name", TEXT), ("Id", INT))),
    _SLICE_TYPE: Struct("sliceType", (("CommonType", _COMMON), ("Elem", INT))),
    _STRUCT_TYPE: Struct("structType", (("CommonType", _COMMON), ("Field", _FIELDS))),
    _FIELD_TYPE: Struct("fieldType", (("Name", TEXT), ("Id", INT))),
}


def encode_definition(number: int, defined: Struct | Slice) -> bytes:
    """Encode the definition of the type ``number``."""
    common = 0, encode_fields([(0, encode_text(defined.name)), (1, encode_int(number))])
    if isinstance(defined, Slice):
        kind = 1, encode_fields([common, (1, encode_int(defined.element))])
    else:
        fields = [encode_fields([(0, encode_text(name)), (1, encode_int(of))]) for name, of in defined.fields]
        kind = 2, encode_fields([common, (1, encode_uint(len(fields)) + b"".join(fields))])
    return encode_int(-number) + encode_fields([kind])


def encode_fields(values: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode a struct.

    Args:
        values: Number, from 0, and encoded value of each field that is not zero, in order.
    """
    parts: list[bytes] = []
    last = -1
    for number, value in values:
        parts += (encode_uint(number - last), value)
        last = number
    return b"".join(parts) + b"\0"


# ---------------------------------------------------------------- decoding


@dataclass(frozen=True, slots=True)
class Boxed:
    """The value of an interface.

    Attributes:
        name: Name of its type, as Go registered it.
        kind: Number of its type.
        value: The fields by name; or the encoded value as a memoryview, if the decoder leaves this type as it is.
    """

    name: str
    kind: int
    value: Any


class Decoder:
    """Decodes one stream of structs.

    Args:
        next_message: Returns the bytes of the next message, without its length.
        raw: Names of types whose values stay encoded, if they are in an interface.

    Attributes:
        types: The defined types by number.
    """

    def __init__(self, next_message: Callable[[], memoryview], raw: Collection[str] = ()) -> None:
        self.types: dict[int, Struct | Slice] = {}
        self._next_message = next_message
        self._raw = frozenset(raw)
        self._data = memoryview(b"")
        self._at = 0
        self._left = MAX_VALUES

    def read(self) -> dict[str, Any]:
        """Return the fields of the next value of the stream; fields that are zero are missing.

        Raises:
            RemoteProtocolError: It is not what this module knows, or is cut, or exceeds a limit. The stream cannot be
                used any longer.
        """
        self._left = MAX_VALUES
        kind = self._kind(inside=False)
        fields = self._struct(kind, 0)
        if self._at != len(self._data):
            raise wrong("data after the end of a value")
        return fields

    def _kind(self, *, inside: bool) -> int:
        """Return the type of the value that follows, and learn the definitions before it."""
        while True:
            if self._at == len(self._data):
                self._data, self._at = self._next_message(), 0
            number = self._int()
            if number >= 0:
                return number
            self._define(-number)
            if self._at == len(self._data):
                continue
            if not inside:
                raise wrong("data after the definition of a type")
            self._uint()  # length of the rest

    def _define(self, number: int) -> None:
        if len(self.types) == MAX_TYPES or number in self.types:
            raise wrong("too many types, or one twice")
        wire = self._struct(_WIRE_TYPE, 0)
        name = next((each.get("CommonType", {}).get("Name", "") for each in wire.values()), "")
        if wire.keys() == {_SLICE}:
            self.types[number] = Slice(name, wire[_SLICE].get("Elem", 0))
        elif wire.keys() == {_STRUCT}:
            fields = wire[_STRUCT].get("Field", ())
            self.types[number] = Struct(name, tuple((each.get("Name", ""), each.get("Id", 0)) for each in fields))
        else:
            raise wrong("the definition of another type than a struct or a slice")

    def _struct(self, kind: int, depth: int) -> dict[str, Any]:
        found = _KNOWN.get(kind) or self.types.get(kind)
        if not isinstance(found, Struct) or depth > MAX_DEPTH:
            raise wrong(f"a value of type {kind}")
        fields: dict[str, Any] = {}
        place = -1
        while step := self._uint():
            place += step
            if place >= len(found.fields):
                raise wrong(f"a {found.name} with more than {len(found.fields)} fields")
            name, of = found.fields[place]
            fields[name] = self._value(of, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:  # noqa: ANN401 - any value of Go's
        self._left -= 1
        if self._left < 0:
            raise wrong(f"more than {MAX_VALUES} values in one")
        if kind == INT:
            return self._int()
        if kind in (UINT, BOOL):
            number = self._uint()
            return bool(number) if kind == BOOL else number
        if kind == TEXT:
            return self._text()
        if kind == INTERFACE:
            return self._interface(depth + 1)
        if kind == _FIELDS:
            return [self._value(_FIELD_TYPE, depth + 1) for _ in range(self._uint())]
        return self._struct(kind, depth + 1)

    def _interface(self, depth: int) -> Boxed | None:
        name = self._text()
        if not name:
            return None
        kind = self._kind(inside=True)
        if name in self._raw:
            return Boxed(name, kind, self._chunk())
        self._uint()  # its length, or that of the part before a definition
        return Boxed(name, kind, self._struct(kind, depth))

    def _text(self) -> str:
        return bytes(self._chunk()).decode("utf-8", "replace")

    def _int(self) -> int:
        number = self._uint()
        return ~(number >> 1) if number & 1 else number >> 1

    def _uint(self) -> int:
        number, self._at = decode_uint(self._data, self._at)
        return number

    def _chunk(self) -> memoryview:
        size = self._uint()
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise wrong("a value that is cut")
        return self._data[start : self._at]


def width_at(data: memoryview | bytes, position: int) -> int:
    """Return how many bytes the number at ``position`` takes."""
    digit = data[position]
    return 1 if digit < LARGEST_DIGIT else 257 - digit


def decode_uint(data: memoryview | bytes, position: int) -> tuple[int, int]:
    """Return the number at ``position``, and where it ends.

    Raises:
        RemoteProtocolError: It is cut, or has more than 64 bits.
    """
    if position >= len(data):
        raise wrong("a value that is cut")
    digit = data[position]
    if digit < LARGEST_DIGIT:
        return digit, position + 1
    end = position + 257 - digit
    if end - position > MAX_BYTES:
        raise wrong(f"a number of {256 - digit} bytes")
    if end > len(data):
        raise wrong("a value that is cut")
    return int.from_bytes(data[position + 1 : end], "big"), end


def wrong(what: str) -> RemoteProtocolError:
    """Return the error about gob data that is not understood."""
    return RemoteProtocolError(f"the gob data has {what}")
