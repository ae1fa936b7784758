"""HTTP of upstream's nsqd and nsqlookupd; ``stats`` has nsqd's numbers.

Source: nsqio/nsq ``nsqd/http.go``, ``nsqlookupd/http.go``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nsq_ha.devcluster.host import PLAIN_VERSION
from nsq_ha.devcluster.http import answers
from nsq_ha.devcluster.http.answers import HttpError, bare, gets, named, posts, present, valid_name
from nsq_ha.devcluster.http.stats import plain_node_stats
from nsq_ha.devcluster.nodes import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.applications import Starlette
    from starlette.requests import Request

    from nsq_ha.devcluster.control.plain_control import PlainNsqlookupd
    from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd
    from nsq_ha.devcluster.storage.queues import PlainChannel, PlainNsqdTopic


_NS_PER_MS: Final = 1_000_000
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


def plain_nsqd_app(node: PlainNsqd) -> Starlette:
    """Return the HTTP application of one upstream nsqd."""
    this = _PlainNsqdRoutes(node)
    return answers.app_of(
        gets(bare, named(this.info, this.stats)),
        posts(bare, dict.fromkeys(this.of_topic, this.change_topic)),
        posts(bare, dict.fromkeys(this.of_channel, this.change_channel)),
        posts(bare, named(this.pub, this.mpub, this.topic_create, this.topic_empty, this.channel_create)),
    )


class _PlainNsqdRoutes:
    """Answers for one node."""

    def __init__(self, node: PlainNsqd) -> None:
        self._node = node
        self._limits = node.host.limits
        now = node.host.now
        self.of_topic: dict[str, Callable[[PlainNsqdTopic], None]] = {
            "/topic/delete": node.delete_topic,
            "/topic/pause": lambda topic: topic.pause(now(), paused=True),
            "/topic/unpause": lambda topic: topic.pause(now(), paused=False),
        }
        self.of_channel: dict[str, Callable[[PlainNsqdTopic, PlainChannel], None]] = {
            "/channel/delete": node.delete_channel,
            "/channel/empty": lambda _, channel: channel.empty(),
            "/channel/pause": lambda _, channel: channel.pause(now(), paused=True),
            "/channel/unpause": lambda _, channel: channel.pause(now(), paused=False),
        }

    async def info(self, _request: Request) -> dict[str, Any]:
        """``/info``."""
        limits = self._limits
        return {
            **answers.ports_of(self._node, PLAIN_VERSION),
            "start_time": int(self._node.start_time),
            "max_heartbeat_interval": limits.max_heartbeat * _NS_PER_MS,
            "max_output_buffer_size": limits.max_gather_bytes,
            "max_output_buffer_timeout": limits.max_gather * _NS_PER_MS,
            "max_deflate_level": 6,
            "topology_zone": "",
            "topology_region": "",
        }

    async def stats(self, request: Request) -> dict[str, Any]:
        """``/stats``, always as JSON."""
        return plain_node_stats(self._node, request.query_params)

    # ------------------------------------------------------------ publish

    async def pub(self, request: Request) -> str:
        """``/pub``; ``defer`` is a delay in milliseconds."""
        body = await answers.read_body(request, self._limits.max_message_bytes, "MSG_TOO_BIG")
        if not body:
            raise HttpError(400, "MSG_EMPTY")
        topic = self._node.topic(_topic_name(request))
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
        body = await answers.read_body(request, self._limits.max_body_bytes, "BODY_TOO_BIG")
        topic = self._node.topic(_topic_name(request))
        binary = request.query_params.getlist("binary")
        counted = binary and binary[0] not in ("false", "0")
        split = answers.counted_messages if counted else answers.lines_of
        self._store(topic, split(body, self._limits.max_message_bytes))
        return "OK"

    def _store(self, topic: PlainNsqdTopic, messages: list[bytes], delay: float = 0.0) -> None:
        self._node.store(topic, messages, delay)
        topic.dispatch(self._node.host.now())

    # ------------------------------------------------------------ topics and channels

    async def change_topic(self, request: Request) -> None:
        """Change a topic."""
        self.of_topic[request.url.path](self._existing(present(request, "topic")))

    async def change_channel(self, request: Request) -> None:
        """Change a channel."""
        topic, name = self._names(request)
        channel = topic.channels.get(name)
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        self.of_channel[request.url.path](topic, channel)

    async def topic_create(self, request: Request) -> None:
        """``/topic/create``."""
        self._node.topic(_topic_name(request))

    async def topic_empty(self, request: Request) -> None:
        """``/topic/empty``: the topic's own queue, not those of its channels."""
        self._existing(_topic_name(request)).queue.clear()

    async def channel_create(self, request: Request) -> None:
        """``/channel/create``."""
        self._node.channel(*self._names(request))

    def _existing(self, name: str) -> PlainNsqdTopic:
        topic = self._node.topics.get(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    def _names(self, request: Request) -> tuple[PlainNsqdTopic, str]:
        topic, channel = answers.topic_and_channel(request)
        return self._existing(topic), channel


def _topic_name(request: Request) -> str:
    return valid_name(present(request, "topic"), "INVALID_TOPIC")


_Listed = TypeVar("_Listed")


def plain_lookupd_app(lookupd: PlainNsqlookupd) -> Starlette:
    """Return the HTTP application of one upstream nsqlookupd."""
    this = _PlainLookupdRoutes(lookupd)
    return answers.app_of(
        gets(bare, named(this.lookup, this.topics, this.channels, this.nodes, this.info)),
        posts(bare, named(this.topic_create, this.topic_delete, this.topic_tombstone)),
        posts(bare, named(this.channel_create, this.channel_delete)),
    )


class _PlainLookupdRoutes:
    """Answers for one nsqlookupd."""

    def __init__(self, lookupd: PlainNsqlookupd) -> None:
        self._lookupd = lookupd
        self._chance = lookupd.host.chance

    def _in_any_order(self, listed: Iterable[_Listed]) -> list[_Listed]:
        """Return what the real one reads from a map of Go, which gives another order each time."""
        found = list(listed)
        self._chance.shuffle(found)
        return found

    async def info(self, _request: Request) -> dict[str, Any]:
        """``/info``."""
        return {"version": PLAIN_VERSION}

    async def lookup(self, request: Request) -> dict[str, Any]:
        """``/lookup``."""
        self._lookupd.requests += 1
        topic = present(request, "topic")
        producers = self._lookupd.producers(topic)
        if producers is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return {
            "channels": self._in_any_order(self._lookupd.channels(topic)),
            "producers": [_described(peer) for peer in self._in_any_order(producers)],
        }

    async def topics(self, _request: Request) -> dict[str, Any]:
        """``/topics``."""
        return {"topics": self._in_any_order(self._lookupd.topics())}

    async def channels(self, request: Request) -> dict[str, Any]:
        """``/channels``."""
        return {"channels": self._in_any_order(self._lookupd.channels(present(request, "topic")))}

    async def nodes(self, _request: Request) -> dict[str, Any]:
        """``/nodes``."""
        nodes = []
        for peer in self._in_any_order(self._lookupd.nodes()):
            topics = self._in_any_order(self._lookupd.topics_of(peer))
            tombstones = [self._lookupd.is_tombstoned(topic, peer) for topic in topics]
            nodes.append({**_described(peer), "tombstones": tombstones, "topics": topics})
        return {"producers": nodes}

    async def topic_create(self, request: Request) -> None:
        """``/topic/create``."""
        self._lookupd.add(answers.valid_name(present(request, "topic"), "INVALID_ARG_TOPIC"))

    async def topic_delete(self, request: Request) -> None:
        """``/topic/delete``: the nsqds keep it, and register it again after they connected again."""
        self._lookupd.forget(present(request, "topic"))

    async def topic_tombstone(self, request: Request) -> None:
        """``/topic/tombstone``."""
        self._lookupd.tombstone(present(request, "topic"), present(request, "node"))

    async def channel_create(self, request: Request) -> None:
        """``/channel/create``."""
        self._lookupd.add(*answers.topic_and_channel(request))

    async def channel_delete(self, request: Request) -> None:
        """``/channel/delete``."""
        if not self._lookupd.forget(*answers.topic_and_channel(request)):
            raise HttpError(404, "CHANNEL_NOT_FOUND")


def _described(nsqd: PlainNsqd) -> dict[str, Any]:
    return {
        **answers.ports_of(nsqd, PLAIN_VERSION),
        "remote_address": f"{HOST}:{nsqd.tcp_port}",
        "topology_zone": "",
        "topology_region": "",
    }
