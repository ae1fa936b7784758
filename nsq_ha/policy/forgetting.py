"""When a producer forgets a topic and ends its look-ups, senders and connections, until the next publish.

=================  ==============================  ==========================
the topic          nothing is pending, last used   it is
=================  ==============================  ==========================
has publishes      at any time                     kept
changes its count  at any time                     kept, with what keys go by
is known           up to ``idle_timeout`` ago      kept
is known           longer ago                      forgotten
is unknown         up to ``UNKNOWN_KEPT`` ago      kept
is unknown         longer ago                      forgotten
=================  ==============================  ==========================
"""

from __future__ import annotations

from typing import Final

UNKNOWN_KEPT: Final = 10.0
"""Seconds for which an unknown topic is looked up; one created meanwhile is found at once."""


def is_forgotten(unused_for: float, *, is_known: bool, is_needed: bool, idle_timeout: float) -> bool:
    """Return whether to forget a topic.

    Args:
        unused_for: Seconds since its last publish began or ended.
        is_known: Its partitions are known.
        is_needed: Publishes are pending, or its number of partitions is changing.
        idle_timeout: The producer's option.
    """
    return not is_needed and unused_for > (idle_timeout if is_known else min(UNKNOWN_KEPT, idle_timeout))
