"""Counts of one partition's publishes, for ``stats()``."""

from __future__ import annotations


class PublishCounts:
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ProducerPartition` with the same names."""

    __slots__ = ("failed", "published", "reconnects", "retries", "timed_out", "uncertain")

    def __init__(self) -> None:
        self.published: int = 0
        self.failed: int = 0
        self.uncertain: int = 0
        self.timed_out: int = 0
        self.retries: int = 0
        self.reconnects: int = 0

    def add(self, other: PublishCounts) -> None:
        """Add all counts of ``other``."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def failure(self, count: int, *, maybe_stored: bool) -> None:
        """Count ``count`` messages whose publish failed."""
        self.failed += count
        if maybe_stored:
            self.uncertain += count
