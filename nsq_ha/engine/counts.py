"""Counts of one client's lookups, for ``stats()``."""

from __future__ import annotations


class LookupCounts:
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ProducerStats` with the same names."""

    __slots__ = ("leader_changes", "lookup_failures", "lookup_seconds", "lookups")

    def __init__(self) -> None:
        self.lookups: int = 0
        self.lookup_failures: int = 0
        self.lookup_seconds: float = 0.0
        self.leader_changes: int = 0

    def round(self, seconds: float, *, has_failed: bool) -> None:
        """Count one round, which took ``seconds``."""
        self.lookups += 1
        self.lookup_failures += has_failed
        self.lookup_seconds += seconds
