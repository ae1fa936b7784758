"""Share ``max_in_flight`` among partitions as RDY; partitions take turns if there is not enough for all.

RDY of the HA server is a standing limit of messages in flight on one connection.
Deliveries do not use it up, so it is sent only when it changes.

A partition that delivers nothing needs only RDY 1, so that its next message arrives
at once; it gets more if the others do not need it. If there are more partitions than
messages in flight, they take turns.

The invariants: granted RDY plus the unanswered messages of earlier grants never
exceed ``max_in_flight``, and no RDY exceeds its connection's ``max_rdy_count``.
Each partition has at least RDY 1, or gets its turn within a bounded time,
whatever the others do; all turns are always in use.

Source: server protocol 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from nsq_ha.policy.timing import QUICK_GAP

LOOK_INTERVAL: Final = QUICK_GAP
"""Seconds between two checks of the partitions' deliveries; where partitions take turns, one that delivers nothing for
as long loses RDY to those that wait."""

LONGEST_CHOSEN: Final = 5.0
"""Seconds that a partition with a backlog keeps RDY while others wait."""

FEW: Final = 64
"""Number of partitions that are shared at once after each change."""

_GATHER: Final = 1 / 20_000
"""Seconds for each partition to gather changes before the next sharing, which takes some 5 us for each."""

_TURNOVER: Final = 4
"""A partition that delivers this multiple of its RDY between two checks can use more."""


def share(max_in_flight: int, ceilings: Mapping[int, int], needs: Mapping[int, int] | None = None) -> dict[int, int]:
    """Share ``max_in_flight`` exactly among the connections.

    Args:
        max_in_flight: Maximum number of messages in flight in total; 0 pauses all.
        ceilings: For each subscribed partition, its maximum
            (``max_rdy_count`` of its connection; 1 on an ordered topic).
        needs: How many each partition can use, 1 or more. These are granted
            evenly first, then the rest. None shares all evenly.

    Returns:
        RDY by partition. The sum is the smaller of ``max_in_flight`` and the
        sum of the ceilings.
    """
    granted = dict.fromkeys(sorted(ceilings), 0)
    left = max_in_flight
    if needs is not None:
        left = _fill(left, granted, {p: min(most, needs.get(p, 1)) for p, most in ceilings.items()})
    _fill(left, granted, ceilings)
    return granted


def _fill(left: int, granted: dict[int, int], ceilings: Mapping[int, int]) -> int:
    """Share ``left`` evenly, each up to its ceiling; return the rest."""
    open_ones = [partition for partition in granted if granted[partition] < ceilings[partition]]
    while left > 0 and open_ones:
        each, extra = divmod(left, len(open_ones))
        still_open = []
        for position, partition in enumerate(open_ones):
            part = min(each + (1 if position < extra else 0), ceilings[partition] - granted[partition])
            granted[partition] += part
            left -= part
            if granted[partition] < ceilings[partition]:
                still_open.append(partition)
        open_ones = still_open
    return left


class BodySize:
    """The estimated size of a body: it grows at once and shrinks gradually.

    Args:
        largest: Bytes to assume until the first body arrives.

    Attributes:
        bytes: The estimate.
    """

    __slots__ = ("_is_known", "bytes")

    def __init__(self, largest: int) -> None:
        self.bytes: int = largest
        self._is_known = False

    def seen(self, body_bytes: int) -> None:
        """Record the size of a body; a sample of them is enough."""
        if body_bytes >= self.bytes or not self._is_known:
            self.bytes = max(body_bytes, 1)
            self._is_known = True
        else:
            self.bytes -= (self.bytes - body_bytes + 7) // 8


def fitting(max_in_flight: int, max_bytes: int, body_bytes: int) -> int:
    """Return how many messages of ``body_bytes`` may be in flight within ``max_bytes``.

    At least one; otherwise a message larger than ``max_bytes`` would never be
    delivered; none if ``max_in_flight`` is 0.
    """
    return min(max_in_flight, max(1, max_bytes // body_bytes))


def gathering(partitions: int) -> float:
    """Return the seconds in which changes are gathered before the partitions are shared again.

    Sharing looks at each partition. If 1,000 join one after the other, sharing after each would take seconds.

    Args:
        partitions: Number of partitions.
    """
    return 0.0 if partitions <= FEW else partitions * _GATHER


class Plan(NamedTuple):
    """The RDY to send now.

    Attributes:
        lower: RDY by partition, to send first; otherwise the sum could exceed ``max_in_flight`` for a moment.
        raised: RDY by partition, to send after that.
        is_raise_due: A raise must wait for answers: plan again when a message is answered.
    """

    lower: dict[int, int]
    raised: dict[int, int]
    is_raise_due: bool


def plan(limit: int, sent: Mapping[int, int], in_flight: Mapping[int, int], wanted: Mapping[int, int]) -> Plan:
    """Return the part of a new distribution that may be sent now.

    Unanswered messages of an earlier grant count like the grant: a raise must wait
    for them, else more than ``limit`` messages would be unanswered.

    Args:
        limit: Maximum number of unanswered messages in total.
        sent: RDY last sent, for each partition in ``wanted``.
        in_flight: Number of unanswered messages, for each partition in ``wanted``.
        wanted: RDY that :func:`share` returned.
    """
    lower = {partition: count for partition, count in wanted.items() if count < sent[partition]}
    taken = {partition: max(lower.get(partition, sent[partition]), in_flight[partition]) for partition in wanted}
    room = limit - sum(taken.values())
    is_raise_due = room < 0
    for partition, count in taken.items():
        # The limit fell: take back unused grants here to make up for messages that are unanswered elsewhere.
        unused = min(count - in_flight[partition], -room)
        if unused > 0:
            lower[partition] = taken[partition] = count - unused
            room += unused
    raised = {}
    for partition, count in wanted.items():
        granted = min(count, taken[partition] + room)
        if granted > sent[partition]:
            room -= max(granted - taken[partition], 0)
            raised[partition] = granted
        is_raise_due |= sent[partition] < count and granted < count
    return Plan(lower, raised, is_raise_due)


class Seen(NamedTuple):
    """One partition at the time of a check.

    Attributes:
        ready: RDY last sent.
        in_flight: Number of unanswered messages.
        peak: The largest ``in_flight`` since the last check.
        delivered: Number of messages delivered on its connection; 0 again on each new one.
    """

    ready: int
    in_flight: int
    peak: int
    delivered: int


class Needs:
    """How many messages in flight each partition can use: doubled while it uses all of them, halved afterwards.

    Attributes:
        by_partition: The numbers, powers of two; 1 or more.
    """

    __slots__ = ("_delivered", "by_partition")

    def __init__(self) -> None:
        self.by_partition: dict[int, int] = {}
        self._delivered: dict[int, int] = {}

    def look(self, seen: Mapping[int, Seen]) -> bool:
        """Update the needs of all subscribed partitions; return whether one uses all of its RDY."""
        needs: dict[int, int] = {}
        is_one_full = False
        for partition, one in seen.items():
            delivered = one.delivered - self._delivered.get(partition, 0)
            is_full = one.ready > 0 and (one.peak >= one.ready or delivered >= _TURNOVER * one.ready)
            used = max(one.ready, one.peak) if is_full else one.peak
            # More than it uses, so that it does not wait.
            needs[partition] = max(1 << used.bit_length(), self.by_partition.get(partition, 1) // 2)
            is_one_full |= is_full
        self.by_partition = needs
        self._delivered = {partition: one.delivered for partition, one in seen.items()}
        return is_one_full


class _Chosen:
    """A partition that has RDY now; its time starts when RDY is sent, or when it has delivered what was asked for."""

    __slots__ = ("_active", "_began", "_delivered")

    def __init__(self, delivered: int) -> None:
        self._began: float | None = None
        self._active = 0.0
        self._delivered = delivered

    def is_over(self, now: float, one: Seen) -> bool:
        has_delivered, self._delivered = one.delivered != self._delivered, one.delivered
        if self._began is None and (one.ready > 0 or has_delivered):
            self._began = self._active = now
        elif one.in_flight or has_delivered:
            self._active = now
        return self._began is not None and (now - self._began >= LONGEST_CHOSEN or now - self._active >= LOOK_INTERVAL)


class Rotation:
    """Gives RDY to some partitions at a time, if there are more partitions than messages in flight."""

    __slots__ = ("_chosen", "_waiting")

    def __init__(self) -> None:
        self._chosen: dict[int, _Chosen] = {}
        self._waiting: list[int] = []

    def choose(self, now: float, count: int, seen: Mapping[int, Seen]) -> list[int]:
        """Return the ``count`` partitions that have RDY now; ``seen`` has more than ``count``."""
        known = {*self._chosen, *self._waiting}
        self._waiting = [partition for partition in self._waiting if partition in seen]
        self._waiting.extend(sorted(seen.keys() - known))
        for partition, chosen in list(self._chosen.items()):
            if partition not in seen:
                del self._chosen[partition]
            elif chosen.is_over(now, seen[partition]):
                del self._chosen[partition]
                self._waiting.append(partition)
        while len(self._chosen) > count:  # the count was lowered: the longest chosen one waits
            partition = next(iter(self._chosen))
            del self._chosen[partition]
            self._waiting.append(partition)
        while len(self._chosen) < count:
            partition = self._waiting.pop(0)
            self._chosen[partition] = _Chosen(seen[partition].delivered)
        return list(self._chosen)
