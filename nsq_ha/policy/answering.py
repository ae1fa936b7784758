"""How long a leader may take to answer publishes, and what follows when it takes longer.

Answers come in the order of the publishes, so each answer shows that the leader
works, however many are outstanding. What counts is the silence: the time since
the oldest unanswered publish was written, or since the last answer if that came
later, minus the time that its bytes need on a slow link.

======================  ========  ======================================================================
silence                 state     what follows
======================  ========  ======================================================================
under STALLED_AFTER     prompt    nothing
from STALLED_AFTER on   stalled   look up; publishes without key go to another partition, in doubt
from OVERDUE_AFTER on   overdue   close the connection, even if heartbeats come; report its publishes as
                                  uncertain, and send the next ones over a new connection
======================  ========  ======================================================================

A leader whose follower died answers after 12 s: it is stalled, not overdue. It may have stored what it does not
answer, so nothing that is bound to its partition is written a second time.

The time limit of a publish (``publish_timeout``) is independent of this. A shorter limit ends the publish and not the
connection, and the publish counts as unanswered until the connection is closed.

Source: failures reference 3.4.
"""

from __future__ import annotations

import enum
from typing import Final

STALLED_AFTER: Final = 0.75
"""Seconds without an answer after which publishes without key or partition go elsewhere, in doubt."""

OVERDUE_AFTER: Final = 16.0
"""Seconds without an answer after which the connection is closed: a third more than the 12 s that a leader waits for
a dead follower, and little more than half of the default ``publish_timeout``."""

SLOW_LINK: Final = 1024 * 1024
"""Bytes a second that a link must carry at least: a large batch gets the time to arrive."""


class Answering(enum.Enum):
    """How a leader answers."""

    PROMPT = enum.auto()
    STALLED = enum.auto()
    OVERDUE = enum.auto()


def stalled_at(sent_at: float, answered_at: float, size: int) -> float:
    """Return when a leader counts as stalled if no answer comes.

    Args:
        sent_at: When the oldest unanswered publish was written.
        answered_at: When the last answer came.
        size: Bytes of that publish.
    """
    return max(sent_at, answered_at) + STALLED_AFTER + size / SLOW_LINK


def state_at(now: float, sent_at: float, answered_at: float, size: int) -> Answering:
    """Return how a leader answers; the arguments are those of :func:`stalled_at`."""
    stalled = stalled_at(sent_at, answered_at, size)
    if now < stalled:
        return Answering.PROMPT
    return Answering.STALLED if now < stalled + OVERDUE_AFTER - STALLED_AFTER else Answering.OVERDUE
