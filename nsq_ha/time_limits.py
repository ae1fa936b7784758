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

_SHARE_OF_PAUSE: Final = 1 / 8
"""Share of a step that a late check counts as, so that the wait ends even if the loop is always blocked."""


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
    """Raise TimeoutError in the block after ``seconds``; time with a blocked event loop hardly counts.

    Raises:
        TimeoutError: The time limit passed.
    """
    limit = _Limit(seconds)
    try:
        async with limit.timeout:
            yield
    finally:
        limit.stop()
