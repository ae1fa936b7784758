"""The statistics and the description of a cluster as values, and how they are read from nsqd's ``/stats``.

The answer of an nsqd is untrusted input.

Source: server protocol 12; youzan/nsq and upstream ``nsqd/stats.go``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from nsq_ha.admin.words import partly
from nsq_ha.base.grouping import grouped
from nsq_ha.base.shapes import decoder
from nsq_ha.engine.body import MAX_TEXT, Int64
from nsq_ha.options.checks import MAX_PARTITION_ID, is_valid_name
from nsq_ha.policy.topology import Node, TopicView


@dataclass(frozen=True, slots=True)
class Latency:
    """How long messages take from publishing to FIN, if nsqd measures it (``-e2e-processing-latency-percentile``).

    Attributes:
        count: Number of measured messages in the window.
        percentiles: Pairs of a share of the messages, such as 0.99, and the seconds within which they were finished.
    """

    count: int
    percentiles: tuple[tuple[float, float], ...]


def _named(name: str, default: Any) -> Any:  # noqa: ANN401 - as msgspec.field
    """Return a field that has another name in nsqd's answer."""
    return msgspec.field(default=default, name=name)


class ClientStats(msgspec.Struct, frozen=True, gc=False):
    """One connection that consumes a channel.

    Attributes:
        client_id: The client's name for itself.
        hostname: The name of its host.
        address: Its ``host:port``, as nsqd sees it.
        user_agent: Its library and version.
        ready: How many messages it is ready for (RDY).
        in_flight: Number of delivered, unanswered messages.
        messages: Number of messages delivered to it.
        finished: Number of messages that it finished.
        requeued: Number of messages that it requeued.
        connected_at: When it connected, in Unix seconds.
        tls: It uses TLS.
        deflate: It uses the compression Deflate.
        snappy: It uses the compression Snappy.
        tag: The tag of the messages that it wants; empty if it has none.
        sample_rate: Percent of the messages that it wants; 0 for all.
        tls_version: The version of TLS, such as ``TLS1.3``, if nsqd sends it; without TLS it means nothing.
        auth_identity: Who it is, as the auth server says; empty without AUTH.
        topology_region: Its region; empty if it has none.
        topology_zone: Its zone; empty if it has none.
    """

    client_id: str = ""
    hostname: str = ""
    address: str = _named("remote_address", "")
    user_agent: str = ""
    ready: Int64 = _named("ready_count", 0)
    in_flight: Int64 = _named("in_flight_count", 0)
    messages: Int64 = _named("message_count", 0)
    finished: Int64 = _named("finish_count", 0)
    requeued: Int64 = _named("requeue_count", 0)
    connected_at: Int64 = _named("connect_ts", 0)
    tls: bool = False
    deflate: bool = False
    snappy: bool = False
    tag: str = _named("desired_tag", "")
    sample_rate: Int64 = 0
    tls_version: str = ""
    auth_identity: str = ""
    topology_region: str = ""
    topology_zone: str = ""

    @property
    def agreed(self) -> tuple[str, ...]:
        """What is agreed for it: TLS, compression, what it wants of the messages, where and who it is."""
        topology = "/".join(filter(None, (self.topology_region, self.topology_zone)))
        facts = {
            (self.tls_version or "TLS"): self.tls,
            "deflate": self.deflate,
            "snappy": self.snappy,
            f"tag {self.tag}": self.tag,
            f"samples {self.sample_rate} %": self.sample_rate,
            f"in {topology}": topology,
            f"AUTH {self.auth_identity}": self.auth_identity,
        }
        return tuple(text for text, has in facts.items() if has)


class PublisherStats(msgspec.Struct, frozen=True, gc=False):
    """One connection that publishes to a topic, at one nsqd.

    Attributes:
        address: Its ``host:port``, as nsqd sees it.
        user_agent: Its library and version.
        hostname: The name of its host; empty on a partitioned nsqd, which does not tell.
        messages: Number of messages that it published there.
        failed: How many could not be stored; 0 on a plain nsqd.
        since: When it first published, in Unix seconds; 0 on a plain nsqd, which does not tell.
    """

    address: str = _named("remote_address", "")
    user_agent: str = ""
    hostname: str = ""
    messages: Int64 = _named("pub_count", 0)
    failed: Int64 = _named("err_count", 0)
    since: Int64 = _named("last_pub_ts", 0)  # the server sets it once


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """A channel of one partition, or the sum over several.

    Attributes:
        name: The channel.
        depth: Number of waiting messages.
        depth_bytes: Their size in the queue.
        in_flight: Number of delivered, unanswered messages.
        deferred: Number of messages that were requeued with a delay and still wait.
        requeued: Number of requeues since the node started.
        timed_out: Number of timeouts since the node started.
        clients: Number of connections.
        paused: An operator stopped delivery. In a sum: in any partition.
        skipped: An operator chose to confirm messages without delivery. In a sum: in any partition.
        messages: Number of messages that the channel ever got; on a partitioned nsqd, that it may read.
        oldest_at: When the oldest message that waits was published, in Unix seconds by the server's clock. None if none
            waits, or the server does not know it: plain nsqds never do, and partitioned ones not before they read it.
        latency: From publishing to FIN. None if nsqd does not measure it. In a sum: the longest of all.
        connections: The clients, if they were asked for.
        on_disk: How many of the waiting messages are on the disk of a plain nsqd; the others are only in its memory. A
            partitioned nsqd has all of them on disk, and this is 0.
        places: How many partitions, or plain nsqds, the sum is over.
        paused_at: In a sum: how many of them are paused.
        skipped_at: In a sum: how many of them are skipped.
        finished_within: How many messages took less than 16, 32, 64 ... ms from publishing to FIN, and longer, since a
            partitioned nsqd started; empty in a sum, and on a plain nsqd, as the next one.
        delivered_within: The same from delivery to FIN.
    """

    name: str
    depth: int
    depth_bytes: int
    in_flight: int
    deferred: int
    requeued: int
    timed_out: int
    clients: int
    paused: bool
    skipped: bool
    messages: int = 0
    oldest_at: float | None = None
    latency: Latency | None = None
    connections: tuple[ClientStats, ...] = ()
    on_disk: int = 0
    places: int = 1
    paused_at: int = 0
    skipped_at: int = 0
    finished_within: tuple[int, ...] = ()
    delivered_within: tuple[int, ...] = ()

    @property
    def held(self) -> int:
        """Number of messages that wait, are in flight or deferred; on some servers those in flight wait, too."""
        return self.depth + self.in_flight + self.deferred

    @property
    def state(self) -> str:
        """``skipped``, ``paused``, or how much of a sum is, such as ``paused on 1 of 3``; empty if nothing is."""
        if self.skipped:
            return partly("skipped", self.skipped_at, self.places)
        return partly("paused", self.paused_at, self.places) if self.paused else ""

    @property
    def full(self) -> int:
        """How many of ``connections`` take no more though messages wait: as much as they asked for is in flight.

        Why, only the consumer knows: ``max_rate``, ``max_in_flight``, slow handlers, or a pause if it asks for none.
        """
        return sum(each.in_flight >= each.ready for each in self.connections) if self.depth else 0

    def lag(self, now: float) -> float | None:
        """Return for how many seconds the oldest waiting message waits; 0 if none waits. None if it is unknown.

        Args:
            now: The time in Unix seconds, such as ``time.time()``.
        """
        if not self.depth:
            return 0.0
        return None if self.oldest_at is None else max(0.0, now - self.oldest_at)


@dataclass(frozen=True, slots=True)
class PartitionStats:
    """A partition on one node, or what a plain nsqd has of a topic.

    A plain nsqd counts messages since its start, and sends no positions: these are 0.

    Attributes:
        topic: The topic.
        partition: The partition. On a plain nsqd 0, or the number in a description.
        is_leader: The node leads it. True on a plain nsqd.
        begin_offset: Position of the oldest kept message, in bytes.
        end_offset: Position of the next message, in bytes. The last messages before it may not be committed yet.
        messages: Number of messages ever stored.
        ordered: The topic is ordered.
        extended: Its messages may have headers.
        channels: By name.
        unrouted: Messages of a plain nsqd that are in none of its channels yet; it keeps them for the first one.
        paused: An operator stopped the plain topic: its channels get no new messages.
        publishers: Number of connections that published to it; 0 on a plain nsqd.
        latency: From publishing to FIN, over all channels. None if nsqd does not measure it.
        nsqd: ``host:port`` of the node; empty if it is unknown.
        on_disk: How many of ``unrouted`` are on the disk of a plain nsqd; the others are only in its memory.
        producers: The connections that publish, if clients were asked for.
        hourly_bytes: Bytes that were published in the last whole hour; 0 on a plain nsqd.
        sizes: How many messages had less than 100 bytes, 1, 2, 4 ... KiB, since a partitioned nsqd started; empty on a
            plain one, as the next one.
        written_within: How many took less than 1, 2, 4 ... ms to be written.
    """

    topic: str
    partition: int
    is_leader: bool
    begin_offset: int
    end_offset: int
    messages: int
    ordered: bool
    extended: bool
    channels: tuple[ChannelStats, ...]
    unrouted: int = 0
    paused: bool = False
    publishers: int = 0
    latency: Latency | None = None
    nsqd: str = ""
    on_disk: int = 0
    producers: tuple[PublisherStats, ...] = ()
    hourly_bytes: int = 0
    sizes: tuple[int, ...] = ()
    written_within: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of its messages on the disk of the node; 0 on a plain nsqd, which does not tell."""
        return self.end_offset - self.begin_offset


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic over all partitions whose leader answered, or all nsqds of a plain topic that answered.

    Attributes:
        topic: The topic.
        partitions: What the leaders say, by partition; what the nsqds say, by address.
    """

    topic: str
    partitions: tuple[PartitionStats, ...]

    @property
    def channels(self) -> tuple[ChannelStats, ...]:
        """The sums of all channels, by name."""
        return sums(channel for entry in self.partitions for channel in entry.channels)

    @property
    def messages(self) -> int:
        """Number of messages ever stored; on a plain cluster since the nsqds started."""
        return sum(entry.messages for entry in self.partitions)

    @property
    def size(self) -> int:
        """Bytes of its messages on the disks of the leaders; 0 on a plain cluster, which does not tell."""
        return sum(entry.size for entry in self.partitions)


@dataclass(frozen=True, slots=True)
class NodeStats:
    """What one nsqd says of itself.

    Attributes:
        node: Its addresses.
        version: Its version; empty if it did not answer.
        health: ``OK``, or what is wrong.
        started_at: When it started, in Unix seconds; 0 if it did not answer.
        partitions: All that it holds, also what it does not lead.
        error: Why there is no answer; empty if there is one.
        took: Seconds until its answer was there; 0 if that was not measured.
        hangs: It let the time for an answer pass; it did not refuse the connection.
    """

    node: Node
    version: str = ""
    health: str = ""
    started_at: int = 0
    partitions: tuple[PartitionStats, ...] = ()
    error: str = ""
    took: float = 0.0
    hangs: bool = False


@dataclass(frozen=True, slots=True)
class ClusterStats:
    """What all nsqds of a cluster say, at about the same time.

    Attributes:
        nodes: All that the nsqlookupds list, by address, those that do not answer, too.
    """

    nodes: tuple[NodeStats, ...]

    @property
    def topics(self) -> tuple[TopicStats, ...]:
        """The topics by name, of what the answering nsqds lead."""
        return tuple(topics_of(entry for node in self.nodes for entry in node.partitions if entry.is_leader))

    @property
    def silent(self) -> tuple[NodeStats, ...]:
        """The nsqds that did not answer, with the reason: what they lead is missing in :attr:`topics`."""
        return tuple(node for node in self.nodes if node.error)


class Unfinished(NamedTuple):
    """The messages that a channel of one nsqd still has to deliver, in all its partitions.

    Attributes:
        waiting: Waiting messages, without deferred ones; some servers include those in flight.
        held: Unanswered messages of connected clients.
        orphaned: Unanswered messages of clients that are gone; redelivered after their message timeout.
        clients: Number of connections.
        paused: An operator stopped delivery.
        deferred: Messages that were requeued with a delay and still wait.
    """

    waiting: int
    held: int
    orphaned: int
    clients: int
    paused: bool
    deferred: int = 0


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic, or one nsqd of a plain topic.

    Attributes:
        partition: The partition. The number of an nsqd has no meaning, and can change.
        leader: The leader, or the nsqd. None if the partition has no leader now.
        writable: nsqlookupd names the leader for writing, too.
        replicas: The cluster's names of the nodes in sync, including the leader; empty if the leader did not answer.
        stats: The leader's statistics. None if it did not answer.
        error: Why it did not answer; empty if it did, or if there is no leader.
    """

    partition: int
    leader: Node | None
    writable: bool
    replicas: tuple[str, ...]
    stats: PartitionStats | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The current state of a topic.

    Attributes:
        view: The nsqlookupds' view for reading.
        partitions: One for each of ``partition_num``, in order; one for each nsqd of a plain topic.
        note: Why partitions are not writable, if a server says so; else empty.
    """

    view: TopicView
    partitions: tuple[PartitionDescription, ...]
    note: str

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of all channels, sorted."""
        return tuple(channel.name for channel in self.totals)

    @property
    def depth(self) -> Mapping[str, int]:
        """Number of waiting messages by channel, over all partitions whose leader answered."""
        return {channel.name: channel.depth for channel in self.totals}

    @property
    def totals(self) -> tuple[ChannelStats, ...]:
        """The sums of all channels by name, over all partitions whose leader answered."""
        return sums(c for entry in self.partitions if entry.stats is not None for c in entry.stats.channels)


def topics_of(led: Iterable[PartitionStats]) -> list[TopicStats]:
    """Return the topics by name, of what their leaders say."""
    entries = sorted(led, key=lambda entry: (entry.topic, entry.partition, entry.nsqd))
    return [TopicStats(topic, tuple(own)) for topic, own in grouped((each.topic, each) for each in entries).items()]


def sums(channels: Iterable[ChannelStats]) -> tuple[ChannelStats, ...]:
    """Return the sums of the channels of each name, by name."""
    by_name = grouped((channel.name, channel) for channel in channels)
    return tuple(_sum(by_name[name]) for name in sorted(by_name))


_COUNTS: Final = (
    *("depth", "depth_bytes", "on_disk", "in_flight", "deferred"),
    *("requeued", "timed_out", "messages", "clients"),
)
"""The fields of a channel whose sum over several is a sum."""


def _sum(channels: Sequence[ChannelStats]) -> ChannelStats:
    found: Any = {name: sum(getattr(channel, name) for channel in channels) for name in _COUNTS}
    for name in ("paused", "skipped"):
        found[f"{name}_at"] = sum(getattr(channel, name) for channel in channels)
        found[name] = found[f"{name}_at"] > 0
    return ChannelStats(
        name=channels[0].name,
        **found,
        oldest_at=min((channel.oldest_at for channel in channels if channel.oldest_at is not None), default=None),
        latency=_longest([channel.latency for channel in channels if channel.latency is not None]),
        connections=tuple(connection for channel in channels for connection in channel.connections),
        places=len(channels),
    )


def _longest(latencies: Sequence[Latency]) -> Latency | None:
    if not latencies:
        return None
    seconds: dict[float, float] = {}
    for share, value in (pair for latency in latencies for pair in latency.percentiles):
        seconds[share] = max(value, seconds.get(share, 0.0))
    return Latency(sum(latency.count for latency in latencies), tuple(sorted(seconds.items())))


_NS: Final = 1_000_000_000


class _Latency(msgspec.Struct, gc=False):
    count: Int64 = 0
    percentiles: list[dict[str, float]] | None = None


class _StatsChannel(msgspec.Struct, gc=False):
    """What becomes a :class:`ChannelStats`, field by field."""

    name: str = msgspec.field(name="channel_name")
    depth: Int64 = 0
    depth_bytes: Int64 = _named("depth_size", 0)
    depth_ts_nano: Int64 = 0
    on_disk: Int64 = _named("backend_depth", 0)
    in_flight: Int64 = _named("in_flight_count", 0)
    deferred_count: Int64 = 0
    delayed_queue_count: Int64 = 0
    requeued: Int64 = _named("requeue_count", 0)
    timed_out: Int64 = _named("timeout_count", 0)
    client_num: Int64 = 0
    client_count: Int64 = 0
    paused: bool = False
    skipped: bool = False
    messages: Int64 = _named("message_count", 0)
    listed: list[ClientStats] | None = _named("clients", None)
    e2e_processing_latency: _Latency | None = None
    finished_within: list[Int64] = _named("msg_consume_latency_stats", [])
    delivered_within: list[Int64] = _named("msg_delivery_latency_stats", [])

    @property
    def clients(self) -> int:
        return self.client_num or self.client_count or len(self.connections)  # before 1.2, nsqd only lists them

    @property
    def connections(self) -> list[ClientStats]:
        return self.listed or []

    @property
    def deferred(self) -> int:
        return self.deferred_count + self.delayed_queue_count  # those of a long delay are in a queue of their own

    @property
    def oldest_at(self) -> float | None:
        return self.depth_ts_nano / _NS if self.depth > 0 and self.depth_ts_nano > 0 else None

    @property
    def latency(self) -> Latency | None:
        return _latency(self.e2e_processing_latency)


class _StatsPartition(msgspec.Struct, gc=False):
    topic_name: str
    topic_partition: str = ""
    depth: Int64 = 0
    is_leader: bool = False
    backend_start: Int64 = 0
    backend_depth: Int64 = 0
    message_count: Int64 = 0
    is_multi_ordered: bool = False
    is_ext: bool = False
    paused: bool = False
    client_num: Int64 = 0
    client_pub_stats: list[PublisherStats] | None = None
    hourly_pubsize: Int64 = 0
    msg_size_stats: list[Int64] = []
    msg_write_latency_stats: list[Int64] = []
    channels: list[_StatsChannel] | None = None
    e2e_processing_latency: _Latency | None = None


class _PubCount(msgspec.Struct, gc=False):
    topic: str = ""
    count: Int64 = 0


class _PlainProducer(PublisherStats, frozen=True, gc=False):
    pub_counts: list[_PubCount] | None = None


class Stats(msgspec.Struct):
    """The used part of an answer to ``/stats``.

    Attributes:
        version: The version of nsqd.
        health: ``OK``, or what is wrong.
        start_time: When nsqd started, in Unix seconds.
        topics: The partitions of all topics.
        producers: Those of a plain nsqd; unless it is asked about one topic, each has only one of its topics.
    """

    version: str = ""
    health: str = ""
    start_time: Int64 = 0
    topics: list[_StatsPartition] | None = None
    producers: list[_PlainProducer] | None = None


def node_stats(content: Stats, node: Node) -> NodeStats:
    """Return what an nsqd says of itself."""
    partitions = tuple(dataclasses.replace(entry, nsqd=node.address) for entry in partition_stats(content))
    return NodeStats(node, content.version[:MAX_TEXT], content.health[:MAX_TEXT], content.start_time, partitions)


def partition_stats(content: Stats) -> tuple[PartitionStats, ...]:
    """Return the partitions of an answer, sorted by topic and number. Plain topics have one partition, 0.

    What has a name that no topic or channel can have is left out: figures and events are kept by name.
    """
    topics = [entry for entry in content.topics or [] if is_valid_name(entry.topic_name)]
    published = ((each.topic, (client, each)) for client in content.producers or [] for each in client.pub_counts or [])
    plain = {
        topic: [PublisherStats(one.address, one.user_agent, one.hostname, each.count) for one, each in clients]
        for topic, clients in grouped(published).items()
    }
    found = [
        _partition_stats(entry, entry.client_pub_stats or plain.get(entry.topic_name, []))
        for entry in topics
        if _is_partition(entry.topic_partition or "0")
    ]
    return tuple(sorted(found, key=lambda entry: (entry.topic, entry.partition)))


def unfinished_of(content: Stats, topic: str, channel: str) -> Unfinished | None:
    """Return the messages that a channel still has to deliver. None if the node does not have the channel."""
    found = []
    for entry in content.topics or []:
        for each in entry.channels or []:
            if (entry.topic_name, each.name) != (topic, channel):
                continue
            # On an upstream nsqd a topic passes its messages to the channels. On a partitioned nsqd the channels read
            # the flushed part of the partition's log, and count messages with a short delay as waiting.
            is_log = bool(entry.topic_partition)
            unflushed = max(0, entry.message_count - each.messages)
            waiting = each.depth - each.deferred_count + unflushed if is_log else each.depth + entry.depth
            held = sum(client.in_flight for client in each.connections)
            delivered = each.in_flight - (each.deferred_count if is_log else 0)
            orphaned = max(0, delivered - held)
            found.append((max(0, waiting), held, orphaned, len(each.connections), each.paused, each.deferred))
    if not found:
        return None
    waiting, held, orphaned, clients, paused, deferred = map(sum, zip(*found, strict=True))
    return Unfinished(waiting, held, orphaned, clients, paused=paused > 0, deferred=deferred)


def _is_partition(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4 and int(text) <= MAX_PARTITION_ID


def _partition_stats(entry: _StatsPartition, producers: Iterable[PublisherStats]) -> PartitionStats:
    is_plain = not entry.topic_partition
    named = [channel for channel in entry.channels or [] if is_valid_name(channel.name)]
    decoder(ChannelStats)  # so that msgspec knows its fields
    channels = msgspec.convert(named, list[ChannelStats], from_attributes=True)
    if not is_plain:  # the others have all messages on disk, and count those with a short delay as in flight
        channels = [
            dataclasses.replace(channel, on_disk=0, in_flight=max(0, channel.in_flight - each.deferred_count))
            for channel, each in zip(channels, named, strict=True)
        ]
    return PartitionStats(
        topic=entry.topic_name,
        partition=int(entry.topic_partition or 0),
        is_leader=entry.is_leader or is_plain,
        begin_offset=entry.backend_start,
        end_offset=0 if is_plain else entry.backend_depth,  # a plain nsqd counts the messages on its disk here
        messages=entry.message_count,
        ordered=entry.is_multi_ordered,
        extended=entry.is_ext,
        channels=tuple(sorted(channels, key=lambda channel: channel.name)),
        unrouted=entry.depth if is_plain else 0,
        on_disk=entry.backend_depth if is_plain else 0,
        paused=entry.paused,
        publishers=entry.client_num,
        latency=_latency(entry.e2e_processing_latency),
        producers=tuple(producers),
        hourly_bytes=entry.hourly_pubsize,
        sizes=tuple(entry.msg_size_stats),
        written_within=tuple(entry.msg_write_latency_stats),
    )


def _latency(found: _Latency | None) -> Latency | None:
    if found is None or not found.count or not found.percentiles:
        return None
    pairs = ((entry.get("quantile", 0.0), entry.get("value", 0.0) / _NS) for entry in found.percentiles)
    return Latency(found.count, tuple(sorted(pairs)))
