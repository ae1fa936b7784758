"""Where the backlog is: how many messages each partition can use, and whose turn it is.

``max_in_flight`` is shared over partitions (``policy.ready``). A partition that
delivers nothing needs one, so that its next message comes at once; what it has
beyond that helps others more. Where there are more partitions than messages in
flight, they take turns.

The invariants: each partition is granted something, or gets its turn within a
bounded time, whatever the others do; exactly as many have their turn as may.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOK_INTERVAL: Final = 0.25
"""Seconds between looks at what the partitions deliver."""

FULL_TURN: Final = 5.0
"""Seconds that a partition with a backlog keeps its turn while others wait."""

IDLE_TURN: Final = 0.25
"""Seconds after which a partition that delivers nothing passes its turn on."""

_TURNOVER: Final = 4
"""A partition that delivers so many times its RDY between two looks can use more."""


class Seen(NamedTuple):
    """One partition at a look.

    Attributes:
        ready: RDY last sent.
        in_flight: Messages that are not answered.
        peak: The most of them since the last look.
        delivered: Messages since it was subscribed.
    """

    ready: int
    in_flight: int
    peak: int
    delivered: int


class Needs:
    """How many messages in flight each partition can use: doubled while it uses up what it has, halved after that.

    Attributes:
        by_partition: The numbers, powers of two; 1 or more.
    """

    __slots__ = ("_delivered", "by_partition")

    def __init__(self) -> None:
        """Know nothing: all need the same."""
        self.by_partition: dict[int, int] = {}
        self._delivered: dict[int, int] = {}

    def look(self, seen: Mapping[int, Seen]) -> bool:
        """Look at all subscribed partitions; tell whether one uses up what it has."""
        needs: dict[int, int] = {}
        is_one_full = False
        for partition, one in seen.items():
            delivered = one.delivered - self._delivered.get(partition, 0)
            is_full = one.ready > 0 and (one.peak >= one.ready or delivered >= _TURNOVER * one.ready)
            used = max(one.ready, one.peak) if is_full else one.peak
            # Above what is used: a partition may have one more before it waits.
            needs[partition] = max(1 << used.bit_length() if used else 1, self.by_partition.get(partition, 1) // 2)
            is_one_full |= is_full
        self.by_partition = needs
        self._delivered = {partition: one.delivered for partition, one in seen.items()}
        return is_one_full


class _Turn:
    """The turn of one partition; it begins when RDY was sent."""

    __slots__ = ("_active", "_began", "_delivered")

    def __init__(self) -> None:
        self._began: float | None = None
        self._active = 0.0
        self._delivered = 0

    def is_over(self, now: float, one: Seen) -> bool:
        if self._began is None:
            if one.ready > 0:
                self._began, self._active, self._delivered = now, now, one.delivered
            return False
        if one.in_flight or one.delivered != self._delivered:
            self._active, self._delivered = now, one.delivered
        return now - self._began >= FULL_TURN or now - self._active >= IDLE_TURN


class Turns:
    """Whose turn it is where there are more partitions than messages in flight."""

    __slots__ = ("_has_turn", "_waiting")

    def __init__(self) -> None:
        """Begin with nobody."""
        self._has_turn: dict[int, _Turn] = {}
        self._waiting: deque[int] = deque()

    def choose(self, now: float, count: int, seen: Mapping[int, Seen]) -> list[int]:
        """Return the ``count`` partitions whose turn it is; there are more than those."""
        known = {*self._has_turn, *self._waiting}
        self._waiting = deque(partition for partition in self._waiting if partition in seen)
        self._waiting.extend(sorted(seen.keys() - known))
        for partition, turn in list(self._has_turn.items()):
            if partition not in seen:
                del self._has_turn[partition]
            elif turn.is_over(now, seen[partition]):
                del self._has_turn[partition]
                self._waiting.append(partition)
        while len(self._has_turn) > count:  # it was lowered: the one that had its turn for longest
            partition = next(iter(self._has_turn))
            del self._has_turn[partition]
            self._waiting.append(partition)
        while len(self._has_turn) < count:
            self._has_turn[self._waiting.popleft()] = _Turn()
        return list(self._has_turn)
