"""The topics, and the nodes that hold and lead their partitions. The real cluster keeps this in etcd.

All nodes share it. Each replica has its own idea of its role, and each
nsqlookupd its own memory of the partitions; both may lag behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsq_ha.devcluster.storage.replica import Replica, Topic, TopicPartition

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.node import Nsqd


class Partition(TopicPartition):
    """One partition as the cluster sees it. It starts without a leader.

    Attributes:
        replicas: Nodes that hold it.
        isr: The in-sync replicas: nodes that hold every acknowledged message.
        leader: The elected leader. None if there is none.
        registered: The leader that is registered at the nsqlookupds. None while the leader
            is not linked to them, or while it hands over its writes.
        writable: ``access=w`` includes the partition.
        stops: Number of moves and joins that stop writing now.
        suffering: A follower has been silent for so long that ``access=w`` omits the partition.
    """

    def __init__(self, topic: Topic, number: int, replicas: list[Nsqd]) -> None:
        super().__init__(topic, number)
        self.replicas = replicas
        self.isr: list[Nsqd] = list(replicas)
        self.leader: Nsqd | None = None
        self.registered: Nsqd | None = None
        self.writable = False
        self.stops = 0
        self.suffering = False

    @property
    def has_majority(self) -> bool:
        """Whether enough replicas are in sync to write."""
        return len(self.isr) > self.topic.options.replicas // 2

    @property
    def led(self) -> Replica | None:
        """The leader's replica, if the elected node answers and knows of its election."""
        node = self.leader
        if node is None or not node.reachable:
            return None
        replica = node.replicas.get(self.key)
        return replica if replica is not None and replica.leads else None

    @property
    def followers(self) -> list[Replica]:
        """The in-sync replicas besides the leader."""
        return [node.replica_of(self) for node in self.isr if node is not self.leader]


class Placement:
    """The topics and partitions of the cluster.

    Attributes:
        topics: By name.
        choices: How often nodes were chosen for partitions; the next choice begins with another node.
    """

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.choices = 0
        self._partitions: dict[tuple[str, int], Partition] = {}

    def add(self, partition: Partition) -> None:
        """Add a partition of a topic."""
        self._partitions[partition.key] = partition

    def remove(self, topic: Topic) -> list[Partition]:
        """Remove a topic and return its partitions."""
        del self.topics[topic.name]
        return [self._partitions.pop(partition.key) for partition in self.partitions_of(topic)]

    def partition(self, topic: str, number: int) -> Partition | None:
        """Return a partition. None if there is none."""
        return self._partitions.get((topic, number))

    def partitions(self) -> Iterator[Partition]:
        """Yield all partitions of all topics."""
        yield from tuple(self._partitions.values())

    def partitions_of(self, topic: Topic) -> list[Partition]:
        """Return the partitions of a topic."""
        return [partition for partition in self._partitions.values() if partition.topic is topic]

    def channels_of(self, topic: Topic) -> frozenset[str]:
        """Return the channels that are registered for any partition of a topic."""
        return frozenset(channel for partition in self.partitions_of(topic) for channel in partition.channels)
