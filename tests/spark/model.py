"""A cluster in memory that answers the planner's questions: logs of messages with sizes and times."""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from nsq_ha.admin.nsqd_http import Search, StoredMessage
from nsq_ha.errors import ConnectError, LookupUnavailableError, NsqError
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.spark.cluster import BlockingCluster, Extent
from nsq_ha.spark.plan.boundaries import PartitionLog

NODES = tuple(Node(f"127.0.0.{number + 1}", 4150, 4151) for number in range(8))


@dataclass
class Log:
    """One partition's log: messages of some sizes, the older ones cleaned, the newest maybe not committed yet."""

    sizes: Sequence[int]
    times_ms: Sequence[int] = ()
    cleaned: int = 0
    uncommitted: int = 0

    @property
    def offsets(self) -> list[int]:
        """Where each message begins, and behind the last one the end."""
        return [0, *itertools.accumulate(self.sizes)]

    @property
    def extent(self) -> Extent:
        return Extent(self.offsets[self.cleaned], self.offsets[-1], len(self.sizes))

    def stored(self, number: int) -> StoredMessage:
        time_ms = self.times_ms[number] if self.times_ms else number
        return StoredMessage(number, 0, time_ms * 1_000_000, self.offsets[number], number + 1, "", "")

    def find(self, mode: Search, position: int) -> StoredMessage | None:
        """Answer as a leader does; None for what is not there, or not committed yet."""
        for number in range(self.cleaned, len(self.sizes) - self.uncommitted):
            if number + 1 == position if mode == "count" else self.offsets[number] >= position:
                return self.stored(number)
        # One more is committed until the next question.
        self.uncommitted = max(0, self.uncommitted - 1)
        return None


@dataclass
class Model:
    """Topics with their logs, and what goes wrong with them."""

    topics_: dict[str, dict[int, Log]] = field(default_factory=dict)
    leaderless: set[tuple[str, int]] = field(default_factory=set)
    silent: bool = False
    deaf: set[Node] = field(default_factory=set)
    opened: list[tuple[str, int, str, int]] = field(default_factory=list)
    asked: int = 0
    now: float | None = None
    silence: LookupUnavailableError | None = None
    known: dict[str, TopicView] = field(default_factory=dict)

    one_look = staticmethod(contextlib.nullcontext)

    @property
    def cluster(self) -> BlockingCluster:
        return cast("BlockingCluster", self)

    def view(self, topic: str, max_age: float = 0.0) -> TopicView:
        self.asked += 1
        if self._is_silent() and topic in self.known:
            return self.known[topic]
        self.known[topic] = self._view(topic)
        return self.known[topic]

    def _is_silent(self) -> bool:
        self.silence = LookupUnavailableError("none of them answers") if self.silent else None
        return self.silent

    def _view(self, topic: str) -> TopicView:
        if self.silence is not None:
            raise self.silence
        logs = self.topics_.get(topic)
        if logs is None:
            return TopicView(topic, None, {}, complete=True, exists=False)
        leaders = {number: NODES[number] for number in logs if (topic, number) not in self.leaderless}
        meta = TopicMeta(partition_num=len(logs))
        return TopicView(topic, meta, leaders, complete=len(leaders) == len(logs), exists=True)

    def extents(self, topic: str, node: Node) -> dict[int, Extent]:
        self._hear(node)
        return {number: log.extent for number, log in self.topics_[topic].items() if NODES[number] == node}

    def committed(
        self, written: Mapping[tuple[str, int], tuple[Node, Extent]], channel: str | None, prefix: str
    ) -> dict[tuple[str, int], Extent]:
        return {place: extent for place, (_, extent) in written.items()}

    def stored(self, topic: str, partition: int, node: Node, mode: Search, position: int) -> StoredMessage | None:
        self._hear(node)
        return self.topics_[topic][partition].find(mode, position)

    def clock(self, node: Node) -> float | None:
        self._hear(node)
        return self.now

    def topics(self, max_age: float = 0.0) -> tuple[str, ...]:
        if self._is_silent() and self.known:
            return tuple(sorted(self.known))
        return tuple(sorted(self.topics_))

    def open_channel(self, topic: str, partition: int, node: Node, channel: str, offset: int) -> None:
        self._hear(node)
        self.opened.append((topic, partition, channel, offset))

    def flush(self, topic: str, partition: int, node: Node, prefix: str) -> None:
        """Do nothing, as for a topic that accepts only registered channels."""

    def _hear(self, node: Node) -> None:
        self.asked += 1
        if node in self.deaf:
            error: NsqError = ConnectError(f"cannot connect to nsqd {node.address}")
            raise error


def search_in_log(log: Log, patience: float = 0.05) -> PartitionLog:
    """Return the searcher of one log."""
    return PartitionLog("t", 0, NODES[0], log.extent, Model({"t": {0: log}}).cluster, patience, "spark-")
