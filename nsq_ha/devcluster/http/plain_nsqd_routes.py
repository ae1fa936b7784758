"""HTTP of upstream's nsqd.

Source: nsqio/nsq ``nsqd/http.go``.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.routing import Route

from nsq_ha.devcluster.host import PLAIN_VERSION
from nsq_ha.devcluster.http.envelope import HttpError, bare, not_found, plain, wrong_method
from nsq_ha.devcluster.http.plain_args import argument, name_argument, routes, topic_and_channel
from nsq_ha.devcluster.http.plain_stats import PlainStats
from nsq_ha.devcluster.http.requests import counted_messages, read_body
from nsq_ha.devcluster.ports import HOST

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd
    from nsq_ha.devcluster.storage.queues import PlainChannel, PlainTopic

_NS_PER_MS: Final = 1_000_000
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


def plain_nsqd_app(node: PlainNsqd) -> Starlette:
    """Make the HTTP application of one upstream nsqd."""
    this, publish = PlainNsqdRoutes(node), PlainPubRoutes(node)
    posts = {
        "/pub": publish.pub,
        "/mpub": publish.mpub,
        "/topic/create": this.create_topic,
        "/topic/delete": this.delete_topic,
        "/topic/empty": this.empty_topic,
        "/topic/pause": this.pause_topic,
        "/topic/unpause": this.unpause_topic,
        "/channel/create": this.create_channel,
        "/channel/delete": this.delete_channel,
        "/channel/empty": this.empty_channel,
        "/channel/pause": this.pause_channel,
        "/channel/unpause": this.unpause_channel,
    }
    gets = {"/info": this.info, "/stats": PlainStats(node).route}
    return Starlette(
        routes=[
            Route("/ping", plain(this.ping)),
            Route("/config/{option}", bare(this.config), methods=["GET", "PUT"]),
            *routes(gets, posts),
        ],
        exception_handlers={404: not_found, 405: wrong_method},
    )


class PlainPubRoutes:
    """Publish to one node."""

    def __init__(self, node: PlainNsqd) -> None:
        self._node = node
        self._limits = node.host.limits

    async def pub(self, request: Request) -> str:
        """``/pub``; ``defer`` is a delay in milliseconds."""
        body = await read_body(request, self._limits.max_message_bytes, "MSG_TOO_BIG")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        topic = self._topic(request)
        defer = request.query_params.getlist("defer")
        delay = 0
        if defer:
            if not _INTEGER.fullmatch(defer[0]) or not 0 <= int(defer[0]) <= self._limits.max_delay:
                raise HttpError(400, "INVALID_DEFER")
            delay = int(defer[0])
        self._store(topic, [body], delay / 1000)
        return "OK"

    async def mpub(self, request: Request) -> str:
        """``/mpub``: lines, or counted messages if ``binary`` asks for them."""
        body = await read_body(request, self._limits.max_body_bytes, "BODY_TOO_BIG")
        topic = self._topic(request)
        binary = request.query_params.getlist("binary")
        if binary and binary[0] not in ("false", "0"):
            messages = counted_messages(body)
        else:
            messages = [message for message in body.split(b"\n") if message]
            if any(len(message) > self._limits.max_message_bytes for message in messages):
                raise HttpError(413, "MSG_TOO_BIG")
        self._store(topic, messages)
        return "OK"

    def _topic(self, request: Request) -> PlainTopic:
        return self._node.topic(name_argument(request, "topic", "INVALID_TOPIC"))

    def _store(self, topic: PlainTopic, messages: list[bytes], delay: float = 0.0) -> None:
        self._node.store(topic, messages, delay)
        topic.dispatch(self._node.host.now())


class PlainNsqdRoutes:
    """Describe the node, its topics and channels, and change them."""

    def __init__(self, node: PlainNsqd) -> None:
        self._node = node

    async def ping(self, _request: Request) -> str:
        """``/ping``."""
        return "OK"

    async def info(self, _request: Request) -> dict[str, Any]:
        """``/info``."""
        limits = self._node.host.limits
        return {
            "version": PLAIN_VERSION,
            "broadcast_address": HOST,
            "hostname": socket.gethostname(),
            "http_port": self._node.http_port,
            "tcp_port": self._node.tcp_port,
            "start_time": int(self._node.start_time),
            "max_heartbeat_interval": limits.max_heartbeat * _NS_PER_MS,
            "max_output_buffer_size": limits.max_gather_bytes,
            "max_output_buffer_timeout": limits.max_gather * _NS_PER_MS,
            "max_deflate_level": 6,
            "topology_zone": "",
            "topology_region": "",
        }

    async def config(self, request: Request) -> None:
        """``/config``: no option can be read or set."""
        raise HttpError(400, "INVALID_OPTION")

    # ------------------------------------------------------------ topics

    async def create_topic(self, request: Request) -> None:
        """``/topic/create``."""
        self._node.topic(name_argument(request, "topic", "INVALID_TOPIC"))

    async def delete_topic(self, request: Request) -> None:
        """``/topic/delete``."""
        self._node.delete_topic(self._existing(argument(request, "topic")))

    async def empty_topic(self, request: Request) -> None:
        """``/topic/empty``: the topic's own queue, not those of its channels."""
        self._existing(name_argument(request, "topic", "INVALID_TOPIC")).queue.clear()

    async def pause_topic(self, request: Request) -> None:
        """``/topic/pause``."""
        self._existing(argument(request, "topic")).paused = True

    async def unpause_topic(self, request: Request) -> None:
        """``/topic/unpause``."""
        topic = self._existing(argument(request, "topic"))
        topic.paused = False
        topic.pump(self._node.host.now())

    def _existing(self, name: str) -> PlainTopic:
        topic = self._node.topics.get(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    # ------------------------------------------------------------ channels

    async def create_channel(self, request: Request) -> None:
        """``/channel/create``."""
        topic, name = self._names(request)
        self._node.channel(topic, name)

    async def delete_channel(self, request: Request) -> None:
        """``/channel/delete``."""
        topic, name = self._names(request)
        self._node.delete_channel(topic, _channel(topic, name))

    async def empty_channel(self, request: Request) -> None:
        """``/channel/empty``."""
        _channel(*self._names(request)).empty()

    async def pause_channel(self, request: Request) -> None:
        """``/channel/pause``."""
        channel = _channel(*self._names(request))
        channel.paused = True
        for consumer in channel.consumers:
            consumer.flush()

    async def unpause_channel(self, request: Request) -> None:
        """``/channel/unpause``."""
        channel = _channel(*self._names(request))
        channel.paused = False
        channel.dispatch(self._node.host.now())

    def _names(self, request: Request) -> tuple[PlainTopic, str]:
        topic, channel = topic_and_channel(request)
        return self._existing(topic), channel


def _channel(topic: PlainTopic, name: str) -> PlainChannel:
    channel = topic.channels.get(name)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return channel
