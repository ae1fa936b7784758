"""What is being published now: its bytes, its ends, and the one timer that ends each publish at its time limit.

A timer for each publish would cost more than all the rest of it. Those with
equal limits end in the order in which they began, so of each limit only the
oldest has to be looked at.

The invariant: a publish is in here exactly while its caller waits. One that is
stored is let go of at once (:meth:`UnderWay.stored`), whatever else ends one is
noted by its caller's call on its way out (:meth:`UnderWay.let_go`).
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsq_ha.message import Receipt
    from nsq_ha.producer.line import Line
    from nsq_ha.producer.outgoing import Outgoing


class UnderWay:
    """All publishes of one producer that are not done.

    Attributes:
        loop: The event loop that all of this belongs to.
        new_future: Creates the future of a publish.
        pending_bytes: Bytes of queued or unanswered bodies, over all partitions.
        max_bytes: Their limit, see ``policy.room``.
        lines: The lines in which publishes wait for space.
        usual: Publishes with the usual time limit, oldest first.
        is_open: Whether the producer accepts publishes.
        is_closed: Publishes no longer expire.
    """

    def __init__(self, expire: Callable[[Outgoing], None], usual_timeout: float, max_bytes: int) -> None:
        """Prepare.

        Args:
            expire: Called with each one whose time is over, before its caller is told.
            usual_timeout: What most of them have.
            max_bytes: See the attributes.
        """
        self.loop = asyncio.get_running_loop()
        self.new_future: Callable[[], asyncio.Future[list[Receipt]]] = self.loop.create_future
        self.pending_bytes = 0
        self.max_bytes = max_bytes
        self.is_open = True
        self._expire = expire
        self._clock = self.loop.time
        self._usual_timeout = usual_timeout
        self.usual: dict[Outgoing, None] = {}
        self._others: dict[float, dict[Outgoing, None]] = {}
        self._due = math.inf
        self._handle: asyncio.TimerHandle | None = None
        self.lines: dict[Line, None] = {}
        self._let_in_is_due = False
        self._line_moved = asyncio.Event()
        self.is_closed = False

    def add(self, outgoing: Outgoing, timeout: float) -> None:
        """Add a publish that expires in ``timeout`` seconds; its bytes count once it is queued."""
        group = self.usual
        if timeout != self._usual_timeout:
            outgoing.timeout = timeout
            group = self._others.setdefault(timeout, {})
        group[outgoing] = None
        deadline = outgoing.deadline = self._clock() + timeout
        if deadline < self._due:
            self._look_at(deadline)

    def add_usual(self, outgoing: Outgoing) -> None:
        """Add a publish with the usual time limit that is queued next; its partition counts its bytes, too."""
        self.usual[outgoing] = None
        self.pending_bytes += outgoing.size
        deadline = outgoing.deadline = self._clock() + self._usual_timeout
        if deadline < self._due:
            self._look_at(deadline)

    def stored(self, some: Iterable[Outgoing], receipts: list[Receipt]) -> None:
        """Give ``receipts`` to each one that is still waited for, and let go of it."""
        usual = self.usual
        for outgoing in some:
            future = outgoing.future
            if not future.done():
                future.set_result(receipts)
                if outgoing.timeout is None:
                    del usual[outgoing]
                else:
                    self._remove_other(outgoing, outgoing.timeout)
                self._free(outgoing)

    def free(self, size: int) -> None:
        """Record that ``size`` bytes are no longer pending."""
        self.pending_bytes -= size
        if self.lines and not self._let_in_is_due:
            # Later, since the caller may be in the middle of its partition's answers.
            self._let_in_is_due = True
            self.loop.call_soon(self._let_in)

    def _free(self, outgoing: Outgoing) -> None:
        if outgoing.sender is not None:
            outgoing.sender.line.held -= outgoing.size
        self.free(outgoing.size)

    def _let_in(self) -> None:
        self._let_in_is_due = False
        if self.is_closed:
            return
        for line in tuple(self.lines):
            line.let_in()
        self.line_moved()

    def line_moved(self) -> None:
        """Wake the callers of :meth:`until_queued`."""
        self._line_moved.set()

    def let_go(self, outgoing: Outgoing) -> None:
        """Let go of one whose caller does not wait any more, whatever the reason; it may have been let go of before."""
        if not outgoing.future.done() or outgoing.future.cancelled():
            outgoing.give_up()
        if outgoing.timeout is not None:
            if outgoing not in self._others.get(outgoing.timeout, ()):
                return
            self._remove_other(outgoing, outgoing.timeout)
        elif outgoing in self.usual:
            del self.usual[outgoing]
        else:
            return
        if outgoing.sender is not None and not outgoing.is_in_line:
            self._free(outgoing)

    def _remove_other(self, outgoing: Outgoing, timeout: float) -> None:
        group = self._others[timeout]
        del group[outgoing]
        # The limits that callers choose may all differ: no memory of those that are not in use.
        if not group:
            del self._others[timeout]

    async def until_queued(self, outgoing: Outgoing) -> None:
        """Wait while ``outgoing`` is in line, until :meth:`close` at most. Cancellation leaves nothing behind."""
        while outgoing.is_in_line and not outgoing.future.done() and not self.is_closed:
            self._line_moved.clear()
            await self._line_moved.wait()

    def futures(self) -> list[asyncio.Future[list[Receipt]]]:
        """Return what tells the end of each."""
        return [outgoing.future for group in (self.usual, *self._others.values()) for outgoing in group]

    def close(self) -> None:
        """Stop expiring publishes, and queue none of those in line."""
        self.is_closed = True
        self.lines.clear()
        self.line_moved()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look_at(self, when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = when
        self._handle = self.loop.call_at(when, self._look)

    def _look(self) -> None:
        # Timers may fire a tick of the clock early.
        now = max(self.loop.time(), self._due)
        self._handle, self._due = None, math.inf
        expired = []
        following = math.inf
        for group in (self.usual, *self._others.values()):
            for outgoing in group:
                if outgoing.deadline > now:
                    following = min(following, outgoing.deadline)
                    break
                if not outgoing.future.done():
                    expired.append(outgoing)
        for outgoing in expired:
            self._expire(outgoing)
        if following < math.inf:
            self._look_at(following)
