"""The books of one load: what was asked, acknowledged, refused and delivered, and the figures out of it.

Pure: the caller passes the times.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from integration.faults.probes import gaps

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_GRACE: Final = 0.5
"""Seconds by which a call may exceed its limit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledged publish."""

    at: float
    seq: int
    partition: int
    nsqd: str
    attempts: int


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A publish that failed; ``maybe_stored`` is None for an error that does not tell."""

    at: float
    key: str
    seq: int
    maybe_stored: bool | None
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Delivered:
    """One delivery."""

    at: float
    seq: int
    partition: int
    internal_id: int
    nsqd: str


class Audit:
    """The books.

    Args:
        keys: All keys that are published.
        limit: Time limit of a call, for the slowest one.
    """

    def __init__(self, keys: list[str], limit: float) -> None:
        self.keys = keys
        self.limit = limit
        self.acks: dict[str, list[Ack]] = {key: [] for key in keys}
        self.deliveries: dict[str, list[Delivered]] = {key: [] for key in keys}
        self.failures: list[Failure] = []
        self.slowest = self.slowest_ended = 0.0
        self.started = 0
        self._acked: set[tuple[str, int]] = set()
        self._seen: set[tuple[str, int]] = set()

    def called(self, began: float, ended: float) -> None:
        """Enter how long a call took."""
        if ended - began > self.slowest:
            self.slowest, self.slowest_ended = ended - began, ended

    def acked(self, key: str, ack: Ack, began: float) -> None:
        """Enter an acknowledgement."""
        self.acks[key].append(ack)
        self._acked.add((key, ack.seq))
        self.called(began, ack.at)

    def failed(self, failure: Failure, began: float) -> None:
        """Enter an error."""
        self.failures.append(failure)
        self.called(began, failure.at)

    def delivered(self, key: str, delivery: Delivered) -> None:
        """Enter a delivery."""
        self.deliveries[key].append(delivery)
        self._seen.add((key, delivery.seq))

    @property
    def missing(self) -> set[tuple[str, int]]:
        """Acknowledged and not delivered."""
        return self._acked - self._seen

    def undelivered(self) -> list[tuple[str, Ack]]:
        """Return what is acknowledged and not delivered, with its key."""
        missing = self.missing
        return [(key, ack) for key, acks in self.acks.items() for ack in acks if (key, ack.seq) in missing]

    @property
    def false_denials(self) -> list[Failure]:
        """Called *not stored*, and delivered."""
        return [one for one in self.failures if one.maybe_stored is False and (one.key, one.seq) in self._seen]

    def publish_gaps(self, key: str, since: float, until: float) -> Iterator[tuple[float, float]]:
        """Yield beginning and end of each time between two acknowledgements of a key."""
        return gaps((ack.at for ack in self.acks[key]), since, until)

    def consume_gaps(self, key: str, since: float, until: float) -> Iterator[tuple[float, float]]:
        """Yield beginning and end of each time between two first deliveries of a key."""
        return gaps((one.at for one in self._first(key)), since, until)

    def partition_of(self, key: str, since: float) -> int | None:
        """Return the partition that took the key first after ``since``."""
        return next((ack.partition for ack in self.acks[key] if ack.at >= since), None)

    def _first(self, key: str) -> Iterator[Delivered]:
        seen: set[int] = set()
        for one in self.deliveries[key]:
            if one.seq not in seen:
                seen.add(one.seq)
                yield one

    def out_of_order(self) -> int:
        """Count first deliveries that came after a later one of their key."""
        wrong = 0
        for key in self.keys:
            highest = -1
            for one in self._first(key):
                wrong += one.seq < highest
                highest = max(highest, one.seq)
        return wrong

    def out_of_order_within_partitions(self) -> int:
        """Count the same for each key and partition apart, for a topic that grew."""
        wrong = 0
        for key in self.keys:
            highest: dict[int, int] = {}
            for one in self._first(key):
                wrong += one.seq < highest.get(one.partition, -1)
                highest[one.partition] = max(highest.get(one.partition, -1), one.seq)
        return wrong

    def repeats(self, key: str) -> int:
        """Count deliveries of a key beyond the first ones."""
        return len(self.deliveries[key]) - len({one.seq for one in self.deliveries[key]})

    def stored_again(self, key: str) -> int:
        """Count copies of a key's messages that were stored beyond the first: repeats of our own retries."""
        copies = {(one.seq, one.partition, one.internal_id) for one in self.deliveries[key]}
        return len(copies) - len({seq for seq, *_ in copies})
