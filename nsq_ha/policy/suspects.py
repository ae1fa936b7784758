"""Remember which nsqds of a plain cluster failed, and when to try each of them again.

Any nsqd of a plain cluster may take any message, so one that cannot be connected to, or that answers no publish, is
left alone while another one works. Connecting costs no publish anything, so it shows whether an nsqd is back: each
attempt that fails doubles the time until the next one. Whether nsqd stores messages again, only a publish can show.
"""

from __future__ import annotations

from typing import Final

import msgspec

FIRST_PAUSE: Final = 1.0
"""Seconds from a failure until the nsqd is tried again, for the first time or by a publish."""

LONGEST_PAUSE: Final = 30.0
"""Most seconds between two attempts to connect."""


class _Record(msgspec.Struct):
    """What is known of one nsqd.

    Attributes:
        failures: Failed attempts in a row.
        retry_at: When to try again.
        is_tried: Whether it is being tried, so that the next failure is a new one.
    """

    failures: int = 0
    retry_at: float = 0.0
    is_tried: bool = True


class Suspects:
    """What one producer remembers, by the nsqd's address. All times come from one clock."""

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def __contains__(self, address: str) -> bool:
        """Return whether to prefer other nsqds."""
        return address in self._records

    def failed(self, address: str, now: float) -> None:
        """Record that connecting failed; what several topics report of one attempt counts once."""
        old = [known for known, record in self._records.items() if now - record.retry_at > 10 * LONGEST_PAUSE]
        for known in old:  # nobody has tried it for long, and its address may not exist any more
            del self._records[known]
        record = self._records.setdefault(address, _Record())
        if record.is_tried:
            record.failures += 1
            record.is_tried = False
            record.retry_at = now + _pause(record.failures)

    def stalled(self, address: str, now: float) -> None:
        """Record that nsqd answers no publish."""
        self._records.setdefault(address, _Record(retry_at=now + FIRST_PAUSE, is_tried=False))

    def works(self, address: str) -> None:
        """Record that nsqd has completed a handshake."""
        self._records.pop(address, None)

    def may_try(self, address: str, now: float) -> bool:
        """Return whether to try an nsqd again now. True counts as a try."""
        record = self._records.get(address)
        if record is None:
            return True
        if now < record.retry_at:
            return False
        record.is_tried = True
        record.retry_at = now + _pause(record.failures)
        return True


def _pause(failures: int) -> float:
    return min(FIRST_PAUSE * 2.0 ** max(min(failures, 30) - 1, 0), LONGEST_PAUSE)
