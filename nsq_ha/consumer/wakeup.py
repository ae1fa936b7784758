"""Let tasks wait for messages; a single one is resumed inside the call that brings them (``nsq_ha.resuming``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.resuming import complete

if TYPE_CHECKING:
    import asyncio


class Arrivals:
    """Lets tasks wait until something may have arrived."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future of ``loop`` that the next :meth:`wake` or :meth:`wake_now` completes; then check again.

        Cancelling it loses nothing.
        """
        if self._waiters:  # remove cancelled ones; otherwise they would pile up while nothing arrives
            self._waiters = [waiter for waiter in self._waiters if not waiter.done()]
        waiter = loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Resume all waiters in the next turn of the loop."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wake_now(self) -> None:
        """Resume the only waiter inside this call if no task is running; else resume all in the next turn."""
        waiters = self._waiters
        if not waiters:
            return
        first = waiters[0]
        if len(waiters) > 1 or first.done():
            self.wake()
            return
        waiters.clear()
        complete(first)
