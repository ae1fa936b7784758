"""What a target is, and how an input is cut and changed.

An input is some bytes of choices (a layout, an option, where to cut) and the bytes from outside. ``run`` feeds them to
the code, catches the documented errors, and asserts the properties; any other exception is a finding.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

MOST_PIECES: Final = 64
"""About half the number of pieces into which an input is cut at most."""


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of input.

    Attributes:
        name: Its name.
        about: What is fed with what, in one line.
        run: Feeds one input; raises for a finding.
        seeds: Yields inputs to start from.
        max_bytes: Largest input that the fuzzer makes.
    """

    name: str
    about: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    max_bytes: int = 4096


def pieces(data: bytes, choice: int) -> Iterator[bytes]:
    """Cut bytes into pieces; ``choice`` says where, 0 after each byte of a short input, 1 nowhere."""
    if choice == 1 and data:
        yield data
        return
    given = random.Random(choice)
    longest = max(len(data) // MOST_PIECES, 1 if choice == 0 else given.choice((2, 5, 40, 500)))
    at = 0
    while at < len(data):
        size = 1 + int(given.random() * longest)
        yield data[at : at + size]
        at += size


def mutated(seed: bytes, other: bytes, given: random.Random) -> bytes:
    """Return a seed with some changes, as a fuzzer without coverage makes them; ``other`` is a second seed."""
    data = bytearray(seed)
    for _ in range(given.randint(1, 4)):
        at = given.randint(0, len(data))
        what = given.randrange(6)
        if what == 0 and data:
            data[at % len(data)] = given.choice((0, 1, 0x20, 0x7F, 0x80, 0xFF, given.randrange(256)))
        elif what == 1:
            del data[at : at + given.randint(1, 8)]
        elif what == 2:
            data[at:at] = data[at : at + given.randint(1, 32)]
        elif what == 3:
            data[at : at + 4] = given.choice((2**31 - 1, 2**32 - 1, 5, 2**20)).to_bytes(4, "big")
        elif what == 4:
            data[at:at] = given.choice((b'"', b"{", b"[", b"\\u0000", b"\n", b"\xff\xfe", b"1e999", b"-1"))
        else:
            start = given.randint(0, len(other))
            data[at:] = other[start:]
    return bytes(data)
