"""Time limits for answers of servers that do not count our own pauses.

While the application blocks the event loop, answers stay unread in the socket.
``asyncio.timeout`` would end the wait as soon as the loop runs again, before they
are read, and blame the server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

_STEPS: Final = 4
"""Number of times that the clock is checked within one limit."""

_PAUSES: Final = 4
"""Number of pauses after which the wait goes on for a step, so that it ends even if the loop is always blocked."""


class _Limit:
    """Counts the time of one block."""

    def __init__(self, seconds: float) -> None:
        self.timeout = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._step = seconds / _STEPS
        self._end = self._loop.time() + seconds
        self._pauses = _PAUSES
        self._due = self._loop.time() + self._step
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if now - self._due > self._step / 2 and self._pauses:  # answers may be unread
            self._pauses -= 1
            self._end = max(self._end, now + self._step)
        if now >= self._end:
            self.timeout.reschedule(now)
        else:
            self._due = min(now + self._step, self._end)
            self._timer = self._loop.call_at(self._due, self._look)


@contextlib.asynccontextmanager
async def time_limit(seconds: float) -> AsyncIterator[None]:
    """Raise TimeoutError in the block after ``seconds``, or a quarter of them after a pause of the event loop.

    Only a few pauses count, so no peer that keeps the loop busy can prolong its own limit.

    Raises:
        TimeoutError: The time limit passed.
    """
    limit = _Limit(seconds)
    try:
        async with limit.timeout:
            yield
    finally:
        limit.stop()
