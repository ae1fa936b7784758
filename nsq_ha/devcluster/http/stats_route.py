"""nsqd's ``/stats``: topics, channels and clients in numbers.

Source: server protocol 12; youzan/nsq ``nsqd/stats.go``, ``doStats``.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nsq_ha.devcluster.host import VERSION
from nsq_ha.devcluster.http.envelope import enveloped
from nsq_ha.devcluster.nsqd.subscriber import Subscriber

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsq_ha.devcluster.nsqd.node import Nsqd
    from nsq_ha.devcluster.storage.channel import Channel
    from nsq_ha.devcluster.storage.replica import Replica
    from nsq_ha.protocol.ext_filter import FilterRule

_NO_LATENCY: Final[dict[str, Any]] = {"count": 0, "percentiles": None}
_CHANNEL_BUCKETS: Final = 12
_TOPIC_BUCKETS: Final = 16
_NS: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_STATE_SUBSCRIBED: Final = 3
_STATE_CLOSING: Final = 4


class StatsRoute:
    """Answer ``/stats`` for one node."""

    def __init__(self, node: Nsqd) -> None:
        self._node = node
        self._json = enveloped(self._numbers)
        self._text = enveloped(self._lines)

    async def route(self, request: Request) -> Response:
        """``/stats``: JSON if requested, otherwise text."""
        answer = self._json if request.query_params.get("format") == "json" else self._text
        return await answer(request)

    def _replicas(self, request: Request) -> list[Replica]:
        asked = request.query_params
        leader_only = asked.get("leaderOnly") in ("1", "t", "T", "true", "TRUE", "True")
        return [
            replica
            for (topic, number), replica in sorted(self._node.replicas.items())
            if asked.get("topic") in (None, "", topic)
            and asked.get("partition") in (None, "", str(number))
            and (replica.leads or not leader_only)
        ]

    async def _numbers(self, request: Request) -> dict[str, Any]:
        asked = request.query_params
        clients = asked.get("needClients")
        with_clients = clients == "true" or bool(asked.get("topic") and not clients)
        topics = [
            topic_stats(replica, only=asked.get("channel"), clients=with_clients) for replica in self._replicas(request)
        ]
        return {
            "version": VERSION,
            "health": "OK",
            "start_time": int(self._node.start_time),
            "topics": topics,
        }

    async def _lines(self, request: Request) -> str:
        start = datetime.fromtimestamp(self._node.start_time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        head = f"nsqd v{VERSION} (dev cluster)\nstart_time {start}\nuptime {time.time() - self._node.start_time:.3f}s\n"
        lines = [
            f"   [{replica.topic}-{replica.partition.number}] msgs: {len(replica.log.records)}"
            for replica in self._replicas(request)
        ]
        return f"{head}\n{chr(10).join(lines) or 'NO_TOPICS'}\n"


def topic_stats(replica: Replica, *, only: str | None, clients: bool) -> dict[str, Any]:
    """Return the numbers of one replica.

    Args:
        replica: The replica.
        only: Name of the only channel to list, if it exists. None lists all.
        clients: List the clients of channels.
    """
    log, options, number = replica.log, replica.options, replica.partition.number
    names = sorted(replica.cursors)
    channels = [only] if only in replica.cursors else names
    return {
        "topic_name": replica.topic,
        "topic_full_name": f"{replica.topic}-{number}",
        "topic_partition": str(number),
        "channels": [channel_stats(replica, name, clients=clients) for name in channels if name],
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


def channel_stats(replica: Replica, name: str, *, clients: bool) -> dict[str, Any]:
    """Return the numbers of one channel; a follower knows only its position."""
    log, cursor = replica.log, replica.cursors[name]
    channel = replica.channels.get(name)
    end = channel.end if channel else log.flushed
    depth = max(0, end - cursor.confirmed)  # records confirmed out of order count, too
    oldest = log.records[cursor.confirmed] if cursor.confirmed < end else None
    consumers = [consumer for consumer in channel.consumers if isinstance(consumer, Subscriber)] if channel else []
    return {
        "channel_name": name,
        "backlogs": 0,
        "depth": depth,
        "depth_size": max(0, log.offset_at(end) - log.offset_at(cursor.confirmed)),
        "depth_ts": _time(oldest.timestamp_ns if oldest else 0),
        "depth_ts_nano": oldest.timestamp_ns if oldest else 0,
        "backend_depth": depth,
        "hourly_subsize": 0,
        **_counts(channel),
        "message_count": end,
        "clients": [client_stats(consumer) for consumer in consumers] if clients else None,
        "client_num": len(consumers),
        "paused": bool(channel and channel.paused),
        "skipped": bool(channel and channel.skipped),
        "zan_test_skipped": False,
        "delayed_queue_count": 0,
        "delayed_queue_recent": _time(0),
        "delayed_queue_recent_nano": 0,
        "e2e_processing_latency": _NO_LATENCY,
        "msg_consume_latency_stats": [0] * _CHANNEL_BUCKETS,
        "msg_delivery_latency_stats": [0] * _CHANNEL_BUCKETS,
    }


def _counts(channel: Channel | None) -> dict[str, int]:
    return {
        "in_flight_count": len(channel.in_flight) if channel else 0,
        "deferred_count": channel.deferred_count if channel else 0,
        "deferred_from_delay_count": 0,
        "requeue_count": channel.requeued if channel else 0,
        "timeout_count": channel.timed_out if channel else 0,
    }


def client_stats(consumer: Subscriber) -> dict[str, Any]:
    """Return the numbers of one consumer; durations are nanoseconds."""
    connection = consumer.connection
    client = connection.settings
    return {
        "name": client.client_id or connection.peer,
        "client_id": client.client_id or connection.peer,
        "hostname": client.hostname or connection.peer,
        "version": "V2",
        "remote_address": connection.peer,
        "state": _STATE_CLOSING if consumer.closing else _STATE_SUBSCRIBED,
        "ready_count": consumer.ready,
        "in_flight_count": consumer.holds,
        "message_count": consumer.received,
        "finish_count": consumer.finished,
        "requeue_count": consumer.requeued,
        "timeout_count": 0,
        "deferred_count": 0,
        "connect_ts": int(connection.connected_time),
        "sample_rate": client.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": client.user_agent,
        **consumer.credentials.shown(),
        "desired_tag": client.desired_tag,
        "tls": client.tls_v1,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
        "output_buffer_size": connection.gather_bytes,
        "output_buffer_timeout": client.output_buffer_timeout * _NS_PER_MS,
        "msg_timeout": client.msg_timeout * _NS_PER_MS,
        "ext_filter": _ext_filter(client.ext_filter),
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
