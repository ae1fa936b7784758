"""What one poll of the cluster found, and what follows from it: leaders, topics, channels and rates.

All values are frozen; nothing here waits or asks. Two nsqds may claim a partition for a moment: then the leader of the
reading before keeps it, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from nsq_ha.admin import ChannelStats, ClusterState, ClusterStats, NodeStats, PartitionStats, TopicStats

if TYPE_CHECKING:
    from nsq_ha.admin import TopicDescription
    from nsq_ha.engine.answers import NodeInfo, TopicInfo

Place = tuple[str, int]
"""A topic and a partition."""

_NONE: Final = ClusterStats(())


@dataclass(frozen=True)
class Reading:
    """What one poll found. A part that got no answer is that of the poll before.

    Attributes:
        at: When it ended, in Unix seconds.
        took: Its length in seconds.
        stats: What the nsqds say.
        infos: What the nsqlookupds say of the nsqds, by address.
        listed: The topics that the nsqlookupds list, by name.
        cluster: The state of the nsqlookupds. None if they never answered.
        details: Descriptions of the topics that somebody looks at.
        errors: Why a part is old or missing, by part: ``nsqds``, ``nodes``, ``topics``, ``cluster`` or a topic.
        leaders: The nsqd that leads each partition; those of a plain cluster are left out.
        holders: All nsqds that hold each partition, by address.
        topics: The topics with what their leaders say.
        has_clients: The connections of channels were asked for.
    """

    at: float
    took: float = 0.0
    stats: ClusterStats = _NONE
    infos: Mapping[str, NodeInfo] = field(default_factory=dict)
    listed: Mapping[str, TopicInfo] = field(default_factory=dict)
    cluster: ClusterState | None = None
    details: Mapping[str, TopicDescription] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    leaders: Mapping[Place, str] = field(default_factory=dict)
    holders: Mapping[Place, tuple[str, ...]] = field(default_factory=dict)
    topics: Mapping[str, TopicStats] = field(default_factory=dict)
    has_clients: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether the nsqds were asked; if not, their figures are those of an earlier poll."""
        return "nsqds" not in self.errors

    @property
    def is_plain(self) -> bool:
        """Whether the cluster is a plain one, without partitions and leaders."""
        return self.cluster is not None and self.cluster.is_plain

    @cached_property
    def nodes(self) -> Mapping[str, NodeStats]:
        """What each nsqd says, by address."""
        return {node.node.address: node for node in self.stats.nodes}

    @cached_property
    def silent(self) -> Mapping[str, str]:
        """Why nsqds do not answer, by address."""
        return {node.node.address: node.error for node in self.stats.nodes if node.error}

    @cached_property
    def names(self) -> list[str]:
        """All topics, those that only the nsqlookupds list, or that nobody serves now, too."""
        return sorted({*self.topics, *self.listed, *(topic for topic, _ in (*self.holders, *self.leaders))})

    @cached_property
    def channels(self) -> Mapping[tuple[str, str], ChannelStats]:
        """The sums of all channels, by topic and channel."""
        return {(name, each.name): each for name, topic in self.topics.items() for each in topic.channels}

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic that any nsqd holds."""
        return self._numbers.get(topic, [])

    @cached_property
    def _numbers(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(self.holders):
            found.setdefault(topic, []).append(partition)
        return found


def led(
    stats: ClusterStats, before: Mapping[Place, str], *, is_plain: bool
) -> tuple[dict[Place, str], dict[Place, tuple[str, ...]], dict[str, TopicStats]]:
    """Return the leaders, the holders and the topics of an answer.

    A silent nsqd keeps what it led, until another one claims it: whether it still leads is unknown.

    Args:
        stats: The answer.
        before: The leaders of the reading before.
        is_plain: The cluster is a plain one, where nobody leads.
    """
    claims: dict[Place, list[PartitionStats]] = {}
    holders: dict[Place, list[str]] = {}
    silent = {node.node.address for node in stats.nodes if node.error}
    topics: dict[str, list[PartitionStats]] = {}
    for node in stats.nodes:
        for entry in node.partitions:
            place = (entry.topic, entry.partition)
            holders.setdefault(place, []).append(node.node.address)
            if is_plain:
                topics.setdefault(entry.topic, []).append(entry)
            elif entry.is_leader:
                claims.setdefault(place, []).append(entry)
    leaders: dict[Place, str] = {}
    for place, entries in claims.items():
        chosen = next((entry for entry in entries if entry.nsqd == before.get(place)), entries[-1])
        leaders[place] = chosen.nsqd
        topics.setdefault(chosen.topic, []).append(chosen)
    if not is_plain:
        leaders.update({place: nsqd for place, nsqd in before.items() if place not in leaders and nsqd in silent})
    return (
        leaders,
        {place: tuple(found) for place, found in holders.items()},
        {
            name: TopicStats(name, tuple(sorted(topics[name], key=lambda entry: (entry.partition, entry.nsqd))))
            for name in sorted(topics)
        },
    )


@dataclass(frozen=True, slots=True)
class Flow:
    """What changed between two readings, per second.

    Attributes:
        published: Messages of each topic.
        done: Messages of each channel that left it: finished, skipped or emptied.
        requeued: Requeues of each channel.
        timed_out: Timeouts of each channel.
    """

    published: Mapping[str, float]
    done: Mapping[tuple[str, str], float]
    requeued: Mapping[tuple[str, str], float]
    timed_out: Mapping[tuple[str, str], float]


def flow(before: Reading, after: Reading) -> Flow | None:
    """Return the rates between two readings; None if one of them is old.

    Only what the same nsqd reported in both is compared: a new leader counts from its own start.
    """
    seconds = after.at - before.at
    if seconds <= 0 or not (before.is_fresh and after.is_fresh):
        return None
    earlier = {(e.topic, e.partition, e.nsqd): e for topic in before.topics.values() for e in topic.partitions}
    published: dict[str, float] = {}
    done: dict[tuple[str, str], float] = {}
    requeued: dict[tuple[str, str], float] = {}
    timed_out: dict[tuple[str, str], float] = {}

    def add(to: dict[tuple[str, str], float], key: tuple[str, str], new: int, old: int) -> None:
        to[key] = to.get(key, 0.0) + max(0, new - old) / seconds

    for name, topic in after.topics.items():
        for entry in topic.partitions:
            old = earlier.get((name, entry.partition, entry.nsqd))
            if old is None:
                continue
            published[name] = published.get(name, 0.0) + max(0, entry.messages - old.messages) / seconds
            known = {channel.name: channel for channel in old.channels}
            for channel in entry.channels:
                if (was := known.get(channel.name)) is not None:
                    key = (name, channel.name)
                    add(done, key, channel.messages - channel.depth, was.messages - was.depth)
                    add(requeued, key, channel.requeued, was.requeued)
                    add(timed_out, key, channel.timed_out, was.timed_out)
    return Flow(published, done, requeued, timed_out)
