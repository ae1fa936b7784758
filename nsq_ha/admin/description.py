"""The description of a topic: its partitions, replicas, channels and depths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsq_ha.admin.nsqd_stats import PartitionStats
    from nsq_ha.policy.topology import Node, TopicView


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic.

    Attributes:
        partition: The partition.
        leader: None if the partition has no leader now.
        writable: nsqlookupd names the leader for writing, too.
        replicas: The cluster's names of the nodes in sync, including the leader; empty if the leader did not answer.
        stats: The leader's numbers. None if it did not answer.
    """

    partition: int
    leader: Node | None
    writable: bool
    replicas: tuple[str, ...]
    stats: PartitionStats | None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic as the cluster has it now.

    Attributes:
        view: What the nsqlookupds answer for reading.
        partitions: One for each of ``partition_num``, in order.
        note: Why partitions are not writable, if a server says so; else empty.
    """

    view: TopicView
    partitions: tuple[PartitionDescription, ...]
    note: str

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the channels that any partition has."""
        return tuple(sorted({c.name for p in self.partitions if p.stats is not None for c in p.stats.channels}))

    @property
    def depth(self) -> Mapping[str, int]:
        """Number of waiting messages by channel, over all partitions whose leader answered."""
        waiting = dict.fromkeys(self.channels, 0)
        for entry in self.partitions:
            for channel in entry.stats.channels if entry.stats is not None else ():
                waiting[channel.name] += channel.depth
        return waiting
