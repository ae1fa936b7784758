"""nsqd's HTTP: all routes, and those of the node and its channels.

Source: server protocol 12; youzan/nsq ``nsqdserver/http.go``.
"""

from __future__ import annotations

import functools
import socket
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.routing import Route

from nsq_ha.devcluster.host import VERSION
from nsq_ha.devcluster.http.envelope import (
    NOT_LEADER,
    HttpError,
    bare,
    channel_name_of,
    enveloped,
    led_channel_of,
    not_found,
    plain,
    replica_of,
    wrong_method,
)
from nsq_ha.devcluster.http.message_routes import PubRoutes, get_message
from nsq_ha.devcluster.http.stats_route import StatsRoute
from nsq_ha.devcluster.ports import HOST
from nsq_ha.devcluster.storage.search import SearchError, start_index

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.control.placement import Placement
    from nsq_ha.devcluster.nsqd.node import Nsqd


def nsqd_app(node: Nsqd, placement: Placement) -> Starlette:
    """Return the HTTP application of one nsqd."""
    this, publish, channel = NodeRoutes(node, placement), PubRoutes(node), ChannelRoutes(node)
    posts = {
        "/pub": enveloped(publish.pub),
        "/mpub": enveloped(publish.mpub),
        "/pub_ext": enveloped(publish.pub_ext),
        "/pubtrace": bare(publish.pub_trace),
        "/channel/create": bare(channel.create),
        "/channel/delete": bare(channel.delete),
        "/channel/pause": bare(channel.pause),
        "/channel/unpause": bare(channel.unpause),
        "/channel/skip": bare(channel.skip),
        "/channel/unskip": bare(channel.unskip),
        "/channel/empty": bare(channel.empty),
        "/channel/emptydelayed": bare(channel.empty_delayed),
        "/channel/setorder": bare(channel.set_order),
        "/channel/setoffset": bare(channel.set_offset),
        "/channel/setclientlimit": bare(channel.accept),
        "/message/finish": bare(channel.finish),
        "/message/trace/enable": bare(this.trace),
        "/message/trace/disable": bare(this.trace),
        "/disable/write": bare(this.disable_write),
    }
    return Starlette(
        routes=[
            *(Route(path, route, methods=["POST"]) for path, route in posts.items()),
            Route("/ping", plain(this.ping)),
            Route("/info", enveloped(this.info)),
            Route("/stats", StatsRoute(node).route),
            Route("/message/get", bare(functools.partial(get_message, node))),
            Route("/coordinator/stats", bare(this.coordinator_stats)),
        ],
        exception_handlers={404: not_found, 405: wrong_method},
    )


class NodeRoutes:
    """Describe the node, and switch it."""

    def __init__(self, node: Nsqd, placement: Placement) -> None:
        self._node = node
        self._placement = placement

    async def ping(self, _request: Request) -> str:
        """``/ping``."""
        return "OK"

    async def info(self, _request: Request) -> dict[str, Any]:
        """``/info``."""
        return {
            "version": VERSION,
            "broadcast_address": HOST,
            "hostname": socket.gethostname(),
            "http_port": self._node.http_port,
            "tcp_port": self._node.tcp_port,
            "start_time": int(self._node.start_time),
            "ha_support": True,
        }

    async def coordinator_stats(self, request: Request) -> dict[str, Any]:
        """``/coordinator/stats``: the in-sync replicas of all partitions that this node holds."""
        topic, partition = request.query_params.get("topic"), request.query_params.get("partition")
        return {
            "rpc_stats": {},
            "ErrStats": {},
            "topic_coord_stats": [
                {
                    "node": "",
                    "name": name,
                    "partition": number,
                    "isr_stats": [{"hostname": "", "node_id": member.distributed_id} for member in held.isr],
                    "catchup_stats": None,
                }
                for name, number in sorted(self._node.replicas)
                if topic in (None, name) and partition in (None, str(number))
                if (held := self._placement.partition(name, number)) is not None
            ],
        }

    async def trace(self, _request: Request) -> None:
        """``/message/trace/...``: no effect, since the cluster writes no trace log."""

    async def disable_write(self, request: Request) -> None:
        """``/disable/write``."""
        kind = request.query_params.get("type", "")
        if kind not in ("all", "ordered", "none"):
            raise HttpError(400, "INVALID_ARG_TYPE")
        self._node.writes_disabled = kind == "all"
        self._node.update_refusals()


class ChannelRoutes:
    """Create, delete and change channels on their leader."""

    def __init__(self, node: Nsqd) -> None:
        self._node = node

    async def create(self, request: Request) -> None:
        """``/channel/create``."""
        replica, name = replica_of(self._node, request), channel_name_of(request)
        if not replica.leads:
            raise HttpError(400, NOT_LEADER)
        if replica.options.disable_channel_auto_create:
            raise HttpError(403, f"channel {name} not registered. channel should be initialized before use.")
        replica.channel(name)

    async def delete(self, request: Request) -> None:
        """``/channel/delete``: an unknown channel counts as deleted."""
        replica, name = replica_of(self._node, request), channel_name_of(request)
        if not replica.leads:
            raise HttpError(400, NOT_LEADER)
        if replica.options.disable_channel_auto_create:
            text = f"channel {name} cuold not be deleted localy in nsqd."
            raise HttpError(403, f"topic {replica.topic} has channel auto create disabled. {text}")
        replica.remove_channel(name)

    async def pause(self, request: Request) -> None:
        """``/channel/pause``; the state is replicated, and with it the channel."""
        channel = led_channel_of(self._node, request)
        channel.paused = True
        channel.share()

    async def unpause(self, request: Request) -> None:
        """``/channel/unpause``; the state is replicated, and with it the channel."""
        channel = led_channel_of(self._node, request)
        channel.paused = False
        channel.share()
        channel.dispatch(self._node.host.now())

    async def skip(self, request: Request) -> None:
        """``/channel/skip``: confirm everything undelivered, now and until ``/channel/unskip``."""
        channel = led_channel_of(self._node, request)
        channel.skipped = True
        channel.empty()
        channel.dispatch(self._node.host.now())

    async def unskip(self, request: Request) -> None:
        """``/channel/unskip``."""
        channel = led_channel_of(self._node, request)
        channel.skipped = False
        channel.refresh()
        channel.empty()
        channel.dispatch(self._node.host.now())

    async def empty(self, request: Request) -> None:
        """``/channel/empty``."""
        channel = led_channel_of(self._node, request)
        channel.empty()
        channel.dispatch(self._node.host.now())

    async def empty_delayed(self, request: Request) -> None:
        """``/channel/emptydelayed``."""
        led_channel_of(self._node, request).empty_delayed()

    async def accept(self, request: Request) -> None:
        """``/channel/setclientlimit``: no effect here."""
        led_channel_of(self._node, request)

    async def set_order(self, request: Request) -> None:
        """``/channel/setorder``: ``false`` disconnects the consumers."""
        channel = led_channel_of(self._node, request)
        order = request.query_params.get("order")
        if order == "true":
            channel.switch_to_ordered()
            channel.dispatch(self._node.host.now())
        elif order == "false":
            channel.switch_to_unordered()
        else:
            raise HttpError(400, "INVALID_OPTION")

    async def set_offset(self, request: Request) -> None:
        """``/channel/setoffset``: the body is ``type:value``."""
        replica, name = replica_of(self._node, request), channel_name_of(request)
        if name in replica.partition.channels:
            # A leader has registered channels even before a consumer subscribes.
            replica.channel(name)
        if name not in replica.cursors:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        body = await request.body()
        if not body:
            raise HttpError(406, "MSG_EMPTY")
        channel = led_channel_of(self._node, request)
        try:
            index = start_index(replica.log, channel.end, body.decode("utf-8", "replace"))
        except ValueError as error:
            raise HttpError(400, str(error)) from None
        except SearchError as error:
            raise HttpError(500, str(error)) from None
        channel.reset(index)
        channel.dispatch(self._node.host.now())

    async def finish(self, request: Request) -> None:
        """``/message/finish``: FIN for the consumer that holds the message."""
        channel = led_channel_of(self._node, request)
        text = request.query_params.get("msgid", "")
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise HttpError(400, "INVALID_REQUEST")
        entry = channel.in_flight.get(int(text))
        if entry is None:
            raise HttpError(500, "ErrType:7 ErrCode:0 : Message ID not in flight")
        channel.finish(int(text), entry.consumer, self._node.host.now())
