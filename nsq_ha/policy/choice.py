"""Which partition gets a message without key, and how many partitions share the messages while a topic grows.

The invariant: a larger number of partitions is used only after a delay, in which consumers can subscribe to the new
ones. A channel starts at the end of a partition, so messages published there earlier would reach nobody.
``policy.topology`` has made sure that the number is true, and ``policy.sharding`` maps keys to partitions.

Source: ``PubRR`` and ``PubDynamicLoad`` of the Go client (clients reference 1.2); failures reference 3.8,
4 (Producer 1, 6; Consumer 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def round_robin(partitions: Sequence[int], turn: int) -> int:
    """Return the ``turn``-th of ``partitions``, starting again after the last.

    Args:
        partitions: At least one, in a fixed order.
        turn: Grows by one for each message.
    """
    return partitions[turn % len(partitions)]


def least_loaded(partitions: Sequence[int], turn: int, load: Callable[[int], int]) -> int:
    """Return the less loaded one of the ``turn``-th partition and its successor; the first if they are equal.

    It compares two partitions, not all: a partition that looks idle because it
    refuses quickly must not attract every message.

    Args:
        partitions: At least one, in a fixed order.
        turn: Grows by one for each message.
        load: Publishes that wait on a partition or are unanswered there.
    """
    first = round_robin(partitions, turn)
    second = round_robin(partitions, turn + 1)
    return second if load(second) < load(first) else first


class PartitionCount:
    """The number of partitions in use, and the one that follows it.

    Attributes:
        used: The number in use. 0 before the first one.
    """

    __slots__ = ("_due", "_newest", "used")

    def __init__(self) -> None:
        """Start without a number: the first one is used at once."""
        self.used: int = 0
        self._newest = 0
        self._due: float | None = None

    @property
    def is_pending(self) -> bool:
        """Whether :meth:`take` may return a change, now or later."""
        return self._due is not None

    def found(self, number: int, now: float, delay: float) -> None:
        """Record how many partitions the topic has now.

        Args:
            number: Its partitions, 1 or more.
            now: The time.
            delay: Seconds that a larger number has to wait.
        """
        if number != self._newest:
            self._newest = number
            self._due = now + delay if 0 < self.used < number else now

    def take(self, now: float) -> tuple[int, int] | None:
        """Use the new number if it is due.

        Returns:
            The old number and the new one if keys move to other partitions.
            None if nothing changed or there was no number before.
        """
        if self._due is None or now < self._due:
            return None
        self._due = None
        old, self.used = self.used, self._newest
        return (old, self.used) if old not in (0, self.used) else None
