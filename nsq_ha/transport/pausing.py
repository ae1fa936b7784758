"""A pause that news ends, and telling who ended one."""

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
    """Tell whether ``error`` is none of ours to pass on: an ``Exception``, or a cancellation that nobody asked for.

    A future that was cancelled elsewhere, as by an executor that was shut down, raises CancelledError in a task that
    nobody cancels.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, Exception)
