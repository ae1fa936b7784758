"""Read nsqd's ``/stats``, which is untrusted input.

``description`` has the values.

Source: server protocol 12; youzan/nsq and upstream ``nsqd/stats.go``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import msgspec

from nsq_ha.admin.description import ChannelStats, ClientStats, Latency, NodeStats, PartitionStats, Unfinished
from nsq_ha.checks import MAX_PARTITION_ID

if TYPE_CHECKING:
    from nsq_ha.policy.topology import Node

_NS: Final = 1_000_000_000


class _Latency(msgspec.Struct):
    count: int = 0
    percentiles: list[dict[str, float]] | None = None


class _Client(msgspec.Struct):
    client_id: str = ""
    hostname: str = ""
    remote_address: str = ""
    user_agent: str = ""
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int = 0
    tls: bool = False
    deflate: bool = False
    snappy: bool = False
    desired_tag: str = ""
    sample_rate: int = 0
    tls_version: str = ""
    auth_identity: str = ""


class _Channel(msgspec.Struct):
    channel_name: str
    depth: int = 0
    depth_size: int = 0
    depth_ts_nano: int = 0
    backend_depth: int = 0
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
    e2e_processing_latency: _Latency | None = None


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
    paused: bool = False
    client_num: int = 0
    channels: list[_Channel] | None = None
    e2e_processing_latency: _Latency | None = None


class Stats(msgspec.Struct):
    """The used part of an answer to ``/stats``.

    Attributes:
        version: The version of nsqd.
        health: ``OK``, or what is wrong.
        start_time: When nsqd started, in Unix seconds.
        topics: The partitions of all topics.
    """

    version: str = ""
    health: str = ""
    start_time: int = 0
    topics: list[_Partition] | None = None


def node_stats(content: Stats, node: Node) -> NodeStats:
    """Return what an nsqd says of itself."""
    partitions = tuple(dataclasses.replace(entry, nsqd=node.address) for entry in partition_stats(content))
    return NodeStats(node, content.version, content.health, content.start_time, partitions)


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
    is_plain = not entry.topic_partition
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
            oldest_at=channel.depth_ts_nano / _NS if channel.depth > 0 and channel.depth_ts_nano > 0 else None,
            latency=_latency(channel.e2e_processing_latency),
            connections=tuple(_client(client) for client in channel.clients or []),
            on_disk=channel.backend_depth if is_plain else 0,
        )
        for channel in entry.channels or []
    )
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
    )


def _client(client: _Client) -> ClientStats:
    return ClientStats(
        client_id=client.client_id,
        hostname=client.hostname,
        address=client.remote_address,
        user_agent=client.user_agent,
        ready=client.ready_count,
        in_flight=client.in_flight_count,
        messages=client.message_count,
        finished=client.finish_count,
        requeued=client.requeue_count,
        connected_at=client.connect_ts,
        tls=client.tls,
        compression="deflate" if client.deflate else "snappy" if client.snappy else "",
        tag=client.desired_tag,
        sample_rate=client.sample_rate,
        tls_version=client.tls_version if client.tls else "",
        auth_identity=client.auth_identity,
    )


def _latency(found: _Latency | None) -> Latency | None:
    if found is None or not found.count or not found.percentiles:
        return None
    pairs = ((entry.get("quantile", 0.0), entry.get("value", 0.0) / _NS) for entry in found.percentiles)
    return Latency(found.count, tuple(sorted(pairs)))
