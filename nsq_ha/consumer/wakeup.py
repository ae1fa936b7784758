"""Tasks that wait for messages, and are resumed inside the call that brings them.

An ``asyncio.Event`` resumes who waits for it one turn of the event loop later.
Where a message is answered before the next one comes, as on an ordered channel,
that turn is a good part of the whole round trip.

The invariant: a task is resumed at once only where no task runs, since two
cannot run inside each other; else in the next turn, as by an Event.
"""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable


class _Waiter(asyncio.Future[None]):
    """A future whose one callback can be called at once; what waits is one task."""

    wakes: Callable[[Any], object] | None = None
    context: contextvars.Context | None = None

    def add_done_callback(self, fn: Callable[[Self], object], /, *, context: contextvars.Context | None = None) -> None:
        """Keep the one callback (called by the task that awaits this)."""
        if self.wakes is None and not self.done():
            self.wakes = fn
            self.context = context or contextvars.copy_context()
        else:
            super().add_done_callback(fn, context=context)

    def cancel(self, msg: Any = None) -> bool:  # noqa: ANN401 - as in the base class
        """Cancel; the task goes on in the next turn."""
        if not super().cancel(msg):
            return False
        self._call_soon()
        return True

    def wake(self) -> None:
        """Let the task go on in the next turn."""
        self.set_result(None)
        self._call_soon()

    def _call_soon(self) -> None:
        if self.wakes is not None:
            self.get_loop().call_soon(self.wakes, self, context=self.context)


class Arrivals:
    """Where tasks wait until something may have arrived."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        """Start without turns."""
        self._waiters: list[_Waiter] = []

    def wait(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return what a task of ``loop`` awaits until the next :meth:`wake` or :meth:`wake_now`; then it looks again.

        Cancelled, it takes nothing with it.
        """
        if self._waiters:  # those that were cancelled, or they would gather while nothing arrives
            self._waiters = [waiter for waiter in self._waiters if not waiter.done()]
        waiter = _Waiter(loop=loop)
        self._waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Let all go on in the next turn of the loop."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.wake()

    def wake_now(self) -> None:
        """Run who waits, here where nothing else can join and no task runs; the others, if any, in the next turn.

        What a task ends with stays its own; only what ends the program
        (KeyboardInterrupt, SystemExit) is raised, by the event loop.
        """
        waiters = self._waiters
        if not waiters:
            return
        first = waiters[0]
        loop = first.get_loop()
        # Asked without the loop, CPython 3.11 asks the operating system for the process's number first.
        if len(waiters) > 1 or first.done() or asyncio.current_task(loop) is not None:
            self.wake()
            return
        waiters.clear()
        first.set_result(None)
        if first.wakes is None or first.context is None:
            return
        try:
            first.context.run(first.wakes, first)
        except (KeyboardInterrupt, SystemExit) as error:  # not through the connection that is being read
            loop.call_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error
