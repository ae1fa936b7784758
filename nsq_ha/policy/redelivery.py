"""Messages that the server delivers again: failed, finished and damaged ones.

Ordered channels: the server silently drops a delayed REQ and redelivers the message only after the message timeout. So
the client waits itself. It touches the message during the delay, and then sends a REQ without delay. The invariant:
from the failure to the REQ the message never times out at the server, however long the handler took and the backoff is.
A TOUCH keeps a message only up to ``max_msg_timeout`` from its delivery, so a longer backoff is shortened.

Finished messages: a FIN has no answer. If it is sent after the message timeout, or over a connection that turns out to
be lost, it may come too late, and the server delivers the message again although it was handled. The client recognises
the copy by its id and its publish time, since ids are reused after a topic is deleted. The invariant: a message is
claimed at most once, and only within ``REMEMBERED``; a channel that is reset on purpose later delivers as usual.

Damaged messages: the frame cannot be decoded. If the damage happened on the way, the next delivery is good, so
finishing the message would lose it. If it is in the log, each delivery is damaged. The invariant: such a message is
finished only after ``DAMAGED_ATTEMPTS`` deliveries.

Source: failures reference 3.10, 4 (Consumer 4); protocol reference 9.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TOUCH_SHARE: Final = 0.5
"""Share of the message timeout after which a waiting message is touched again."""

REMEMBERED: Final = 600.0
"""Seconds for which a finished message is remembered; a copy may wait that long at the server."""

MOST_REMEMBERED: Final = 10_000
"""Maximum number of remembered messages; the oldest are forgotten first."""


DAMAGED_ATTEMPTS: Final = 5
"""Deliveries after which a message that cannot be decoded is damaged in the log."""


def is_damaged_for_good(attempts: int) -> bool:
    """Return whether a message that could not be decoded would be damaged at each further delivery, too."""
    return attempts >= DAMAGED_ATTEMPTS


class Look(NamedTuple):
    """What to do now, and when to check again.

    Attributes:
        is_over: Send REQ without delay; this is the end.
        touch: Send TOUCH.
        again_at: When to check again.
    """

    is_over: bool
    touch: bool
    again_at: float


class OrderedRequeue:
    """One failed message that waits for its REQ. Call :meth:`look` at once, and then at each ``again_at``.

    Args:
        now: The time.
        delay: Seconds of backoff.
        delivered_at: When the message was delivered.
        msg_timeout: Seconds after which the server times out a message that was not touched.
        max_msg_timeout: Seconds from the delivery after which a TOUCH has no effect.

    Attributes:
        until: When to send the REQ.
    """

    __slots__ = ("_touch_interval", "until")

    def __init__(
        self, now: float, delay: float, delivered_at: float, *, msg_timeout: float, max_msg_timeout: float
    ) -> None:
        self._touch_interval = msg_timeout * TOUCH_SHARE
        # Leave time for the REQ to arrive, and for small clock differences.
        self.until: float = min(now + delay, delivered_at + max_msg_timeout - self._touch_interval)

    def look(self, now: float) -> Look:
        """Return what to do now.

        The first call touches, too, since the handler may have used nearly all of the timeout.
        """
        if now >= self.until:
            return Look(is_over=True, touch=False, again_at=now)
        return Look(is_over=False, touch=True, again_at=min(now + self._touch_interval, self.until))


class Finished:
    """Messages whose FIN may have come too late."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, float]] = {}

    def __len__(self) -> int:
        """Return the number of remembered messages."""
        return len(self._known)

    def remember(self, message_id: bytes, timestamp_ns: int, now: float) -> None:
        """Remember a message whose FIN may have come too late."""
        known = self._known
        known.pop(message_id, None)
        known[message_id] = (timestamp_ns, now + REMEMBERED)
        while len(known) > MOST_REMEMBERED or next(iter(known.values()))[1] <= now:
            del known[next(iter(known))]

    def claim(self, message_id: bytes, timestamp_ns: int, now: float) -> bool:
        """Return whether this message was finished before, and forget it."""
        found = self._known.get(message_id)
        if found is None or found[0] != timestamp_ns:
            return False
        del self._known[message_id]
        return now < found[1]
