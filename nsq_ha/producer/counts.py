"""Counts of one partition's publishes, for ``stats()``."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(slots=True)
class PublishCounts:
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ProducerPartition` with the same names."""

    published: int = 0
    failed: int = 0
    uncertain: int = 0
    timed_out: int = 0
    retries: int = 0
    reconnects: int = 0

    def add(self, other: PublishCounts) -> None:
        """Add all counts of ``other``."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def failure(self, count: int, *, maybe_stored: bool) -> None:
        """Count ``count`` messages whose publish failed."""
        self.failed += count
        if maybe_stored:
            self.uncertain += count
