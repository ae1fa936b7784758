"""How long to wait before the next retry, lookup or warning.

Lookups of one topic while a caller waits for news: a new leader is usually known within 5 s. During that time lookups
are frequent, since each pause between them adds to the time without publishes. After that the cluster may be down for
minutes, and a second more does not matter.

========================  ==============================
rounds without news       seconds to the next lookup
========================  ==============================
up to ``QUICK_ROUNDS``    ``QUICK_GAP``
more                      growing by a quarter, to ``SLOW_GAP``
========================  ==============================

Jitter subtracts up to a fifth, so that many clients do not ask at the same time. An nsqlookupd gets at most five
lookups a second for one topic from one client.

Warnings of an outage: a partition without a leader for two seconds is a failover and needs no attention. One without
a leader for a minute must show in the log, but not at each of a hundred retries.

================  ==========================  ===================================
state             ``failed``                  ``recovered``
================  ==========================  ===================================
no outage         the outage begins           nothing
outage, quiet     counted                     the outage ends, nothing logged
outage, warned    counted                     the outage ends, logged once
================  ==========================  ===================================

The first warning is due ``FIRST_WARNING`` seconds after the outage began. Each further one waits twice as long as the
one before, ``LONGEST_SILENCE`` at most: after 5, 15, 35, 75, 155 s, and so on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.options.types import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK_GAP: Final = 0.25
"""The pace at which this library looks for a change that somebody waits for: short for a person, and long enough for
servers and event loops. Most short waits derive from it."""

QUICK_ROUNDS: Final = 20
SLOW_GAP: Final = 0.6

FIRST_WARNING: Final = 5.0
"""Seconds before the first warning: longer than a planned change of leaders."""

LONGEST_SILENCE: Final = 600.0
"""Maximum seconds between two warnings, so that a log that starts during an outage shows it."""

LATE: Final = 0.05
"""Seconds by which a timer may be late: the event loop may be busy for so long in one go."""


def delay_after(backoff: Backoff, failures: int, chance: Callable[[], float]) -> float:
    """Return the seconds to wait after ``failures`` failures in a row; 0 for none.

    Args:
        backoff: The parameters.
        failures: Number of failures in a row, 0 or more.
        chance: Returns a number from 0 to 1. Jitter subtracts up to ``jitter`` of the delay, so
            the delay never exceeds ``maximum``.
    """
    if failures <= 0:
        return 0.0
    try:
        # The exponent is bounded, since huge powers of an int are slow.
        delay = min(backoff.initial * backoff.factor ** min(failures - 1, 64), backoff.maximum)
    except OverflowError:
        delay = backoff.maximum
    return delay * (1.0 - backoff.jitter * chance())


def gap_after(rounds: int, chance: Callable[[], float]) -> float:
    """Return the seconds from the start of one lookup to the start of the next.

    Args:
        rounds: Lookups in a row that a caller waited for and that brought no news.
        chance: Returns a number from 0 up to 1.
    """
    growing = Backoff(initial=QUICK_GAP, maximum=SLOW_GAP, factor=1.25, jitter=0.2)
    return delay_after(growing, max(rounds - QUICK_ROUNDS, 0) + 1, chance)


class Warned(NamedTuple):
    """The facts of a warning.

    Attributes:
        seconds: How long the outage has lasted.
        failures: Number of failures in it.
    """

    seconds: float
    failures: int


class Outage:
    """An outage of one partition, or of anything else. All times come from one monotonic clock.

    Attributes:
        began_at: When the first failure occurred. None without an outage.
        failures: Failures since then.
        warn_at: When the next warning is due. Infinite without an outage.
    """

    __slots__ = ("_warnings", "began_at", "failures", "warn_at")

    def __init__(self) -> None:
        self.began_at: float | None = None
        self.warn_at: float = math.inf
        self.failures: int = 0
        self._warnings = 0

    def failed(self, now: float) -> None:
        """Record a failure; the first one begins the outage."""
        self.failures += 1
        if self.began_at is None:
            self.began_at = now
            self.warn_at = now + FIRST_WARNING

    def warning(self, now: float) -> Warned | None:
        """Return the facts of a due warning and plan the next one; None if none is due."""
        if self.began_at is None or now < self.warn_at:
            return None
        self._warnings += 1
        self.warn_at = now + _silence(self._warnings + 1)
        return Warned(now - self.began_at, self.failures)

    def warned(self, now: float) -> None:
        """Record that the caller has already warned of the outage, and plan the next warning."""
        if self.began_at is not None:
            self.warn_at = min(self.warn_at, now)
            self.warning(now)

    def recovered(self, now: float) -> Warned | None:
        """End the outage; return its facts if it was logged, otherwise None."""
        over = Warned(now - self.began_at, self.failures) if self._warnings and self.began_at is not None else None
        self.began_at, self.warn_at = None, math.inf
        self.failures = self._warnings = 0
        return over


class Rarely:
    """Decides which of many equal changes are logged: the first, then fewer and fewer while they go on.

    After a line, ``FIRST_WARNING`` seconds of silence follow, then twice as many, and so on. If nothing happens for as
    long as the last silence after its end, the next change is a first one again. All times come from one monotonic
    clock.
    """

    __slots__ = ("_lines", "_missed", "_next_at")

    def __init__(self) -> None:
        self._lines = 0
        self._next_at = float("-inf")
        self._missed = 0

    def take(self, now: float) -> int | None:
        """Record a change; return how many were not logged since the last line. None if this one is not, either."""
        if now < self._next_at:
            self._missed += 1
            return None
        is_first = now - self._next_at >= _silence(self._lines)
        self._lines = 1 if is_first else self._lines + 1
        self._next_at = now + _silence(self._lines)
        missed, self._missed = self._missed, 0
        return missed

    def more(self, now: float) -> str | None:
        """Do the same; return what to append to the line. None if it has none."""
        missed = self.take(now)
        return None if missed is None else f" (and {missed} times more since the last line)" if missed else ""


def _silence(number: int) -> float:
    growing = Backoff(initial=FIRST_WARNING, maximum=LONGEST_SILENCE, jitter=0.0)
    return delay_after(growing, number, lambda: 0.0)
