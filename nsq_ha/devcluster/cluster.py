"""DevCluster: a whole cluster in one process, with controls for its topics and faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.control.changes import ChangeRefusedError
from nsq_ha.devcluster.control.placement import TopicOptions
from nsq_ha.devcluster.faults import Faults

if TYPE_CHECKING:
    from nsq_ha.devcluster.control.placement import Partition
    from nsq_ha.devcluster.nsqd.node import Nsqd

SYNC_EVERY: Final = 2500
"""Default of ``sync_every``; the real server's ``-sync-every``."""


class DevCluster(Faults):
    """A cluster of nsqlookupds and nsqds on the loopback.

    Use it as a context manager::

        with DevCluster() as cluster:
            cluster.create_topic("orders", 4, ordered=True)
            Producer(lookupd=cluster.lookupd)

    All methods are synchronous and may be called from any thread, from inside a
    running event loop too: the cluster runs in a thread of its own and never
    waits for the caller.

    Args:
        nsqlookupds: Number of nsqlookupds, ``nsqlookupd-0`` and up.
        nsqds: Number of nsqds, ``nsqd-0`` and up.
        time_scale: Factor on the real cluster's own delays (elections, look-up
            lag ...); what clients ask for is never scaled. 1.0 is the real pace.
        seed: Of everything that is left to chance.
        write_without_channels: False makes ``access=w`` refuse topics without a
            channel, as an nsqlookupd with default settings does.
        slow_leaders: Seconds, times ``time_scale``, during which ``access=r`` names a newly elected leader
            that still refuses everything as not writable. On the real server 0 to 60.
        lookupd_ports: HTTP ports of the first nsqlookupds. The others, and all nsqds, take free ones.
        tls: Server's context; None for a server without TLS.
        tls_required: All commands but IDENTIFY need TLS, and the nsqds' HTTP refuses everything, as with
            ``-tls-required``.
        tls_write_deadline: Seconds after a TLS handshake from which each write of an nsqd fails: messages
            and heartbeats are lost silently, and an answer ends the connection. The real partitioned
            server does so after 5.0. None for a server without this defect.
        allowed_hosts: Host names besides the loopback's that are allowed in ``Host`` and ``Origin`` of HTTP
            requests; others get a 403. ``("*",)`` allows all.
    """

    # ------------------------------------------------------------ topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 3,
        *,
        ordered: bool = False,
        extended: bool = False,
        multi_part: bool | None = None,
        disable_channel_auto_create: bool = False,
        sync_every: int = SYNC_EVERY,
        wait: bool = True,
    ) -> str:
        """Create a topic and wait until every nsqlookupd names all its partitions as writable.

        Args:
            name: Its name.
            partitions: Number of partitions.
            replicas: Replicas of each; 3 survives the loss of one node quickly.
            ordered: Only ordered subscriptions.
            extended: Messages may carry JSON headers.
            multi_part: Several partitions may share a node. None when it has to be so.
            disable_channel_auto_create: Channels must be registered first.
            sync_every: How many acknowledged messages may stay in a buffer, where ``/message/get`` does not
                see them; the real server's ``syncdisk``. 0 and 1 flush each message at once.
            wait: False returns at once, as ``/topic/create`` does.

        Returns:
            The name.

        Raises:
            ChangeRefusedError: It exists with other options, or needs more nodes.
            TimeoutError: It did not become usable.
        """
        if multi_part is None:
            multi_part = not ordered and partitions * replicas > len(self._state().nsqds)
        options = TopicOptions(
            partitions=partitions,
            replicas=replicas,
            ordered=ordered,
            multi_part=multi_part,
            extended=extended,
            disable_channel_auto_create=disable_channel_auto_create,
            sync_every=sync_every,
        )
        self._call(lambda: self._change().create(name, options))
        if wait:
            self._until(lambda: self._is_usable(name, partitions), f"topic {name} is usable")
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic; the nsqlookupds forget it in their own time.

        Raises:
            ChangeRefusedError: There is none.
        """
        self._call(lambda: self._change().delete(name))

    def expand(self, name: str, partitions: int) -> None:
        """Give a topic more partitions; returns at once, as the real call does.

        A topic that is neither ordered nor ``multi_part=True`` has each partition on
        nodes of its own, so all of them together need partitions x replicas nodes:
        with 3 replicas on the usual 3 nodes such a topic has no room to grow.

        Raises:
            ChangeRefusedError: It has more already, or needs more nodes (``No node is available for topic``).
        """
        self._call(lambda: self._change().expand(name, partitions))

    def clean(self, topic: str, partition: int, messages: int) -> None:
        """Forget the oldest messages of a partition on all its replicas, as retention does.

        Args:
            topic: The topic.
            partition: The partition.
            messages: Number of the first message that is kept, counted from 0 since the topic was made.
        """

        def act() -> None:
            found = self._partition(topic, partition)
            for node in found.replicas:
                node.replica_of(found).clean(messages)

        self._call(act)

    def _is_usable(self, name: str, partitions: int) -> bool:
        for lookupd in self._state().lookupds:
            if not lookupd.reachable:
                continue
            known = [entry for (topic, _), entry in lookupd.registered.items() if topic == name and entry.writable]
            if len(known) < partitions:
                return False
        return True

    # ------------------------------------------------------------ leaders

    def leader(self, topic: str, partition: int = 0) -> str | None:
        """Name of the elected leader. None while there is none."""

        def find() -> str | None:
            leader = self._partition(topic, partition).leader
            return leader.name if leader is not None else None

        return self._call(find)

    def followers(self, topic: str, partition: int = 0) -> list[str]:
        """Names of the other nodes that hold the partition."""

        def find() -> list[str]:
            found = self._partition(topic, partition)
            return [node.name for node in found.replicas if node is not found.leader]

        return self._call(find)

    def move_leader(self, topic: str, partition: int = 0, to: str | None = None) -> str:
        """Move a leader and wait until it leads and the nsqlookupds know.

        Args:
            topic: The topic.
            partition: The partition.
            to: Name of the node; one without a replica gets the leader's. None for the next in-sync one.

        Returns:
            Name of the new leader.

        Raises:
            ChangeRefusedError: It is in no state to be moved.
            TimeoutError: It did not come to an end.
        """

        def begin() -> Nsqd:
            found = self._partition(topic, partition)
            target = self._nsqd(to) if to is not None else _next_in_sync(found)
            self._change().move(found, target)
            return target

        target = self._call(begin)

        def done() -> bool:
            found = self._partition(topic, partition)
            return found.leader is target and self._all_know(found)

        self._until(done, f"{target.name} leads {topic}-{partition}")
        return target.name

    def _all_know(self, partition: Partition) -> bool:
        for lookupd in self._state().lookupds:
            known = lookupd.registered.get(partition.key)
            if lookupd.reachable and (known is None or known.leader is not partition.leader or not known.writable):
                return False
        return True


def _next_in_sync(partition: Partition) -> Nsqd:
    others = [node for node in partition.isr if node is not partition.leader and node.reachable]
    if not others:
        raise ChangeRefusedError("no other in-sync replica answers")
    return others[0]
