"""Books that stay small however long a run lasts, so that the process's memory tells of the library."""

from __future__ import annotations

import heapq
import mmap
from typing import TYPE_CHECKING, Final

from integration.faults.audit import Audit

if TYPE_CHECKING:
    from integration.faults.audit import Ack, Delivered, Failure

MOST: Final = 2**24
"""Messages of one key. Memory is taken only for the pages that are written."""

DELIVERED: Final = 1
DENIED: Final = 2
DOUBTFUL: Final = 4
JUDGED: Final = 8
LATE: Final = 10.0
"""Seconds by which another process's deliveries may be entered after later ones of this process."""


class SlimAudit(Audit):
    """Counts instead of keeping; tells loss, order and false denials, not stalls.

    Of each message one byte is kept: whether it was delivered, whether its publish failed, "not stored" or in doubt.
    What failed in doubt may lie in the buffers of an nsqd that stands still, which stores it after later messages.
    That is counted apart, since no client can prevent it.
    """

    def __init__(self, keys: list[str], limit: float) -> None:
        super().__init__(keys, limit)
        self.errors = 0
        self.delivered_count = 0
        self.repeated = 0
        self.denied_and_delivered = 0
        self._wrong = 0
        self.doubtful_out_of_order = 0
        self.examples: list[str] = []
        self._highest = dict.fromkeys(keys, -1)
        self._arrived: list[tuple[float, int, str, int]] = []
        # Arrays that grow would leave holes behind them, which look like a leak of the library.
        self._flags = {key: mmap.mmap(-1, MOST) for key in keys}
        self._written = dict.fromkeys(keys, 0)
        self.waiting: dict[tuple[str, int], Ack] = {}
        """What is acknowledged and not delivered."""

    def acked(self, key: str, ack: Ack, began: float) -> None:
        """Enter an acknowledgement."""
        self.acks[key] = [ack]
        self.called(began, ack.at)
        if not self._was_seen(key, ack.seq):
            self.waiting[key, ack.seq] = ack

    def failed(self, failure: Failure, began: float) -> None:
        """Enter an error."""
        self.errors += 1
        if len(self.failures) < 100:
            self.failures.append(failure)
        self.called(began, failure.at)
        flag = DENIED if failure.maybe_stored is False else DOUBTFUL
        was_delivered = self._mark(failure.key, failure.seq, flag) & DELIVERED
        if flag == DENIED:
            self.denied_and_delivered += was_delivered

    def delivered(self, key: str, delivery: Delivered) -> None:
        """Enter a delivery."""
        self.deliveries[key] = [delivery]
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

    def _was_seen(self, key: str, seq: int) -> bool:
        return bool(self._flags[key][seq] & DELIVERED)

    @property
    def missing(self) -> set[tuple[str, int]]:
        """Acknowledged and not delivered."""
        return set(self.waiting)

    def undelivered(self) -> list[tuple[str, Ack]]:
        """Return what is acknowledged and not delivered, with its key."""
        return [(key, ack) for (key, _), ack in sorted(self.waiting.items())]

    def out_of_order(self) -> int:
        """Count first deliveries that came after a later one of their key."""
        self._judge_order(float("inf"))
        return self._wrong
