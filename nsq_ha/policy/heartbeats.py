"""When a peer that sends nothing is given up.

A frozen machine keeps its connections open and says nothing: only the absence of
heartbeats tells. It does not tell anything while this program itself was held up.

Source: failures reference 3.3, 4 (Consumer 2).
"""

from __future__ import annotations

from typing import Final

SILENT_INTERVALS: Final = 2
"""Heartbeat intervals without a byte after which a connection is given up."""

CHECKS_PER_INTERVAL: Final = 4
"""Looks at the clock in one interval: a silent peer is given up a fraction of an interval late at most."""


def next_look(now: float, interval: float) -> float:
    """Return when to check again; pass this time to :func:`is_silent` as ``due``."""
    return now + interval / CHECKS_PER_INTERVAL


def is_silent(now: float, due: float, last_received: float, interval: float) -> bool:
    """Return whether the peer has sent nothing for so long that it must be gone.

    Args:
        now: The time.
        due: When this look should have been. Much later than that, this program
            was held up itself, and what came meanwhile may lie unread in the socket.
        last_received: When the last byte came; for a certain frame, when that came.
        interval: Seconds between two heartbeats of the peer.
    """
    is_held_up = now - due > interval / 2
    return now - last_received > SILENT_INTERVALS * interval and not is_held_up


MOST_SECONDS: Final = 60.0
"""Longest interval that a server accepts with default settings."""

BLOCKS_REMEMBERED: Final = 600.0
"""Seconds without a block of the event loop after which the configured interval is used again."""

_SHARE_OF_BLOCK: Final = 0.75


class Blocks:
    """Chooses the heartbeat interval of a program whose event loop is sometimes blocked.

    A blocked program answers no heartbeat. The HA server closes a connection
    after three intervals without a byte, an upstream nsqd after two. So after a
    block, new connections ask for an interval such that two of them are 1.5
    times as long as the longest block.
    """

    __slots__ = ("_configured", "_forget_at", "_is_refused", "_longest")

    def __init__(self, configured: float) -> None:
        """Start without blocks.

        Args:
            configured: The interval in seconds while nothing blocks.
        """
        self._configured = configured
        self._longest = 0.0
        self._forget_at = 0.0
        self._is_refused = False

    def blocked(self, now: float, seconds: float) -> bool:
        """Record a block of the event loop; return whether it was long enough to matter."""
        if seconds <= self._configured:
            return False
        if now >= self._forget_at:
            self._longest = 0.0
        self._longest = max(self._longest, seconds)
        self._forget_at = now + BLOCKS_REMEMBERED
        return True

    def refused(self) -> None:
        """Record that a server refused an interval longer than the configured one."""
        self._is_refused = True

    def interval(self, now: float) -> float:
        """Return the seconds to ask for on the next connection."""
        if self._is_refused or now >= self._forget_at:
            return self._configured
        return min(MOST_SECONDS, max(self._configured, _SHARE_OF_BLOCK * self._longest))
