"""When to give up a peer that sends nothing or does not answer publishes.

Heartbeats: a frozen machine keeps its connections open and sends nothing. Only missing heartbeats show this, and only
if this program itself was not blocked.

Answers come in the order of the publishes, so each answer shows that the leader works, however many are outstanding.
The silence counts: the time since the oldest unanswered publish was written, or since the last answer if that is later,
minus the time that its bytes need on a slow link.

======================  ========  ======================================================================
silence                 state     what follows
======================  ========  ======================================================================
under STALLED_AFTER     prompt    nothing
from STALLED_AFTER on   stalled   look up; publishes without key go to another partition, in doubt
from DOUBTED_AFTER on   doubted   write nothing more; ask over another connection, with one publish at a time
from OVERDUE_AFTER on   overdue   close the connection, even if heartbeats come; report its publishes as
                                  uncertain, and send the next ones over a new connection
======================  ========  ======================================================================

A leader whose follower died answers after 12 s: it is doubted, not overdue. It may have stored unanswered publishes, so
of those that are bound to its partition only the one that asks is written a second time. If it is answered while the
first connection stays silent, that one will never answer: it is closed, and what is unanswered on it is written again.

The time limit of a publish (``publish_timeout``) is independent of this. A shorter limit ends the publish but not the
connection, and the publish counts as unanswered until the connection is closed. Once the leader is doubted, a
connection on which no caller waits for an answer is closed without a question.

Source: server failures 3.3, 3.4, 4.3.
"""

from __future__ import annotations

from typing import Final

from nsq_ha.policy.timing import LONGEST_SILENCE
from nsq_ha.protocol.encoding import MAX_MESSAGE_BYTES

SILENT_INTERVALS: Final = 2
"""Heartbeat intervals without a byte after which a connection is given up."""

CHECKS_PER_INTERVAL: Final = 4
"""Most checks in one interval, so that a silent peer is given up a fraction of an interval late at most."""

LONGEST_INTERVAL: Final = 60.0
"""Longest interval in seconds that a server accepts by default."""

BLOCKS_REMEMBERED: Final = LONGEST_SILENCE
"""Seconds without a block of the event loop after which the configured interval is used again."""

_SHARE_OF_BLOCK: Final = 0.75

STALLED_AFTER: Final = 0.75
"""Seconds without an answer after which publishes without key or partition move to another partition, in doubt."""

DOUBTED_AFTER: Final = 1.5
"""Seconds without an answer after which nothing more is written to a connection and a publish asks over another one."""

ASKED_EVERY: Final = 2.0
"""Seconds that such a publish waits for its answer before the next one asks. A leader that is well again is found that
soon, and one that only takes long stores few publishes twice."""

OVERDUE_AFTER: Final = 16.0
"""Seconds without an answer after which the connection is closed: a third more than the 12 s that a leader waits for
a dead follower, and little more than half of the default ``publish_timeout``."""

PROMPT_REFUSAL: Final = 1.0
"""Seconds after the write within which a refusal means *not stored*. After a longer hang (a follower that does not
answer) the leader may have stored it."""

SLOW_LINK: Final = MAX_MESSAGE_BYTES
"""Minimum bytes per second of a link, so that a large batch gets the time to arrive: one of the largest messages."""


def next_look(now: float, last_received: float, interval: float) -> float:
    """Return when to check again; pass this time to :func:`is_silent` as ``due``.

    Args:
        now: The time.
        last_received: As for :func:`is_silent`. Nothing can be wrong before it is ``SILENT_INTERVALS`` old, so a
            healthy connection is rarely checked.
        interval: Seconds between two heartbeats of the peer.
    """
    return max(now + interval / CHECKS_PER_INTERVAL, last_received + SILENT_INTERVALS * interval)


def is_silent(now: float, due: float, last_received: float, interval: float) -> bool:
    """Return whether the peer has been silent too long to be alive.

    Args:
        now: The time.
        due: When this check was planned. If it runs much later, this program was
            blocked, and bytes may wait unread in the socket.
        last_received: When the last byte, or the frame to wait for, arrived.
        interval: Seconds between two heartbeats of the peer.
    """
    is_blocked = now - due > interval / 2
    return now - last_received > SILENT_INTERVALS * interval and not is_blocked


class Blocks:
    """Chooses the heartbeat interval of a program whose event loop is sometimes blocked.

    A blocked program answers no heartbeat. The HA server closes a connection
    after three intervals without a byte, an upstream nsqd after two. So after a
    block, new connections request an interval such that two of them are 1.5
    times as long as the longest block.

    Args:
        configured: The interval in seconds without blocks.
    """

    __slots__ = ("_configured", "_forget_at", "_is_refused", "_longest")

    def __init__(self, configured: float) -> None:
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
        """Return the seconds to request on the next connection."""
        if self._is_refused or now >= self._forget_at:
            return self._configured
        return min(LONGEST_INTERVAL, max(self._configured, _SHARE_OF_BLOCK * self._longest))


def stalled_at(since: float, size: int) -> float:
    """Return when a leader counts as stalled if no answer arrives.

    Args:
        since: When the last answer arrived, or when the oldest unanswered publish was written if that is later.
        size: Bytes of that publish.
    """
    return since + STALLED_AFTER + size / SLOW_LINK
