"""Faults on command: kill, stop, freeze, cut, delay, refuse - of nsqds and nsqlookupds alike.

Each control makes the fault itself; what the others notice and decide follows
in the cluster's own time.

Source: failures reference 3.
"""

from __future__ import annotations

from nsq_ha.devcluster.nsqd.node import Nsqd
from nsq_ha.devcluster.runtime import Runtime


class Faults(Runtime):
    """The controls that break things; a node is named ``nsqd-0`` or ``nsqlookupd-0``.

    Doing to a node what was done to it already has no effect.
    """

    def kill(self, node: str) -> None:
        """End a process without goodbye: connections are reset, attempts refused; its data stays.

        An nsqd is missed after its key has ended: then followers lead.
        """

        def act() -> None:
            found = self._node(node)
            if not found.alive:
                return
            found.kill()
            if isinstance(found, Nsqd):
                timing = self._state().timing
                self._state().went(found, link=timing.link_broken, key=timing.key_expires)

        self._call(act)

    def stop(self, node: str) -> None:
        """Stop a process in good order, and wait until it is gone.

        An nsqd hands its partitions over within about a second (scaled).
        """
        self._call(lambda: self._begin_stop(node))
        found = self._node(node)
        self._until(lambda: not found.alive, f"{node} has stopped")

    def _begin_stop(self, node: str) -> None:
        found, coordinator = self._node(node), self._state()
        if not found.reachable:
            if found.alive:  # A frozen process cannot take its leave.
                found.kill()
            return
        if not isinstance(found, Nsqd):
            found.kill()
            return
        if found.exiting:
            return
        found.leave()
        coordinator.went(found, link=0.0, key=coordinator.timing.handover)

        def end() -> None:
            if found.exiting:
                found.kill()
                coordinator.check_followers_of(found)

        coordinator.after(coordinator.timing.exiting, end)

    def start(self, node: str) -> None:
        """Start a process that was killed or stopped; it catches up in its own time."""

        def act() -> None:
            found, coordinator = self._node(node), self._state()
            if found.alive:
                return
            found.start()
            if isinstance(found, Nsqd):
                coordinator.came(found)

        self._call(act)

    def freeze(self, node: str) -> None:
        """Let a process hang: connections stay open and silent, new ones are accepted by the kernel alone."""

        def act() -> None:
            found = self._node(node)
            if not found.reachable:
                return
            found.freeze()
            if isinstance(found, Nsqd):
                timing = self._state().timing
                self._state().went(found, link=timing.link_silent, key=timing.key_expires)

        self._call(act)

    def thaw(self, node: str) -> None:
        """Let a frozen process go on: first it learns what it lost, then it works off what waited."""

        def act() -> None:
            found = self._node(node)
            if not found.frozen:
                return
            found.thaw()
            if isinstance(found, Nsqd):
                self._state().arrived(found)

        self._call(act)

    def cut(self, node: str) -> None:
        """Reset the connections of all clients; they may come back at once."""
        self._call(lambda: self._node(node).cut())

    def delay(self, node: str, seconds: float) -> None:
        """Let everything that a node is sent arrive ``seconds`` late; 0 ends that."""

        def act() -> None:
            self._node(node).delay = seconds

        self._call(act)

    def refuse_writes(self, node: str | None = None, *, refuse: bool = True) -> None:
        """Disable writing, as an operator does: on one nsqd, or with None in the whole cluster.

        Publishes are answered ``E_FAILED_ON_NOT_LEADER``; with None ``access=w``
        answers ``null`` too.
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
        """Whether a node runs and is not frozen."""
        return self._call(lambda: self._node(node).reachable)
