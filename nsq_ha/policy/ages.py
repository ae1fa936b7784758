"""When the messages of a queue arrived, without a note on each.

Arrivals are marked by their running number. The queue hands out from its head,
so its length tells the number of the message at its head.

The invariant: no message is taken to be younger than it is; by up to ``GRAIN``
it may be taken to be older.
"""

from __future__ import annotations

from collections import deque
from typing import Final

GRAIN: Final = 0.05
"""Arrivals within so many seconds share a mark, or a fast stream would make one for each read."""


class Ages:
    """The arrival times of what waits in one queue. Tell it of arrivals and of changes that are not at the head."""

    __slots__ = ("_marks", "_total")

    def __init__(self) -> None:
        """Begin with an empty queue."""
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
