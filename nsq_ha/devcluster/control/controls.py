"""What a cluster of either kind does with its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host, Node


class Control(Protocol):
    """The nodes, and what their comings and goings cause.

    Attributes:
        host: What the nodes run on.
    """

    host: Host

    @property
    def lookupds(self) -> Sequence[Node]:
        """The nsqlookupds."""

    @property
    def nsqds(self) -> Sequence[Node]:
        """The nsqds."""

    def begin(self) -> None:
        """Start all nodes."""

    def tick(self, now: float) -> None:
        """Let time pass."""

    def kill(self, node: Node) -> None:
        """Kill a process."""

    def stop(self, node: Node) -> None:
        """Begin to shut a process down cleanly."""

    def start(self, node: Node) -> None:
        """Start a process."""

    def freeze(self, node: Node) -> None:
        """Freeze a process."""

    def thaw(self, node: Node) -> None:
        """Continue a frozen process."""

    def cut(self, node: Node) -> None:
        """Reset the connections of a process."""

    def refuse_writes(self, node: Node | None, *, refuse: bool) -> None:
        """Disable or enable writing, on None in the whole cluster."""
