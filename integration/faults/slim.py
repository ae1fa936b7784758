"""Books that stay small however long a run lasts, so that the process's memory tells of the library."""

from __future__ import annotations

import heapq
import sys
from typing import TYPE_CHECKING, Final

from integration.faults.audit import Audit

if TYPE_CHECKING:
    from integration.faults.audit import Ack, Delivered, Failure

LATE: Final = 10.0
"""Seconds by which another process's deliveries may be entered after later ones of this process."""


class SlimAudit(Audit):
    """Counts instead of keeping; tells loss, order and false denials, not stalls.

    Of each message one byte is kept: whether it was delivered.
    """

    def __init__(self, keys: list[str], limit: float) -> None:
        super().__init__(keys, limit)
        self.errors = 0
        self.delivered_count = 0
        self.repeated = 0
        self.denied_and_delivered = 0
        self._wrong = 0
        self._highest = dict.fromkeys(keys, -1)
        self._arrived: list[tuple[float, int, str, int]] = []
        self._delivered = {key: bytearray() for key in keys}
        self._denied: dict[str, set[int]] = {key: set() for key in keys}
        self.waiting: dict[tuple[str, int], Ack] = {}
        """What is acknowledged and not delivered."""

    def acked(self, key: str, ack: Ack, began: float) -> None:
        """Enter an acknowledgement."""
        self.acks[key] = [ack]
        self.slowest = max(self.slowest, ack.at - began)
        if not self._was_seen(key, ack.seq):
            self.waiting[key, ack.seq] = ack

    def failed(self, failure: Failure, began: float) -> None:
        """Enter an error."""
        self.errors += 1
        if len(self.failures) < 100:
            self.failures.append(failure)
        self.slowest = max(self.slowest, failure.at - began)
        if failure.maybe_stored is False:
            self._denied[failure.key].add(failure.seq)
            self.denied_and_delivered += self._was_seen(failure.key, failure.seq)

    def delivered(self, key: str, delivery: Delivered) -> None:
        """Enter a delivery."""
        self.deliveries[key] = [delivery]
        self.delivered_count += 1
        seq = delivery.seq
        self.waiting.pop((key, seq), None)
        if self._was_seen(key, seq):
            self.repeated += 1
            return
        self.denied_and_delivered += seq in self._denied[key]
        heapq.heappush(self._arrived, (delivery.at, self.delivered_count, key, seq))
        self._judge_order(delivery.at - LATE)
        flags = self._delivered[key]
        flags.extend(bytes(max(seq + 1 - len(flags), 0)))
        flags[seq] = 1

    def _judge_order(self, until: float) -> None:
        """Compare first deliveries in the order of their times, whichever process got them."""
        while self._arrived and self._arrived[0][0] < until:
            *_, key, seq = heapq.heappop(self._arrived)
            self._wrong += seq < self._highest[key]
            self._highest[key] = max(self._highest[key], seq)

    @property
    def kept_bytes(self) -> int:
        """What these books hold for good."""
        return sum(map(sys.getsizeof, self._delivered.values()))

    def _was_seen(self, key: str, seq: int) -> bool:
        flags = self._delivered[key]
        return seq < len(flags) and flags[seq] == 1

    @property
    def missing(self) -> set[tuple[str, int]]:
        """Acknowledged and not delivered."""
        return set(self.waiting)

    def out_of_order(self) -> int:
        """Count first deliveries that came after a later one of their key."""
        self._judge_order(float("inf"))
        return self._wrong
