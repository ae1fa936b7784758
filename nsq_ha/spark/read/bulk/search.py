"""Find the entry of a partition's log that contains an offset.

The call addresses entries by number, and knows no offsets. One answer shows where one entry begins and ends, so this
guesses in proportion, and halves the rest if that does not converge. It begins low, since a server logs a warning for
each number beyond the end.

**Source:** youzan/nsq ``consistence/commitlog.go`` ``ConvertToOffsetIndex``: entries keep their numbers when older ones
are cleaned.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsq_ha.spark.cluster import Extent

_GUESSES: Final = 8
"""Guesses in proportion, before the rest is halved each time."""


class Missing(enum.Enum):
    """Why an entry cannot be read."""

    CLEANED = "cleaned"
    """It was cleaned: the log begins after it."""
    LATER = "later"
    """It does not exist or cannot be read yet."""


@dataclass(frozen=True, slots=True)
class Place:
    """An entry that was read.

    Attributes:
        offset: Where it begins, in bytes of the partition's queue.
        size: Its bytes.
    """

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Found:
    """An entry to begin with.

    Attributes:
        number: Its number.
        size: Bytes of an entry there or immediately before, to guess how many to ask for. 0 if unknown.
    """

    number: int
    size: int


def find_entry(position: int, extent: Extent, look: Callable[[int], Place | Missing]) -> Found | None:
    """Return the entry that contains ``position``, or the one that will begin there.

    Args:
        position: An offset inside the log.
        extent: The extent of the log.
        look: Reads the entry with a number.

    Returns:
        None if the entries do not contain it: they begin later, or there is a gap.
    """
    low, before, is_later = -1, Place(extent.start, 0), False
    # There are at least as many messages as entries.
    high, after = extent.messages + 1, -1
    for attempt in range(_GUESSES + high.bit_length()):
        if high - low < 2:
            break
        guess = (low + high) // 2
        if attempt == 0:
            guess = position * high // max(extent.end, 1) if extent.start else 0
        elif attempt < _GUESSES and after > before.offset:
            guess = low + (position - before.offset) * (high - low) // (after - before.offset)
        elif attempt < _GUESSES and before.size and not is_later:
            guess = low + (position - before.offset) // before.size
        guess = min(max(guess, low + 1), high - 1)
        found = look(guess)
        is_later = found is Missing.LATER
        if isinstance(found, Missing):
            if is_later:
                high, after = guess, -1
            else:
                low, before = guess, Place(extent.start, 0)
        elif found.offset > position:
            high, after = guess, found.offset
        elif position < found.offset + found.size:
            return Found(guess, found.size)
        else:
            low, before = guess, found
    ends_there = before.size > 0 and before.offset + before.size == position
    is_first = low == -1 and position == 0
    return Found(low + 1, before.size) if ends_there or is_first else None
