"""Faults on command, for nsqds and nsqlookupds: kill, stop, freeze, cut, delay, refuse.

Each control makes only the fault itself. The other nodes notice it and react after the cluster's own delays.

Source: failures reference 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.devcluster.nsqd.node import Nsqd
from nsq_ha.devcluster.runtime import Runtime

if TYPE_CHECKING:
    from nsq_ha.devcluster.control.nsqlookupd import Nsqlookupd


class Faults(Runtime):
    """The controls that cause faults. Nodes are called ``nsqd-0`` or ``nsqlookupd-0``.

    Repeating a fault on the same node has no effect.
    """

    def kill(self, node: str) -> None:
        """Kill a process: its connections are reset, new ones are refused, its data stays.

        Followers of an nsqd take over once its key has expired.
        """

        def act() -> None:
            found = self._node(node)
            if found.alive:
                found.kill()
                self._went(found, link=self._timing.link_broken)

        self._call(act)

    def _went(self, node: Nsqd | Nsqlookupd, *, link: float) -> None:
        if isinstance(node, Nsqd):
            self._state().went(node, link=link, key=self._timing.key_expires)
        else:
            self._state().lookupd_went(node)

    def stop(self, node: str) -> None:
        """Shut a process down cleanly, and wait until it has ended.

        An nsqd hands over its partitions within about a second (scaled).
        """
        self._call(lambda: self._begin_stop(node))
        found = self._node(node)
        self._until(lambda: not found.alive, f"{node} has stopped")

    def _begin_stop(self, node: str) -> None:
        found, coordinator = self._node(node), self._state()
        if not isinstance(found, Nsqd):
            if found.alive:
                found.kill()
                coordinator.lookupd_went(found)
            return
        if not found.reachable:
            if found.alive:  # A frozen process cannot shut down cleanly.
                found.kill()
            return
        if found.exiting:
            return
        found.leave()
        coordinator.went(found, link=0.0, key=self._timing.handover)

        def end() -> None:
            if found.exiting:
                found.kill()
                coordinator.check_followers_of(found)

        coordinator.host.after(self._timing.exiting, end)

    def start(self, node: str) -> None:
        """Start a process that was killed or stopped; it catches up after the cluster's own delays."""

        def act() -> None:
            found, coordinator = self._node(node), self._state()
            if found.alive:
                return
            found.start()
            if isinstance(found, Nsqd):
                coordinator.came(found)
            else:
                coordinator.lookupd_came(found)

        self._call(act)

    def freeze(self, node: str) -> None:
        """Freeze a process: connections stay open and silent, and only the kernel accepts new ones."""

        def act() -> None:
            found = self._node(node)
            if found.reachable:
                found.freeze()
                self._went(found, link=self._timing.link_silent)

        self._call(act)

    def thaw(self, node: str) -> None:
        """Continue a frozen process: first it learns what changed, then it processes waiting requests."""

        def act() -> None:
            found = self._node(node)
            if not found.frozen:
                return
            found.thaw()
            if isinstance(found, Nsqd):
                self._state().arrived(found)
            else:
                self._state().lookupd_came(found)

        self._call(act)

    def cut(self, node: str) -> None:
        """Reset the connections of all clients; they may reconnect at once."""
        self._call(lambda: self._node(node).cut())

    def delay(self, node: str, seconds: float) -> None:
        """Delay everything that a node receives by ``seconds``; 0 ends the delay."""

        def act() -> None:
            self._node(node).delay = seconds

        self._call(act)

    def refuse_writes(self, node: str | None = None, *, refuse: bool = True) -> None:
        """Disable writing, as an operator does: on one nsqd, or on None in the whole cluster.

        nsqd then answers publishes with ``E_FAILED_ON_NOT_LEADER``. With None,
        ``access=w`` answers ``null`` too.
        """

        def act() -> None:
            if node is None:
                self._state().disable_writes(disabled=refuse)
                return
            found = self._nsqd(node)
            found.writes_disabled = refuse
            found.update_refusals()

        self._call(act)

    def is_up(self, node: str) -> bool:
        """Return whether a node runs and is not frozen."""
        return self._call(lambda: self._node(node).reachable)
