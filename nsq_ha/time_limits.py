"""Time limits on what other machines do, which do not count our own pauses.

While the application blocks the event loop, answers lie unread in the socket.
``asyncio.timeout`` would end the wait as soon as the loop turns again, before
they are read, and blame the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

_STEPS: Final = 4
"""Looks at the clock in one limit."""

_SHARE_OF_PAUSE: Final = 1 / 8
"""Share of a step that a late look counts for: even a loop that is blocked all the time ends the wait some day."""


class _Limit:
    """Counts the time of one block."""

    def __init__(self, seconds: float) -> None:
        self.timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._left = seconds
        self._step = seconds / _STEPS
        self._last = self._loop.time()
        self._timer = self._loop.call_later(self._step, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        passed, self._last = now - self._last, now
        self._left -= passed if passed < 1.5 * self._step else self._step * _SHARE_OF_PAUSE
        if self._left <= 0:
            self.timeout.reschedule(now)
        else:
            self._timer = self._loop.call_later(min(self._step, self._left), self._look)


@contextlib.asynccontextmanager
async def time_limit(seconds: float) -> AsyncIterator[None]:
    """End the block with TimeoutError after ``seconds``, hardly counting those in which the event loop was blocked.

    Raises:
        TimeoutError: The time is over.
    """
    limit = _Limit(seconds)
    try:
        async with limit.timeout:
            yield
    finally:
        limit.stop()
