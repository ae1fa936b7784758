"""Arrival times of queued messages, without storing one per message.

Marks hold the running number and time of arrivals. The queue hands out from its
head, so its length gives the number of the message at the head.

The invariant: a message never counts as younger than it is; it may count as up
to ``GRAIN`` older.
"""

from __future__ import annotations

from collections import deque
from typing import Final

GRAIN: Final = 0.05
"""Arrivals within this many seconds share a mark; otherwise a fast stream would need one per read."""


class Ages:
    """The arrival times of one queue. Call it for arrivals, and for changes elsewhere than at the head."""

    __slots__ = ("_marks", "_total")

    def __init__(self) -> None:
        """Start with an empty queue."""
        self._total = 0
        self._marks: deque[tuple[float, int]] = deque()

    def arrived(self, now: float, count: int, waiting: int) -> None:
        """Record that ``count`` messages arrived behind the ``waiting`` ones."""
        marks = self._marks
        handed_out = self._total - waiting
        while marks and marks[0][1] <= handed_out:
            marks.popleft()
        self._total += count
        if marks and now - marks[-1][0] < GRAIN:
            marks[-1] = (marks[-1][0], self._total)
        else:
            marks.append((now, self._total))

    def head(self, waiting: int) -> float:
        """Return when the message at the head of ``waiting`` messages arrived."""
        marks = self._marks
        handed_out = self._total - waiting
        while len(marks) > 1 and marks[0][1] <= handed_out:
            marks.popleft()
        return marks[0][0]

    def put_back(self, arrived: float, waiting: int) -> None:
        """Record that a message that arrived then is at the head again, of ``waiting`` messages."""
        self._marks.appendleft((arrived, self._total - waiting + 1))

    def removed(self, waiting: int) -> None:
        """Record that messages were removed anywhere; the ``waiting`` ones left count as old as the oldest."""
        if waiting:
            self._marks = deque(((self.head(waiting), self._total),))
