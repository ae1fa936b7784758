"""Resume a task that waits for messages inside the call that brings them.

An ``asyncio.Event`` resumes its waiters one turn of the event loop later. If
each message is answered before the next one comes, as on an ordered channel,
that turn is a good part of the round trip.

The invariant: a task is resumed at once only if no task is running, since tasks
cannot nest; else it is resumed in the next turn, as by an Event.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable


class _Waiter(asyncio.Future[None]):
    """A future for one task, whose callback can be called at once."""

    wakes: Callable[[Any], object] | None = None
    context: contextvars.Context | None = None

    def add_done_callback(self, fn: Callable[[Self], object], /, *, context: contextvars.Context | None = None) -> None:
        """Keep the callback of the task that awaits this."""
        if self.wakes is None and not self.done():
            self.wakes = fn
            self.context = context or contextvars.copy_context()
        else:
            super().add_done_callback(fn, context=context)

    def cancel(self, msg: Any = None) -> bool:  # noqa: ANN401 - as in the base class
        """Cancel; the task resumes in the next turn."""
        if not super().cancel(msg):
            return False
        self._call_soon()
        return True

    def wake(self) -> None:
        """Resume the task in the next turn."""
        self.set_result(None)
        self._call_soon()

    def _call_soon(self) -> None:
        if self.wakes is not None:
            self.get_loop().call_soon(self.wakes, self, context=self.context)


class Arrivals:
    """Lets tasks wait until something may have arrived."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[_Waiter] = []

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future of ``loop`` that the next :meth:`wake` or :meth:`wake_now` completes; then check again.

        Cancelling it loses nothing.
        """
        if self._waiters:  # remove cancelled ones; otherwise they would pile up while nothing arrives
            self._waiters = [waiter for waiter in self._waiters if not waiter.done()]
        waiter = _Waiter(loop=loop)
        self._waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Resume all waiters in the next turn of the loop."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.wake()

    def wake_now(self) -> None:
        """Resume the only waiter inside this call if no task is running; else resume all in the next turn.

        A task's exception stays with the task. Only KeyboardInterrupt and
        SystemExit are raised, by the event loop.
        """
        waiters = self._waiters
        if not waiters:
            return
        first = waiters[0]
        loop = first.get_loop()
        # Without the argument, CPython 3.11 makes a system call (getpid) first.
        if len(waiters) > 1 or first.done() or asyncio.current_task(loop) is not None:
            self.wake()
            return
        waiters.clear()
        first.set_result(None)
        if first.wakes is None or first.context is None:
            return
        try:
            first.context.run(first.wakes, first)
        except (KeyboardInterrupt, SystemExit) as error:  # must not pass through the connection that is being read
            loop.call_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error
