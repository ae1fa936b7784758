"""Counts of one partition's messages, for ``stats()``.

Finished messages are not counted one by one: they are what was delivered and is neither unanswered nor counted here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(slots=True)
class DeliveryCounts:
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ConsumerPartition` with the same names.

    Attributes:
        lag_ns: Nanoseconds from the publish to the arrival of the last message; no count. None before the first one.
    """

    delivered: int = 0
    requeued: int = 0
    timed_out: int = 0
    returned: int = 0
    skipped: int = 0
    reconnects: int = 0
    lag_ns: int | None = None

    def add(self, other: DeliveryCounts) -> None:
        """Add all counts of ``other``."""
        for field in dataclasses.fields(self):
            if field.name == "lag_ns":
                continue
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def finished(self, in_flight: int) -> int:
        """Return the number of finished messages, given the number of unanswered ones."""
        return self.delivered - self.requeued - self.timed_out - self.returned - in_flight
