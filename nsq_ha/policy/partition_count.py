"""How many partitions a producer spreads its messages over, while a topic grows.

Owns when a new number is taken into use. That it is true is decided before, by
``policy.topology``.

The invariant: a number that grows is used only after a delay, in which consumers
can subscribe to the new partitions. A channel starts at the end of a partition,
so what were published there earlier would be delivered to nobody.

Source: failures reference 3.8, 4 (Consumer 7).
"""

from __future__ import annotations


class PartitionCount:
    """The number of partitions in use, and the one that is to follow.

    Attributes:
        used: The number in use. 0 until one was told.
    """

    __slots__ = ("_due", "_told", "used")

    def __init__(self) -> None:
        """Start knowing nothing: the first number is used at once."""
        self.used = 0
        self._told = 0
        self._due: float | None = None

    @property
    def is_pending(self) -> bool:
        """Whether :meth:`take` may have something to take, now or later."""
        return self._due is not None

    def told(self, number: int, now: float, delay: float) -> None:
        """Take note of what the topic has now.

        Args:
            number: Its partitions, 1 or more.
            now: The time.
            delay: Seconds for which a number that grows has to wait.
        """
        if number != self._told:
            self._told = number
            self._due = now + delay if 0 < self.used < number else now

    def take(self, now: float) -> tuple[int, int] | None:
        """Take the new number into use when it is due.

        Returns:
            The old number and the new one when keys go elsewhere from now on.
            None when nothing changed, or there was none before.
        """
        if self._due is None or now < self._due:
            return None
        self._due = None
        old, self.used = self.used, self._told
        return (old, self.used) if old not in (0, self.used) else None
