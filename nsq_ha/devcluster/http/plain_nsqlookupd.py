"""HTTP of upstream's nsqlookupd.

Source: nsqio/nsq ``nsqlookupd/http.go``.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, TypeVar

from nsq_ha.devcluster.host import PLAIN_VERSION
from nsq_ha.devcluster.http import answers
from nsq_ha.devcluster.http.answers import HttpError, bare, gets, named, posts, present
from nsq_ha.devcluster.nodes import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.applications import Starlette
    from starlette.requests import Request

    from nsq_ha.devcluster.control.plain_lookupd import PlainNsqlookupd
    from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd

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
        "remote_address": f"{HOST}:{nsqd.tcp_port}",
        "hostname": socket.gethostname(),
        "broadcast_address": HOST,
        "tcp_port": nsqd.tcp_port,
        "http_port": nsqd.http_port,
        "version": PLAIN_VERSION,
        "topology_zone": "",
        "topology_region": "",
    }
