"""Writing nothing for a moment after a refusal, and then one publish that probes the way for all."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from nsq_ha.policy.backoff import delay_after

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.config import Backoff

REFUSED_PAUSE: Final = 0.25
"""Most seconds between two tries after refusals: one small publish each time, and a leader that takes
writes again is not kept waiting."""


class Hold:
    """The pauses of one lane.

    Attributes:
        refusals: Tries in a row that were refused; all refusals of one try are one.
        is_on: Whether nothing may be written now.
    """

    def __init__(self, backoff: Backoff, on_end: Callable[[], None]) -> None:
        """Prepare; ``on_end`` is called when a pause is over."""
        self.refusals = 0
        self.is_on = False
        self._backoff = backoff
        self._on_end = on_end
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Note a refusal."""
        if self._handle is None:
            self.refusals += 1
            self.is_on = True
            delay = min(delay_after(self._backoff, self.refusals, random.random), REFUSED_PAUSE)
            self._handle = asyncio.get_running_loop().call_later(delay, self.end)

    def end(self) -> None:
        """End the pause, if there is one."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle, self.is_on = None, False
            self._on_end()
