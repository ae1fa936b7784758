"""HTTP of the partitioned nsqlookupd: lookups, and changes of topics, channels and nodes.

Source: server protocol 11; server failures 2; youzan/nsq ``nsqlookupd/http.go``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.devcluster.control.changes import ChangeRefusedError, Changes
from nsq_ha.devcluster.host import VERSION
from nsq_ha.devcluster.http import answers
from nsq_ha.devcluster.http.answers import HttpError, bare, enveloped, gets, named, posts, require
from nsq_ha.devcluster.nodes import HOST
from nsq_ha.devcluster.storage.replica import ClusterTopic, TopicOptions
from nsq_ha.options.checks import MAX_PARTITIONS

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

    from nsq_ha.devcluster.control.coordinator import Coordinator
    from nsq_ha.devcluster.control.placement import ClusterPartition, Nsqlookupd, Registered
    from nsq_ha.devcluster.nsqd.node import HaNsqd

_NOT_LEADING: Final = "E_FAILED_ON_NOT_LEADER"
_NO_LEADER: Final = "Not nsqlookup leader"
_MAX_REPLICAS: Final = 5
_MAX_SYNC_EVERY: Final = 4000
_MAX_RETENTION_DAYS: Final = 60
_TRUE: Final = "true"


def lookupd_app(lookupd: Nsqlookupd, coordinator: Coordinator, *, write_without_channels: bool) -> Starlette:
    """Return the HTTP application of one nsqlookupd.

    Args:
        lookupd: The nsqlookupd.
        coordinator: The cluster.
        write_without_channels: False makes ``access=w`` refuse topics without a channel.
    """
    this = _LookupdRoutes(lookupd, coordinator, write_without_channels=write_without_channels)
    return answers.app_of(
        gets(enveloped, named(this.listlookup, this.lookup, this.topics, this.channels, this.nodes, this.info)),
        gets(bare, named(this.cluster_stats)),
        posts(bare, named(this.topic_create, this.topic_delete, this.topic_partition_expand, this.topic_tombstone)),
        posts(bare, named(this.cluster_node_remove, this.cluster_upgrade_begin, this.cluster_upgrade_done)),
        posts(bare, named(this.topic_partition_move, this.topic_meta_update, this.channel_create, this.channel_delete)),
    )


def _peer(node: HaNsqd) -> dict[str, Any]:
    """Return an nsqd as lookups describe it."""
    registration = f"{HOST}:{node.copy_port}"
    return {
        **answers.ports_of(node, VERSION),
        "id": registration,
        "remote_address": registration,
        "distributed_id": node.distributed_id,
    }


class _LookupdRoutes:
    """Answer queries from the memory of one nsqlookupd; execute changes, if it leads."""

    def __init__(self, lookupd: Nsqlookupd, coordinator: Coordinator, *, write_without_channels: bool) -> None:
        self._lookupd = lookupd
        self._coordinator = coordinator
        self._placement = coordinator.placement
        self._changes = Changes(coordinator)
        self._write_without_channels = write_without_channels

    async def listlookup(self, _request: Request) -> dict[str, Any]:
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
        answer["partitions"] = {str(number): _peer(entry.leader) for number, entry in sorted(known.items())}
        answer["producers"] = [_peer(node) for node in nodes]
        return answer

    def _known(self, request: Request, topic: str, access: str) -> dict[int, Registered]:
        only = request.query_params.get("partition")
        consistent = bool(request.query_params.get("consistent"))
        known = {}
        for (name, number), entry in self._lookupd.registered.items():
            if name != topic or (only and only != str(number)):
                continue
            if access == "w" and (not entry.writable or (topic, entry.leader) in self._lookupd.tombstones):
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
        meta, topic = self._meta(name), self._placement.topics.get(name)
        registered = self._placement.channels_of(topic) if topic else ()
        return {
            "topic_name": name,
            **{key: meta[key] for key in ("extend_support", "ordered", "multi_part", "disable_channel_auto_create")},
            "registered_channels": sorted(registered) or None,
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
            known = _peer(node)
            producers.append(
                {
                    **{key: value for key, value in known.items() if key not in ("id", "distributed_id")},
                    "tombstones": [(topic, node) in self._lookupd.tombstones for topic in topics],
                    "topics": topics,
                    "partitions": partitions,
                }
            )
        return {"producers": producers}

    async def info(self, _request: Request) -> dict[str, Any]:
        """``/info``."""
        return {"version": VERSION, "ha_support": True}

    async def cluster_stats(self, _request: Request) -> dict[str, Any]:
        """``/cluster/stats``: only the leading nsqlookupd answers."""
        coordinator = self._coordinator
        self._must_lead(400, _NOT_LEADING)
        loads = [
            {
                **{key: _peer(node)[key] for key in ("hostname", "broadcast_address", "tcp_port", "http_port")},
                "leader_load_factor": float(sum(replica.leads for replica in node.replicas.values())),
                "node_load_factor": float(len(node.replicas)),
            }
            for node in coordinator.nsqds
            if node.linked
        ]
        return {"stable": coordinator.stable, "node_stat_list": loads, "topn_topics": []}

    # ------------------------------------------------------------ changes

    async def topic_create(self, request: Request) -> None:
        """``/topic/create``."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        answers.valid_name(name, "INVALID_ARG_TOPIC")
        partitions = _number(request, "partition_num", "TOPIC_PARTITION_NUM", MAX_PARTITIONS)
        replicas = _number(request, "replicator", "TOPIC_REPLICATOR", _MAX_REPLICAS)
        with self._leading(400, _NOT_LEADING):
            asked = request.query_params
            options = TopicOptions(
                partitions=partitions,
                replicas=replicas,
                ordered=asked.get("orderedmulti") == _TRUE,
                multi_part=asked.get("multipart") == _TRUE,
                extended=asked.get("extend") == _TRUE,
                disable_channel_auto_create=asked.get("disable_channel_auto_create") == _TRUE,
                sync_every=min(_integer(asked.get("syncdisk") or "0", "INVALID_ARG_TOPIC_SYNC_DISK"), _MAX_SYNC_EVERY),
            )
            self._changes.create(name, options)

    async def topic_delete(self, request: Request) -> None:
        """``/topic/delete``."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        if require(request, "partition", "MISSING_ARG_TOPIC_PARTITION") != "**":
            raise HttpError(400, "REMOVE_SINGLE_PARTITION_NOT_ALLOWED")
        with self._leading(500, _NO_LEADER):
            self._changes.delete(name)

    async def topic_partition_expand(self, request: Request) -> None:
        """``/topic/partition/expand``."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        partitions = _number(request, "partition_num", "TOPIC_PARTITION_NUM", MAX_PARTITIONS)
        with self._leading(500, _NO_LEADER):
            self._must_be_stable(500)
            self._changes.expand(name, partitions)

    async def topic_partition_move(self, request: Request) -> None:
        """``/topic/partition/move``."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        number = require(request, "partition", "MISSING_ARG_TOPIC_PARTITION")
        with self._leading(400, _NOT_LEADING):
            partition = self._partition(name, number)
            to = self._node(require(request, "move_to", "MISSING_ARG"))
            former = self._node(require(request, "move_from", "MISSING_ARG"))
            if former not in partition.replicas:
                raise HttpError(400, "the move source node is not in the replicas")
            self._must_be_stable(400)
            if request.query_params.get("move_leader") != _TRUE:
                raise HttpError(400, "moving a replica that does not lead is not supported here")
            self._changes.move(partition, to)

    async def topic_meta_update(self, request: Request) -> None:
        """``/topic/meta/update``: also starts the periodic check early."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        asked = request.query_params
        replicas = None
        if asked.get("replicator"):
            replicas = _number(request, "replicator", "TOPIC_REPLICATOR", _MAX_REPLICAS)
        sync_every = _integer(asked.get("syncdisk") or "-1", "INVALID_ARG_TOPIC_SYNC_DISK")
        retention = _integer(asked.get("retention") or "-1", "strconv.Atoi: invalid syntax")
        with self._leading(400, _NO_LEADER):
            for value, largest, text in (
                (retention, _MAX_RETENTION_DAYS, "max retention days allowed exceed"),
                (sync_every, _MAX_SYNC_EVERY, "max sync every allowed exceed"),
            ):
                if value > largest:
                    raise HttpError(400, text)
            topic = self._placement.topics.get(name)
            if topic is None:
                raise HttpError(400, "topic is not created")
            present = topic.options
            options = replace(
                present,
                replicas=replicas or present.replicas,
                sync_every=sync_every if sync_every >= 0 else present.sync_every,
                extended=present.extended or asked.get("upgradeext") == _TRUE,
                disable_channel_auto_create={_TRUE: True, "false": False}.get(
                    asked.get("disable_channel_auto_create", ""), present.disable_channel_auto_create
                ),
            )
            self._changes.update(topic, options)
            host = self._coordinator.host
            host.after(host.timing.create, self._coordinator.check)

    async def topic_tombstone(self, request: Request) -> None:
        """``/topic/tombstone``: only this nsqlookupd remembers it; a node without the topic is ignored."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        address = require(request, "node", "MISSING_ARG_NODE")
        marks = self._lookupd.tombstones
        for (topic, _), entry in self._lookupd.registered.items():
            if topic == name and address == f"{HOST}:{entry.leader.http_port}":
                if request.query_params.get("restore") == _TRUE:
                    marks.discard((name, entry.leader))
                else:
                    marks.add((name, entry.leader))

    async def channel_create(self, request: Request) -> None:
        """``/channel/create``: register a channel of a topic that does not create channels automatically."""
        topic, channel = self._registration(request)
        if not topic.options.disable_channel_auto_create:
            raise HttpError(400, f"channel auto create NOT disabled in topic {topic.name}")
        registered = self._placement.channels_of(topic)
        if channel in registered:
            raise HttpError(400, f"channel {channel} already registered")
        self._changes.register_channels(topic, registered | {channel})

    async def channel_delete(self, request: Request) -> None:
        """``/channel/delete``: no effect on a topic that creates channels automatically."""
        topic, channel = self._registration(request)
        if not topic.options.disable_channel_auto_create:
            return
        registered = self._placement.channels_of(topic)
        if channel not in registered:
            raise HttpError(400, f"channel {channel} not registered")
        self._changes.register_channels(topic, registered - {channel})

    async def cluster_node_remove(self, request: Request) -> None:
        """``/cluster/node/remove``."""
        with self._leading(400, _NO_LEADER):
            self._changes.remove_node(self._node(require(request, "remove_node", "MISSING_ARG")))

    async def cluster_upgrade_begin(self, _request: Request) -> None:
        """``/cluster/upgrade/begin``."""
        self._must_lead(400, _NO_LEADER)
        self._coordinator.is_upgrading = True

    async def cluster_upgrade_done(self, _request: Request) -> None:
        """``/cluster/upgrade/done``."""
        self._must_lead(400, _NO_LEADER)
        self._coordinator.is_upgrading = False

    # ------------------------------------------------------------ arguments

    @contextmanager
    def _leading(self, status: int, text: str) -> Iterator[None]:
        """Refuse a change if this nsqlookupd does not lead, or if the cluster refuses it."""
        self._must_lead(status, text)
        try:
            yield
        except ChangeRefusedError as error:
            raise HttpError(status, str(error)) from None

    def _must_lead(self, status: int, text: str) -> None:
        if self._coordinator.leading is not self._lookupd:
            raise HttpError(status, text)

    def _must_be_stable(self, status: int) -> None:
        if not self._coordinator.stable:
            raise HttpError(status, "the cluster is unstable")

    def _registration(self, request: Request) -> tuple[ClusterTopic, str]:
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        channel = require(request, "channel", "MISSING_ARG_CHANNEL")
        topic = self._placement.topics.get(name)
        if topic is None:
            raise HttpError(400, "Key not found")
        self._must_lead(400, _NO_LEADER)
        return topic, channel

    def _partition(self, name: str, number: str) -> ClusterPartition:
        partition = self._placement.partition(name, int(number)) if number.isdecimal() else None
        if partition is None:
            raise HttpError(400, "Key not found")
        return partition

    def _node(self, distributed_id: str) -> HaNsqd:
        for node in self._coordinator.nsqds:
            if node.distributed_id == distributed_id:
                return node
        raise HttpError(400, "the node is not found")


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


def _integer(text: str, refusal: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise HttpError(400, refusal) from None


def _number(request: Request, name: str, what: str, largest: int) -> int:
    text = require(request, name, f"MISSING_ARG_{what}")
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= largest):
        raise HttpError(400, f"INVALID_ARG_{what}")
    return int(text)
