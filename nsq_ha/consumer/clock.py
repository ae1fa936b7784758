"""Detect that the event loop stands still, for how long and why.

Meanwhile no heartbeat is answered and nothing is read. The effect is the same whether the application blocks the loop
or a busy machine gives it no CPU; what the application should do about it is not.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Final

from nsq_ha.base.clock import monotonic
from nsq_ha.engine.loops import Looks, looks
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.events import LoopBlocked
from nsq_ha.policy.liveness import Blocks
from nsq_ha.policy.timing import LATE

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

TICK: Final = 0.5
"""Seconds between two checks."""

LONGEST_RUN: Final = LATE
"""Seconds after which a task that takes messages without a pause lets other tasks run."""

_LONG: Final = 1.0
_UNKNOWN: Final = math.nan

ROUND_TRIPS: Final = 0.02
"""Seconds that some round trips take, such as those that open a connection; the pause after a block of ``_LONG``."""

_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds for which the thread ran, and for which it could have run and waited for a CPU (Linux)."""

_TURNS: Final = 4
"""Turns of the loop that it takes to read, close and report a lost connection."""


class LoopClock:
    """Checks the time twice a second while the event loop runs, from :meth:`start` on.

    Args:
        on_blocked: Called with the seconds for which the loop was blocked, with ``suspect``, and with the seconds for
            which its thread waited for a CPU meanwhile (NaN if unknown).

    Attributes:
        turned: When other tasks have run for the last time, as far as is known; set this when data is read.
        ticked: When the time was checked last.
        late_at: What is read after this may have been sent as early as ``ticked``: the loop stands still. What is read
            before was sent just now.
        suspect: Name of the handler that ran while the loop was blocked. None if unknown.
    """

    def __init__(self, on_blocked: Callable[[float, str | None, float], None]) -> None:
        self._on_blocked = on_blocked
        self._ran(monotonic())
        self._looks: Looks | None = None
        self._times = 0.0, _UNKNOWN
        self.suspect: str | None = None

    def start(self) -> None:
        """Start checking."""
        self._ran(monotonic())
        self._times = cpu_times()
        self._looks = looks.here()
        self._looks.add(self._tick, self.ticked + TICK)

    def _ran(self, now: float) -> None:
        self.ticked: float = now
        self.turned: float = now
        self.late_at: float = now + 2 * TICK

    def stop(self) -> None:
        """Stop checking."""
        if self._looks is not None:
            self._looks.remove(self._tick)

    def _tick(self, _: float) -> float:
        """Check the time."""
        now, before, self._times = monotonic(), self._times, cpu_times()
        by_code, by_others = (time - earlier for time, earlier in zip(self._times, before, strict=True))
        blocked, turned = self.blocked_for(now), self.turned
        self._ran(now)
        suspect, self.suspect = self.suspect, None
        if blocked:
            self.turned = turned  # others must run before what was read is handed out
            self._on_blocked(blocked, suspect, 0.0 if by_code > blocked - by_code else min(by_others, blocked))
        return now + TICK

    def blocked_for(self, now: float) -> float:
        """Return for how many seconds the loop has been blocked; 0 if it probably was not."""
        blocked = now - self.ticked - TICK
        return blocked if blocked > TICK else 0.0

    async def let_others_run(self) -> None:
        """Let other tasks run if they may not have run for a while.

        This writes answers, replies to heartbeats and notices lost connections.
        """
        if (ran := monotonic() - self.turned) <= LONGEST_RUN:
            return
        if ran > _LONG:
            await asyncio.sleep(ROUND_TRIPS)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self.turned = monotonic()


def cpu_times() -> tuple[float, float]:
    """Return the seconds for which this thread has run, and for which it has waited for a CPU (NaN if unknown)."""
    try:
        ran, waited = map(int, _SCHEDSTAT.read_bytes().split()[:2])
    except (OSError, ValueError):
        return thread_time(), _UNKNOWN
    return thread_time(), waited / 1e9 if ran else _UNKNOWN  # a kernel that counts nothing says 0


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
        self._warned: frozenset[bool] = frozenset()  # of a busy machine, of code that blocks

    @property
    def interval(self) -> float:
        """Seconds to request."""
        return self._blocks.interval(monotonic())

    def blocked(self, seconds: float, suspect: str | None, waited: float = 0.0) -> None:
        """Record that the event loop stood still for ``seconds``, and ``waited`` for a CPU so long (NaN if unknown)."""
        before = self.interval
        if not self._blocks.blocked(monotonic(), seconds):
            return
        topic, _, channel = self._name.partition("/")
        is_starved = waited > seconds - waited
        if is_starved:
            suspect = None
            what = f"the event loop had to wait {waited:.1f} of {seconds:.1f} s for a CPU"
            advice = "Give the process more CPU: the machine is too busy, or the container's limit too low"
        elif suspect:
            what = f"the handler {suspect} blocked the event loop for {seconds:.1f} s"
            advice = "Make the handler a plain function (def), or run blocking code with asyncio.to_thread"
        else:
            what = f"the event loop was blocked for {seconds:.1f} s"
            advice = "Run blocking code, as in the body of a loop over messages, with asyncio.to_thread"
        if math.isnan(waited):
            advice += ". If no code blocks it, the machine is too busy"
        known = None if math.isnan(waited) else waited
        self._observer.event(LoopBlocked(topic=topic, channel=channel, seconds=seconds, handler=suspect, waited=known))
        if is_starved not in self._warned:
            self._warned |= {is_starved}
            log.warning(
                "%s: %s. No heartbeat is answered during that time, and nsqd closes a connection after 2 or"
                " 3 heartbeat intervals (%g s each). %s. New connections ask for heartbeats every %.1f s",
                self._name,
                what,
                self._configured,
                advice,
                self.interval,
            )
        elif self.interval != before:
            log.info("%s: %s: new connections ask for heartbeats every %.1f s", self._name, what, self.interval)

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
