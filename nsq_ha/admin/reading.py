"""The model of a cluster for all who show one: what one look at it found, and what follows from that.

``stat``, ``top``, ``node``, ``doctor`` and the dashboard make their figures of it; ``findings`` says what is wrong.

All values are frozen; nothing here waits or asks. Two nsqds may claim a partition for a moment: then the leader of the
reading before keeps it, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from nsq_ha.admin.cluster import ClusterState, LookupdState
from nsq_ha.admin.description import (
    ChannelStats,
    ClientStats,
    ClusterStats,
    Latency,
    NodeStats,
    PartitionStats,
    TopicDescription,
    TopicStats,
    topics_of,
)
from nsq_ha.admin.memory import MAX_LED, SMOOTHED, ChannelFlow, Memory, Sighting, TopicPartition
from nsq_ha.base.grouping import grouped
from nsq_ha.engine.answers import NodeInfo, TopicInfo
from nsq_ha.errors import LookupUnavailableError

Part = tuple[str, int | None, str | None]
"""A topic and what counts of it: a partition, or an nsqd of a plain cluster. None and None stand for all parts."""

_NONE: Final = ClusterStats(())


class Rates(NamedTuple):
    """What changed in a channel since the reading before, a second.

    Attributes:
        done: Messages that it got rid of: finished, skipped or emptied.
        requeued: Requeues.
        timed_out: Timeouts.
    """

    done: float
    requeued: float
    timed_out: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """The figures of a channel, of a channel in one part of its topic, or of what waits in no channel.

    Attributes:
        topic: The topic.
        partition: The partition. None for a sum, and at a plain nsqd.
        nsqd: ``host:port`` of the leader, or of the plain nsqd. None for a sum.
        messages: Number of messages ever stored in the topic, or in the partition.
        unrouted: Number of messages that wait for the first channel of a plain topic.
        in_rate: Messages that the topic, or the partition, got a second since the reading before. None if unknown.
        channel: The channel. None if the topic has none.
        lag: For how many seconds the oldest message waits. None if it is unknown, as always on a plain cluster.
        rates: What changed in the channel. None without a reading before that had it.
        ordered: The topic is ordered. False for a sum.
    """

    topic: str
    partition: int | None = None
    nsqd: str | None = None
    messages: int = 0
    unrouted: int = 0
    in_rate: float | None = None
    channel: ChannelStats | None = None
    lag: float | None = None
    rates: Rates | None = None
    ordered: bool = False

    @property
    def name(self) -> str:
        """The channel; empty if the topic has none."""
        return "" if self.channel is None else self.channel.name

    @property
    def depth(self) -> int | None:
        """Number of waiting messages. None if there is no channel to wait in."""
        return self.channel.depth if self.channel is not None else self.unrouted or None

    @property
    def state(self) -> str:
        """The state of the channel, such as ``paused on 1 of 3``; empty if it delivers."""
        return "" if self.channel is None else self.channel.state

    @property
    def full(self) -> str:
        """How many of its connections take no more though messages wait, such as ``2 of 3``; empty if none."""
        full = 0 if self.channel is None else self.channel.full
        return f"{full} of {self.channel.clients}" if full and self.channel else ""

    @property
    def latency(self) -> Latency | None:
        """From publishing to FIN. None if the nsqds do not measure it."""
        return None if self.channel is None else self.channel.latency

    @property
    def out_rate(self) -> float | None:
        """Messages that the channel got rid of a second."""
        return None if self.rates is None else self.rates.done


class NsqdView(NamedTuple):
    """One nsqd, by what the nsqlookupds list and what it says of itself.

    Attributes:
        said: What it says.
        listed: What the nsqlookupds list. None if they do not list it now.
        leads: The partitions that it leads, by topic; none on a plain cluster.
        follows: The partitions that it follows, by topic.
        is_cut: It answers, but no nsqlookupd lists it.
    """

    said: NodeStats
    listed: NodeInfo | None
    leads: Mapping[str, Sequence[int]]
    follows: Mapping[str, Sequence[int]]
    is_cut: bool = False

    @property
    def address(self) -> str:
        """``host:port`` of its TCP."""
        return self.said.node.address

    @property
    def health(self) -> str:
        """``OK``, or what is wrong: such as ``hangs``, ``silent``, ``gone`` if it is not listed either."""
        if self.said.error:
            return "hangs" if self.said.hangs else "silent" if self.listed is not None else "gone"
        return "not listed" if self.is_cut else self.said.health or "unknown"

    @property
    def is_gone(self) -> bool:
        """Whether nobody says what it has: it does not answer, and is not listed."""
        return bool(self.said.error) and self.listed is None

    @property
    def version(self) -> str:
        """Its version; empty if it is unknown."""
        return self.said.version or (self.listed.version if self.listed else "")

    @property
    def hostname(self) -> str:
        """The name of its host; empty if it is unknown."""
        return self.listed.hostname if self.listed else ""

    @property
    def topics(self) -> list[str]:
        """The topics of which it has something."""
        listed = self.listed.topics if self.listed else ()
        return sorted({*listed, *(entry.topic for entry in self.said.partitions)})

    @property
    def tombstoned(self) -> list[str]:
        """The topics for which it is hidden."""
        return sorted(self.listed.tombstoned) if self.listed else []

    @property
    def size(self) -> int:
        """Bytes of messages on its disk; 0 on a plain cluster, which does not tell."""
        return sum(entry.size for entry in self.said.partitions)

    @property
    def clients(self) -> int:
        """Number of connections that consume."""
        return sum(channel.clients for entry in self.said.partitions for channel in entry.channels)


class Replicas(NamedTuple):
    """The nsqds that should hold a partition, by address.

    Attributes:
        in_sync: Those that have all of it, as its leader says; one that died a moment ago, too.
        behind: Those that lack some of it: dead ones, and those that catch up.
    """

    in_sync: frozenset[str]
    behind: frozenset[str]

    @property
    def needed(self) -> int:
        """How many of them must be in sync to write: a majority."""
        return (len(self.in_sync) + len(self.behind)) // 2 + 1


class Earlier(NamedTuple):
    """What a reading keeps of the one before.

    Attributes:
        clock: When it was made.
        leaders: Who led each partition.
        parts: What the leaders said. None if they were not asked.
    """

    clock: float
    leaders: Mapping[TopicPartition, str]
    parts: Mapping[Part, PartitionStats] | None


@dataclass(frozen=True)
class Reading:
    """What one look at a cluster found. What got no answer is that of the look before.

    Attributes:
        at: When it ended, in Unix seconds.
        took: Its length in seconds.
        stats: What the nsqds say.
        infos: What the nsqlookupds say of the nsqds, by address.
        listed: The topics that the nsqlookupds list, by name.
        cluster: The state of the nsqlookupds. None if they never answered.
        details: Descriptions of the topics that were looked at.
        errors: Why a part is old or missing, by part: ``nsqds``, ``nodes``, ``topics`` or ``cluster``.
        earlier: The reading before. None for the first one.
        has_clients: The connections of channels were asked for.
        clock: The same as ``at``, by a clock that never goes back. None to measure rates by ``at``.
        memory: What was known of the cluster before.
        absent: What known nsqds say that the nsqlookupds do not list now, by address.
        replicas: Who should hold partitions; only of topics that were asked about, since some nsqd was missing.
    """

    at: float
    took: float = 0.0
    stats: ClusterStats = _NONE
    infos: Mapping[str, NodeInfo] = field(default_factory=dict)
    listed: Mapping[str, TopicInfo] = field(default_factory=dict)
    cluster: ClusterState | None = None
    details: Mapping[str, TopicDescription] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    earlier: Earlier | None = None
    has_clients: bool = False
    clock: float | None = None
    memory: Memory = field(default_factory=Memory)
    absent: Mapping[str, NodeStats] = field(default_factory=dict)
    replicas: Mapping[TopicPartition, Replicas] = field(default_factory=dict)

    @property
    def is_fresh(self) -> bool:
        """Whether the nsqds were asked; if not, their figures are those of an earlier look."""
        return "nsqds" not in self.errors

    @property
    def unanswered(self) -> str:
        """Why no nsqlookupd answers; empty if one does."""
        return self.errors["cluster"] if {"cluster", "topics", "nodes"} <= self.errors.keys() else ""

    def require(self) -> None:
        """Do nothing if the nsqlookupds were asked, or at least the nsqds that are known.

        Raises:
            LookupUnavailableError: They were not; the text says why.
        """
        for part in ("nsqds",) if self.unanswered else ("nsqds", "cluster", "topics", "nodes"):
            if part in self.errors:
                raise LookupUnavailableError(self.errors[part])

    @property
    def is_plain(self) -> bool:
        """Whether the cluster is a plain one, without partitions and leaders."""
        return (
            any(node.node.is_plain for node in self.nodes.values()) if self.cluster is None else self.cluster.is_plain
        )

    @property
    def lookupds(self) -> Sequence[LookupdState]:
        """The nsqlookupds; none before they answer."""
        known = () if self.cluster is None else self.cluster.lookupds
        return [replace(each, error=self.unanswered) for each in known] if self.unanswered else known

    @property
    def stable(self) -> bool | None:
        """Whether the cluster is stable. None on a plain one, or if nobody says so."""
        return None if self.cluster is None else self.cluster.stable

    @cached_property
    def kept(self) -> Earlier:
        """What the next reading needs of this one."""
        parts = {self._part(entry): entry for topic in self.topics.values() for entry in topic.partitions}
        clock = self.at if self.clock is None else self.clock
        return Earlier(clock, self.leaders, parts if self.is_fresh else None)

    @cached_property
    def remembered(self) -> Memory:
        """What is known of the cluster after it, for the next one."""
        if not self.is_fresh:
            return self.memory
        led = grouped((address, partition) for partition, address in self.leaders.items())
        waits = dict[str, int]()
        for address, node in self.nodes.items() if self.is_plain else ():
            led[address] = [(entry.topic, 0) for entry in node.partitions if _waiting(entry)]
            waits[address] = sum(map(_waiting, node.partitions))
        answering = {
            address: Sighting(self.at, node.node, frozenset(led.get(address, ())[:MAX_LED]), waits.get(address, 0))
            for address, node in self.nodes.items()
            if not node.error and address not in self.absent
        }
        lookupds = [each.url for each in self.lookupds if not each.error] if "cluster" not in self.errors else []
        held, topics = ((), ()) if self.is_plain else (self.holders.keys(), self.names)
        silent = {address: self.nodes[address].node for address in self.silent}
        found = self.memory.after(
            self.at, answering, lookupds, self.leaders, partitions=held, topics=topics, silent=silent
        )
        return replace(found, flows=self.flows)

    @cached_property
    def flows(self) -> Mapping[str, ChannelFlow]:
        """How the parts of channels move that have messages, or that had some a moment ago, by :func:`flow_key`."""
        if not (self.is_fresh and self.nodes):
            return self.memory.flows
        found, known = dict[str, ChannelFlow](), self.memory.flows
        done = _done_plain if self.is_plain else _done
        for row in self.parts:
            if (channel := row.channel) is None:
                continue
            old = known.get(key := flow_key(row))
            if (old or channel.held) and len(found) < MAX_LED:
                now = done(channel), channel.requeued + channel.timed_out, channel.depth
                flow = old.after(self.at, *now) if old else ChannelFlow(self.at, *now, self.at, self.at)
                if channel.held or self.at - flow.since < SMOOTHED:
                    found[key] = replace(flow, read=self.at) if channel.clients else flow
        return found

    # ------------------------------------------------------------ nsqds and partitions

    @cached_property
    def nodes(self) -> Mapping[str, NodeStats]:
        """What each nsqd says, by address: those that are listed, and those that answer though they are not."""
        unlisted = {address: node for address, node in self.absent.items() if not node.error}
        return {node.node.address: node for node in self.stats.nodes} | unlisted

    @cached_property
    def silent(self) -> Mapping[str, str]:
        """Why nsqds do not answer, by address."""
        return {address: node.error for address, node in self.nodes.items() if node.error}

    @cached_property
    def answering(self) -> frozenset[str]:
        """The nsqds that answer, by address, and the nsqlookupds that do, by URL."""
        lookupds = {each.url for each in self.lookupds if not each.error}
        return frozenset((self.nodes.keys() - self.silent.keys()) | lookupds)

    @cached_property
    def holders(self) -> Mapping[TopicPartition, tuple[str, ...]]:
        """All nsqds that hold each partition, by address."""
        held = ((address, entry) for address, node in self.nodes.items() for entry in node.partitions)
        found = grouped(((entry.topic, entry.partition), address) for address, entry in held)
        return {partition: tuple(addresses) for partition, addresses in found.items()}

    @cached_property
    def leaders(self) -> Mapping[TopicPartition, str]:
        """The nsqd that leads each partition, by address; none on a plain cluster.

        A silent nsqd keeps what it led, until another one claims it: whether it still leads is unknown.
        """
        if self.is_plain:
            return {}
        before = {part: address for address, each in self.memory.nsqds.items() for part in each.led} | dict(self.former)
        leaders: dict[TopicPartition, str] = {}
        for address, node in self.nodes.items():
            for entry in node.partitions:
                partition = (entry.topic, entry.partition)
                is_taken = leaders.get(partition, "") == before.get(partition) or address in self.absent
                if entry.is_leader and not (partition in leaders and is_taken):
                    leaders[partition] = address
        return leaders | {p: nsqd for p, nsqd in before.items() if p not in leaders and nsqd in self.silent}

    @property
    def former(self) -> Mapping[TopicPartition, str]:
        """Who led each partition in the reading before."""
        return self.earlier.leaders if self.earlier is not None else {}

    @property
    def moved(self) -> Mapping[TopicPartition, str]:
        """The partitions that another nsqd leads than in the reading before, with the former leader."""
        return {partition: old for partition, old in self.former.items() if self.leaders.get(partition, old) != old}

    @cached_property
    def nsqds(self) -> Mapping[str, NsqdView]:
        """The nsqds, by address.

        What a silent one led before it still leads, as far as is known; at the first look, what the nsqlookupds list.
        """
        led = grouped((address, partition) for partition, address in sorted(self.leaders.items()))
        found = {}
        for address, node in sorted(self.nodes.items()):
            info, leads = self.infos.get(address), grouped(led.get(address, ()))
            if node.error and info is not None and self.earlier is None and not self.is_plain:
                leads = {topic: sorted(held) for topic, held in sorted(info.partitions.items()) if held}
            holds = [(entry.topic, entry.partition) for entry in node.partitions if not self.is_plain]
            follows = grouped(each for each in holds if self.leaders.get(each) != address)
            found[address] = NsqdView(node, info, leads, follows, is_cut=address in self.absent and not self.unanswered)
        gone = (NsqdView(node, None, {}, {}) for address, node in self.absent.items() if address not in found)
        return found | {each.address: each for each in gone}

    # ------------------------------------------------------------ topics and channels

    @cached_property
    def topics(self) -> Mapping[str, TopicStats]:
        """The topics with what their leaders say, by name."""
        led = (
            entry
            for address, node in self.nodes.items()
            for entry in node.partitions
            if self.is_plain or self.leaders.get((entry.topic, entry.partition)) == address
        )
        return {topic.topic: topic for topic in topics_of(led)}

    @cached_property
    def names(self) -> list[str]:
        """All topics, those that only the nsqlookupds list, or that nobody serves now, too."""
        return sorted({*self.topics, *self.listed, *(topic for topic, _ in (*self.holders, *self.leaders))})

    @cached_property
    def channels(self) -> Mapping[tuple[str, str], ChannelStats]:
        """The sums of all channels, by topic and channel."""
        return {(row.topic, row.name): row.channel for row in self.rows if row.channel is not None}

    @property
    def waiting(self) -> int:
        """Number of messages that wait in all channels, and in plain topics without one."""
        return sum(row.depth or 0 for row in self.rows)

    @cached_property
    def by_topic(self) -> Mapping[str, Sequence[FigureRow]]:
        """The rows of each topic that an nsqd serves."""
        return grouped((row.topic, row) for row in self.rows)

    @property
    def lag(self) -> float | None:
        """For how many seconds the oldest of all waiting messages waits. None if it is unknown."""
        return max((row.lag for row in self.rows if row.lag is not None), default=None)

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic that any nsqd holds."""
        return self._numbers.get(topic, [])

    @cached_property
    def _numbers(self) -> Mapping[str, list[int]]:
        return grouped(sorted(self.holders))

    # ------------------------------------------------------------ figures

    @cached_property
    def rows(self) -> Sequence[FigureRow]:
        """The figures of each channel over all its parts, and of what waits in no channel, by topic and channel."""
        rows: list[FigureRow] = []
        for topic in self.topics.values():
            row = FigureRow(topic=topic.topic, messages=topic.messages, unrouted=sum(map(_unrouted, topic.partitions)))
            rows += self._rows(row, topic.channels, (topic.topic, None, None))
        return rows

    @cached_property
    def parts(self) -> Sequence[FigureRow]:
        """The figures of each channel by partition, or by nsqd of a plain cluster."""
        rows: list[FigureRow] = []
        for entry in (entry for topic in self.topics.values() for entry in topic.partitions):
            topic, partition, _ = part = self._part(entry)
            row = FigureRow(topic=topic, partition=partition, nsqd=entry.nsqd, messages=entry.messages)
            row = replace(row, unrouted=_unrouted(entry), ordered=entry.ordered)
            rows += self._rows(row, entry.channels, part)
        return rows

    @property
    def seconds(self) -> float | None:
        """The time since the reading before. None if there is none, or the nsqds were not asked in both."""
        if self.earlier is None or self.earlier.parts is None or self.kept.parts is None:
            return None
        passed = self.kept.clock - self.earlier.clock
        return passed if passed > 0 else None

    @cached_property
    def published(self) -> Mapping[Part, float]:
        """The messages that each part of a topic, and each topic, got a second since the reading before."""
        found: dict[Part, float] = {}
        for part, new, old, seconds in self._compared():
            for key in (part, (part[0], None, None)):
                found[key] = found.get(key, 0.0) + max(0, new.messages - old.messages) / seconds
        return found

    @cached_property
    def rates(self) -> Mapping[tuple[Part, str], Rates]:
        """What changed in the channels of each part, and in each channel, a second since the reading before."""
        found: dict[tuple[Part, str], Rates] = {}
        done = _done_plain if self.is_plain else _done
        for part, new, old, seconds in self._compared():
            known = {channel.name: channel for channel in old.channels}
            for channel, was in ((each, known[each.name]) for each in new.channels if each.name in known):
                grown = [done(channel) - done(was)]
                # A new leader has the log of the former one, but counts these from its own start.
                is_same = new.nsqd == old.nsqd
                grown += [channel.requeued - was.requeued, channel.timed_out - was.timed_out] if is_same else [0, 0]
                for key in ((part, channel.name), ((part[0], None, None), channel.name)):
                    known_rates = found.get(key, Rates(0.0, 0.0, 0.0))
                    found[key] = Rates(*(r + max(0, n) / seconds for r, n in zip(known_rates, grown, strict=True)))
        return found

    def _compared(self) -> Iterator[tuple[Part, PartitionStats, PartitionStats, float]]:
        """Yield each part with what it and the reading before say of it, and the seconds between."""
        if (seconds := self.seconds) is None or self.earlier is None:
            return
        before = self.earlier.parts or {}
        for part, entry in (self.kept.parts or {}).items():
            if part in before:
                yield part, entry, before[part], seconds

    def flow(self, row: FigureRow) -> ChannelFlow | None:
        """Return how the channel of one of :attr:`parts` moves. None if nothing was in it, or of too many channels."""
        return self.flows.get(flow_key(row))

    def _part(self, entry: PartitionStats) -> Part:
        return (entry.topic, None, entry.nsqd) if self.is_plain else (entry.topic, entry.partition, None)

    def _rows(self, row: FigureRow, channels: Iterable[ChannelStats], part: Part) -> list[FigureRow]:
        row, rates, is_plain = replace(row, in_rate=self.published.get(part)), self.rates, self.is_plain
        found = [
            # A plain nsqd never says how old a message is: 0 s for an empty channel would look like a figure.
            replace(row, channel=each, lag=None if is_plain else each.lag(self.at), rates=rates.get((part, each.name)))
            for each in channels
        ]
        return [*found, row] if row.unrouted or not found else found


def connections_of(rows: Iterable[FigureRow]) -> tuple[list[tuple[FigureRow, ClientStats]], list[str]]:
    """Return the connections to the channels of some parts, and the nsqds that have too many to list them."""
    channels = [(row, row.channel) for row in rows if row.channel is not None]
    found = [(row, client) for row, channel in channels for client in channel.connections]
    return found, sorted({row.nsqd or "" for row, channel in channels if channel.clients and not channel.connections})


def flow_key(row: FigureRow) -> str:
    """Return how the memory names a channel in one part of its topic."""
    return f"{row.topic} {row.nsqd if row.partition is None else row.partition} {row.name}"


def _done(channel: ChannelStats) -> int:
    """Return how many messages a channel of a partition got rid of."""
    return channel.messages - channel.depth


def _done_plain(channel: ChannelStats) -> int:
    """Return the same of a plain nsqd, whose depth has neither those in flight nor deferred ones."""
    return _done(channel) - channel.in_flight - channel.deferred


def _unrouted(entry: PartitionStats) -> int:
    """Return how many messages wait at a plain nsqd for a channel; for a moment, each new one does."""
    return entry.unrouted if entry.paused or not entry.channels else 0


def _waiting(entry: PartitionStats) -> int:
    """Return how many messages of a topic wait at a plain nsqd, where nobody else has them."""
    return entry.unrouted + sum(channel.depth for channel in entry.channels)
