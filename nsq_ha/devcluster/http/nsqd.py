"""nsqd's HTTP: the routes, and what is told of the node itself.

Source: protocol reference 13; youzan/nsq ``nsqdserver/http.go``.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.routing import Route

from nsq_ha.devcluster.http.answers import HttpError, bare, enveloped, not_found, plain, wrong_method
from nsq_ha.devcluster.http.channels import ChannelOrders
from nsq_ha.devcluster.http.messages import HttpPublisher
from nsq_ha.devcluster.http.search import Search
from nsq_ha.devcluster.http.stats import Stats
from nsq_ha.devcluster.ports import HOST
from nsq_ha.devcluster.version import VERSION

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.nsqd.node import Nsqd


def nsqd_app(node: Nsqd) -> Starlette:
    """The HTTP of one nsqd."""
    about, publish, orders = About(node), HttpPublisher(node), ChannelOrders(node)
    posts = {
        "/pub": enveloped(publish.pub),
        "/mpub": enveloped(publish.mpub),
        "/pub_ext": enveloped(publish.pub_ext),
        "/pubtrace": bare(publish.pub_trace),
        "/channel/create": bare(orders.create),
        "/channel/delete": bare(orders.delete),
        "/channel/pause": bare(orders.pause),
        "/channel/unpause": bare(orders.unpause),
        "/channel/skip": bare(orders.skip),
        "/channel/unskip": bare(orders.unskip),
        "/channel/empty": bare(orders.empty),
        "/channel/emptydelayed": bare(orders.empty_delayed),
        "/channel/setorder": bare(orders.set_order),
        "/channel/setoffset": bare(orders.set_offset),
        "/channel/setclientlimit": bare(orders.accept),
        "/message/finish": bare(orders.finish),
        "/message/trace/enable": bare(about.trace),
        "/message/trace/disable": bare(about.trace),
        "/disable/write": bare(about.disable_write),
    }
    return Starlette(
        routes=[
            *(Route(path, route, methods=["POST"]) for path, route in posts.items()),
            Route("/ping", plain(about.ping)),
            Route("/info", enveloped(about.info)),
            Route("/stats", Stats(node).route),
            Route("/message/get", bare(Search(node).get)),
            Route("/coordinator/stats", bare(about.coordinator)),
        ],
        exception_handlers={404: not_found, 405: wrong_method},
    )


class About:
    """What a node tells of itself, and switches of the whole node."""

    def __init__(self, node: Nsqd) -> None:
        """Tell about one."""
        self._node = node

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

    async def coordinator(self, request: Request) -> dict[str, Any]:
        """``/coordinator/stats``, with the in-sync replicas of what this node holds."""
        topic, partition = request.query_params.get("topic"), request.query_params.get("partition")
        return {
            "rpc_stats": {},
            "ErrStats": {},
            "topic_coord_stats": [
                {
                    "node": "",
                    "name": name,
                    "partition": number,
                    "isr_stats": [
                        {"hostname": "", "node_id": member.distributed_id} for member in replica.partition.isr
                    ],
                    "catchup_stats": None,
                }
                for (name, number), replica in sorted(self._node.replicas.items())
                if topic in (None, name) and partition in (None, str(number))
            ],
        }

    async def trace(self, _request: Request) -> None:
        """``/message/trace/...``: accepted; the dev cluster writes no trace log."""

    async def disable_write(self, request: Request) -> None:
        """``/disable/write``."""
        kind = request.query_params.get("type", "")
        if kind not in ("all", "ordered", "none"):
            raise HttpError(400, "INVALID_ARG_TYPE")
        self._node.writes_disabled = kind == "all"
        self._node.update_refusals()
