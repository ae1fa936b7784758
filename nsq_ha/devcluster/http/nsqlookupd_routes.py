"""nsqlookupd's HTTP: lookups; ``nsqlookupd_changes`` has the changes.

Source: server protocol 11; server failures 2.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.routing import Route

from nsq_ha.devcluster.host import VERSION
from nsq_ha.devcluster.http.envelope import HttpError, bare, enveloped, not_found, plain, require, wrong_method
from nsq_ha.devcluster.http.nsqlookupd_changes import NOT_LEADING, ChangeRoutes
from nsq_ha.devcluster.ports import HOST
from nsq_ha.devcluster.storage.replica import TopicOptions

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.control.changes import Changes
    from nsq_ha.devcluster.control.coordinator import Coordinator
    from nsq_ha.devcluster.control.nsqlookupd import Nsqlookupd, Registered
    from nsq_ha.devcluster.nsqd.node import Nsqd


def lookupd_app(
    lookupd: Nsqlookupd, coordinator: Coordinator, changes: Changes, *, write_without_channels: bool
) -> Starlette:
    """Return the HTTP application of one nsqlookupd.

    Args:
        lookupd: The nsqlookupd.
        coordinator: The cluster.
        changes: Executes changes.
        write_without_channels: False makes ``access=w`` refuse topics without a channel.
    """
    ask = QueryRoutes(lookupd, coordinator, write_without_channels=write_without_channels)
    change = ChangeRoutes(lookupd, coordinator, changes)
    return Starlette(
        routes=[
            Route("/listlookup", enveloped(ask.list_lookup)),
            Route("/lookup", enveloped(ask.lookup)),
            Route("/topics", enveloped(ask.topics)),
            Route("/channels", enveloped(ask.channels)),
            Route("/nodes", enveloped(ask.nodes)),
            Route("/info", enveloped(ask.info)),
            Route("/ping", plain(ask.ping)),
            Route("/cluster/stats", bare(ask.cluster_stats)),
            Route("/topic/create", bare(change.create), methods=["POST"]),
            Route("/topic/delete", bare(change.delete), methods=["POST"]),
            Route("/topic/partition/expand", bare(change.expand), methods=["POST"]),
            Route("/topic/partition/move", bare(change.move), methods=["POST"]),
            Route("/topic/meta/update", bare(change.update_meta), methods=["POST"]),
            Route("/channel/create", bare(change.create_channel), methods=["POST"]),
            Route("/channel/delete", bare(change.delete_channel), methods=["POST"]),
            Route("/topic/tombstone", bare(change.tombstone), methods=["POST"]),
            Route("/disable/write", bare(change.disable_write), methods=["POST"]),
        ],
        exception_handlers={404: not_found, 405: wrong_method},
    )


def peer(node: Nsqd) -> dict[str, Any]:
    """Return an nsqd as lookups describe it."""
    registration = f"{HOST}:{node.copy_port}"
    return {
        "id": registration,
        "remote_address": registration,
        "hostname": socket.gethostname(),
        "broadcast_address": HOST,
        "tcp_port": node.tcp_port,
        "http_port": node.http_port,
        "version": VERSION,
        "distributed_id": node.distributed_id,
    }


class QueryRoutes:
    """Answer queries from the memory of one nsqlookupd."""

    def __init__(self, lookupd: Nsqlookupd, coordinator: Coordinator, *, write_without_channels: bool) -> None:
        self._lookupd = lookupd
        self._coordinator = coordinator
        self._placement = coordinator.placement
        self._write_without_channels = write_without_channels

    async def list_lookup(self, _request: Request) -> dict[str, Any]:
        """``/listlookup``."""
        coordinator = self._coordinator
        leading = coordinator.leading or coordinator.last_leading
        return {
            "lookupdleader": _lookupd_entry(leading),
            "lookupdnodes": [_lookupd_entry(lookupd) for lookupd in coordinator.lookupds if lookupd.listed],
        }

    async def lookup(self, request: Request) -> dict[str, Any]:
        """``/lookup``."""
        lookupd = self._lookupd
        lookupd.requests += 1
        topic = require(request, "topic", "MISSING_ARG_TOPIC")
        access = request.query_params.get("access") or "r"
        if access not in ("r", "w"):
            raise HttpError(400, "INVALID_ACCESS_MODE")
        if access == "w" and topic not in lookupd.options:
            raise HttpError(404, "Key not found")
        known = self._known(request, topic, access)
        channels = self._channels(topic, known)
        if access == "w" and known and not self._write_without_channels:
            known = {number: entry for number, entry in known.items() if self._channels(topic, {number: entry})}
            if not known:
                raise HttpError(404, "Topic has no channel, should init at least one for the new topic")
        answer: dict[str, Any] = {"channels": channels}
        if request.query_params.get("metainfo"):
            answer["meta"] = self._meta(topic)
        if access == "w" and self._coordinator.host.writes_disabled:
            return {**answer, "channels": [], "partitions": None, "producers": None}
        nodes = dict.fromkeys(entry.leader for entry in known.values())
        answer["partitions"] = {str(number): peer(entry.leader) for number, entry in sorted(known.items())}
        answer["producers"] = [peer(node) for node in nodes]
        return answer

    def _known(self, request: Request, topic: str, access: str) -> dict[int, Registered]:
        only = request.query_params.get("partition")
        consistent = bool(request.query_params.get("consistent"))
        known = {}
        for (name, number), entry in self._lookupd.registered.items():
            if name != topic or (only and only != str(number)):
                continue
            if access == "w" and (not entry.writable or self._lookupd.is_tombstoned(topic, entry.leader)):
                continue
            partition = self._placement.partition(topic, number)
            if consistent and (partition is None or partition.leader is not entry.leader):
                continue
            known[number] = entry
        return known

    def _channels(self, topic: str, known: dict[int, Registered]) -> list[str]:
        names: set[str] = set()
        for number, entry in known.items():
            replica = entry.leader.replicas.get((topic, number))
            if replica is not None:
                names |= replica.cursors.keys()
        return sorted(names)

    def _registered_channels(self, name: str) -> set[str]:
        topic = self._placement.topics.get(name)
        return set(self._placement.channels_of(topic)) if topic else set()

    def _meta(self, topic: str) -> dict[str, Any]:
        options = self._lookupd.options.get(topic) or TopicOptions(partitions=0, replicas=0)
        return {
            "disable_channel_auto_create": options.disable_channel_auto_create,
            "extend_support": options.extended,
            "multi_part": options.multi_part,
            "ordered": options.ordered,
            "partition_num": options.partitions,
            "replica": options.replicas,
        }

    async def topics(self, request: Request) -> dict[str, Any]:
        """``/topics``."""
        names = sorted(self._lookupd.options)
        answer: dict[str, Any] = {"topics": names}
        if request.query_params.get("metaInfo"):
            answer["meta_info"] = [self._topic_meta(name) for name in names]
        return answer

    def _topic_meta(self, name: str) -> dict[str, Any]:
        meta = self._meta(name)
        return {
            "topic_name": name,
            **{key: meta[key] for key in ("extend_support", "ordered", "multi_part", "disable_channel_auto_create")},
            "registered_channels": sorted(self._registered_channels(name)) or None,
        }

    async def channels(self, request: Request) -> dict[str, Any]:
        """``/channels``."""
        topic = require(request, "topic", "MISSING_ARG_TOPIC")
        return {"channels": self._channels(topic, self._known(request, topic, "r"))}

    async def nodes(self, _request: Request) -> dict[str, Any]:
        """``/nodes``."""
        producers = []
        for node in self._coordinator.nsqds:
            if not node.linked:
                continue
            partitions: dict[str, list[str]] = {}
            for (topic, number), entry in sorted(self._lookupd.registered.items()):
                if entry.leader is node:
                    partitions.setdefault(topic, []).append(str(number))
            topics = sorted(partitions)
            known = peer(node)
            producers.append(
                {
                    **{key: value for key, value in known.items() if key not in ("id", "distributed_id")},
                    "tombstones": [self._lookupd.is_tombstoned(topic, node) for topic in topics],
                    "topics": topics,
                    "partitions": partitions,
                }
            )
        return {"producers": producers}

    async def info(self, _request: Request) -> dict[str, Any]:
        """``/info``."""
        return {"version": VERSION, "ha_support": True}

    async def ping(self, _request: Request) -> str:
        """``/ping``."""
        return "OK"

    async def cluster_stats(self, _request: Request) -> dict[str, Any]:
        """``/cluster/stats``: only the leading nsqlookupd answers."""
        coordinator = self._coordinator
        if coordinator.leading is not self._lookupd:
            raise HttpError(400, NOT_LEADING)
        loads = [
            {
                **{key: peer(node)[key] for key in ("hostname", "broadcast_address", "tcp_port", "http_port")},
                "leader_load_factor": float(sum(replica.leads for replica in node.replicas.values())),
                "node_load_factor": float(len(node.replicas)),
            }
            for node in coordinator.nsqds
            if node.linked
        ]
        return {"stable": coordinator.stable, "node_stat_list": loads, "topn_topics": []}


def _lookupd_entry(lookupd: Nsqlookupd | None) -> dict[str, Any]:
    if lookupd is None:
        return {"ID": "", "NodeIP": "", "TcpPort": "", "HttpPort": "", "RpcPort": "", "Epoch": 0}
    return {
        "ID": f"{HOST}:{lookupd.rpc_port}:{lookupd.tcp_port}:nsqlookup",
        "NodeIP": HOST,
        "TcpPort": str(lookupd.tcp_port),
        "HttpPort": str(lookupd.http_port),
        "RpcPort": str(lookupd.rpc_port),
        "Epoch": 0,
    }
