"""The books of one run: what was published, acknowledged and consumed, and what is wrong with it.

Owns the counting and nothing else: time comes in as an argument, messages as
numbers. Each message has a number of its own (1, 2, ...) and a sequence within
its key (0, 1, ...).

The invariant: a verdict needs only these two numbers, so neither offsets nor
attempts of the server can hide a loss or a wrong order. A message that comes again
is counted as repeated and is never out of order: at least once is the contract.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stall:
    """The longest time in which something was due and nothing came.

    Attributes:
        longest: Seconds.
        at: Time at which the longest one began.
    """

    longest: float = 0.0
    at: float = 0.0
    _since: float = 0.0
    _is_due: bool = False

    def due(self, now: float) -> None:
        """Note that something is due from now on, unless something was already."""
        if not self._is_due:
            self._is_due, self._since = True, now

    def came(self, now: float, *, more: bool) -> None:
        """Note that something came, and whether ``more`` is due."""
        self.measure(now)
        self._is_due, self._since = more, now

    def measure(self, now: float) -> None:
        """Count the time up to now; for the end, when what is due never came."""
        if self._is_due and now - self._since > self.longest:
            self.longest, self.at = now - self._since, self._since


class Audit:
    """Counts one run.

    Args:
        total: How many messages are to be published.

    Attributes:
        total: The same.
        published: Messages given to the producer.
        acknowledged: Of these, how many the server said to have stored.
        failed: Of these, how many ended in an error to the caller.
        maybe_stored: Of the failed ones, how many may be stored all the same.
        consumed: Different messages that were delivered.
        repeated: Deliveries of a message that had been delivered before.
        out_of_order: First deliveries behind a later message of the same key.
        foreign: Messages on the topic that are none of this run's.
        leaders: By partition, who acknowledged last.
        leader_changes: How often that changed.
        publish_stall: While publishes wait for an answer.
        consume_stall: While acknowledged messages wait to be delivered.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.published = 0
        self.acknowledged = 0
        self.failed = 0
        self.maybe_stored = 0
        self.consumed = 0
        self.repeated = 0
        self.out_of_order = 0
        self.foreign = 0
        self.leaders: dict[int, str] = {}
        self.leader_changes = 0
        self.publish_stall = Stall()
        self.consume_stall = Stall()
        self._first = 0.0
        self._last = 0.0
        self._was_acknowledged = bytearray(total + 1)
        self._was_consumed = bytearray(total + 1)
        self._waiting = 0
        self._newest: dict[str, int] = {}

    def publish(self, now: float) -> int:
        """Note that a message is given to the producer, and return its number."""
        if not self.published:
            self._first = self._last = now
        self.published += 1
        self.publish_stall.due(now)
        return self.published

    def acknowledge(self, number: int, partition: int, nsqd: str, now: float) -> str | None:
        """Note a receipt.

        Returns:
            The node that acknowledged for this partition before, when it was another one. None otherwise.
        """
        self.acknowledged += 1
        self._was_acknowledged[number] = 1
        self.publish_stall.came(now, more=self.unanswered > 0)
        if not self._was_consumed[number]:
            self._waiting += 1
            self.consume_stall.due(now)
        before = self.leaders.get(partition)
        self.leaders[partition] = nsqd
        if before in (None, nsqd):
            return None
        self.leader_changes += 1
        return before

    def fail(self, now: float, *, maybe_stored: bool) -> None:
        """Note a publish that ended in an error."""
        self.failed += 1
        self.maybe_stored += maybe_stored
        self.publish_stall.came(now, more=self.unanswered > 0)

    def consume(self, number: int, key: str, sequence: int, now: float) -> None:
        """Note a delivery; one with a number that was never published is foreign."""
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
            self._waiting -= 1
        self.consume_stall.came(now, more=self._waiting > 0)
        if sequence < self._newest.get(key, -1):
            self.out_of_order += 1
        else:
            self._newest[key] = sequence

    @property
    def unanswered(self) -> int:
        """Publishes under way."""
        return self.published - self.acknowledged - self.failed

    @property
    def lost(self) -> int:
        """Messages that were acknowledged and not consumed; only at the end are they really lost."""
        return self._waiting

    @property
    def keys(self) -> int:
        """Different keys that were consumed."""
        return len(self._newest)

    @property
    def seconds(self) -> float:
        """From the first publish to the last first delivery."""
        return self._last - self._first

    @property
    def messages_per_second(self) -> float:
        """Messages that went the whole way, by the time that took."""
        return self.consumed / self.seconds if self.seconds > 0 else 0.0

    @property
    def is_settled(self) -> bool:
        """Every message was published and answered, and all that were acknowledged are consumed."""
        return self.published == self.total and not self.unanswered and not self._waiting

    @property
    def is_clean(self) -> bool:
        """All was published without error, and nothing is lost or out of order."""
        return self.is_settled and not (self.failed or self.out_of_order)
