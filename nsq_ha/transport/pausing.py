"""A pause that news ends."""

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
