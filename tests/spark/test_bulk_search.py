"""The search of an entry: exact in any log, and not many questions."""

import itertools
from bisect import bisect_right
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.spark.cluster import Extent
from nsq_ha.spark.read.bulk.reader import Missing, find_entry


@dataclass
class Entries:
    """A log whose first entries are cleaned, and whose last ones cannot be read.

    Attributes:
        sizes: Bytes of each entry.
        cleaned: Number of entries at the start.
        unread: Number of entries at the end.
        per_entry: Messages in each.
    """

    sizes: list[int]
    cleaned: int = 0
    unread: int = 0
    per_entry: int = 1
    asked: list[int] = field(default_factory=list)

    @property
    def offsets(self) -> list[int]:
        return [0, *itertools.accumulate(self.sizes)]

    @property
    def extent(self) -> Extent:
        return Extent(self.offsets[self.cleaned], self.offsets[-1], len(self.sizes) * self.per_entry)

    def look(self, number: int) -> tuple[int, int] | Missing:
        self.asked.append(number)
        if number < self.cleaned:
            return "cleaned"
        if number >= len(self.sizes) - self.unread:
            return "later"
        return self.offsets[number], self.sizes[number]

    def find(self, position: int) -> tuple[int, int] | None:
        return find_entry(position, self.extent, self.look)


sizes = st.lists(st.integers(1, 5000), min_size=1, max_size=300)


@given(sizes, st.integers(0, 50), st.integers(0, 50), st.integers(1, 1000), st.data())
def test_the_entry_that_contains_an_offset_is_found(
    parts: list[int], cleaned: int, unread: int, per_entry: int, data: st.DataObject
) -> None:
    entries = Entries(parts, min(cleaned, len(parts) - 1), min(unread, len(parts)), per_entry)
    position = data.draw(st.integers(0, entries.offsets[-1] - 1))
    number = bisect_right(entries.offsets, position) - 1
    readable = len(parts) - entries.unread
    found = entries.find(position)
    if entries.cleaned <= number < readable:
        assert found == (number, parts[number])
    elif number == readable > entries.cleaned and position == entries.offsets[number]:
        assert found == (number, parts[number - 1])
    elif position == 0 and not entries.cleaned:
        assert found == (0, 0)
    else:
        assert found is None
    assert len(entries.asked) <= 8 + (len(parts) * per_entry + 1).bit_length()


def test_an_empty_log_begins_with_the_first_entry() -> None:
    assert find_entry(0, Extent(0, 0, 0), lambda _: "later") == (0, 0)
