"""Noticing that a leader does not answer, long before its heartbeats are missed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SLOW_AFTER: Final = 0.75
"""Seconds without answer after which publishes that may go anywhere go elsewhere, in doubt."""

_AGAIN: Final = 0.25


class Slowness:
    """Watches the oldest unanswered publish of one lane while there is one."""

    def __init__(self, oldest: Callable[[], float | None], on_slow: Callable[[], None]) -> None:
        """Prepare.

        Args:
            oldest: Returns when the oldest unanswered publish was written, in the loop's time. None when there is none.
            on_slow: Called when it has waited for ``SLOW_AFTER``, and again every quarter of a second.
        """
        self._oldest = oldest
        self._on_slow = on_slow
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Begin, if it has not begun."""
        if self._handle is None:
            self._handle = self._loop.call_later(SLOW_AFTER, self._look)

    def stop(self) -> None:
        """End."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        self._handle = None
        oldest = self._oldest()
        if oldest is None:
            return
        left = oldest + SLOW_AFTER - self._loop.time()
        self._handle = self._loop.call_later(left if left > 0 else _AGAIN, self._look)
        if left <= 0:
            self._on_slow()
