"""The partitioned cluster: what the comings and goings of its nodes tell the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.devcluster.control.changes import Changes
from nsq_ha.devcluster.control.coordinator import Coordinator
from nsq_ha.devcluster.control.nsqlookupd import Nsqlookupd
from nsq_ha.devcluster.nsqd.node import Nsqd

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host, Node


class HaControl:
    """The nodes of a partitioned cluster.

    Attributes:
        host: What the nodes run on.
        coordinator: Decides for the whole cluster.
        changes: Executes changes of topics.
        lookupds: The nsqlookupds.
        nsqds: The nsqds.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.coordinator: Coordinator = Coordinator(host)
        self.changes: Changes = Changes(self.coordinator)
        self.lookupds: list[Nsqlookupd] = self.coordinator.lookupds
        self.nsqds: list[Nsqd] = self.coordinator.nsqds
        self._timing = host.timing

    def begin(self) -> None:
        """Start all nodes."""
        for lookupd in self.lookupds:
            lookupd.start()
            self.coordinator.lookupd_came(lookupd)
        for nsqd in self.nsqds:
            nsqd.start()

    def tick(self, now: float) -> None:
        """Let time pass."""
        for nsqd in self.nsqds:
            nsqd.tick(now)

    def kill(self, node: Node) -> None:
        """Kill a process. Followers of an nsqd take over once its key has expired."""
        if node.alive:
            node.kill()
            self._went(node, link=self._timing.link_broken)

    def _went(self, node: Node, *, link: float) -> None:
        if isinstance(node, Nsqd):
            self.coordinator.went(node, link=link, key=self._timing.key_expires)
        elif isinstance(node, Nsqlookupd):
            self.coordinator.lookupd_went(node)

    def stop(self, node: Node) -> None:
        """Begin to shut a process down cleanly. An nsqd hands over its partitions first."""
        coordinator = self.coordinator
        if not isinstance(node, Nsqd):
            self.kill(node)
            return
        if not node.reachable:
            if node.alive:  # A frozen process cannot shut down cleanly.
                node.kill()
            return
        if node.exiting:
            return
        node.leave()
        coordinator.went(node, link=0.0, key=self._timing.handover)

        def end() -> None:
            if node.exiting:
                node.kill()
                coordinator.check_followers_of(node)

        self.host.after(self._timing.exiting, end)

    def start(self, node: Node) -> None:
        """Start a process; it catches up after the cluster's own delays."""
        if not node.alive:
            node.start()
            if isinstance(node, Nsqd):
                self.coordinator.came(node)
            elif isinstance(node, Nsqlookupd):
                self.coordinator.lookupd_came(node)

    def freeze(self, node: Node) -> None:
        """Freeze a process."""
        if node.reachable:
            node.freeze()
            self._went(node, link=self._timing.link_silent)

    def thaw(self, node: Node) -> None:
        """Continue a frozen process: first it learns what it lost, then it processes what waited."""
        if not node.frozen:
            return
        node.thaw()
        if isinstance(node, Nsqd):
            self.coordinator.arrived(node)
        elif isinstance(node, Nsqlookupd):
            self.coordinator.lookupd_came(node)

    def cut(self, node: Node) -> None:
        """Reset the connections of a process."""
        node.cut()

    def refuse_writes(self, node: Node | None, *, refuse: bool) -> None:
        """Disable or enable writing on an nsqd, or on None in the whole cluster.

        Raises:
            KeyError: The node is not an nsqd.
        """
        if node is None:
            self.coordinator.disable_writes(disabled=refuse)
            return
        if not isinstance(node, Nsqd):
            raise KeyError(f"{node.name!r} is not an nsqd; the nsqds are {', '.join(nsqd.name for nsqd in self.nsqds)}")
        node.writes_disabled = refuse
        node.update_refusals()
