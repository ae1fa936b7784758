"""Count what one run published, acknowledged and consumed, and find lost and misordered messages.

This module only counts: time is an argument, and messages are numbers. Each
message has its own number (1, 2, ...) and a sequence within its key (0, 1, ...).

The invariant: a verdict needs only these two numbers, so neither offsets nor
attempts of the server can hide a loss or a wrong order. A message that is
delivered again counts as repeated and never as out of order, since delivery is
at least once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SLOW: Final = 0.5
"""Seconds from which on a wait counts as a stall."""


@dataclass(slots=True)
class Stall:
    """The longest time in which something was due and nothing arrived.

    Attributes:
        longest: Its length in seconds.
        at: The time at which it began.
    """

    longest: float = 0.0
    at: float = 0.0
    _since: float = 0.0
    _is_due: bool = False

    def due(self, now: float) -> None:
        """Record that something is due from now on, unless something was already due."""
        if not self._is_due:
            self._is_due, self._since = True, now

    def came(self, now: float, *, more: bool) -> None:
        """Record that something arrived; ``more`` says whether more is due."""
        self.measure(now)
        self._is_due, self._since = more, now

    def measure(self, now: float) -> None:
        """Count the time until now, if something is still due."""
        if self._is_due and now - self._since > self.longest:
            self.longest, self.at = now - self._since, self._since


@dataclass(slots=True)
class Waits:
    """How long messages waited, and the times in which any of them waited for :data:`SLOW` or longer.

    Attributes:
        longest: The longest wait in seconds.
        at: The time at which it began.
        partition: The partition whose message waited.
        bands: By partition, times that do not overlap, the oldest first.
    """

    longest: float = 0.0
    at: float = 0.0
    partition: int = 0
    bands: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, partition: int, begin: float, end: float) -> None:
        """Record that a message of a partition waited."""
        if end - begin > self.longest:
            self.longest, self.at, self.partition = end - begin, begin, partition
        if end - begin < SLOW:
            return
        bands = self.bands.setdefault(partition, [])
        while bands and bands[-1][1] >= begin:
            before = bands.pop()
            begin, end = min(begin, before[0]), max(end, before[1])
        bands.append((begin, end))


class Audit:
    """Counts one run.

    Args:
        total: Number of messages to publish.

    Attributes:
        total: Number of messages to publish.
        published: Messages passed to the producer.
        acknowledged: Number of these that the server acknowledged.
        failed: Number of these that raised an error.
        maybe_stored: Number of failed ones that may be stored anyway.
        consumed: Different messages that were delivered.
        repeated: Deliveries of a message that was delivered before.
        out_of_order: First deliveries after a later message of the same key.
        overtaken: Messages that were not delivered although a later one of their key was; lost unless they come late.
        foreign: Messages on the topic that do not belong to this run.
        lost: Messages that were acknowledged and not consumed yet; they are lost only at the end.
        leaders: By partition, the node that acknowledged last.
        writers: By partition, each such node with the time of its first acknowledgement.
        leader_changes: How often such a node changed.
        receipts: How long publishes waited for their receipts.
        publish_stall: The longest time without an answer while publishes were pending.
        consume_stall: The longest time without a delivery while acknowledged messages were waiting.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.published: int = 0
        self.acknowledged: int = 0
        self.failed: int = 0
        self.maybe_stored: int = 0
        self.consumed: int = 0
        self.repeated: int = 0
        self.out_of_order: int = 0
        self.overtaken: int = 0
        self.foreign: int = 0
        self.lost: int = 0
        self.leaders: dict[int, str] = {}
        self.writers: dict[int, list[tuple[float, str]]] = {}
        self.leader_changes: int = 0
        self.publish_stall: Stall = Stall()
        self.consume_stall: Stall = Stall()
        self.receipts: Waits = Waits()
        self._pending: dict[int, float] = {}
        self._first = 0.0
        self._last = 0.0
        self._was_acknowledged = bytearray(total + 1)
        self._was_consumed = bytearray(total + 1)
        self._newest: dict[str, int] = {}

    def publish(self, now: float) -> int:
        """Record that a message is passed to the producer, and return its number."""
        if not self.published:
            self._first = self._last = now
        self.published += 1
        self._pending[self.published] = now
        self.publish_stall.due(now)
        return self.published

    def acknowledge(self, number: int, partition: int, nsqd: str, now: float) -> str | None:
        """Record a receipt.

        Returns:
            The node that acknowledged for this partition before, if it was another one. None otherwise.
        """
        self.acknowledged += 1
        self._was_acknowledged[number] = 1
        self.receipts.add(partition, self._pending.pop(number, now), now)
        self.publish_stall.came(now, more=self.unanswered > 0)
        if not self._was_consumed[number]:
            self.lost += 1
            self.consume_stall.due(now)
        before = self.leaders.get(partition)
        self.leaders[partition] = nsqd
        if before == nsqd:
            return None
        self.writers.setdefault(partition, []).append((now, nsqd))
        if before is None:
            return None
        self.leader_changes += 1
        return before

    def fail(self, number: int, now: float, *, maybe_stored: bool) -> None:
        """Record a publish that failed."""
        self.failed += 1
        self._pending.pop(number, None)
        self.maybe_stored += maybe_stored
        self.publish_stall.came(now, more=self.unanswered > 0)

    def consume(self, number: int, key: str, sequence: int, now: float) -> None:
        """Record a delivery; a message with a number that was never published is foreign."""
        if not 0 < number <= self.published:
            self.foreign += 1
            return
        if self._was_consumed[number]:
            self.repeated += 1
            return
        self._was_consumed[number] = 1
        self.consumed += 1
        self._last = now
        if self._was_acknowledged[number]:
            self.lost -= 1
        self.consume_stall.came(now, more=self.lost > 0)
        newest = self._newest.get(key, -1)
        if sequence < newest:
            self.out_of_order += 1
            self.overtaken -= 1
        else:
            self.overtaken += max(0, sequence - newest - 1)
            self._newest[key] = sequence

    @property
    def unanswered(self) -> int:
        """Number of pending publishes."""
        return self.published - self.acknowledged - self.failed

    @property
    def oldest(self) -> float | None:
        """When the oldest pending publish was passed to the producer. None if none is pending."""
        return next(iter(self._pending.values()), None)

    @property
    def keys(self) -> int:
        """Number of different keys that were consumed."""
        return len(self._newest)

    @property
    def seconds(self) -> float:
        """Time from the first publish until the last message was first delivered."""
        return self._last - self._first

    @property
    def messages_per_second(self) -> float:
        """Consumed messages divided by the time that they took."""
        return self.consumed / self.seconds if self.seconds > 0 else 0.0

    @property
    def is_settled(self) -> bool:
        """Whether every message was published and answered, and every acknowledged one was consumed."""
        return self.published == self.total and not self.unanswered and not self.lost

    @property
    def is_clean(self) -> bool:
        """Whether everything was published without errors, and nothing is lost or out of order."""
        return self.is_settled and not (self.failed or self.out_of_order)
