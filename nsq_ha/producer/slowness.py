"""Noticing that a leader does not answer, long before its heartbeats are missed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nsq_ha.policy.answering import SLOW_AFTER

if TYPE_CHECKING:
    from collections.abc import Callable

_AGAIN: Final = 0.25


class Slowness:
    """Watches the oldest unanswered publish of one lane while there is one.

    Attributes:
        is_watching: Whether it has begun.
    """

    def __init__(self, deadline: Callable[[], float | None], on_slow: Callable[[], None]) -> None:
        """Prepare.

        Args:
            deadline: Returns when the leader counts as slow, in the loop's time. None when nothing is unanswered.
            on_slow: Called when that is over, and again every quarter of a second.
        """
        self._deadline = deadline
        self._on_slow = on_slow
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self.is_watching = False

    def watch(self) -> None:
        """Begin, if it has not begun."""
        if self._handle is None:
            self.is_watching = True
            self._handle = self._loop.call_later(SLOW_AFTER, self._look)

    def stop(self) -> None:
        """End."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle, self.is_watching = None, False

    def _look(self) -> None:
        self._handle = None
        deadline = self._deadline()
        if deadline is None:
            self.is_watching = False
            return
        left = deadline - self._loop.time()
        self._handle = self._loop.call_later(left if left > 0 else _AGAIN, self._look)
        if left <= 0:
            self._on_slow()
