"""Counts of one client's lookups, for ``stats()``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LookupCounts:
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ProducerStats` with the same names."""

    lookups: int = 0
    lookup_failures: int = 0
    lookup_seconds: float = 0.0
    leader_changes: int = 0

    def round(self, seconds: float, *, has_failed: bool) -> None:
        """Count one round, which took ``seconds``."""
        self.lookups += 1
        self.lookup_failures += has_failed
        self.lookup_seconds += seconds
