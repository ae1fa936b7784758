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
    """Return when to look again; it should be told to :func:`is_silent` as ``due``."""
    return now + interval / CHECKS_PER_INTERVAL


def is_silent(now: float, due: float, last_received: float, interval: float) -> bool:
    """Tell whether the peer has sent nothing for so long that it must be gone.

    Args:
        now: The time.
        due: When this look should have been. Much later than that, this program
            was held up itself, and what came meanwhile may lie unread in the socket.
        last_received: When the last byte came; for a certain frame, when that came.
        interval: Seconds between two heartbeats of the peer.
    """
    is_held_up = now - due > interval / 2
    return now - last_received > SILENT_INTERVALS * interval and not is_held_up
