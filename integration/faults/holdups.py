"""How long the event loop of the measuring process was held up, and whose doing it was."""

import array
import pathlib
import threading
import time
from typing import Final

from integration.faults.waiting import beat

TICK: Final = 0.05
SMALL: Final = 0.005
KEPT: Final = 12_000
"""Ticks that are remembered: ten minutes of nothing but late ones."""


class HoldUps:
    """Watches the loop that runs it.

    Attributes:
        worst: The longest hold-up, in seconds.
        worst_own: The most that a single hold-up owed to the process itself: work without a pause, or a wait that
            blocks.
    """

    def __init__(self) -> None:
        self.worst = self.worst_own = 0.0
        # When and how long, in turn: objects for each tick would be 72,000 blocks after two hours of a soak, and look
        # like a leak of the library.
        self._waited = array.array("d")

    def forget(self) -> None:
        """Start again."""
        self.worst = self.worst_own = 0.0
        del self._waited[:]

    async def watch(self) -> None:
        """Watch until cancelled."""
        statistics = pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        before = _run_delay(statistics)
        while True:
            due = time.monotonic() + TICK
            await beat(due)
            now, delay = time.monotonic(), _run_delay(statistics)
            self.note(now, now - due, delay - before)
            before = delay

    def note(self, now: float, lag: float, waited: float) -> None:
        """Enter one tick: how late it was, and how long the thread had waited for a processor since the last one."""
        # Waiting that did not make the loop late did no harm.
        machine = min(max(waited, 0.0), max(lag, 0.0))
        if machine > SMALL:
            self._waited.extend((now, machine))
            del self._waited[: -2 * KEPT]
        self.worst = max(self.worst, lag)
        self.worst_own = max(self.worst_own, lag - machine)

    def machine_between(self, since: float, until: float) -> float:
        """Return the seconds that the machine took from the loop within a time."""
        ticks = zip(self._waited[::2], self._waited[1::2], strict=True)
        return sum(seconds for at, seconds in ticks if since < at <= until + TICK)


def _run_delay(statistics: pathlib.Path) -> float:
    """Return the seconds that the thread has waited for a processor so far; 0 where the system does not tell."""
    try:
        return int(statistics.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
