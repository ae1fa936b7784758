"""When a consumer touches the messages that its handlers still work on, so that nsqd does not deliver them again.

nsqd requeues a message ``msg_timeout`` after its delivery or its last TOUCH, but a TOUCH keeps it at most
``max_msg_timeout`` after its delivery. Messages are looked at together, not one by one, since most of them are answered
before their first look and so cost nothing.

The invariants: while a message is held, it is touched before its message timeout is over; nothing is touched for longer
than ``max_msg_timeout``.

Source: server protocol 7; youzan/nsq ``nsqd/channel.go`` (``TouchMessage``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

SHARE: Final = 0.5
"""Share of the message timeout between two TOUCHes of a message, if no interval is given."""

LONGEST_SHARE: Final = 0.75
"""Largest share, if an interval is given."""

LEAST_GAP: Final = 0.05
"""Seconds between two looks at least: an nsqd may say that it keeps messages for a millisecond."""


class Held(NamedTuple):
    """A message that is being worked on.

    Attributes:
        arrived_at: When it arrived, or earlier.
        msg_timeout: Seconds after which the server requeues it.
        max_msg_timeout: Seconds after its delivery at which the server requeues it in any case.
    """

    arrived_at: float
    msg_timeout: float
    max_msg_timeout: float


class DueTouches(NamedTuple, Generic[K]):
    """What to do at one look.

    Attributes:
        touched: The messages to touch now.
        over: The messages that can no longer be kept; each is named once.
    """

    touched: list[K]
    over: list[K]


def interval(seconds: float | None, msg_timeout: float) -> float:
    """Return the seconds between two TOUCHes of a message.

    Args:
        seconds: The option. None for the default.
        msg_timeout: Seconds after which the server requeues a message.
    """
    return msg_timeout * SHARE if seconds is None else min(seconds, msg_timeout * LONGEST_SHARE)


def gap(seconds: float | None, msg_timeout: float) -> float:
    """Return the seconds between two looks. A message may be nearly as old when it is looked at for the first time."""
    return max(interval(seconds, msg_timeout) / 2, LEAST_GAP)


class _Known:
    __slots__ = ("is_over", "kept_until", "since")

    def __init__(self, held: Held) -> None:
        self.since = held.arrived_at
        self.kept_until = held.arrived_at + held.msg_timeout
        self.is_over = False


class Touches(Generic[K]):
    """The messages that were held at the last look; ``K`` is the type of their keys.

    Args:
        seconds: The option: seconds between two TOUCHes of a message. None for the default.
    """

    __slots__ = ("_known", "_seconds")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._known: dict[K, _Known] = {}

    def is_urgent(self, now: float, held: Held) -> bool:
        """Return whether a message that is handed out now must be touched at once, since it waited for long."""
        return now + gap(self._seconds, held.msg_timeout) > held.arrived_at + held.msg_timeout * LONGEST_SHARE

    def look(self, now: float, held: Mapping[K, Held]) -> DueTouches[K]:
        """Return what to do with the messages that are held now; call it once in each :func:`gap`."""
        due: DueTouches[K] = DueTouches([], [])
        known: dict[K, _Known] = {}
        for key, one in held.items():
            known[key] = seen = self._known.get(key) or _Known(one)
            ends_at = seen.since + one.max_msg_timeout
            if now >= ends_at:
                if not seen.is_over:
                    seen.is_over = True
                    due.over.append(key)
            elif seen.kept_until < ends_at and self._is_due(now, one, seen.kept_until):
                seen.kept_until = now + one.msg_timeout
                due.touched.append(key)
        self._known = known
        return due

    def touched(self, now: float, key: K, held: Held) -> None:
        """Record a TOUCH between two looks."""
        self._known[key] = seen = _Known(held)
        seen.kept_until = now + held.msg_timeout

    def _is_due(self, now: float, held: Held, kept_until: float) -> bool:
        """Return whether the next look might be too late."""
        each = interval(self._seconds, held.msg_timeout)
        return now + each / 2 > kept_until - held.msg_timeout + each
