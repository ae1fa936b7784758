"""Pauses that news ends, and whose cancellation ended one."""

from __future__ import annotations

import asyncio


async def pause(news: asyncio.Event, timeout: float | None) -> None:
    """Wait until ``news`` is set, and clear it, or for ``timeout`` seconds. Cancelled, it clears nothing.

    Args:
        news: Set when there is a reason to look again.
        timeout: None waits for news alone.
    """
    try:
        async with asyncio.timeout(timeout):
            await news.wait()
    except TimeoutError:
        return
    news.clear()


def is_foreign(error: BaseException) -> bool:
    """Return whether to handle ``error`` here: an ``Exception``, or a CancelledError without a request to cancel.

    A future that was cancelled elsewhere, as by an executor's shutdown, raises CancelledError in a task that is not
    being cancelled.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, Exception)
