"""Faults on command, for nsqds and nsqlookupds: kill, stop, freeze, cut, delay, refuse.

Each control makes only the fault itself. The other nodes notice it and react after the cluster's own delays.

Source: server failures 3.
"""

from __future__ import annotations

from nsq_ha.devcluster.runtime import Runtime


class Faults(Runtime):
    """The controls that cause faults. Nodes are called ``nsqd-0`` or ``nsqlookupd-0``.

    Repeating a fault on the same node has no effect.
    """

    def kill(self, node: str) -> None:
        """Kill a process: its connections are reset, new ones are refused, its data stays.

        Followers of an nsqd take over once its key has expired. An nsqd of a plain
        cluster loses what it had in memory.
        """
        self._call(lambda: self._control().kill(self._node(node)))

    def stop(self, node: str) -> None:
        """Shut a process down cleanly, and wait until it has ended.

        An nsqd hands over its partitions within about a second (scaled). An nsqd of
        a plain cluster keeps its messages for its next start.
        """
        self._call(lambda: self._control().stop(self._node(node)))
        found = self._node(node)
        self._until(lambda: not found.alive, f"{node} has stopped")

    def start(self, node: str) -> None:
        """Start a process that was killed or stopped; it catches up after the cluster's own delays."""
        self._call(lambda: self._control().start(self._node(node)))

    def freeze(self, node: str) -> None:
        """Freeze a process: connections stay open and silent, and only the kernel accepts new ones."""
        self._call(lambda: self._control().freeze(self._node(node)))

    def thaw(self, node: str) -> None:
        """Continue a frozen process: first it learns what changed, then it processes waiting requests."""
        self._call(lambda: self._control().thaw(self._node(node)))

    def cut(self, node: str) -> None:
        """Reset the connections of all clients; they may reconnect at once."""
        self._call(lambda: self._control().cut(self._node(node)))

    def delay(self, node: str, seconds: float) -> None:
        """Delay everything that a node receives by ``seconds``; 0 ends the delay."""

        def act() -> None:
            self._node(node).delay = seconds

        self._call(act)

    def refuse_writes(self, node: str | None = None, *, refuse: bool = True) -> None:
        """Disable writing, as an operator does: on one nsqd, or on None in the whole cluster.

        nsqd then answers publishes with ``E_FAILED_ON_NOT_LEADER``. With None,
        ``access=w`` answers ``null`` too.

        Raises:
            ValueError: The cluster is a plain one, whose nodes cannot do this.
        """
        target = None if node is None else self._node(node)
        self._call(lambda: self._control().refuse_writes(target, refuse=refuse))

    def is_up(self, node: str) -> bool:
        """Return whether a node runs and is not frozen."""
        return self._call(lambda: self._node(node).reachable)
