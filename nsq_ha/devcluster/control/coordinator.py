"""Who is alive, who is in sync, who leads: what etcd and the leading nsqlookupd decide together.

Every consequence of a fault comes after its delay (``timing``), and only while
some nsqlookupd leads; what falls due without one waits for the periodic check
of the next.

The invariant: a new leader comes from the in-sync replicas, each of which has
all that was ever acknowledged.

Source: failures reference 3.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from nsq_ha.devcluster.nsqd.node import Absence

if TYPE_CHECKING:
    from nsq_ha.devcluster.control.nsqlookupd import Nsqlookupd
    from nsq_ha.devcluster.control.placement import Partition, Topic
    from nsq_ha.devcluster.host import Timing
    from nsq_ha.devcluster.nsqd.node import Nsqd
    from nsq_ha.devcluster.storage.replica import Replica

_log = logging.getLogger("nsq_ha.devcluster")


class Coordinator:
    """The cluster's common knowledge and its decisions.

    Attributes:
        loop: Where everything runs.
        timing: How long things take.
        chance: The only source of chance, seeded.
        topics: By name.
        nsqds: All nodes, alive or not.
        lookupds: All nsqlookupds, alive or not.
        leading: The nsqlookupd that leads. None while there is none.
        last_leading: A lost one whose key has not ended yet, so that nobody else can lead. None otherwise.
        writes_disabled: An operator disabled writing in the cluster.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timing: Timing, seed: int) -> None:
        """Start without turns."""
        self.loop = loop
        self.timing = timing
        self.chance = random.Random(seed)  # noqa: S311 - a test cluster's dice
        self.topics: dict[str, Topic] = {}
        self.nsqds: list[Nsqd] = []
        self.lookupds: list[Nsqlookupd] = []
        self.leading: Nsqlookupd | None = None
        self.last_leading: Nsqlookupd | None = None
        self.writes_disabled = False
        self._settled = 0.0
        self._timers: set[asyncio.TimerHandle] = set()

    def after(self, delay: float, act: Callable[[], None]) -> None:
        """Do something later, unless the cluster is closed before."""

        def run() -> None:
            self._timers.discard(handle)
            act()

        handle = self.loop.call_later(delay, run)
        self._timers.add(handle)

    def close(self) -> None:
        """Forget all that was planned."""
        for handle in self._timers:
            handle.cancel()
        self._timers.clear()

    def partitions(self) -> Iterator[Partition]:
        """All partitions of all topics."""
        for topic in tuple(self.topics.values()):
            yield from tuple(topic.partitions.values())

    @property
    def stable(self) -> bool:
        """Whether operators may move partitions.

        Every node must be up and every replica in sync, and the leading nsqlookupd must have checked it.
        """
        if self.loop.time() < self._settled:
            return False
        whole = all(len(p.isr) >= p.topic.options.replicas and not p.stops for p in self.partitions())
        return whole and all(node.linked for node in self.nsqds)

    def unsettle(self) -> None:
        """Record that a node came or went; the cluster is unstable until the next full check."""
        self._settled = self.loop.time() + self.timing.full_check

    def disable_writes(self, *, disabled: bool) -> None:
        """Disable or enable writing everywhere."""
        self.writes_disabled = disabled
        for node in self.nsqds:
            node.update_refusals()

    def leader_of(self, partition: Partition) -> Replica | None:
        """The leader's replica, if the elected node answers and knows of its election."""
        node = partition.leader
        if node is None or not node.reachable:
            return None
        replica = node.replicas.get(partition.key)
        return replica if replica is not None and replica.leads else None

    # ------------------------------------------------------------ nodes that go

    def went(self, node: Nsqd, *, link: float, key: float) -> None:
        """A node is away: plan what the others make of it.

        Args:
            node: Which one.
            link: Seconds until the nsqlookupds drop its registrations.
            key: Seconds until it is taken out of everything.
        """
        absence = node.absence = Absence(self.loop.time())
        self.unsettle()

        def while_away(act: Callable[[Nsqd], None]) -> Callable[[], None]:
            return lambda: act(node) if node.absence is absence else None

        self.check_followers_of(node)
        if link <= 0:
            self._unlink(node)
        else:
            self.after(link, while_away(self._unlink))
        self.after(self.timing.replica_reported, while_away(self._report))
        self.after(key, while_away(lambda away: self.after(self._election_delay(key), lambda: self.remove(away))))

    def _election_delay(self, key: float) -> float:
        return self.timing.election if key >= self.timing.key_expires else 0.0

    def _followed_by(self, node: Nsqd) -> list[Partition]:
        return [p for p in self.partitions() if node in p.isr and p.leader is not node]

    def _check_followers(self, partition: Partition) -> None:
        leader = self.leader_of(partition)
        if leader is not None:
            leader.check_followers()

    def check_followers_of(self, node: Nsqd) -> None:
        """Let the leaders that ``node`` follows look at it again."""
        for partition in self._followed_by(node):
            self._check_followers(partition)

    def _unlink(self, node: Nsqd) -> None:
        for partition in self.partitions():
            if partition.registered is node:
                partition.registered = None
                self.announce(partition)

    def _report(self, node: Nsqd) -> None:
        for partition in self._followed_by(node):
            partition.suffering = True
            self.refresh(partition)

    def remove(self, node: Nsqd) -> None:
        """Take a node out of all in-sync replicas; partitions that it led elect another."""
        if self.leading is None:
            node.overdue = True
            return
        node.overdue = False
        _log.info("%s is taken out", node.name)
        for partition in self.partitions():
            if node in partition.isr:
                self._shrink(partition, node)
        if node.reachable:
            self.arrived(node)

    def _shrink(self, partition: Partition, node: Nsqd) -> None:
        partition.suffering = False
        if partition.isr == [node]:
            # The only one that has all the data: nobody else may lead until it is back.
            if not node.reachable:
                partition.leader = partition.registered = None
                self.announce(partition)
            return
        partition.isr.remove(node)
        leader = self.leader_of(partition)
        if leader is None or leader.node is node:
            self.elect(partition)
            return
        leader.settle_pending(keep=self.chance.random() < 0.5)
        leader.set_followers(self.followers(partition))
        self.refresh(partition)

    # ------------------------------------------------------------ elections

    def elect(self, partition: Partition) -> None:
        """Give the partition to the in-sync replica that has most, if one answers and a nsqlookupd leads."""
        former = partition.leader
        candidates = [node for node in partition.isr if node.reachable and not node.exiting]
        if self.leading is None or not candidates:
            partition.leader = partition.registered = None
            self.announce(partition)
            return
        leader = max(candidates, key=lambda node: len(node.replica_of(partition).log.records))
        if former is not None and former is not leader and former.reachable:
            former.replica_of(partition).step_down()
        self.appoint(partition, leader)

    def appoint(self, partition: Partition, node: Nsqd) -> None:
        """Make a node the leader, and tell."""
        _log.info("%s leads %s-%d", node.name, *partition.key)
        partition.leader = partition.registered = node
        node.replica_of(partition).lead(self.followers(partition), writable=False)
        if self.timing.slow_leader > 0:
            partition.stops += 1
            self.after(self.timing.slow_leader, lambda: self._works(partition))
        self.refresh(partition)

    def _works(self, partition: Partition) -> None:
        partition.stops -= 1
        self.refresh(partition)

    def followers(self, partition: Partition) -> list[Replica]:
        """The in-sync replicas besides the leader."""
        return [node.replica_of(partition) for node in partition.isr if node is not partition.leader]

    def refresh(self, partition: Partition) -> None:
        """Work out again whether the partition is writable, and tell."""
        may_write = partition.has_majority and not partition.stops
        leader = self.leader_of(partition)
        if leader is not None:
            leader.set_writable(may_write and not leader.gave_up)
        partition.writable = may_write and not partition.suffering and partition.leader is not None
        self.announce(partition)

    def check(self) -> None:
        """The periodic check of the leading nsqlookupd: find what fell due while nobody led."""
        if self.leading is None:
            return
        for node in self.nsqds:
            if node.overdue:
                self.remove(node)
        for partition in self.partitions():
            if partition.leader is None:
                self.elect(partition)

    def announce(self, partition: Partition) -> None:
        """Let the nsqlookupds learn of a partition; the leading one first."""
        topic, number = partition.key
        for lookupd in self.lookupds:
            lag = 0.0 if lookupd is self.leading else self.timing.lookup_lag
            self.after(lag, lambda lookupd=lookupd: lookupd.learn(topic, number))  # type: ignore[misc]

    # ------------------------------------------------------------ nodes that come

    def came(self, node: Nsqd) -> None:
        """A process was started: it registers a little later."""

        def register() -> None:
            if node.reachable and node.started == started:
                self.arrived(node)

        started = node.started
        self.after(self.timing.register, register)

    def arrived(self, node: Nsqd) -> None:
        """A node is back and registered: it leads on, or catches up and joins again."""
        absence, node.absence = node.absence, None
        self.unsettle()
        away = self.loop.time() - absence.since if absence else 0.0
        node.overdue = False
        for partition in self.partitions():
            if node not in partition.replicas:
                continue
            replica = node.replica_of(partition)
            if partition.leader is node and replica.leads:
                partition.registered = node
                replica.check_followers()
                self.refresh(partition)
            elif node in partition.isr:
                self._back_in_time(partition)
            else:
                self._depose(replica)
                self.after(self.timing.rejoin, lambda p=partition: self.rejoin(p, node, away))  # type: ignore[misc]

    def _back_in_time(self, partition: Partition) -> None:
        """An in-sync replica is back before it was missed."""
        leader = self.leader_of(partition)
        if leader is None:
            self.elect(partition)
            return
        partition.suffering = False
        leader.settle_pending(keep=self.chance.random() < 0.5)
        leader.check_followers()
        self.refresh(partition)

    def _depose(self, replica: Replica) -> None:
        """A former leader woke up: it refuses as not writable for a moment, then as not leading."""
        if not replica.leads:
            return
        replica.step_down()
        replica.update_refusal(waking=True)
        self.after(self.timing.waking, replica.update_refusal)

    def rejoin(self, partition: Partition, node: Nsqd, away: float) -> None:
        """Let a replica that caught up join the in-sync ones; writes stop meanwhile."""
        if partition.topic.deleted or node in partition.isr or node not in partition.replicas or not node.reachable:
            return
        leader = self.leader_of(partition)
        if leader is None or self.leading is None or leader.stalled:
            self.after(self.timing.election, lambda: self.rejoin(partition, node, away))
            return
        partition.stops += 1
        self.refresh(partition)
        stop = self.timing.rejoin_stop * (1 if away < self.timing.key_expires else 4)
        self.after(stop, lambda: self._joined(partition, node, leader, away))

    def _joined(self, partition: Partition, node: Nsqd, leader: Replica, away: float) -> None:
        partition.stops -= 1
        if self.leader_of(partition) is leader and not leader.stalled and node.reachable:
            if node not in partition.isr:
                partition.isr.append(node)
            leader.set_followers(self.followers(partition))
        else:
            self.after(self.timing.election, lambda: self.rejoin(partition, node, away))
        self.refresh(partition)
