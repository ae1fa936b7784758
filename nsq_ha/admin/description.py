"""The description of a topic: its partitions, replicas, channels and depths, read from nsqd's untrusted ``/stats``.

Source: protocol reference 13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from nsq_ha.checks import MAX_PARTITION_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsq_ha.policy.topology import Node, TopicView


class _Client(msgspec.Struct):
    in_flight_count: int = 0


class _Channel(msgspec.Struct):
    channel_name: str
    depth: int = 0
    depth_size: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_num: int = 0
    client_count: int = 0
    paused: bool = False
    skipped: bool = False
    message_count: int = 0
    clients: list[_Client] | None = None


class _Partition(msgspec.Struct):
    topic_name: str
    topic_partition: str = ""
    depth: int = 0
    is_leader: bool = False
    backend_start: int = 0
    backend_depth: int = 0
    message_count: int = 0
    is_multi_ordered: bool = False
    is_ext: bool = False
    channels: list[_Channel] | None = None


class Stats(msgspec.Struct):
    """The used part of an answer to ``/stats``.

    Attributes:
        topics: The partitions of all topics.
    """

    topics: list[_Partition] | None = None


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """A channel of one partition.

    Attributes:
        name: The channel.
        depth: Number of waiting messages.
        depth_bytes: Their size in the queue.
        in_flight: Number of delivered, unanswered messages.
        deferred: Number of messages that were requeued with a delay and still wait.
        requeued: Number of requeues since the node started.
        timed_out: Number of timeouts since the node started.
        clients: Number of connections.
        paused: An operator stopped delivery.
        skipped: An operator chose to confirm messages without delivery.
        messages: Number of messages that the channel ever got; on a partitioned nsqd, that it may read.
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


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The messages that a channel of one nsqd still has to deliver, in all its partitions.

    Attributes:
        waiting: Waiting messages, without deferred ones; some servers include those in flight.
        held: Unanswered messages of connected clients.
        orphaned: Unanswered messages of clients that are gone; redelivered after their message timeout.
        clients: Number of connections.
        paused: An operator stopped delivery.
    """

    waiting: int
    held: int
    orphaned: int
    clients: int
    paused: bool


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic, or one nsqd of a plain topic.

    Attributes:
        partition: The partition. The number of an nsqd has no meaning, and can change.
        leader: The leader, or the nsqd. None if the partition has no leader now.
        writable: nsqlookupd names the leader for writing, too.
        replicas: The cluster's names of the nodes in sync, including the leader; empty if the leader did not answer.
        stats: The leader's statistics. None if it did not answer.
    """

    partition: int
    leader: Node | None
    writable: bool
    replicas: tuple[str, ...]
    stats: PartitionStats | None


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
        return tuple(sorted({c.name for p in self.partitions if p.stats is not None for c in p.stats.channels}))

    @property
    def depth(self) -> Mapping[str, int]:
        """Number of waiting messages by channel, over all partitions whose leader answered."""
        waiting = dict.fromkeys(self.channels, 0)
        for entry in self.partitions:
            for channel in entry.stats.channels if entry.stats is not None else ():
                waiting[channel.name] += channel.depth
        return waiting


def partition_stats(content: Stats) -> tuple[PartitionStats, ...]:
    """Return the partitions of an answer, sorted by topic and number. Plain topics have one partition, 0."""
    topics = content.topics or []
    found = [_partition_stats(entry) for entry in topics if _is_partition(entry.topic_partition or "0")]
    return tuple(sorted(found, key=lambda entry: (entry.topic, entry.partition)))


def unfinished_of(content: Stats, topic: str, channel: str) -> Unfinished | None:
    """Return the messages that a channel still has to deliver. None if the node does not have the channel."""
    found: Unfinished | None = None
    for entry in content.topics or []:
        for each in entry.channels or []:
            if (entry.topic_name, each.channel_name) != (topic, channel):
                continue
            # On an upstream nsqd a topic passes its messages to the channels. On a partitioned nsqd the channels read
            # the flushed part of the partition's log, and count deferred messages as waiting.
            is_log = bool(entry.topic_partition)
            unflushed = max(0, entry.message_count - each.message_count)
            waiting = each.depth - each.deferred_count + unflushed if is_log else each.depth + entry.depth
            held = sum(client.in_flight_count for client in each.clients or [])
            delivered = each.in_flight_count - (each.deferred_count if is_log else 0)
            before = found or Unfinished(0, 0, 0, 0, paused=False)
            found = Unfinished(
                waiting=before.waiting + max(0, waiting),
                held=before.held + held,
                orphaned=before.orphaned + max(0, delivered - held),
                clients=before.clients + len(each.clients or []),
                paused=before.paused or each.paused,
            )
    return found


def _is_partition(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4 and int(text) <= MAX_PARTITION_ID


def _partition_stats(entry: _Partition) -> PartitionStats:
    channels = (
        ChannelStats(
            name=channel.channel_name,
            depth=channel.depth,
            depth_bytes=channel.depth_size,
            in_flight=channel.in_flight_count,
            deferred=channel.deferred_count,
            requeued=channel.requeue_count,
            timed_out=channel.timeout_count,
            clients=channel.client_num or channel.client_count,
            paused=channel.paused,
            skipped=channel.skipped,
            messages=channel.message_count,
        )
        for channel in entry.channels or []
    )
    is_plain = not entry.topic_partition
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
    )
