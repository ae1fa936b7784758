"""Two timers of one sender: the pause after a refusal, and the watch for a leader that does not answer.

After a refusal nothing is written for a moment; then a single publish probes
whether the leader accepts writes again. A stalled leader is detected long before
a heartbeat is missed; ``policy.liveness`` decides when.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Final

from nsq_ha.engine.loops import TO_READ
from nsq_ha.policy.liveness import STALLED_AFTER
from nsq_ha.policy.timing import delay_after

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.options.types import Backoff

LONGEST_PAUSE: Final = 0.25
"""Most seconds between two probes. Each is a single publish, and a leader should get writes soon after it recovers."""

_REPEAT_AFTER: Final = 0.25


class RetryPause:
    """The pauses of one lane after refusals.

    Args:
        backoff: How the pauses grow.
        on_end: Called when a pause is over.

    Attributes:
        refusals: Refused attempts in a row; all refusals before one pause count as one.
        is_on: Whether nothing may be written now.
    """

    def __init__(self, backoff: Backoff, on_end: Callable[[], None]) -> None:
        self.refusals: int = 0
        self.is_on: bool = False
        self._backoff = backoff
        self._on_end = on_end
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Record a refusal and start a pause, unless one is on."""
        if self._handle is None:
            self.refusals += 1
            self.is_on = True
            delay = min(delay_after(self._backoff, self.refusals, random.random), LONGEST_PAUSE)
            self._handle = asyncio.get_running_loop().call_later(delay, self.end)

    def end(self) -> None:
        """End the pause, if one is on."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle, self.is_on = None, False
            self._on_end()


class Silence:
    """Watches the oldest unanswered publish of one lane, if there is one, and keeps what follows from its silence.

    Args:
        deadline: Returns when the leader counts as stalled, in the loop's time. None if nothing is unanswered.
        on_stall: Called when that time has passed, and again every quarter of a second.

    Attributes:
        is_watching: Whether the timer runs.
        is_doubted: Whether the leader was silent for so long that nothing more is written to the connection.
        is_question_due: Whether to ask over another connection whether the leader answers.
        answered_at: When it last answered, in the loop's time.
        ask_at: When to ask next, in the loop's time.
        refresh_at: When to look it up next, in the loop's time.
    """

    def __init__(self, deadline: Callable[[], float | None], on_stall: Callable[[], None]) -> None:
        self._deadline = deadline
        self._on_stall = on_stall
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self.is_watching: bool = False
        self.is_doubted: bool = False
        self.is_question_due: bool = False
        self.answered_at: float = 0.0
        self.ask_at: float = 0.0
        self.refresh_at: float = 0.0

    def watch(self) -> None:
        """Start the timer unless it runs."""
        if self._handle is None:
            self.is_watching = True
            self._handle = self._loop.call_later(STALLED_AFTER, self._check)

    def stop(self) -> None:
        """Stop the timer: the connection is closed."""
        self.is_doubted = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle, self.is_watching = None, False

    def _check(self, *, has_read: bool = False) -> None:
        self._handle = None
        deadline = self._deadline()
        if deadline is None:
            self.is_watching = False
            return
        left = deadline - self._loop.time()
        if left <= 0 and not has_read:
            self._handle = self._loop.call_later(TO_READ, partial(self._check, has_read=True))
            return
        self._handle = self._loop.call_later(left if left > 0 else _REPEAT_AFTER, self._check)
        if left <= 0:
            self._on_stall()
