"""The queue in front of one partition: publishes that wait for buffer space, in order.

This module counts the bytes that the partition holds; ``policy.room`` decides
which publish has space. A waiting publish was not written, its bytes do not
count yet, and it ends at its time limit like any other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nsq_ha.policy.room import has_room

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.producer.outgoing import Outgoing
    from nsq_ha.producer.under_way import UnderWay


class Line:
    """The publishes of one partition that wait for buffer space.

    Attributes:
        held: Bytes of the partition that are queued or unanswered.
        waiting: Publishes that wait for space, oldest first.
    """

    __slots__ = ("_submit", "_under_way", "held", "waiting")

    def __init__(self, under_way: UnderWay, submit: Callable[[Outgoing], None]) -> None:
        """Create an empty queue.

        Args:
            under_way: Counts the bytes of all partitions.
            submit: Called with a publish that has space.
        """
        self.held = 0
        self.waiting: deque[Outgoing] = deque()
        self._under_way = under_way
        self._submit = submit

    def takes(self, size: int) -> bool:
        """Return whether ``size`` more bytes have space now, with nothing waiting before them."""
        return not self.waiting and self._has_room(size)

    def admit(self, outgoing: Outgoing) -> None:
        """Submit a publish if it has space; otherwise let it wait."""
        if self.takes(outgoing.size):
            self._let_in(outgoing)
            return
        outgoing.is_in_line = True
        self.waiting.append(outgoing)
        self._under_way.lines[self] = None

    def let_in(self) -> None:
        """Submit the publishes that have space now."""
        while self.waiting and (self.waiting[0].future.done() or self._has_room(self.waiting[0].size)):
            outgoing = self.waiting.popleft()
            if (
                not outgoing.future.done()
            ):  # else its caller has given up, and removes it in the next iteration of the loop
                self._let_in(outgoing)
        if not self.waiting:
            self._under_way.lines.pop(self, None)

    def remove(self, outgoing: Outgoing) -> None:
        """Remove one that ends here. It keeps its mark, since its bytes were never counted."""
        if outgoing in self.waiting:
            self.waiting.remove(outgoing)
            self._under_way.line_moved()

    def withdraw(self) -> list[Outgoing]:
        """Remove all without keys, to queue them at another partition."""
        out = [outgoing for outgoing in self.waiting if not outgoing.keys]
        if out:
            self.waiting = deque(outgoing for outgoing in self.waiting if outgoing.keys)
        return out

    def free(self, size: int) -> None:
        """Record that ``size`` bytes are no longer pending."""
        self.held -= size
        self._under_way.free(size)

    def full(self, size: int) -> str:
        """Return the error text for ``size`` bytes that found no space in time."""
        under_way = self._under_way
        return (
            f"timed out waiting for buffer space: {size} bytes are needed, the partition holds {self.held}, and all "
            f"partitions together {under_way.pending_bytes} of max_pending_bytes={under_way.max_bytes}. No partition "
            "may hold more than is left free: raise max_pending_bytes, or publish less at once"
        )

    def _has_room(self, size: int) -> bool:
        under_way = self._under_way
        return has_room(size, held=self.held, total=under_way.pending_bytes, limit=under_way.max_bytes)

    def _let_in(self, outgoing: Outgoing) -> None:
        outgoing.is_in_line = False
        self.held += outgoing.size
        self._under_way.pending_bytes += outgoing.size
        self._submit(outgoing)
