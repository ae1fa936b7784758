"""Counts of one partition's messages, for ``stats()``.

Finished messages are not counted one by one: they are what was delivered and is neither unanswered nor counted here.
"""

from __future__ import annotations


class DeliveryCounts:
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ConsumerPartition` with the same names.

    Attributes:
        lag_ns: Nanoseconds from the publish to the arrival of the last message; no count. None before the first one.
    """

    __slots__ = (
        "delivered",
        "finished_unhandled",
        "lag_ns",
        "reconnects",
        "requeued",
        "returned",
        "skipped",
        "timed_out",
    )

    def __init__(self) -> None:
        self.delivered: int = 0
        self.requeued: int = 0
        self.timed_out: int = 0
        self.returned: int = 0
        self.skipped: int = 0
        self.finished_unhandled: int = 0
        self.reconnects: int = 0
        self.lag_ns: int | None = None

    def add(self, other: DeliveryCounts) -> None:
        """Add all counts of ``other``."""
        for name in self.__slots__:
            if name != "lag_ns":
                setattr(self, name, getattr(self, name) + getattr(other, name))

    def finished(self, in_flight: int) -> int:
        """Return the number of finished messages, given the number of unanswered ones."""
        return self.delivered - self.requeued - self.timed_out - self.returned - in_flight
