"""Print and parse like Go, as far as nsqd's answers to bad input need it.

This is for texts in error frames, so that an embedded server answers byte for
byte like the real one. Do not use it for anything else.

Source: Go's ``strconv`` and ``fmt``; server protocol 5-7 for the frames.
"""

from __future__ import annotations

import re
from typing import Final

_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")
_INT64: Final = range(-(2**63), 2**63)


def quote(text: bytes) -> str:
    """Print like ``%q``: in double quotes, with unprintable characters escaped."""
    return '"' + "".join(_quoted(char) for char in text.decode("utf-8", "surrogateescape")) + '"'


def _quoted(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    if "\udc80" <= char <= "\udcff":  # a byte that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode()


def byte_lists(words: list[bytes]) -> str:
    """Print a list of byte strings like ``%v``: ``[[70 73] []]``."""
    return "[" + " ".join(byte_list(word) for word in words) + "]"


def byte_list(word: bytes) -> str:
    """Print a byte string like ``%v``: ``[70 73 78]``, as message ids appear in error texts."""
    return "[" + " ".join(map(str, word)) + "]"


def parse_int(text: bytes, function: str) -> int:
    """Parse like ``strconv.Atoi`` and ``strconv.ParseInt`` in base 10 and 64 bits.

    Raises:
        ValueError: With Go's text, which contains ``function``.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"strconv.{function}: parsing {quote(text)}: invalid syntax")
    # Python refuses to convert thousands of digits; without leading zeros anything over 20 is out of range.
    digits = text.lstrip(b"+-").lstrip(b"0")[:21] or b"0"
    value = -int(digits) if text.startswith(b"-") else int(digits)
    if value not in _INT64:
        raise ValueError(f"strconv.{function}: parsing {quote(text)}: value out of range")
    return value


def parse_digits(text: bytes) -> int | None:
    """Parse like nsqd's ``ByteToBase10``: digits only, no digits is 0, wrap at 64 bits. Return None if it refuses."""
    return int(text[-64:] or b"0") % 2**64 if text.isdigit() or not text else None


def int64(value: int) -> int:
    """Wrap an unsigned 64-bit number to a signed one, as Go's conversion does."""
    return (value + 2**63) % 2**64 - 2**63
