"""How long a leader may take to answer publishes, and what follows if it takes longer.

Answers come in the order of the publishes, so each answer shows that the leader
works, however many are outstanding. What counts is the silence: the time
since the oldest unanswered publish was written, or since the last answer if
that came later, less the time that its bytes need on a slow link.

=====================  ========  ======================================================================
silence                state     what follows
=====================  ========  ======================================================================
under SLOW_AFTER       prompt    nothing
from SLOW_AFTER on     slow      look up; publishes without key go to another partition, in doubt
from OVERDUE_AFTER on  overdue   leave the connection, even if heartbeats come; report its publishes as
                                 uncertain, and publish what follows over a new connection
=====================  ========  ======================================================================

A leader whose follower died answers after 12 s: that is slow, and not overdue. It may have stored what it does
not answer, so nothing that is bound to its partition is written a second time.

The limit of a publish (``publish_timeout``) is independent of this: one that is shorter ends the publish, not the
connection, and the publish counts as unanswered until the connection is left.

Source: failures reference 3.4.
"""

from __future__ import annotations

import enum
from typing import Final

SLOW_AFTER: Final = 0.75
"""Seconds without answer after which publishes without key are sent to another partition, in doubt."""

OVERDUE_AFTER: Final = 16.0
"""Seconds without answer after which the connection is of no use: a third more than the 12 s that a leader waits for
a dead follower, and little more than half of the usual ``publish_timeout``."""

SLOW_LINK: Final = 1024 * 1024
"""Minimum bytes per second of a link; a large batch gets that much more time."""


class Answering(enum.Enum):
    """How a leader answers."""

    PROMPT = enum.auto()
    SLOW = enum.auto()
    OVERDUE = enum.auto()


def slow_at(sent_at: float, answered_at: float, size: int) -> float:
    """Return when a leader counts as slow if no answer comes.

    Args:
        sent_at: When the oldest unanswered publish was written.
        answered_at: When the last answer came.
        size: Bytes of that publish.
    """
    return max(sent_at, answered_at) + SLOW_AFTER + size / SLOW_LINK


def state_at(now: float, sent_at: float, answered_at: float, size: int) -> Answering:
    """Return how a leader answers; the arguments are those of :func:`slow_at`."""
    slow = slow_at(sent_at, answered_at, size)
    if now < slow:
        return Answering.PROMPT
    return Answering.SLOW if now < slow + OVERDUE_AFTER - SLOW_AFTER else Answering.OVERDUE
