"""What exists once for each event loop, such as the timer that looks whether connections are silent.

A timer for each connection would often wake a process that has many of them.

The invariant: a connection is looked at when that is due, or ``TOGETHER`` seconds later.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from nsq_ha.policy.timing import QUICK_GAP

T = TypeVar("T")

TOGETHER: Final = QUICK_GAP
"""Seconds between two looks at least. What is due in between is looked at together."""

TO_READ: Final = 0.001
"""Seconds until what has arrived is read. After a stop of the process, as by SIGSTOP, the loop runs timers before that.
Not 0: uvloop runs what is due at once before it reads."""

_STOPPED: Final = 0.1
"""Seconds after which a read of the sockets does not count any more: the process was stopped since."""

Look = Callable[[float], float]
"""Looks at a connection. It gets the time at which that was due, and returns when the next look is due."""


class PerLoop(threading.local, Generic[T]):
    """One object for each event loop, made when it is first asked for: loops must not share sockets or timers.

    Args:
        new: Makes it.
    """

    def __init__(self, new: Callable[[], T]) -> None:
        self._new = new
        self._made: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    def here(self) -> T:
        """Return that of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._made:
            self._made[loop] = self._new()
        return self._made[loop]


class Alarm:
    """Calls a function of the time when a time has come and the sockets were read: what is due may have been answered.

    Args:
        ring: The function.

    Attributes:
        at: When it is called next.
    """

    def __init__(self, ring: Callable[[float], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self.at: float = math.inf

    def set(self, when: float) -> None:
        """Call the function at this time, and not at another one."""
        self.cancel()
        self.at = when
        self._wake_at(when, is_read=False)

    def cancel(self) -> None:
        """Call the function no more."""
        self.at = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_at(self, when: float, *, is_read: bool) -> None:
        self._timer = asyncio.get_running_loop().call_at(when, self._due, when, is_read)

    def _due(self, due: float, is_read: bool) -> None:
        now = asyncio.get_running_loop().time()
        if not is_read or now - due > _STOPPED:
            self._wake_at(now + TO_READ, is_read=True)
            return
        now, self._timer, self.at = max(now, self.at), None, math.inf  # timers may fire a tick of the clock early
        self._ring(now)


class Looks:
    """The looks at the connections of one event loop."""

    def __init__(self) -> None:
        self._due: dict[Look, float] = {}
        self._alarm = Alarm(self._look)

    def add(self, look: Look, due: float) -> None:
        """Call ``look`` when ``due`` has come, and then whenever it says."""
        self._due[look] = due
        if due < self._alarm.at:
            self._alarm.set(due)

    def remove(self, look: Look) -> None:
        """Call ``look`` no more."""
        self._due.pop(look, None)
        if not self._due:
            self._alarm.cancel()

    def _look(self, now: float) -> None:
        for look, due in [(look, due) for look, due in self._due.items() if due <= now]:
            following = look(due)
            if look in self._due:
                self._due[look] = following
        if self._due:
            self._alarm.set(min(self._alarm.at, max(min(self._due.values()), now + TOGETHER)))


looks: Final = PerLoop(Looks)
