"""Close in a separate task, so that a cancelled call leaves nothing half closed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_running: Final[set[asyncio.Task[Any]]] = set()
"""Running closes. The event loop keeps no strong reference to a task, and the client may be gone while it closes."""


class Closing:
    """One client's close: it waits for pending work, then ends everything else.

    The invariants: the second part always completes, even if its callers are
    cancelled, and every call returns soon after that. If the task itself is
    cancelled, as at the end of ``asyncio.run``, the next call starts it again.

    Attributes:
        has_begun: A close was requested.
        is_done: Everything is closed.
    """

    def __init__(
        self,
        drain: Callable[[], Coroutine[Any, Any, object]],
        end: Callable[[], Coroutine[Any, Any, object]],
        name: str,
    ) -> None:
        """Start nothing yet.

        Args:
            drain: Waits for pending work; cancelled when no caller waits any longer.
            end: Ends everything else. Its time is bounded, and it may run again after a cancellation.
            name: Of the task.
        """
        self.has_begun = False
        self.is_done = False
        self._drain = drain
        self._end = end
        self._name = name
        self._draining: asyncio.Task[object] | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Start the close unless it runs, and return its task."""
        self.has_begun = True
        if self._draining is None:
            self._draining = _start(self._drain(), f"{self._name}: waiting for what is under way")
        if self._task is None or self._task.cancelled():
            self._task = _start(self._run(self._draining), self._name)
        return self._task

    def hurry(self) -> None:
        """Stop waiting for pending work."""
        if self._draining is not None:
            self._draining.cancel()

    async def wait(self) -> None:
        """Start the close unless it runs, and wait for its end.

        If cancelled, it stops waiting for pending work and waits only for the
        rest, which takes milliseconds. Cancelled again, it leaves that to the task.
        """
        if self.is_done:
            return
        task = self.begin()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            self.hurry()
            await asyncio.wait({task})
            raise
        if not task.cancelled():
            task.result()

    async def _run(self, draining: asyncio.Task[object]) -> None:
        await asyncio.wait({draining})
        await self._end()
        self.is_done = True
        if not draining.cancelled():
            draining.result()


def _start(work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    task = asyncio.create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task
