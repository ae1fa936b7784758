"""How many partitions a producer spreads its messages over while a topic grows.

Owns when a new number is used. ``policy.topology`` has made sure that it is true.

The invariant: a larger number is used only after a delay, in which consumers can
subscribe to the new partitions. A channel starts at the end of a partition, so
messages published there earlier would reach nobody.

Source: failures reference 3.8, 4 (Consumer 7).
"""

from __future__ import annotations


class PartitionCount:
    """The number of partitions in use, and the one that follows it.

    Attributes:
        used: The number in use. 0 before the first one.
    """

    __slots__ = ("_due", "_newest", "used")

    def __init__(self) -> None:
        """Start without a number: the first one is used at once."""
        self.used = 0
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
