"""What to do while a topic grows: which channels a new partition needs, and when keys move to it.

On the partitioned server, each partition has channels of its own, and a new channel starts at the end of the partition:
what was stored before is never delivered to it. So whoever uses a new partition first creates the channels there that
the others have. ``engine.new_partitions`` asks the servers, and creates them.

The invariant: a partition that was in use gets no channels. Consumers may read only some partitions on purpose, and a
channel that nobody reads would keep the partition's messages on disk. So a channel is created only on a partition that
the topic did not have when the client first looked, that has no message yet, or that has no lasting channel at all.

A second invariant: a producer uses a larger number of partitions only after a delay, in which consumers can subscribe
to the new ones. ``policy.topology`` has confirmed the number, and ``policy.sharding`` maps keys to partitions.

Source: server failures 3.8, 4.2, 4.3; youzan/nsq ``nsqd/topic.go`` (getOrCreateChannel).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from nsq_ha.options.checks import EPHEMERAL_SUFFIX


class LedPartition(msgspec.Struct, frozen=True):
    """What the leader of a partition has.

    Attributes:
        messages: Number of messages ever stored.
        paused: Whether each channel is paused, by its name.
    """

    messages: int
    paused: Mapping[str, bool]


def lasting(channels: Iterable[str]) -> frozenset[str]:
    """Return the channels that stay without a client. Others belong to one reader, who creates what it needs."""
    return frozenset(name for name in channels if not name.endswith(EPHEMERAL_SUFFIX))


def is_new(partition: int, here: LedPartition, first: int) -> bool:
    """Return whether channels may be created on a partition.

    Args:
        partition: The partition.
        here: What its leader has.
        first: Number of partitions that the topic had when the client first looked.
    """
    return partition >= first or not here.messages or not lasting(here.paused)


def lacking(here: LedPartition, others: Iterable[LedPartition]) -> Mapping[str, bool]:
    """Return the lasting channels that a partition lacks, and whether each is paused wherever it exists.

    Args:
        here: What the partition's leader has.
        others: What the leaders of the other partitions have.
    """
    found: dict[str, bool] = {}
    for other in others:
        for name, paused in other.paused.items():
            found[name] = found.get(name, True) and paused
    return {name: found[name] for name in sorted(lasting(found) - here.paused.keys())}


class PartitionCount:
    """The number of partitions in use, and the one that follows it.

    Attributes:
        used: The number in use. 0 before the first one, which is used at once.
        due_at: When :meth:`take` returns the next one. Infinity if there is none.
    """

    __slots__ = ("_newest", "due_at", "used")

    def __init__(self) -> None:
        self.used: int = 0
        self._newest = 0
        self.due_at: float = math.inf

    @property
    def is_pending(self) -> bool:
        """Whether :meth:`take` may return a change, now or later."""
        return self.due_at < math.inf

    def found(self, number: int, now: float, delay: float) -> None:
        """Record the topic's current number of partitions.

        Args:
            number: The number, 1 or more.
            now: The time.
            delay: Seconds before a larger number is used.
        """
        if number != self._newest:
            self._newest = number
            self.due_at = now + delay if 0 < self.used < number else now

    def take(self, now: float) -> tuple[int, int] | None:
        """Use the new number if it is due.

        Returns:
            The old number and the new one if keys move to other partitions.
            None if nothing changed or there was no number before.
        """
        if now < self.due_at:
            return None
        self.due_at = math.inf
        old, self.used = self.used, self._newest
        return (old, self.used) if old not in (0, self.used) else None
