"""What operators ask of the cluster: make, delete, grow and move.

Each answers at once and takes effect later, as the HTTP calls of the real
nsqlookupd do.

Source: failures reference 2, 3.7 - 3.9; protocol reference 12.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nsq_ha.devcluster.control.placement import Partition, Topic

if TYPE_CHECKING:
    from nsq_ha.devcluster.control.coordinator import Coordinator
    from nsq_ha.devcluster.control.placement import TopicOptions
    from nsq_ha.devcluster.nsqd.node import Nsqd


class ChangeRefusedError(Exception):
    """The cluster does not do it; the text is the real one's."""


class Changes:
    """Changes of topics in one cluster.

    Args:
        coordinator: Whose topics.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        """Begin with nothing planned."""
        self._coordinator = coordinator
        self._turn = 0

    # ------------------------------------------------------------ create

    def create(self, name: str, options: TopicOptions) -> None:
        """Create a topic; its partitions appear and become writable later.

        Raises:
            ChangeRefusedError: It exists with other options, or there are not enough nodes.
        """
        coordinator = self._coordinator
        existing = coordinator.topics.get(name)
        if existing is not None:
            if existing.options != options:
                raise ChangeRefusedError("already exist")
            return
        topic = Topic(name, options)
        places = self._place(topic, range(options.partitions))
        coordinator.topics[name] = topic
        self._announce_meta(name, coordinator.timing.lookup_lag)
        coordinator.after(coordinator.timing.create, lambda: self._make(topic, places))

    def _place(self, topic: Topic, numbers: range) -> dict[int, list[Nsqd]]:
        """Choose nodes in turn, so that leaders are spread.

        Raises:
            ChangeRefusedError: There are not enough nodes.
        """
        options = topic.options
        nodes = [node for node in self._coordinator.nsqds if node.reachable and not node.exiting]
        shared = options.ordered or options.multi_part
        taken = {node for partition in topic.partitions.values() for node in partition.replicas}
        if not shared:
            nodes = [node for node in nodes if node not in taken]
        needed = options.replicas if shared else options.replicas * len(numbers)
        if len(nodes) < needed:
            raise ChangeRefusedError("ErrType:9 ErrCode:1 : No node is available for topic")
        places = {}
        for step, number in enumerate(numbers):
            first = self._turn + (number if shared else step * options.replicas)
            places[number] = [nodes[(first + place) % len(nodes)] for place in range(options.replicas)]
        self._turn += 1
        return places

    def _make(self, topic: Topic, places: dict[int, list[Nsqd]]) -> None:
        coordinator = self._coordinator
        if topic.deleted:
            return
        made = []
        for number, nodes in places.items():
            partition = topic.partitions[number] = Partition(topic, number, nodes)
            partition.stops = 1
            partition.leader = nodes[0]
            for node in nodes:
                node.replica_of(partition)
            made.append(partition)
        coordinator.after(coordinator.timing.create, lambda: self._open(made))

    def _open(self, partitions: list[Partition]) -> None:
        """Elect; writing begins one step later."""
        coordinator = self._coordinator
        for partition in partitions:
            if not partition.topic.deleted:
                coordinator.elect(partition)
        coordinator.after(coordinator.timing.create, lambda: self._allow(partitions))

    def _allow(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            partition.stops -= 1
            if not partition.topic.deleted:
                self._coordinator.refresh(partition)

    # ------------------------------------------------------------ delete

    def delete(self, name: str) -> None:
        """Delete a topic with all its data; consumers are cut without a word.

        Raises:
            ChangeRefusedError: There is no such topic.
        """
        topic = self._coordinator.topics.pop(name, None)
        if topic is None:
            raise ChangeRefusedError("Key not found")
        topic.deleted = True
        for partition in topic.partitions.values():
            for node in self._coordinator.nsqds:
                node.drop_replica(partition)
        self._announce_meta(name, self._coordinator.timing.meta_lag)

    # ------------------------------------------------------------ expand

    def expand(self, name: str, partition_num: int) -> None:
        """Give a topic more partitions.

        The leading nsqlookupd tells the new number before the partitions are
        there, another one long after.

        Raises:
            ChangeRefusedError: There is no such topic, it has more already, or there are not enough nodes.
        """
        coordinator = self._coordinator
        topic = coordinator.topics.get(name)
        if topic is None:
            raise ChangeRefusedError("Key not found")
        if partition_num < topic.partition_num:
            raise ChangeRefusedError("the partition number should not less than the current")
        numbers = range(topic.partition_num, partition_num)
        places = self._place(topic, numbers)
        topic.partition_num = partition_num
        topic.options = replace(topic.options, partitions=partition_num)

        def tell() -> None:
            self._announce_meta(name, coordinator.timing.meta_lag)
            self._make(topic, places)

        coordinator.after(coordinator.timing.expand, tell)

    def _announce_meta(self, name: str, lag: float) -> None:
        for lookupd in self._coordinator.lookupds:
            delay = 0.0 if lookupd is self._coordinator.leading else lag
            self._coordinator.after(delay, lambda lookupd=lookupd: lookupd.learn_meta(name))  # type: ignore[misc]

    # ------------------------------------------------------------ move

    def move(self, partition: Partition, to: Nsqd) -> None:
        """Move the leader to another node; a node without a replica gets the old leader's, copied first.

        Raises:
            ChangeRefusedError: The partition has no leader that answers, or ``to`` does not answer.
        """
        coordinator = self._coordinator
        leader = coordinator.leader_of(partition)
        if leader is None or leader.stalled or partition.stops or not to.reachable:
            raise ChangeRefusedError("the cluster is unstable")
        if leader.node is to:
            return
        if to in partition.isr:
            self._hand_over(partition, to, leave=False)
            return
        partition.replicas.append(to)
        to.replica_of(partition)
        coordinator.after(coordinator.timing.copy, lambda: self._hand_over(partition, to, leave=True))

    def _hand_over(self, partition: Partition, to: Nsqd, *, leave: bool) -> None:
        """Stop writing, then change the leader."""
        partition.stops += 1
        partition.registered = None
        self._coordinator.refresh(partition)
        self._coordinator.after(self._coordinator.timing.move, lambda: self._take_over(partition, to, leave=leave))

    def _take_over(self, partition: Partition, to: Nsqd, *, leave: bool) -> None:
        coordinator = self._coordinator
        partition.stops -= 1
        if partition.topic.deleted:
            return
        leader = coordinator.leader_of(partition)
        possible = leader is not None and not leader.stalled and to.reachable and not to.exiting
        if leader is None or not possible:
            if leader is not None:
                partition.registered = leader.node
            coordinator.refresh(partition)
            return
        former = leader.node
        to.replica_of(partition).copy_from(leader)
        if leave:
            partition.isr.append(to)
            partition.isr.remove(former)
            partition.replicas.remove(former)
        leader.step_down()
        coordinator.appoint(partition, to)
        if leave:
            former.drop_replica(partition)
