"""How far a channel has been consumed: the part of a channel that is replicated.

Everything else of a channel (who holds what, attempts, delays) lives in the
leader's memory and is lost with it, so that after a change of leader what was
unanswered comes again with attempts 1.
"""

from __future__ import annotations


class Cursor:
    """Confirmed records of one channel.

    Attributes:
        confirmed: Index of the first record that is not confirmed.
        beyond: Indexes confirmed out of order behind it.
        ranges: How many unbroken runs ``beyond`` makes; the server stops
            reading when there are too many.
    """

    __slots__ = ("beyond", "confirmed", "ranges")

    def __init__(self, confirmed: int) -> None:
        """Start at an index."""
        self.confirmed = confirmed
        self.beyond: set[int] = set()
        self.ranges = 0

    def confirm(self, index: int) -> None:
        """Confirm one record."""
        beyond = self.beyond
        if index == self.confirmed:
            self.confirmed = index + 1
            if beyond:
                self._merge()
        elif index > self.confirmed and index not in beyond:
            self.ranges += 1 - ((index - 1) in beyond) - ((index + 1) in beyond)
            beyond.add(index)

    def reset(self, index: int) -> None:
        """Start again at an index, with nothing confirmed behind it."""
        self.confirmed = index
        self.beyond.clear()
        self.ranges = 0

    def copy_from(self, other: Cursor) -> None:
        """Become equal to another replica's cursor."""
        self.confirmed = other.confirmed
        self.beyond = set(other.beyond)
        self.ranges = other.ranges

    def _merge(self) -> None:
        beyond = self.beyond
        if self.confirmed not in beyond:
            return
        self.ranges -= 1
        while self.confirmed in beyond:
            beyond.remove(self.confirmed)
            self.confirmed += 1
