"""How often a consumer touches the messages that its handlers still work on, so that nsqd does not deliver them again.

nsqd requeues a message ``msg_timeout`` after its delivery or its last TOUCH, but a TOUCH keeps it at most
``max_msg_timeout`` after its delivery. ``consumer.answers`` looks at all messages together, not one by one, since most
of them are answered before their first look and so cost nothing.

Source: server protocol 7; youzan/nsq ``nsqd/channel.go`` (``TouchMessage``).
"""

from __future__ import annotations

from typing import Final

from nsq_ha.policy.handling_speed import WELL_WITHIN
from nsq_ha.policy.timing import LATE

SHARE: Final = WELL_WITHIN
"""Share of the message timeout between two TOUCHes of a message, if no interval is given."""

LONGEST_SHARE: Final = 0.75
"""Largest share, if an interval is given."""

LEAST_GAP: Final = LATE
"""Seconds between two looks at least: an nsqd may say that it keeps messages for a millisecond."""


def interval(seconds: float | None, msg_timeout: float) -> float:
    """Return the seconds between two TOUCHes of a message.

    Args:
        seconds: The option. None for the default.
        msg_timeout: Seconds after which the server requeues a message.
    """
    return msg_timeout * SHARE if seconds is None else min(seconds, msg_timeout * LONGEST_SHARE)


def gap(seconds: float | None, msg_timeout: float) -> float:
    """Return the seconds between two looks: half the interval, as a message may be nearly one look old at its first."""
    return max(interval(seconds, msg_timeout) / 2, LEAST_GAP)
