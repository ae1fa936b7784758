"""Background tasks, and the one place that sees their errors.

asyncio keeps no strong reference to a task, and tells nobody of its error until the task is collected.

The invariants: a task runs until it ends or is cancelled, whoever forgets it, and the error of each is reported once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from nsq_ha.base.unexpected import report_unexpected

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Coroutine

_T = TypeVar("_T")


class Tasks:
    """The background tasks of one owner, which handles in them all errors that it expects.

    Args:
        log: Where errors are reported.
        on_error: Called with an error instead, such as one that ends the owner. None reports it.
    """

    def __init__(self, log: logging.Logger, on_error: Callable[[Exception], object] | None = None) -> None:
        self._log = log
        self._on_error = on_error
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return how many run."""
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, _T], name: str) -> asyncio.Task[_T]:
        """Start a task in the running event loop.

        Args:
            work: What it does.
            name: Its name, under which an error is reported.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel all but the current task; do not wait."""
        for task in self._others():
            task.cancel()

    async def close(self) -> None:
        """Cancel all but the current task, and wait until they have ended, with those that they start meanwhile."""
        while others := self._others():
            self.cancel()
            await asyncio.wait(others)

    def _others(self) -> set[asyncio.Task[Any]]:
        return self._running - {asyncio.current_task()}

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if not isinstance(error, Exception):  # the event loop raises others, such as KeyboardInterrupt
            return
        if self._on_error is None:
            report_unexpected(self._log, task.get_name(), error)
        else:
            self._on_error(error)
