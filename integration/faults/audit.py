"""The books of one load: what was asked, acknowledged, refused and delivered, and the figures out of it.

Pure: the caller passes the times.
"""

import dataclasses
import heapq
import mmap
from collections.abc import Iterator
from typing import Final, TypeVar

from integration.faults.probes import gaps

LIMIT_GRACE: Final = 0.5
"""Seconds by which a call may exceed its limit."""
MOST: Final = 2**24
"""Messages of one key. Memory is taken only for the pages that are written."""
MOST_FAILURES: Final = 100
"""Failures that small books keep."""
LATE: Final = 10.0
"""Seconds by which another process's deliveries may be entered after later ones of this process."""

DELIVERED: Final = 1
DENIED: Final = 2
DOUBTFUL: Final = 4
JUDGED: Final = 8


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


_Entry = TypeVar("_Entry", Ack, Delivered)


class Audit:
    """The books.

    Of each message one byte is kept: whether it was delivered, whether its publish failed, "not stored" or in doubt.
    What failed in doubt may lie in the buffers of an nsqd that stands still, which stores it after later messages.
    That is counted apart, since no client can prevent it.

    Args:
        keys: All keys that are published.
        limit: Time limit of a call, for the slowest one.
        slim: Keep of each key only what was last, which tells nothing of stalls: the books stay small however long a
            run lasts, so that the process's memory tells of the library.
    """

    def __init__(self, keys: list[str], limit: float, *, slim: bool = False) -> None:
        self.keys = keys
        self.limit = limit
        self.acks: dict[str, list[Ack]] = {key: [] for key in keys}
        self.deliveries: dict[str, list[Delivered]] = {key: [] for key in keys}
        self.failures: list[Failure] = []
        self.slowest = self.slowest_ended = 0.0
        self.started = self.errors = self.delivered_count = self.repeated = 0
        self.denied_and_delivered = self.doubtful_out_of_order = 0
        self.examples: list[str] = []
        self.waiting: dict[tuple[str, int], Ack] = {}
        """What is acknowledged and not delivered."""
        self._slim = slim
        self._wrong = 0
        self._highest = dict.fromkeys(keys, -1)
        self._arrived: list[tuple[float, int, str, int]] = []
        # Arrays that grow would leave holes behind them, which look like a leak of the library.
        self._flags = {key: mmap.mmap(-1, MOST) for key in keys}
        self._written = dict.fromkeys(keys, 0)

    def called(self, began: float, ended: float) -> None:
        """Enter how long a call took."""
        if ended - began > self.slowest:
            self.slowest, self.slowest_ended = ended - began, ended

    def acked(self, key: str, ack: Ack, began: float) -> None:
        """Enter an acknowledgement."""
        self._keep(self.acks[key], ack)
        self.called(began, ack.at)
        if not self._flags[key][ack.seq] & DELIVERED:
            self.waiting[key, ack.seq] = ack

    def failed(self, failure: Failure, began: float) -> None:
        """Enter an error."""
        self.errors += 1
        if not self._slim or len(self.failures) < MOST_FAILURES:
            self.failures.append(failure)
        self.called(began, failure.at)
        flag = DENIED if failure.maybe_stored is False else DOUBTFUL
        was_delivered = self._mark(failure.key, failure.seq, flag) & DELIVERED
        if flag == DENIED:
            self.denied_and_delivered += was_delivered

    def delivered(self, key: str, delivery: Delivered) -> None:
        """Enter a delivery."""
        self._keep(self.deliveries[key], delivery)
        self.delivered_count += 1
        seq = delivery.seq
        self.waiting.pop((key, seq), None)
        flags = self._mark(key, seq, DELIVERED)
        if flags & DELIVERED:
            self.repeated += 1
        else:
            self.denied_and_delivered += bool(flags & DENIED)
        # A repeated one, too: that of another process may be the first, and is entered later.
        heapq.heappush(self._arrived, (delivery.at, self.delivered_count, key, seq))
        self._judge_order(delivery.at - LATE)

    def _keep(self, entries: list[_Entry], entry: _Entry) -> None:
        if self._slim:
            entries.clear()
        entries.append(entry)

    def _mark(self, key: str, seq: int, flag: int) -> int:
        """Set a flag of a message, and return those that it had."""
        flags = self._flags[key]
        self._written[key] = max(self._written[key], seq + 1)
        before = flags[seq]
        flags[seq] = before | flag
        return before

    def _judge_order(self, until: float) -> None:
        """Compare first deliveries in the order of their times, whichever process got them."""
        while self._arrived and self._arrived[0][0] < until:
            at, _, key, seq = heapq.heappop(self._arrived)
            if self._mark(key, seq, JUDGED) & JUDGED:
                continue
            highest = self._highest[key]
            if seq > highest:
                self._highest[key] = seq
            elif self._flags[key][seq] & DOUBTFUL:
                self.doubtful_out_of_order += 1
            else:
                self._wrong += 1
                self.examples = [*self.examples, f"{key}:{seq} after {highest} at {at:.1f}"][:10]

    @property
    def kept_bytes(self) -> int:
        """What these books hold for good."""
        return sum(-(-count // mmap.PAGESIZE) * mmap.PAGESIZE for count in self._written.values())

    def undelivered(self) -> list[tuple[str, Ack]]:
        """Return what is acknowledged and not delivered, with its key."""
        return [(key, ack) for (key, _), ack in sorted(self.waiting.items())]

    def out_of_order(self) -> int:
        """Count first deliveries that came after a later one of their key."""
        self._judge_order(float("inf"))
        return self._wrong

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

    def out_of_order_within_partitions(self) -> int:
        """Count the same for each key and partition apart, for a topic that grew."""
        wrong = 0
        for key in self.keys:
            highest: dict[int, int] = {}
            for one in self._first(key):
                wrong += one.seq < highest.get(one.partition, -1)
                highest[one.partition] = max(highest.get(one.partition, -1), one.seq)
        return wrong

    def stored_again(self, key: str) -> int:
        """Count copies of a key's messages that were stored beyond the first: repeats of our own retries."""
        copies = {(one.seq, one.partition, one.internal_id) for one in self.deliveries[key]}
        return len(copies) - len({seq for seq, *_ in copies})
