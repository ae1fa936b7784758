"""What is being published now, and the one timer that ends each publish at its time limit.

A timer for each publish would cost more than all the rest of it. Those with
equal limits end in the order in which they began, so of each limit only the
oldest has to be looked at.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.message import Receipt
    from nsq_ha.producer.outgoing import Outgoing


class UnderWay:
    """All publishes of one producer that are not done.

    Attributes:
        new_future: Makes what tells the end of one.
    """

    def __init__(self, expire: Callable[[Outgoing], None], usual_timeout: float) -> None:
        """Prepare.

        Args:
            expire: Called with each one whose time is over, before it is taken out.
            usual_timeout: What most of them have.
        """
        self._expire = expire
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self.new_future: Callable[[], asyncio.Future[list[Receipt]]] = self._loop.create_future
        self._usual_timeout = usual_timeout
        self._usual: dict[Outgoing, None] = {}
        self._by_timeout: dict[float, dict[Outgoing, None]] = {usual_timeout: self._usual}
        self._due = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def add(self, outgoing: Outgoing, timeout: float) -> None:
        """Take in a publish that has ``timeout`` seconds from now on."""
        outgoing.timeout = timeout
        deadline = outgoing.deadline = self._clock() + timeout
        group = self._by_timeout.get(timeout)
        if group is None:
            group = self._by_timeout[timeout] = {}
        group[outgoing] = None
        if deadline < self._due:
            self._look_at(deadline)

    def add_usual(self, outgoing: Outgoing) -> dict[Outgoing, None]:
        """Take in a publish with the usual limit; the caller takes it out of what is returned."""
        deadline = outgoing.deadline = self._clock() + self._usual_timeout
        usual = self._usual
        usual[outgoing] = None
        if deadline < self._due:
            self._look_at(deadline)
        return usual

    def remove(self, outgoing: Outgoing) -> None:
        """Let go of one that ended."""
        group = self._by_timeout[outgoing.timeout]
        del group[outgoing]
        # The limits that callers choose may all differ: no memory of those that are not in use.
        if not group and group is not self._usual:
            del self._by_timeout[outgoing.timeout]

    def futures(self) -> list[asyncio.Future[list[Receipt]]]:
        """Return what tells the end of each."""
        return [outgoing.future for group in self._by_timeout.values() for outgoing in group]

    def close(self) -> None:
        """End nothing any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look_at(self, when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = when
        self._handle = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        # Timers may fire a tick of the clock early.
        now = max(self._loop.time(), self._due)
        self._handle, self._due = None, math.inf
        expired = []
        following = math.inf
        for group in self._by_timeout.values():
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
