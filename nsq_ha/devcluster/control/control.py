"""What a cluster of either kind does with its nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from nsq_ha.devcluster.nodes import ClusterNode

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host

_Nsqd = TypeVar("_Nsqd", bound=ClusterNode)
_Nsqlookupd = TypeVar("_Nsqlookupd", bound=ClusterNode)


class Control(ABC, Generic[_Nsqd, _Nsqlookupd]):
    """The nodes, and what their comings and goings cause.

    Attributes:
        host: What the nodes run on.
        nsqds: All nsqds, alive or not.
        lookupds: All nsqlookupds, alive or not.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.nsqds: list[_Nsqd] = []
        self.lookupds: list[_Nsqlookupd] = []

    @abstractmethod
    def begin(self) -> None:
        """Start all nodes."""

    def tick(self, now: float) -> None:
        """Let time pass."""
        for nsqd in self.nsqds:
            nsqd.tick(now)

    def kill(self, node: ClusterNode) -> None:
        """Kill a process."""
        if node.alive:
            node.kill()
            self._went(node)

    @abstractmethod
    def stop(self, node: ClusterNode) -> None:
        """Begin to shut a process down cleanly."""

    def start(self, node: ClusterNode) -> None:
        """Start a process."""
        if not node.alive:
            node.start()
            self._came(node)

    def freeze(self, node: ClusterNode) -> None:
        """Freeze a process."""
        if node.reachable:
            node.freeze()
            self._froze(node)

    def thaw(self, node: ClusterNode) -> None:
        """Continue a frozen process: first it learns what it lost, then it processes what waited."""
        if node.frozen:
            node.thaw()
            self._thawed(node)

    def cut(self, node: ClusterNode) -> None:
        """Reset the connections of a process."""
        node.cut()

    @abstractmethod
    def refuse_writes(self, node: ClusterNode | None, *, refuse: bool) -> None:
        """Disable or enable writing on an nsqd, or on None in the whole cluster."""

    @abstractmethod
    def _went(self, node: ClusterNode) -> None:
        """Plan the effects of a process that ended."""

    @abstractmethod
    def _came(self, node: ClusterNode) -> None:
        """Plan the effects of a process that started."""

    def _froze(self, node: ClusterNode) -> None:
        """Plan the effects of a process that froze; none until somebody notices."""

    @abstractmethod
    def _thawed(self, node: ClusterNode) -> None:
        """Plan the effects of a process that continues."""
