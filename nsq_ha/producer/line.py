"""The line in front of one partition: its publishes that wait for room, in their order.

Owns the bytes that the partition holds. Which publish has room is
``policy.room``'s rule. One that waits here was not written, counts for nothing,
and ends at its time limit like any other.
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
    """The publishes of one partition that wait for room.

    Attributes:
        held: Bytes of the partition that are queued or unanswered.
        waiting: Publishes that wait for room, oldest first.
    """

    __slots__ = ("_submit", "_under_way", "held", "waiting")

    def __init__(self, under_way: UnderWay, submit: Callable[[Outgoing], None]) -> None:
        """Prepare.

        Args:
            under_way: Where the bytes of all partitions are counted.
            submit: Takes a publish that has room.
        """
        self.held = 0
        self.waiting: deque[Outgoing] = deque()
        self._under_way = under_way
        self._submit = submit

    def takes(self, size: int) -> bool:
        """Tell whether ``size`` more bytes have room now, and nothing waits before them."""
        return not self.waiting and self._has_room(size)

    def admit(self, outgoing: Outgoing) -> None:
        """Queue a publish if it has room; otherwise it waits for its turn."""
        if self.takes(outgoing.size):
            self._let_in(outgoing)
            return
        outgoing.is_in_line = True
        self.waiting.append(outgoing)
        self._under_way.lines[self] = None

    def let_in(self) -> None:
        """Queue what has room by now."""
        while self.waiting and (self.waiting[0].future.done() or self._has_room(self.waiting[0].size)):
            outgoing = self.waiting.popleft()
            if not outgoing.future.done():  # else its caller is gone, and leaves in the next turn of the loop
                self._let_in(outgoing)
        if not self.waiting:
            self._under_way.lines.pop(self, None)

    def remove(self, outgoing: Outgoing) -> None:
        """Take one out that ends here. It keeps its mark, since its bytes were never counted."""
        if outgoing in self.waiting:
            self.waiting.remove(outgoing)
            self._under_way.line_moved()

    def withdraw(self) -> list[Outgoing]:
        """Take out all without keys, to queue them at another partition."""
        out = [outgoing for outgoing in self.waiting if not outgoing.keys]
        if out:
            self.waiting = deque(outgoing for outgoing in self.waiting if outgoing.keys)
        return out

    def free(self, size: int) -> None:
        """Take ``size`` bytes as not pending any more."""
        self.held -= size
        self._under_way.free(size)

    def full(self, size: int) -> str:
        """Say why ``size`` bytes had no room."""
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
