"""How often a topic is looked up while nobody waits for news.

Lookups that a caller waits for follow ``policy.timing``. The others only find what nothing else shows, such as new
partitions, so they are rare while the answers stay the same. A thousand processes with 20 topics each would otherwise
send 4,000 requests a second to each nsqlookupd.

==============================================  ===============================================
the last round                                  seconds from its beginning to the next round
==============================================  ===============================================
had no answer, news, or a partition no leader   ``lookup_interval``
was asked for by a caller                       ``lookup_interval``
was the first calm one                          random, up to the longest interval
was another calm one                            the longest interval
==============================================  ===============================================

A round is calm if nobody asked for it, and an answer named a leader of every partition and changed nothing. Jitter only
shortens an interval. The random one keeps clients that were disturbed by one event from asking in step from then on.

The invariant: rounds of a consumed topic begin at most the longest interval apart, so a consumer finds a new partition
within that time. A producer uses a new partition later than that, see :func:`partition_delay`.

Source: server failures 3.6, 3.8; ``lookupd_poll_interval`` of the Go client is 60 s.
"""

from __future__ import annotations

from typing import Final

LONGEST_INTERVAL: Final = 60.0
"""Longest interval in seconds, unless ``lookup_interval`` is longer."""

LONGEST_FACTOR: Final = 12.0
"""The same as a multiple of ``lookup_interval``; the lower one of the two counts."""

JITTER: Final = 0.2
"""Largest share by which an interval is shortened."""

LOOKUPS_AT_ONCE: Final = 8
"""Lookups that are in flight at the same moment, for all topics. A number, not a rate: however slow the nsqlookupds or
this machine are, their answers set the pace. A lookup that waits has not begun, nor has any of its time limits. httpx
looks at each connection several times for each request: a lookup took 2.5 ms with 16, 1.8 ms with 8."""


def longest_interval(shortest: float) -> float:
    """Return the longest interval between periodic lookups for a ``lookup_interval``."""
    return max(shortest, min(LONGEST_INTERVAL, LONGEST_FACTOR * shortest))


def interval_after(calm_rounds: int, shortest: float, chance: float) -> float:
    """Return the seconds from the beginning of the last round to that of the next periodic one.

    Args:
        calm_rounds: Calm rounds in a row.
        shortest: ``lookup_interval``.
        chance: A random number from 0 up to 1, the same until the next round begins.
    """
    if not calm_rounds:
        return shortest * (1 - JITTER * chance)
    longest = longest_interval(shortest)
    spread = max(JITTER * longest, longest - shortest if calm_rounds == 1 else 0.0)
    return longest - spread * chance


def partition_delay(shortest: float) -> float:
    """Return how long a producer waits before it uses a new partition.

    A consumer with the same ``lookup_interval`` begins a lookup within the longest interval. It has another
    ``lookup_interval`` to get the answer and to subscribe.
    """
    return longest_interval(shortest) + shortest
