"""Decide how many messages each partition can use, and whose turn it is.

``max_in_flight`` is shared over partitions (``policy.ready``). A partition that
delivers nothing needs one, so that its next message comes at once; more would
be wasted there. If there are more partitions than messages in flight, they take
turns.

The invariants: each partition has at least RDY 1, or gets its turn within a
bounded time, whatever the others do; all turns are always in use.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOK_INTERVAL: Final = 0.25
"""Seconds between two checks of what the partitions deliver."""

FULL_TURN: Final = 5.0
"""Seconds that a partition with a backlog keeps its turn while others wait."""

IDLE_TURN: Final = 0.25
"""Seconds after which a partition that delivers nothing passes its turn on."""

_TURNOVER: Final = 4
"""A partition that delivers this many times its RDY between two checks can use more."""


class Seen(NamedTuple):
    """One partition at the time of a check.

    Attributes:
        ready: RDY last sent.
        in_flight: Messages that are not answered.
        peak: The largest such number since the last check.
        delivered: Messages since it was subscribed.
    """

    ready: int
    in_flight: int
    peak: int
    delivered: int


class Needs:
    """How many messages in flight each partition can use: doubled while it uses all it has, halved after that.

    Attributes:
        by_partition: The numbers, powers of two; 1 or more.
    """

    __slots__ = ("_delivered", "by_partition")

    def __init__(self) -> None:
        """Start with the same number for all."""
        self.by_partition: dict[int, int] = {}
        self._delivered: dict[int, int] = {}

    def look(self, seen: Mapping[int, Seen]) -> bool:
        """Update the needs of all subscribed partitions; return whether one uses all it has."""
        needs: dict[int, int] = {}
        is_one_full = False
        for partition, one in seen.items():
            delivered = one.delivered - self._delivered.get(partition, 0)
            is_full = one.ready > 0 and (one.peak >= one.ready or delivered >= _TURNOVER * one.ready)
            used = max(one.ready, one.peak) if is_full else one.peak
            # One more than it uses, so that it does not wait.
            needs[partition] = max(1 << used.bit_length() if used else 1, self.by_partition.get(partition, 1) // 2)
            is_one_full |= is_full
        self.by_partition = needs
        self._delivered = {partition: one.delivered for partition, one in seen.items()}
        return is_one_full


class _Turn:
    """The turn of one partition; it starts when RDY is sent."""

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
    """Turns of partitions, for when there are more of them than messages in flight."""

    __slots__ = ("_has_turn", "_waiting")

    def __init__(self) -> None:
        """Start without turns."""
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
        while len(self._has_turn) > count:  # the count was lowered: end the longest turn
            partition = next(iter(self._has_turn))
            del self._has_turn[partition]
            self._waiting.append(partition)
        while len(self._has_turn) < count:
            self._has_turn[self._waiting.popleft()] = _Turn()
        return list(self._has_turn)
