"""Waits with a limit, and cancellation: which one is meant for this task, and work that one does not interrupt."""

from __future__ import annotations

import asyncio
import contextlib


async def wait_until_set(event: asyncio.Event, limit: float) -> None:
    """Wait until ``event`` is set, for ``limit`` seconds at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit):
            await event.wait()


async def uninterrupted(work: asyncio.Future[None]) -> None:
    """Wait for the end of ``work``, which takes a bounded time; a cancellation takes effect after it."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    work.result()


def is_foreign(error: BaseException) -> bool:
    """Return whether to handle ``error`` here: an ``Exception``, or a CancelledError without a request to cancel.

    A future that was cancelled elsewhere, as by an executor's shutdown, raises CancelledError in a task that is not
    being cancelled.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, Exception)
