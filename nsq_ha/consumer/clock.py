"""Detect that the application blocks the event loop, and for how long.

During a block no heartbeat is answered and nothing is read.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from nsq_ha.events import LoopBlocked
from nsq_ha.observe import SILENT
from nsq_ha.policy.liveness import Blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.observe import Observer

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

TICK: Final = 0.5
"""Seconds between two checks."""

HOGGED: Final = 0.05
"""Seconds after which a task that takes messages without a pause lets other tasks run."""

_LONG: Final = 1.0
_REST: Final = 0.02
"""Seconds to pause after a block of ``_LONG``: opening a connection takes some round trips."""

_TURNS: Final = 4
"""Turns of the loop that it takes to read, close and report a lost connection."""


class LoopClock:
    """Checks the time twice a second while the event loop runs, from :meth:`start` on.

    Args:
        on_blocked: Called with the seconds for which the loop was blocked, and with ``suspect``.

    Attributes:
        suspect: Name of the handler that ran while the loop was blocked. None if unknown.
    """

    def __init__(self, on_blocked: Callable[[float, str | None], None]) -> None:
        self._on_blocked = on_blocked
        self._ticked = self._turned = monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self.suspect: str | None = None

    def start(self) -> None:
        """Start checking."""
        self._ticked = self._turned = monotonic()
        self._plan()

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def blocked_for(self, now: float) -> float:
        """Return for how many seconds the loop has been blocked; 0 if it probably was not."""
        blocked = now - self._ticked - TICK
        return blocked if blocked > TICK else 0.0

    def arrival(self, now: float) -> float:
        """Return the earliest time at which data read now may have been sent: ``now`` if the loop was not blocked.

        If it was not, this records that the event loop runs.
        """
        if now - self._ticked > 2 * TICK:  # as blocked_for, without a call for each read
            return self._ticked
        self._turned = now
        return now

    async def turn_if_hogged(self) -> None:
        """Let other tasks run if they may not have run for a while.

        This writes answers, replies to heartbeats and notices lost connections.
        """
        hogged = monotonic() - self._turned
        if hogged > HOGGED:
            if hogged > _LONG:
                await asyncio.sleep(_REST)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            self._turned = monotonic()

    def _plan(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK, self._tick)

    def _tick(self) -> None:
        now = monotonic()
        blocked = self.blocked_for(now)
        self._ticked = self._turned = now
        self._plan()
        suspect, self.suspect = self.suspect, None
        if blocked:
            self._on_blocked(blocked, suspect)


class Heartbeats:
    """The heartbeat interval that the connections of one consumer request.

    Args:
        name: Topic and channel, for the log.
        configured: The option ``heartbeat_interval``.
        observer: The consumer's.
    """

    def __init__(self, name: str, configured: float, observer: Observer = SILENT) -> None:
        self._name = name
        self._observer = observer
        self._configured = configured
        self._blocks = Blocks(configured)
        self._is_warned = False

    @property
    def interval(self) -> float:
        """Seconds to request."""
        return self._blocks.interval(monotonic())

    def blocked(self, seconds: float, suspect: str | None) -> None:
        """Record that the event loop was blocked for ``seconds``."""
        before = self.interval
        if not self._blocks.blocked(monotonic(), seconds):
            return
        topic, _, channel = self._name.partition("/")
        self._observer.event(LoopBlocked(topic=topic, channel=channel, seconds=seconds, handler=suspect))
        if not self._is_warned:
            self._is_warned = True
            if suspect:
                who = f"the handler {suspect} blocked the event loop"
                advice = "Make the handler a plain function (def), or run blocking code with asyncio.to_thread"
            else:
                who = "the event loop was blocked"
                advice = "Run blocking code, as in the body of a loop over messages, with asyncio.to_thread"
            log.warning(
                "%s: %s for %.1f s. No heartbeat is answered during that time, and nsqd closes a connection after 2 or"
                " 3 heartbeat intervals (%g s each). %s. New connections ask for heartbeats every %.1f s",
                self._name,
                who,
                seconds,
                self._configured,
                advice,
                self.interval,
            )
        elif self.interval != before:
            log.info(
                "%s: the event loop was blocked for %.1f s: new connections ask for heartbeats every %.1f s",
                self._name,
                seconds,
                self.interval,
            )

    def refused(self) -> None:
        """Record that a server refused an interval longer than the configured one."""
        if self.interval != self._configured:
            log.warning(
                "%s: nsqd refused a heartbeat interval of %.1f s; asking for %g s again",
                self._name,
                self.interval,
                self._configured,
            )
            self._blocks.refused()
