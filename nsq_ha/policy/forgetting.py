"""When a producer forgets a topic: its look-ups, senders and connections end, and the next publish starts them again.

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
"""Seconds for which a topic is looked up that no nsqlookupd knows: whoever creates it late finds it at once."""


def is_forgotten(unused_for: float, *, is_known: bool, is_needed: bool, idle_timeout: float) -> bool:
    """Tell whether a topic is to be forgotten.

    Args:
        unused_for: Seconds since its last publish began or ended.
        is_known: A look-up has told its partitions.
        is_needed: Publishes are pending, or its number of partitions is changing.
        idle_timeout: The producer's option.
    """
    return not is_needed and unused_for > (idle_timeout if is_known else min(UNKNOWN_KEPT, idle_timeout))
