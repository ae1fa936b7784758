"""Elections and in-sync replicas: the decisions that etcd and the leading nsqlookupd make together.

Each effect of a fault occurs after its delay (``Timing``), and only while an
nsqlookupd leads. An effect that is due while none leads waits for the periodic
check of the next leading one.

The invariant: a new leader is an in-sync replica, and each of these has
everything that was ever acknowledged.

Source: server failures 3.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsq_ha.devcluster.control.control import Control
from nsq_ha.devcluster.control.placement import ClusterPartition, Nsqlookupd, Placement
from nsq_ha.devcluster.nodes import ClusterNode
from nsq_ha.devcluster.nsqd.node import HaNsqd

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host
    from nsq_ha.devcluster.storage.replica import Replica

_log = logging.getLogger("nsq_ha.devcluster")


class Coordinator(Control[HaNsqd, Nsqlookupd]):
    """The partitioned cluster: decides what the comings and goings of its nodes cause.

    Attributes:
        placement: Topics and partitions.
        leading: The leading nsqlookupd. None if there is none.
        last_leading: A failed one whose key has not expired, so that no other can lead. None if there is none.
        removing: The nsqds that are removed for good.
        is_upgrading: An operator began an upgrade, and has not ended it.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.placement: Placement = Placement()
        self.leading: Nsqlookupd | None = None
        self.last_leading: Nsqlookupd | None = None
        self._timing = host.timing
        self._settled = 0.0
        self.removing: set[HaNsqd] = set()
        self.is_upgrading: bool = False

    @property
    def stable(self) -> bool:
        """Whether operators may move partitions.

        Every node must be registered and every replica in sync, and the leading nsqlookupd must have checked this.
        """
        if self.host.now() < self._settled or self.is_upgrading:
            return False
        partitions = self.placement.partitions()
        whole = all(len(p.isr) >= p.topic.options.replicas and not p.stops for p in partitions)
        return whole and all(node.linked for node in self.nsqds)

    # ------------------------------------------------------------ nodes

    def begin(self) -> None:
        """Start all nodes."""
        for lookupd in self.lookupds:
            self.start(lookupd)
        for nsqd in self.nsqds:
            nsqd.start()

    def stop(self, node: ClusterNode) -> None:
        """Begin to shut a process down cleanly. An nsqd hands over its partitions first."""
        if not isinstance(node, HaNsqd):
            self.kill(node)
        elif not node.reachable:
            if node.alive:  # A frozen process cannot shut down cleanly.
                node.kill()
        elif not node.exiting:
            node.leave()
            self._left(node, link=0.0, key=self._timing.handover)
            self.host.after(self._timing.exiting, lambda: self._exited(node))

    def _exited(self, node: HaNsqd) -> None:
        if node.exiting:
            node.kill()
            self.check_followers_of(node)

    def refuse_writes(self, node: ClusterNode | None, *, refuse: bool) -> None:
        """Disable or enable writing on an nsqd, or on None in the whole cluster.

        Raises:
            KeyError: The node is not an nsqd.
        """
        if node is None:
            self.host.writes_disabled = refuse
            for nsqd in self.nsqds:
                nsqd.update_refusals()
            return
        if not isinstance(node, HaNsqd):
            raise KeyError(f"{node.name!r} is not an nsqd; the nsqds are {', '.join(nsqd.name for nsqd in self.nsqds)}")
        node.writes_disabled = refuse
        node.update_refusals()

    def _went(self, node: ClusterNode) -> None:
        """Let followers of an nsqd take over once its key has expired."""
        self._away(node, link=self._timing.link_broken)

    def _froze(self, node: ClusterNode) -> None:
        self._away(node, link=self._timing.link_silent)

    def _away(self, node: ClusterNode, *, link: float) -> None:
        if isinstance(node, HaNsqd):
            self._left(node, link=link, key=self._timing.key_expires)
        elif isinstance(node, Nsqlookupd):
            self._lookupd_went(node)

    def _came(self, node: ClusterNode) -> None:
        """Let a process catch up after the cluster's own delays."""
        if isinstance(node, HaNsqd):
            started = node.started
            self.host.after(self._timing.register, lambda: self._register(node, started))
        elif isinstance(node, Nsqlookupd):
            self._lookupd_came(node)

    def _register(self, node: HaNsqd, started: int) -> None:
        if node.reachable and node.started == started:
            self._arrived(node)

    def _thawed(self, node: ClusterNode) -> None:
        if isinstance(node, HaNsqd):
            self._arrived(node)
        elif isinstance(node, Nsqlookupd):
            self._lookupd_came(node)

    def _unsettle(self) -> None:
        """Report the cluster as unstable until the next full check, because a node started or failed."""
        self._settled = self.host.now() + self._timing.full_check

    # ------------------------------------------------------------ nsqlookupds

    def _lookupd_went(self, lookupd: Nsqlookupd) -> None:
        """Plan the effects of an nsqlookupd that stopped answering."""
        absence = lookupd.absence = self.host.now()
        led = self.leading is lookupd
        if led:
            self.leading, self.last_leading = None, lookupd

        def expire() -> None:
            if lookupd.absence == absence:
                lookupd.listed = False
            if led:
                self._choose_leading()

        self.host.after(self._timing.leading_lookupd, expire)

    def _lookupd_came(self, lookupd: Nsqlookupd) -> None:
        """List an nsqlookupd that answers again; it leads if no other does and no former leader's key is left."""
        lookupd.listed, lookupd.absence = True, None
        if self.leading is None and self.last_leading is None:
            self._choose_leading()

    def _choose_leading(self) -> None:
        """Let another nsqlookupd lead: the key of the last one has expired."""
        self.last_leading = None
        for lookupd in self.lookupds:
            if lookupd.reachable and self.leading is None:
                self.leading = lookupd
                self.host.after(self._timing.periodic_check, self.check)

    def check(self) -> None:
        """Run the periodic check of the leading nsqlookupd: apply changes that were due while none led."""
        if self.leading is None:
            return
        for node in self.nsqds:
            if node.overdue:
                self._remove(node)
        for partition in self.placement.partitions():
            if partition.leader is None:
                self.elect(partition)

    def announce(self, partition: ClusterPartition) -> None:
        """Let the nsqlookupds learn of a partition, the leading one first."""
        for lookupd in self.lookupds:
            lag = 0.0 if lookupd is self.leading else self._timing.lookup_lag
            self.host.after(lag, functools.partial(lookupd.learn, *partition.key))

    def announce_topic(self, name: str, lag: float) -> None:
        """Let the nsqlookupds learn of a topic: the leading one at once, the others after ``lag``."""
        for lookupd in self.lookupds:
            delay = 0.0 if lookupd is self.leading else lag
            self.host.after(delay, functools.partial(lookupd.learn_topic, name))

    # ------------------------------------------------------------ nsqds that leave

    def _left(self, node: HaNsqd, *, link: float, key: float) -> None:
        """Plan the effects of an nsqd that stopped answering.

        Args:
            node: The nsqd.
            link: Seconds until the nsqlookupds drop its registrations.
            key: Seconds until it is removed from all in-sync replicas.
        """
        absence = node.absence = self.host.now()
        self._unsettle()

        def while_away(act: Callable[[HaNsqd], None]) -> Callable[[], None]:
            return lambda: act(node) if node.absence == absence else None

        self.check_followers_of(node)
        if link <= 0:
            self._unlink(node)
        else:
            self.host.after(link, while_away(self._unlink))
        self.host.after(self._timing.replica_reported, while_away(self._report))
        election = self._timing.election if key >= self._timing.key_expires else 0.0
        self.host.after(key, while_away(lambda away: self.host.after(election, lambda: self._remove(away))))

    def _followed_by(self, node: HaNsqd) -> list[ClusterPartition]:
        return [p for p in self.placement.partitions() if node in p.isr and p.leader is not node]

    def check_followers_of(self, node: HaNsqd) -> None:
        """Let the leaders that ``node`` follows check whether it answers."""
        for partition in self._followed_by(node):
            leader = partition.led
            if leader is not None:
                leader.check_followers()

    def _unlink(self, node: HaNsqd) -> None:
        for partition in self.placement.partitions():
            if partition.registered is node:
                partition.registered = None
                self.announce(partition)

    def _report(self, node: HaNsqd) -> None:
        for partition in self._followed_by(node):
            partition.suffering = True
            self.refresh(partition)

    def _remove(self, node: HaNsqd) -> None:
        """Remove a node from all in-sync replicas; partitions that it led elect another leader."""
        if self.leading is None:
            node.overdue = True
            return
        node.overdue = False
        _log.info("%s: removed from all in-sync replicas", node.name)
        for partition in self.placement.partitions():
            if node in partition.isr:
                self._shrink(partition, node)
        if node.reachable:
            self._arrived(node)

    def _shrink(self, partition: ClusterPartition, node: HaNsqd) -> None:
        partition.suffering = False
        if partition.isr == [node]:
            # The only node that has all the data: no other may lead until it is back.
            if not node.reachable:
                partition.leader = partition.registered = None
                self.announce(partition)
            return
        partition.isr.remove(node)
        leader = partition.led
        if leader is None or leader.node is node:
            self.elect(partition)
            return
        leader.settle_pending(keep=self.host.chance.random() < 0.5)
        leader.set_followers(partition.followers)
        self.refresh(partition)

    # ------------------------------------------------------------ elections

    def elect(self, partition: ClusterPartition) -> None:
        """Elect the reachable in-sync replica with the longest log, if there is one and an nsqlookupd leads."""
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

    def appoint(self, partition: ClusterPartition, node: HaNsqd) -> None:
        """Make a node the leader, and announce it."""
        _log.info("%s: leads %s-%d", node.name, *partition.key)
        partition.leader = partition.registered = node
        node.replica_of(partition).lead(partition.followers)
        if self._timing.slow_leader > 0:
            partition.stops += 1
            self.host.after(self._timing.slow_leader, lambda: self.end_stop(partition))
        self.refresh(partition)

    def end_stop(self, partition: ClusterPartition) -> None:
        """Allow writing again, unless something else stops it."""
        partition.stops -= 1
        self.refresh(partition)

    def refresh(self, partition: ClusterPartition) -> None:
        """Recompute whether the partition is writable, and announce it."""
        may_write = partition.has_majority and not partition.stops
        leader = partition.led
        if leader is not None:
            leader.set_writable(may_write and not leader.gave_up)
        partition.writable = may_write and not partition.suffering and partition.leader is not None
        self.announce(partition)

    # ------------------------------------------------------------ nsqds that arrive

    def _arrived(self, node: HaNsqd) -> None:
        """Take back an nsqd that has registered: it still leads, or it catches up and joins the in-sync replicas."""
        absence, node.absence = node.absence, None
        self._unsettle()
        away = 0.0 if absence is None else self.host.now() - absence
        node.overdue = False
        for partition in self.placement.partitions():
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
                self.host.after(self._timing.rejoin, lambda p=partition: self.rejoin(p, node, away))  # type: ignore[misc]

    def _back_in_time(self, partition: ClusterPartition) -> None:
        """Take back an in-sync replica that returned before it was removed."""
        leader = partition.led
        if leader is None:
            self.elect(partition)
            return
        partition.suffering = False
        leader.settle_pending(keep=self.host.chance.random() < 0.5)
        leader.check_followers()
        self.refresh(partition)

    def _depose(self, replica: Replica) -> None:
        """Depose a former leader that woke up: it answers NOT_WRITABLE for a moment, then NOT_LEADER."""
        if not replica.leads:
            return
        replica.step_down()
        replica.update_refusal(waking=True)
        self.host.after(self._timing.waking, replica.update_refusal)

    def rejoin(self, partition: ClusterPartition, node: HaNsqd, away: float = 0.0) -> None:
        """Add a replica that has copied what it missed in ``away`` seconds to the in-sync ones; writing pauses then."""
        if partition.topic.deleted or node in partition.isr or node not in partition.replicas or not node.reachable:
            return
        leader = partition.led
        if leader is None or self.leading is None or leader.stalled:
            self.host.after(self._timing.election, lambda: self.rejoin(partition, node, away))
            return
        partition.stops += 1
        self.refresh(partition)
        stop = self._timing.rejoin_stop * (1 if away < self._timing.key_expires else 4)
        self.host.after(stop, lambda: self._joined(partition, node, leader, away))

    def _joined(self, partition: ClusterPartition, node: HaNsqd, leader: Replica, away: float) -> None:
        partition.stops -= 1
        if partition.led is leader and not leader.stalled and node.reachable:
            if node not in partition.isr:
                partition.isr.append(node)
            leader.set_followers(partition.followers)
        else:
            self.host.after(self._timing.election, lambda: self.rejoin(partition, node, away))
        self.refresh(partition)
