"""What a target is, and how the work for one input is bounded.

An input is some bytes of choices (a layout, an option, where to cut) and the bytes from outside. ``run`` feeds them to
the code, catches the documented errors, and asserts the properties; any other exception is a finding.

The work must grow no faster than the input. A piece of the input is repeated until it has :data:`SMALL` and then
:data:`LARGE` bytes; the CPU of the second may be that of the first, times the growth, times :data:`SLACK`. Neither the
speed of the machine nor its other load is part of that: both runs are measured in the same process, as CPU of the
thread, and the best of some attempts counts.
"""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

SMALL: Final = 16 * 1024
LARGE: Final = 32 * SMALL
SLACK: Final = 3.0
LEAST_SECONDS: Final = 0.1
"""CPU below which nothing is said about growth; a hundred times that of a usual input."""
ATTEMPTS: Final = 3
SEGMENT: Final = 1448
"""Size of the pieces of long inputs: that of a segment of TCP."""
MOST_PIECES: Final = 64
"""About half the number of pieces into which an input is cut at most."""
ONE_OF: Final = 512
"""The growth of the work is measured for one input of so many, chosen by its bytes."""


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of input.

    Attributes:
        name: Its name.
        about: What is fed with what, in one line.
        run: Feeds one input; raises for a finding.
        seeds: Yields inputs to start from.
        choices: Number of the first bytes that are choices.
        max_bytes: Largest input that the fuzzer makes.
    """

    name: str
    about: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    choices: int = 0
    max_bytes: int = 4096

    def check(self, data: bytes) -> None:
        """Feed one input, and for some of them also measure how the work grows."""
        self.run(data)
        if zlib.crc32(data) % ONE_OF == 0:
            self.check_growth(data)

    def check_growth(self, data: bytes) -> None:
        """Assert that the work for a longer input grows no faster than the input."""
        small, large = self.grown(data, SMALL), self.grown(data, LARGE)
        before, after = self._seconds(small), self._seconds(large)
        for _ in range(ATTEMPTS):
            most = max(before, LEAST_SECONDS * SMALL / LARGE) * SLACK * len(large) / len(small)
            if after <= max(most, LEAST_SECONDS):
                return
            before, after = max(before, self._seconds(small)), min(after, self._seconds(large))
        raise AssertionError(
            f"{len(small)} bytes took {before:.3f} s of CPU, {len(large)} bytes {after:.3f} s: the work grows faster"
            f" than the input, of which {data[:64]!r} was repeated"
        )

    def grown(self, data: bytes, size: int) -> bytes:
        """Return an input of about this size: a piece of ``data``, chosen by its bytes, is repeated."""
        given = random.Random(zlib.crc32(data))
        head, rest = data[: self.choices], data[self.choices :] or b"\0"
        first, last = sorted(given.choices(range(len(rest) + 1), k=2))
        if first == last or given.random() < 0.3:
            first, last = 0, len(rest)
        return head + rest[:first] + rest[first:last] * (size // (last - first)) + rest[last:]

    def _seconds(self, data: bytes) -> float:
        began = time.thread_time()
        self.run(data)
        return time.thread_time() - began


def pieces(data: bytes, choice: int) -> Iterator[bytes]:
    """Cut bytes into pieces; ``choice`` says where, 0 after each byte of a short input, 1 nowhere."""
    if choice == 1 or len(data) > SMALL:
        size = max(len(data), 1) if choice == 1 else SEGMENT
        yield from (data[start : start + size] for start in range(0, len(data), size))
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
