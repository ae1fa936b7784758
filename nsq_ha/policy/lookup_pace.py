"""How often a topic is looked up while nothing is wrong, and how many lookups may begin.

Lookups that a caller waits for follow ``policy.timing``. The others only find what nothing else shows, such as new
partitions, so they may become rare while the answers stay the same. A thousand processes with 20 topics each would
otherwise send 4,000 requests a second to each nsqlookupd.

=====================================================  ==========================================
event                                                  seconds to the next periodic lookup
=====================================================  ==========================================
a refusal, a lost connection, or any caller that asks  ``lookup_interval``
a round without an answer, with news, or incomplete    ``lookup_interval``
a calm round on demand                                 as before
a calm periodic round                                  ``GROWTH`` times as many, up to the longest
=====================================================  ==========================================

A round is calm if it got an answer that names a leader of every partition and changes nothing. Jitter only shortens an
interval. The first interval of the longest kind has a random length between the shortest and the longest, so that
clients that were disturbed by one event do not ask in step from then on.

The invariant: rounds of a consumed topic begin at most the longest interval apart, so a consumer finds a new partition
within that time. A producer uses a new partition later than that, see :func:`partition_delay`; if the producers of an
event loop have so many topics that their budget delays the rounds, even later.

The budget: periodic lookups begin at least ``1 / CALM_RATE`` apart, so each topic takes its turn; consumers begin as
many more as the invariant needs, see :func:`calm_rate`. Lookups on demand are as fast as the nsqlookupds answer:
``LOOKUPS_AT_ONCE`` are in flight, and the others wait in the order of ``Urgency``. A lookup that waits has not begun,
nor has any of its time limits.

Source: server failures 3.6, 3.8; ``lookupd_poll_interval`` of the Go client is 60 s.
"""

from __future__ import annotations

import enum
import heapq
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

GROWTH: Final = 1.5
"""How many times longer an interval is than the one before."""

LONGEST_INTERVAL: Final = 60.0
"""Longest interval in seconds if ``max_lookup_interval`` is not given."""

LONGEST_FACTOR: Final = 12.0
"""The same as a multiple of ``lookup_interval``; the lower one of the two counts."""

CALM_RATE: Final = 10.0
"""Periodic lookups that begin each second, for all topics to which the clients that share an engine publish."""

LOOKUPS_AT_ONCE: Final = 16
"""Lookups that are in flight at the same moment, for all these topics. A number, not a rate: however slow the
nsqlookupds or this machine are, their answers set the pace."""


def longest_interval(shortest: float, longest: float | None) -> float:
    """Return the longest interval between periodic lookups.

    Args:
        shortest: ``lookup_interval``.
        longest: ``max_lookup_interval``. None for the default.
    """
    if longest is None:
        longest = min(LONGEST_INTERVAL, LONGEST_FACTOR * shortest)
    return max(shortest, longest)


def partition_delay(shortest: float, longest: float | None) -> float:
    """Return how long a producer waits before it uses a new partition, if ``new_partition_delay`` is not given.

    A consumer with the same options begins a lookup within the longest interval. It has another ``lookup_interval`` to
    get the answer and to subscribe.

    Args:
        shortest: ``lookup_interval``.
        longest: ``max_lookup_interval``. None for the default.
    """
    return longest_interval(shortest, longest) + shortest


def calm_rate(shortest: float, longest: float, consumed: int = 0) -> float:
    """Return how many periodic lookups may begin in a second, of all topics together.

    Args:
        shortest: ``lookup_interval``; a topic alone is never delayed.
        longest: As :func:`longest_interval` returns it.
        consumed: Number of topics that must be looked up within the longest interval.
    """
    return max(CALM_RATE, 1 / shortest, consumed / longest)


class LookupPace:
    """The interval between the periodic lookups of one topic.

    Args:
        shortest: ``lookup_interval``.
        longest: As :func:`longest_interval` returns it.
        jitter: Largest share by which an interval is shortened.

    Attributes:
        interval: Seconds from the beginning of a round to that of the next, without jitter.
    """

    __slots__ = ("_is_spread", "_jitter", "_longest", "_shortest", "interval")

    def __init__(self, shortest: float, longest: float, jitter: float) -> None:
        self._shortest = shortest
        self._longest = longest
        self._jitter = jitter
        self._is_spread = True
        self.interval: float = shortest

    def disturbed(self) -> None:
        """Use the shortest interval again: something went wrong, or a caller asks."""
        self.interval = self._shortest
        self._is_spread = True

    def round_ended(self, *, is_calm: bool, on_demand: bool) -> None:
        """Record the end of a round.

        Args:
            is_calm: An answer named a leader of every partition, and nothing changed.
            on_demand: A caller asked for the round.
        """
        if not is_calm:
            self.disturbed()
        elif not on_demand:
            before, self.interval = self.interval, min(self.interval * GROWTH, self._longest)
            self._is_spread = not before < self.interval == self._longest

    def gap(self, chance: float) -> float:
        """Return the seconds from the beginning of the last round to that of the next periodic one.

        Args:
            chance: A random number from 0 up to 1, the same until the next round begins.
        """
        if self._is_spread or not self._jitter:
            return self.interval * (1 - self._jitter * chance)
        return self.interval - (self.interval - self._shortest) * chance


class Urgency(enum.IntEnum):
    """Why a topic is looked up; lower values come first."""

    FIRST = 0
    """A caller waits, and nothing is known about the topic yet."""
    DEMANDED = 1
    """A caller waits for news, or something failed."""
    PERIODIC = 2
    """It is time to look for changes."""


class Slots:
    """Times at which something may begin. All times come from one monotonic clock.

    Args:
        rate: As the attribute.

    Attributes:
        rate: Slots in a second; ``math.inf`` for no limit. It may change.
    """

    __slots__ = ("_next", "_returned", "rate")

    def __init__(self, rate: float) -> None:
        self.rate: float = rate
        self._next = float("-inf")
        self._returned: list[float] = []

    def reserve(self, now: float) -> float:
        """Return the earliest free slot, which belongs to the caller: a time that is not before ``now``."""
        while self._returned and self._returned[0] <= now:
            heapq.heappop(self._returned)
        slot = max(self._next, now)
        if self._returned and self._returned[0] < slot:
            return heapq.heappop(self._returned)
        self._next = slot + 1 / self.rate
        return slot

    def give_back(self, slot: float) -> None:
        """Take back a slot that is not used, for the next caller."""
        heapq.heappush(self._returned, slot)


class LookupsInFlight:
    """The lookups that have begun and not ended, of all clients that share them; the others wait.

    Args:
        most: How many there may be.

    Attributes:
        count: How many there are.
    """

    __slots__ = ("_most", "_waiting", "count")

    def __init__(self, most: float = LOOKUPS_AT_ONCE) -> None:
        self._most = most
        self._waiting: dict[Urgency, OrderedDict[PendingLookup, None]] = {urgency: OrderedDict() for urgency in Urgency}
        self.count: int = 0

    def join(self, urgency: Urgency, on_begin: Callable[[], object]) -> PendingLookup:
        """Begin a lookup, or queue it until another one leaves.

        Args:
            urgency: Decides which of the queued ones is next.
            on_begin: Called when it may begin, if it was queued.
        """
        pending = PendingLookup(urgency, on_begin)
        if self.count < self._most:
            self.count += 1
            pending.has_begun = True
        else:
            self._waiting[urgency][pending] = None
        return pending

    def leave(self, pending: PendingLookup) -> None:
        """End a lookup, or remove it from the queue; a second call does nothing."""
        if not pending.has_begun:
            self._waiting[pending.urgency].pop(pending, None)
            return
        pending.has_begun = False
        queue = next(filter(None, self._waiting.values()), None)
        if queue is None:
            self.count -= 1
            return
        following, _ = queue.popitem(last=False)
        following.has_begun = True
        following.on_begin()


class PendingLookup:
    """One lookup, in flight or in the queue.

    Attributes:
        urgency: Why the topic is looked up.
        on_begin: See :meth:`LookupsInFlight.join`.
        has_begun: Whether it is in flight.
    """

    __slots__ = ("has_begun", "on_begin", "urgency")

    def __init__(self, urgency: Urgency, on_begin: Callable[[], object]) -> None:
        self.urgency: Urgency = urgency
        self.on_begin: Callable[[], object] = on_begin
        self.has_begun: bool = False
