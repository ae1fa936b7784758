"""One nsqlookupd: its process and its memory of topics and partitions.

Each nsqlookupd learns of changes at its own pace and answers from its memory
alone. Two of them may disagree for seconds, and one that has just started knows
less than the cluster.

Source: server failures 2, 3.6, 3.8, 3.9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from nsq_ha.devcluster.nodes import ClusterNode, Reserved, WebServer

if TYPE_CHECKING:
    from nsq_ha.devcluster.control.placement import Placement
    from nsq_ha.devcluster.host import Host
    from nsq_ha.devcluster.nsqd.node import Nsqd
    from nsq_ha.devcluster.security import App
    from nsq_ha.devcluster.storage.replica import TopicOptions


class Registered(NamedTuple):
    """The knowledge of an nsqlookupd about one partition."""

    leader: Nsqd
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
        self.tombstones: set[tuple[str, Nsqd]] = set()
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
