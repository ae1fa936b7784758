"""``/stats`` of upstream's nsqd: topics, channels and clients in numbers.

Source: nsqio/nsq ``nsqd/stats.go``, ``nsqd/http.go`` ``doStats``.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.devcluster.host import PLAIN_VERSION
from nsq_ha.devcluster.nsqd.any_session import Stage
from nsq_ha.devcluster.nsqd.plain_session import PlainSession, PlainSubscriber

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd
    from nsq_ha.devcluster.storage.queues import PlainChannel, PlainTopic

_NO_LATENCY: Final[dict[str, Any]] = {"count": 0, "percentiles": None}
_STATES: Final = {Stage.OPEN: 0, Stage.SUBSCRIBED: 3, Stage.CLOSING: 4, Stage.ENDED: 1}
_FALSE: Final = ("false", "0")
_MEMORY: Final = {
    "heap_objects": 0,
    "heap_idle_bytes": 0,
    "heap_in_use_bytes": 0,
    "heap_released_bytes": 0,
    "gc_pause_usec_100": 0,
    "gc_pause_usec_99": 0,
    "gc_pause_usec_95": 0,
    "next_gc_bytes": 0,
    "gc_total_runs": 0,
}


class PlainStats:
    """Answer ``/stats`` for one node."""

    def __init__(self, node: PlainNsqd) -> None:
        self._node = node

    async def route(self, request: Request) -> str | dict[str, Any]:
        """``/stats``: JSON if asked for, else text."""
        asked = request.query_params
        topic, channel = asked.get("topic") or "", asked.get("channel") or ""
        clients = asked.get("include_clients") not in _FALSE
        topics = [self._topic(found, channel, topic, clients=clients) for found in self._topics(topic, channel)]
        # A topic that does not exist leaves the publishers out, too.
        unknown = bool(topic) and topic not in self._node.topics
        producers = [_client(session, topic) for session in self._publishers()] if clients and not unknown else []
        if asked.get("format") != "json":
            return self._lines(topics, producers)
        answer: dict[str, Any] = {
            "version": PLAIN_VERSION,
            "health": "OK",
            "start_time": int(self._node.start_time),
            "topics": None if unknown else topics,
        }
        if asked.get("include_mem") not in _FALSE:
            answer["memory"] = _MEMORY
        return {**answer, "producers": producers or None}

    def _publishers(self) -> list[PlainSession]:
        publishers = [session for session in self._node.connections if session.published]
        return sorted(publishers, key=lambda session: session.client_id)

    def _topics(self, name: str, channel: str) -> list[PlainTopic]:
        topics = [topic for key, topic in sorted(self._node.topics.items()) if name in ("", key)]
        return [topic for topic in topics if not channel or channel in topic.channels]

    def _topic(self, topic: PlainTopic, only: str, asked: str, *, clients: bool) -> dict[str, Any]:
        channels = [channel for name, channel in sorted(topic.channels.items()) if only in ("", name)]
        return {
            "topic_name": topic.name,
            "channels": [_channel(channel, asked, clients=clients) for channel in channels],
            "depth": len(topic.queue),
            "backend_depth": topic.queue.backend_depth,
            "message_count": topic.messages,
            "message_bytes": topic.message_bytes,
            "paused": topic.paused,
            "e2e_processing_latency": _NO_LATENCY,
        }

    def _lines(self, topics: list[dict[str, Any]], producers: list[dict[str, Any]]) -> str:
        start = self._node.start_time
        lines = [
            f"nsqd v{PLAIN_VERSION} (dev cluster)",
            f"start_time {datetime.fromtimestamp(start, UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}",
            f"uptime {time.time() - start:.3f}s",
            "",
            "Health: OK",
            "",
            "Topics:" if topics else "Topics: None",
        ]
        for topic in topics:
            lines.append(
                f"{_mark(topic)}[{topic['topic_name']:<15}] depth: {topic['depth']:<5} "
                f"be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8} e2e%: "
            )
            lines += [
                f"   {_mark(channel)}[{channel['channel_name']:<25}] depth: {channel['depth']:<5} "
                f"be-depth: {channel['backend_depth']:<5} inflt: {channel['in_flight_count']:<4} "
                f"def: {channel['deferred_count']:<4} re-q: {channel['requeue_count']:<5} "
                f"timeout: {channel['timeout_count']:<5} msgs: {channel['message_count']:<8} e2e%: "
                for channel in topic["channels"]
            ]
        lines += ["", "Producers:" if producers else "Producers: None"]
        lines += [f"   [V2 {client['hostname']}] {client['pub_counts']}" for client in producers]
        return "\n".join(lines) + "\n"


def _mark(paused: dict[str, Any]) -> str:
    return "*P " if paused["paused"] else "   "


def _channel(channel: PlainChannel, asked: str, *, clients: bool) -> dict[str, Any]:
    consumers = [consumer for consumer in channel.consumers if isinstance(consumer, PlainSubscriber)]
    return {
        "channel_name": channel.name,
        "depth": len(channel.queue),
        "backend_depth": channel.queue.backend_depth,
        "in_flight_count": len(channel.in_flight),
        "deferred_count": len(channel.deferred),
        "message_count": channel.received,
        **({"global_msg_count": channel.queue.from_memory} if channel.queue.from_memory else {}),
        "requeue_count": channel.requeued,
        "timeout_count": channel.timed_out,
        "client_count": len(consumers),
        "clients": [_client(consumer.session, asked, consumer) for consumer in consumers] if clients else None,
        "paused": channel.paused,
        "e2e_processing_latency": _NO_LATENCY,
    }


def _client(session: PlainSession, asked: str, consumer: PlainSubscriber | None = None) -> dict[str, Any]:
    settings = session.settings
    address = session.peer.rpartition(":")[0]
    # The real nsqd names one topic of several, too.
    counts = [(topic, count) for topic, count in session.published.items() if asked in ("", topic)][:1]
    answer: dict[str, Any] = {
        "client_id": settings.client_id if session.identified else address,
        "hostname": settings.hostname if session.identified else address,
        "version": "V2",
        "remote_address": session.peer,
        "state": _STATES[session.stage],
        "ready_count": consumer.ready if consumer else 0,
        "in_flight_count": consumer.holds if consumer else 0,
        "message_count": consumer.received if consumer else 0,
        "finish_count": consumer.finished if consumer else 0,
        "requeue_count": consumer.requeued if consumer else 0,
        "connect_ts": int(session.connected_time),
        "sample_rate": settings.sample_rate,
        "deflate": settings.deflate,
        "snappy": settings.snappy,
        "user_agent": settings.user_agent,
        "topology_zone": "",
        "topology_region": "",
    }
    if counts:
        answer["pub_counts"] = [{"topic": topic, "count": count} for topic, count in counts]
    return {
        **answer,
        **session.credentials.shown(),
        "tls": session.is_secured,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }
