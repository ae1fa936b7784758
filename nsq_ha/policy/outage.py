"""When to log an outage: after a while, then less and less often, and once at its end.

A partition without a leader for two seconds is a fail-over and needs no attention. One without a leader for a minute
must show in the log, but not at each of a hundred retries.

The rules:

=============  ==========================  ===================================
state          ``failed``                  ``recovered``
=============  ==========================  ===================================
well           the outage begins           nothing
outage, quiet  counted                     the outage ends, nothing logged
outage, warned counted                     the outage ends, logged once
=============  ==========================  ===================================

The first warning is due ``FIRST_WARNING`` seconds after the outage began. Each further one waits ``GROWTH`` times as
long as the one before, ``LONGEST_SILENCE`` at most: after 5, 15, 35, 75, 155 s, and so on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FIRST_WARNING: Final = 5.0
"""Seconds before the first warning: longer than a planned change of leaders."""

GROWTH: Final = 2.0
"""How many times longer each silence is than the one before."""

LONGEST_SILENCE: Final = 600.0
"""Maximum seconds between two warnings, so that a log that starts during an outage shows it."""


class Warned(NamedTuple):
    """The facts of a warning.

    Attributes:
        seconds: How long the outage has lasted.
        failures: How many failures there were in it.
    """

    seconds: float
    failures: int


class Outage:
    """An outage of one partition, or of anything else. All times come from one monotonic clock.

    Attributes:
        began_at: When the first failure occurred; None while all is well.
        failures: Failures since then.
        warn_at: When the next warning is due; None while all is well.
    """

    __slots__ = ("_is_warned", "_silence", "began_at", "failures", "warn_at")

    def __init__(self) -> None:
        """Start without an outage."""
        self.began_at: float | None = None
        self.warn_at: float | None = None
        self.failures = 0
        self._silence = FIRST_WARNING
        self._is_warned = False

    def failed(self, now: float) -> None:
        """Record a failure; the first one begins the outage."""
        self.failures += 1
        if self.began_at is None:
            self.began_at = now
            self.warn_at = now + FIRST_WARNING

    def warning(self, now: float) -> Warned | None:
        """Return the facts of a due warning and plan the next one; None if none is due."""
        if self.began_at is None or self.warn_at is None or now < self.warn_at:
            return None
        self._is_warned = True
        self._silence = min(self._silence * GROWTH, LONGEST_SILENCE)
        self.warn_at = now + self._silence
        return Warned(now - self.began_at, self.failures)

    def warned(self, now: float) -> None:
        """Record that somebody else has warned of the outage, and plan the next warning."""
        if self.warn_at is not None:
            self.warn_at = min(self.warn_at, now)
            self.warning(now)

    def recovered(self, now: float) -> Warned | None:
        """End the outage; return its facts if it was logged, else None."""
        over = Warned(now - self.began_at, self.failures) if self._is_warned and self.began_at is not None else None
        self.began_at = self.warn_at = None
        self.failures = 0
        self._silence = FIRST_WARNING
        self._is_warned = False
        return over
