"""``/stats`` of the nsqds of both kinds: topics, channels and clients in numbers.

Source: server protocol 12; youzan/nsq and nsqio/nsq ``nsqd/stats.go``, ``doStats``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nsq_ha.devcluster.host import PLAIN_VERSION, VERSION
from nsq_ha.devcluster.nsqd.any_session import AnySession, AnySubscriber, SessionStage
from nsq_ha.devcluster.nsqd.plain_node import PlainSession

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.node import HaNsqd
    from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd
    from nsq_ha.devcluster.storage.any_channel import AnyChannel
    from nsq_ha.devcluster.storage.channel import Channel
    from nsq_ha.devcluster.storage.queues import PlainChannel, PlainNsqdTopic
    from nsq_ha.devcluster.storage.replica import Replica
    from nsq_ha.protocol.ext_filter import FilterRule

_Subscriber = AnySubscriber[Any, Any, Any]

_NO_LATENCY: Final[dict[str, Any]] = {"count": 0, "percentiles": None}
_STATES: Final = {SessionStage.OPEN: 0, SessionStage.SUBSCRIBED: 3, SessionStage.CLOSING: 4, SessionStage.ENDED: 1}
_FALSE: Final = ("false", "0")
_CHANNEL_BUCKETS: Final = 12
_TOPIC_BUCKETS: Final = 16
_NS: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


def _consumers(channel: AnyChannel[Any, Any] | None) -> list[_Subscriber]:
    return [each for each in channel.consumers if isinstance(each, AnySubscriber)] if channel else []


def _client(session: AnySession, consumer: _Subscriber) -> dict[str, Any]:
    """Return the numbers of a client that both kinds of nsqd have."""
    settings = session.settings
    return {
        "version": "V2",
        "remote_address": session.peer,
        "state": _STATES[session.stage],
        "ready_count": consumer.ready,
        "in_flight_count": consumer.holds,
        "message_count": consumer.received,
        "finish_count": consumer.finished,
        "requeue_count": consumer.requeued,
        "connect_ts": int(session.connected_time),
        "sample_rate": settings.sample_rate,
        "deflate": settings.deflate,
        "snappy": settings.snappy,
        "user_agent": settings.user_agent,
        **session.credentials.shown(),
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }


# ------------------------------------------------------------ the partitioned nsqd


def node_stats(node: HaNsqd, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return ``/stats`` of a partitioned nsqd for the arguments of a request."""
    leader_only = asked.get("leaderOnly") in ("1", "t", "T", "true", "TRUE", "True")
    replicas = [
        replica
        for (topic, number), replica in sorted(node.replicas.items())
        if asked.get("topic") in (None, "", topic)
        and asked.get("partition") in (None, "", str(number))
        and (replica.leads or not leader_only)
    ]
    clients = asked.get("needClients")
    with_clients = clients == "true" or bool(asked.get("topic") and not clients)
    return {
        "version": VERSION,
        "health": "OK",
        "start_time": int(node.start_time),
        "topics": [_topic(replica, only=asked.get("channel"), clients=with_clients) for replica in replicas],
    }


def _topic(replica: Replica, *, only: str | None, clients: bool) -> dict[str, Any]:
    log, options, number = replica.log, replica.options, replica.partition.number
    names = sorted(replica.cursors)
    channels = [only] if only in replica.cursors else names
    return {
        "topic_name": replica.topic,
        "topic_full_name": f"{replica.topic}-{number}",
        "topic_partition": str(number),
        "channels": [_channel(replica, name, clients=clients) for name in channels if name],
        "channel_num": len(names),
        "depth": log.end_offset - log.start_offset,
        "backend_depth": log.end_offset,
        "backend_start": log.start_offset,
        "message_count": len(log.records),
        "is_leader": replica.leads,
        "hourly_pubsize": 0,
        "client_pub_stats": [],
        "client_num": 0,
        "msg_size_stats": [0] * _TOPIC_BUCKETS,
        "msg_write_latency_stats": [0] * _TOPIC_BUCKETS,
        "is_multi_ordered": options.ordered,
        "is_multi_part": options.multi_part,
        "is_ext": options.extended,
        "is_channel_auto_create_disabled": options.disable_channel_auto_create,
        "statsd_name": replica.topic,
        "pub_failed_cnt": 0,
        "e2e_processing_latency": _NO_LATENCY,
    }


def _channel(replica: Replica, name: str, *, clients: bool) -> dict[str, Any]:
    """Return the numbers of one channel; a follower knows only its position."""
    log, cursor = replica.log, replica.cursors[name]
    channel = replica.channels.get(name)
    end = channel.end if channel else log.flushed
    on_disk = channel.delayed_on_disk if channel else 0
    depth = max(0, end - cursor.confirmed - on_disk)  # records confirmed out of order count, too
    oldest = log.records[cursor.confirmed].timestamp_ns if cursor.confirmed < end else 0
    consumers = _consumers(channel)
    return {
        "channel_name": name,
        "backlogs": 0,
        "depth": depth,
        "depth_size": max(0, log.offset_at(end) - log.offset_at(cursor.confirmed)),
        "depth_ts": _time(oldest),
        "depth_ts_nano": oldest,
        "backend_depth": depth,
        "hourly_subsize": 0,
        **_counts(channel),
        "message_count": end,
        "clients": [_subscriber(consumer) for consumer in consumers] if clients else None,
        "client_num": len(consumers),
        "paused": bool(channel and channel.paused),
        "skipped": bool(channel and channel.skipped),
        "zan_test_skipped": False,
        "delayed_queue_count": on_disk,
        "delayed_queue_recent": _time(0),
        "delayed_queue_recent_nano": 0,
        "e2e_processing_latency": _NO_LATENCY,
        "msg_consume_latency_stats": [0] * _CHANNEL_BUCKETS,
        "msg_delivery_latency_stats": [0] * _CHANNEL_BUCKETS,
    }


def _counts(channel: Channel | None) -> dict[str, int]:
    return {
        "in_flight_count": len(channel.in_flight) + channel.deferred_count if channel else 0,
        "deferred_count": channel.deferred_count if channel else 0,
        "deferred_from_delay_count": 0,
        "requeue_count": channel.requeued if channel else 0,
        "timeout_count": channel.timed_out if channel else 0,
    }


def _subscriber(consumer: _Subscriber) -> dict[str, Any]:
    """Return the numbers of one consumer; durations are nanoseconds."""
    session = consumer.session
    settings = session.settings
    return {
        **_client(session, consumer),
        "name": settings.client_id or session.peer,
        "client_id": settings.client_id or session.peer,
        "hostname": settings.hostname or session.peer,
        "timeout_count": 0,
        "deferred_count": 0,
        "desired_tag": settings.desired_tag,
        "tls": settings.tls_v1,
        "output_buffer_size": session.gather_bytes,
        "output_buffer_timeout": settings.output_buffer_timeout * _NS_PER_MS,
        "msg_timeout": settings.msg_timeout * _NS_PER_MS,
        "ext_filter": _ext_filter(settings.ext_filter),
        "limited_rdy": 50000,
    }


def _ext_filter(rule: FilterRule | None) -> dict[str, Any]:
    """Return a client's filter without empty fields, as Go's ``omitempty`` leaves them out."""
    fields: dict[str, Any] = {} if rule is None else msgspec.to_builtins(rule)
    return {name: value for name, value in fields.items() if value}


def _time(timestamp_ns: int) -> str:
    seconds, rest = divmod(timestamp_ns, _NS)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") + f"{fraction} +0000 UTC"


# ------------------------------------------------------------ upstream's nsqd


def plain_node_stats(node: PlainNsqd, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return ``/stats`` of an upstream nsqd for the arguments of a request."""
    name, channel = asked.get("topic") or "", asked.get("channel") or ""
    clients = asked.get("include_clients") not in _FALSE
    topics = [
        _plain_topic(topic, channel, clients=clients)
        for key, topic in sorted(node.topics.items())
        if name in ("", key) and (not channel or channel in topic.channels)
    ]
    return {
        "version": PLAIN_VERSION,
        "health": "OK",
        "start_time": int(node.start_time),
        "topics": topics if name in ("", *node.topics) else None,
        **({"memory": {}} if asked.get("include_mem") not in _FALSE else {}),
        "producers": None,
    }


def _plain_topic(topic: PlainNsqdTopic, only: str, *, clients: bool) -> dict[str, Any]:
    channels = [channel for name, channel in sorted(topic.channels.items()) if only in ("", name)]
    return {
        "topic_name": topic.name,
        "channels": [_plain_channel(channel, clients=clients) for channel in channels],
        "depth": len(topic.queue),
        "backend_depth": topic.queue.backend_depth,
        "message_count": topic.messages,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _NO_LATENCY,
    }


def _plain_channel(channel: PlainChannel, *, clients: bool) -> dict[str, Any]:
    consumers = _consumers(channel)
    sessions = [(each, each.session) for each in consumers if isinstance(each.session, PlainSession)]
    return {
        "channel_name": channel.name,
        "depth": len(channel.queue),
        "backend_depth": channel.queue.backend_depth,
        "in_flight_count": len(channel.in_flight),
        "deferred_count": len(channel.deferred),
        "message_count": channel.received,
        "requeue_count": channel.requeued,
        "timeout_count": channel.timed_out,
        "client_count": len(consumers),
        "clients": [_plain_client(session, each) for each, session in sessions] if clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": _NO_LATENCY,
    }


def _plain_client(session: PlainSession, consumer: _Subscriber) -> dict[str, Any]:
    settings = session.settings
    address = session.peer.rpartition(":")[0]
    return {
        **_client(session, consumer),
        "client_id": settings.client_id if session.identified else address,
        "hostname": settings.hostname if session.identified else address,
        "topology_zone": settings.topology_zone,
        "topology_region": settings.topology_region,
        "tls": session.is_secured,
    }
