"""Choose the number of partitions to use while a topic grows.

The invariant: a larger number of partitions is used only after a delay, in which consumers can subscribe to the new
ones. A channel starts at the end of a partition, so messages published there earlier would reach nobody.
``policy.topology`` has confirmed the number, and ``policy.sharding`` maps keys to partitions.

Source: server failures 3.8, 4.2, 4.3.
"""

from __future__ import annotations


class PartitionCount:
    """The number of partitions in use, and the one that follows it.

    Attributes:
        used: The number in use. 0 before the first one, which is used at once.
    """

    __slots__ = ("_due", "_newest", "used")

    def __init__(self) -> None:
        self.used: int = 0
        self._newest = 0
        self._due: float | None = None

    @property
    def is_pending(self) -> bool:
        """Whether :meth:`take` may return a change, now or later."""
        return self._due is not None

    def found(self, number: int, now: float, delay: float) -> None:
        """Record the topic's current number of partitions.

        Args:
            number: The number, 1 or more.
            now: The time.
            delay: Seconds before a larger number is used.
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
