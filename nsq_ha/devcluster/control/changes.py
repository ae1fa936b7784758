"""Changes that operators make: create, delete and expand topics, move leaders.

Each call returns at once and takes effect later, like the HTTP calls of the real nsqlookupd.

Source: server failures 2, 3.7-3.9; server protocol 11.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from nsq_ha.devcluster.control.placement import ClusterPartition
from nsq_ha.devcluster.storage.replica import ClusterTopic, TopicOptions

if TYPE_CHECKING:
    from nsq_ha.devcluster.control.coordinator import Coordinator
    from nsq_ha.devcluster.nsqd.node import HaNsqd


class ChangeRefusedError(Exception):
    """The cluster refuses a change; the text is the real server's."""


class Changes:
    """Changes the topics of one cluster."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._placement = coordinator.placement
        self._timing = coordinator.host.timing
        self._after = coordinator.host.after

    # ------------------------------------------------------------ create

    def create(self, name: str, options: TopicOptions) -> None:
        """Create a topic; its partitions appear and become writable later.

        Raises:
            ChangeRefusedError: The topic exists with other options, or there are not enough nodes.
        """
        existing = self._placement.topics.get(name)
        if existing is not None:
            if existing.options != options:
                raise ChangeRefusedError("already exist")
            return
        topic = ClusterTopic(name, options)
        places = self._place(topic, range(options.partitions))
        self._placement.topics[name] = topic
        self._coordinator.announce_topic(name, self._timing.lookup_lag)
        self._after(self._timing.create, lambda: self._make(topic, places))

    def _place(self, topic: ClusterTopic, numbers: range) -> dict[int, list[HaNsqd]]:
        """Choose nodes in turn, to spread the leaders.

        Raises:
            ChangeRefusedError: There are not enough nodes.
        """
        options = topic.options
        nodes = [node for node in self._coordinator.nsqds if node.reachable and not node.exiting]
        shared = options.ordered or options.multi_part
        taken = {node for partition in self._placement.partitions_of(topic) for node in partition.replicas}
        if not shared:
            nodes = [node for node in nodes if node not in taken]
        needed = options.replicas if shared else options.replicas * len(numbers)
        if len(nodes) < needed:
            raise ChangeRefusedError("ErrType:9 ErrCode:1 : No node is available for topic")
        places = {}
        for step, number in enumerate(numbers):
            first = self._placement.choices + (number if shared else step * options.replicas)
            places[number] = [nodes[(first + position) % len(nodes)] for position in range(options.replicas)]
        self._placement.choices += 1
        return places

    def _make(self, topic: ClusterTopic, places: dict[int, list[HaNsqd]]) -> None:
        if topic.deleted:
            return
        made = []
        for number, nodes in places.items():
            partition = ClusterPartition(topic, number, nodes)
            partition.stops = 1
            partition.leader = nodes[0]
            for node in nodes:
                node.replica_of(partition)
            self._placement.add(partition)
            made.append(partition)
        self._after(self._timing.create, lambda: self._open(made))

    def _open(self, partitions: list[ClusterPartition]) -> None:
        """Elect the leaders; writing begins one step later."""
        for partition in partitions:
            if not partition.topic.deleted:
                self._coordinator.elect(partition)
        self._after(self._timing.create, lambda: self._allow(partitions))

    def _allow(self, partitions: list[ClusterPartition]) -> None:
        for partition in partitions:
            partition.stops -= 1
            if not partition.topic.deleted:
                self._coordinator.refresh(partition)

    # ------------------------------------------------------------ delete

    def delete(self, name: str) -> None:
        """Delete a topic with all its data, and disconnect its consumers without an error.

        Raises:
            ChangeRefusedError: There is no such topic.
        """
        topic = self._topic(name)
        topic.deleted = True
        for partition in self._placement.remove(topic):
            for node in self._coordinator.nsqds:
                node.drop_replica(partition)
        self._coordinator.announce_topic(name, self._timing.meta_lag)

    def _topic(self, name: str) -> ClusterTopic:
        topic = self._placement.topics.get(name)
        if topic is None:
            raise ChangeRefusedError("Key not found")
        return topic

    # ------------------------------------------------------------ expand

    def expand(self, name: str, partition_num: int) -> None:
        """Give a topic more partitions.

        The leading nsqlookupd returns the new number before the partitions exist,
        the others long after.

        Raises:
            ChangeRefusedError: There is no such topic, it already has more partitions, or there are not enough nodes.
        """
        topic = self._topic(name)
        present = topic.options.partitions
        if partition_num < present:
            raise ChangeRefusedError("the partition number can not be reduced")
        places = self._place(topic, range(present, partition_num))
        topic.options = replace(topic.options, partitions=partition_num)

        def grow() -> None:
            self._coordinator.announce_topic(name, self._timing.meta_lag)
            self._make(topic, places)

        self._after(self._timing.expand, grow)

    # ------------------------------------------------------------ update

    def update(self, topic: ClusterTopic, options: TopicOptions) -> None:
        """Change the options of a topic. Replicas that it gets copy the data first, and join then.

        Writing stops while the topic is upgraded to headers.

        Raises:
            ChangeRefusedError: There are not enough nodes.
        """
        nodes = [node for node in self._coordinator.nsqds if node.reachable and not node.exiting]
        shared = options.ordered or options.multi_part
        needed = options.replicas * (1 if shared else options.partitions)
        if options.replicas > topic.options.replicas and len(nodes) < needed:
            raise ChangeRefusedError("ErrType:9 ErrCode:1 : No node is available for topic")
        is_upgrade = options.extended and not topic.options.extended
        topic.options = options
        for partition in self._placement.partitions_of(topic):
            if is_upgrade:
                partition.stops += 1
                self._coordinator.refresh(partition)
                self._after(self._timing.move, functools.partial(self._coordinator.end_stop, partition))
            for node in self._coordinator.nsqds:
                held = node.replicas.get(partition.key)
                if held is not None:
                    held.update_options(options)
            for node in [node for node in partition.replicas if node is not partition.leader][options.replicas - 1 :]:
                self._drop(partition, node)
            free = [node for node in nodes if node not in partition.replicas]
            for node in free[: max(0, options.replicas - len(partition.replicas))]:
                partition.replicas.append(node)
                node.replica_of(partition)
                self._after(self._timing.copy, functools.partial(self._coordinator.rejoin, partition, node))
        self._coordinator.announce_topic(topic.name, self._timing.meta_lag)

    def _drop(self, partition: ClusterPartition, node: HaNsqd) -> None:
        partition.replicas.remove(node)
        if node in partition.isr:
            partition.isr.remove(node)
        if partition.led is not None:
            partition.led.set_followers(partition.followers)
        node.drop_replica(partition)
        self._coordinator.refresh(partition)

    # ------------------------------------------------------------ remove

    def remove_node(self, node: HaNsqd) -> None:
        """Have others copy what a node holds, and take it from the node; what no other has room for stays."""
        if node in self._coordinator.removing:
            return
        self._coordinator.removing.add(node)
        for partition in [each for each in self._placement.partitions() if node in each.replicas]:
            others = (each for each in self._coordinator.nsqds if each.reachable and not each.exiting)
            to = next((each for each in others if each not in partition.replicas), None)
            if to is None:
                continue
            if partition.leader is node:
                self.move(partition, to)
            else:
                partition.replicas.append(to)
                to.replica_of(partition)
                self._after(self._timing.copy, functools.partial(self._coordinator.rejoin, partition, to))
                self._drop(partition, node)

    # ------------------------------------------------------------ channels

    def register_channels(self, topic: ClusterTopic, channels: frozenset[str]) -> None:
        """Register these channels for all partitions, and no others; the leaders learn them."""
        for partition in self._placement.partitions_of(topic):
            partition.channels = channels
            if partition.led is not None:
                partition.led.sync_registered()

    # ------------------------------------------------------------ move

    def move(self, partition: ClusterPartition, to: HaNsqd) -> None:
        """Move the leader to another node. A node without a replica first gets a copy, and replaces the old leader.

        Raises:
            ChangeRefusedError: The leader of the partition or ``to`` does not answer.
        """
        leader = partition.led
        if leader is None or leader.stalled or partition.stops or not to.reachable:
            raise ChangeRefusedError("the cluster is unstable")
        if partition.leader is to:
            return
        if to in partition.isr:
            self._hand_over(partition, to, leave=False)
            return
        partition.replicas.append(to)
        to.replica_of(partition)
        self._after(self._timing.copy, lambda: self._hand_over(partition, to, leave=True))

    def _hand_over(self, partition: ClusterPartition, to: HaNsqd, *, leave: bool) -> None:
        """Stop writing, then change the leader."""
        partition.stops += 1
        partition.registered = None
        self._coordinator.refresh(partition)
        self._after(self._timing.move, lambda: self._take_over(partition, to, leave=leave))

    def _take_over(self, partition: ClusterPartition, to: HaNsqd, *, leave: bool) -> None:
        coordinator = self._coordinator
        partition.stops -= 1
        if partition.topic.deleted:
            return
        leader, former = partition.led, partition.leader
        possible = leader is not None and not leader.stalled and to.reachable and not to.exiting
        if leader is None or former is None or not possible:
            if leader is not None:
                partition.registered = former
            coordinator.refresh(partition)
            return
        to.replica_of(partition).copy_from(leader)
        if leave:
            partition.isr.append(to)
            partition.isr.remove(former)
            partition.replicas.remove(former)
        leader.step_down()
        coordinator.appoint(partition, to)
        if leave:
            former.drop_replica(partition)
