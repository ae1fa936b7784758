"""The topics, the nodes that hold and lead their partitions, and what each nsqlookupd knows of them.

The real cluster keeps the placement in etcd, and all nodes share it. Each replica has its own idea of its role, and
each nsqlookupd its own memory of the partitions; both may lag behind. It learns of changes at its own pace and answers
from its memory alone. Two of them may disagree for seconds, and one that has just started knows less than the cluster.

Source: server failures 2, 3.6, 3.8, 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from nsq_ha.devcluster.nodes import ClusterNode, Reserved, WebServer
from nsq_ha.devcluster.storage.replica import ClusterTopic, Replica, TopicPartition

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import App, Host
    from nsq_ha.devcluster.nsqd.node import HaNsqd
    from nsq_ha.devcluster.storage.replica import TopicOptions


class ClusterPartition(TopicPartition):
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

    def __init__(self, topic: ClusterTopic, number: int, replicas: list[HaNsqd]) -> None:
        super().__init__(topic, number)
        self.replicas = replicas
        self.isr: list[HaNsqd] = list(replicas)
        self.leader: HaNsqd | None = None
        self.registered: HaNsqd | None = None
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
        self.topics: dict[str, ClusterTopic] = {}
        self.choices = 0
        self._partitions: dict[tuple[str, int], ClusterPartition] = {}

    def add(self, partition: ClusterPartition) -> None:
        """Add a partition of a topic."""
        self._partitions[partition.key] = partition

    def remove(self, topic: ClusterTopic) -> list[ClusterPartition]:
        """Remove a topic and return its partitions."""
        del self.topics[topic.name]
        return [self._partitions.pop(partition.key) for partition in self.partitions_of(topic)]

    def partition(self, topic: str, number: int) -> ClusterPartition | None:
        """Return a partition. None if there is none."""
        return self._partitions.get((topic, number))

    def partitions(self) -> Iterator[ClusterPartition]:
        """Yield all partitions of all topics."""
        yield from tuple(self._partitions.values())

    def partitions_of(self, topic: ClusterTopic) -> list[ClusterPartition]:
        """Return the partitions of a topic."""
        return [partition for partition in self._partitions.values() if partition.topic is topic]

    def channels_of(self, topic: ClusterTopic) -> frozenset[str]:
        """Return the channels that are registered for any partition of a topic."""
        return frozenset(channel for partition in self.partitions_of(topic) for channel in partition.channels)


class Registered(NamedTuple):
    """The knowledge of an nsqlookupd about one partition."""

    leader: HaNsqd
    writable: bool


class Nsqlookupd(ClusterNode):
    """One node that answers lookups.

    Args:
        name: Its name in controls, ``nsqlookupd-0``.
        host: Its environment.
        placement: The topics and partitions that it learns of.
        app: Creates the application that answers its HTTP.
        http_port: The port of its HTTP, 0 for a free one.

    Attributes:
        options: Options of the topics that it knows.
        registered: Partitions whose leader it knows.
        tombstones: Topics and nsqds that publishers should no longer find.
        listed: The others list it; a dead one stays listed for a while.
        requests: Number of lookups that it answered; tests of clients check it.

    Raises:
        OSError: ``http_port`` is taken.
    """

    def __init__(
        self, name: str, host: Host, placement: Placement, app: Callable[[Nsqlookupd], App], http_port: int = 0
    ) -> None:
        super().__init__(name, host)
        self.options: dict[str, TopicOptions] = {}
        self.registered: dict[tuple[str, int], Registered] = {}
        self.tombstones: set[tuple[str, HaNsqd]] = set()
        self.listed = False
        self.requests = 0
        self._placement = placement
        self.http_port: int = self._reserve(lambda: WebServer(app(self), self, http_port)).port
        self.tcp_port: int = self._reserve(Reserved).port
        self.rpc_port: int = self._reserve(Reserved).port

    # ------------------------------------------------------------ memory

    def learn(self, topic: str, number: int) -> None:
        """Remember a partition as it is now."""
        if not self.reachable:
            return
        partition = self._placement.partition(topic, number)
        if partition is None or partition.registered is None:
            self.registered.pop((topic, number), None)
        else:
            self.registered[topic, number] = Registered(partition.registered, partition.writable)

    def learn_topic(self, name: str) -> None:
        """Remember a topic as it is now; forget a deleted topic and its partitions."""
        if not self.reachable:
            return
        topic = self._placement.topics.get(name)
        if topic is not None:
            self.options[name] = topic.options
            return
        self.options.pop(name, None)
        for key in [key for key in self.registered if key[0] == name]:
            del self.registered[key]

    def learn_all(self) -> None:
        """Remember everything as it is now."""
        for name in self.options.keys() | self._placement.topics.keys():
            self.learn_topic(name)
        for key in self.registered.keys() | {partition.key for partition in self._placement.partitions()}:
            self.learn(*key)

    # ------------------------------------------------------------ process

    def start(self) -> None:
        """Start the process: it reads the topics from etcd, and learns of partitions as the nsqds register."""
        super().start()
        self.options.clear()
        self.registered.clear()
        self.tombstones.clear()
        for name in self._placement.topics:
            self.learn_topic(name)
        self.host.after(self.host.timing.register, self.learn_all)

    def thaw(self) -> None:
        """Answer waiting requests, and catch up."""
        super().thaw()
        self.learn_all()
