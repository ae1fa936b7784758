"""Where one partition is published to, as its topic's look-ups tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.errors import NoLeaderError

if TYPE_CHECKING:
    from nsq_ha.discovery.watcher import TopicWatch
    from nsq_ha.policy.topology import Node, TopicView


class Leader:
    """The leader of one partition."""

    def __init__(self, watch: TopicWatch, partition: int) -> None:
        """Prepare; ``watch`` tells who it is."""
        self._watch = watch
        self._partition = partition
        self._view: TopicView | None = None
        self._word: int | None = partition

    def node(self) -> Node:
        """Return who takes publishes now.

        Raises:
            NoLeaderError: Nobody does.
        """
        view = self._watch.view
        node = view.publishable.get(self._partition) if view is not None else None
        if node is None:
            raise NoLeaderError(f"{self._watch.topic}-{self._partition} has no leader that takes writes now")
        return node

    def differs(self, node: Node) -> bool:
        """Tell whether another one than ``node`` is known to lead."""
        view = self._watch.view
        leader = view.leaders.get(self._partition) if view is not None else None
        return leader is not None and leader != node

    def word(self) -> int | None:
        """Return the partition as commands name it. None leaves it out, for servers without partitions."""
        view = self._watch.view
        if view is not self._view:
            self._view = view
            is_partitioned = view is None or view.meta is None or view.meta.is_partitioned
            self._word = self._partition if is_partitioned else None
        return self._word
