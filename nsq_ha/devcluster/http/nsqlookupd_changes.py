"""nsqlookupd's HTTP: changes of topics, channels and nodes.

Source: server protocol 11; server failures 2; youzan/nsq ``nsqlookupd/http.go``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nsq_ha.checks import MAX_PARTITIONS, is_valid_name
from nsq_ha.devcluster.control.changes import ChangeRefusedError
from nsq_ha.devcluster.http.envelope import HttpError, require
from nsq_ha.devcluster.ports import HOST
from nsq_ha.devcluster.storage.replica import TopicOptions

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.control.changes import Changes
    from nsq_ha.devcluster.control.coordinator import Coordinator
    from nsq_ha.devcluster.control.nsqlookupd import Nsqlookupd
    from nsq_ha.devcluster.control.placement import Partition
    from nsq_ha.devcluster.nsqd.node import Nsqd
    from nsq_ha.devcluster.storage.replica import Topic

NOT_LEADING: Final = "E_FAILED_ON_NOT_LEADER"
_NO_LEADER: Final = "Not nsqlookup leader"
_MAX_REPLICAS: Final = 5
_MAX_SYNC_EVERY: Final = 4000
_MAX_RETENTION_DAYS: Final = 60
_TRUE: Final = "true"


class ChangeRoutes:
    """Execute changes, if the nsqlookupd leads."""

    def __init__(self, lookupd: Nsqlookupd, coordinator: Coordinator, changes: Changes) -> None:
        self._lookupd = lookupd
        self._coordinator = coordinator
        self._placement = coordinator.placement
        self._changes = changes

    async def create(self, request: Request) -> None:
        """``/topic/create``."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_ARG_TOPIC")
        partitions = _number(request, "partition_num", "TOPIC_PARTITION_NUM", MAX_PARTITIONS)
        replicas = _number(request, "replicator", "TOPIC_REPLICATOR", _MAX_REPLICAS)
        self._must_lead(400, NOT_LEADING)
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
        _do(400, lambda: self._changes.create(name, options))

    async def delete(self, request: Request) -> None:
        """``/topic/delete``."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        if require(request, "partition", "MISSING_ARG_TOPIC_PARTITION") != "**":
            raise HttpError(400, "REMOVE_SINGLE_PARTITION_NOT_ALLOWED")
        self._must_lead(500, _NO_LEADER)
        _do(500, lambda: self._changes.delete(name))

    async def expand(self, request: Request) -> None:
        """``/topic/partition/expand``."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        partitions = _number(request, "partition_num", "TOPIC_PARTITION_NUM", MAX_PARTITIONS)
        self._must_lead(500, _NO_LEADER)
        _do(500, lambda: self._changes.expand(name, partitions))

    async def move(self, request: Request) -> None:
        """``/topic/partition/move``."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        number = require(request, "partition", "MISSING_ARG_TOPIC_PARTITION")
        self._must_lead(400, NOT_LEADING)
        partition = self._partition(name, number)
        to = self._node(require(request, "move_to", "MISSING_ARG"))
        former = self._node(require(request, "move_from", "MISSING_ARG"))
        if former not in partition.replicas:
            raise HttpError(400, "the move source node is not in the replicas")
        if not self._coordinator.stable:
            raise HttpError(400, "the cluster is unstable")
        if request.query_params.get("move_leader") != _TRUE:
            raise HttpError(400, "moving a replica that does not lead is not supported here")
        _do(400, lambda: self._changes.move(partition, to))

    async def update_meta(self, request: Request) -> None:
        """``/topic/meta/update``: also starts the periodic check early."""
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        asked = request.query_params
        replicas = None
        if asked.get("replicator"):
            replicas = _number(request, "replicator", "TOPIC_REPLICATOR", _MAX_REPLICAS)
        sync_every = _integer(asked.get("syncdisk") or "-1", "INVALID_ARG_TOPIC_SYNC_DISK")
        retention = _integer(asked.get("retention") or "-1", "strconv.Atoi: invalid syntax")
        self._must_lead(400, _NO_LEADER)
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
        _do(400, lambda: self._changes.update(topic, options))
        host = self._coordinator.host
        host.after(host.timing.create, self._coordinator.check)

    async def tombstone(self, request: Request) -> None:
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

    async def create_channel(self, request: Request) -> None:
        """``/channel/create``: register a channel of a topic that does not create channels automatically."""
        topic, channel = self._registration(request)
        if not topic.options.disable_channel_auto_create:
            raise HttpError(400, f"channel auto create NOT disabled in topic {topic.name}")
        registered = self._placement.channels_of(topic)
        if channel in registered:
            raise HttpError(400, f"channel {channel} already registered")
        self._changes.register_channels(topic, registered | {channel})

    async def delete_channel(self, request: Request) -> None:
        """``/channel/delete``: no effect on a topic that creates channels automatically."""
        topic, channel = self._registration(request)
        if not topic.options.disable_channel_auto_create:
            return
        registered = self._placement.channels_of(topic)
        if channel not in registered:
            raise HttpError(400, f"channel {channel} not registered")
        self._changes.register_channels(topic, registered - {channel})

    async def disable_write(self, request: Request) -> None:
        """``/disable/write``."""
        kind = request.query_params.get("type", "")
        if kind not in ("all", "ordered", "none"):
            raise HttpError(400, "INVALID_ARG_TYPE")
        self._must_lead(400, NOT_LEADING)
        self._coordinator.disable_writes(disabled=kind == "all")

    # ------------------------------------------------------------ arguments

    def _must_lead(self, status: int, text: str) -> None:
        if self._coordinator.leading is not self._lookupd:
            raise HttpError(status, text)

    def _registration(self, request: Request) -> tuple[Topic, str]:
        name = require(request, "topic", "MISSING_ARG_TOPIC")
        channel = require(request, "channel", "MISSING_ARG_CHANNEL")
        topic = self._placement.topics.get(name)
        if topic is None:
            raise HttpError(400, "Key not found")
        self._must_lead(400, _NO_LEADER)
        return topic, channel

    def _partition(self, name: str, number: str) -> Partition:
        partition = self._placement.partition(name, int(number)) if number.isdecimal() else None
        if partition is None:
            raise HttpError(400, "Key not found")
        return partition

    def _node(self, distributed_id: str) -> Nsqd:
        for node in self._coordinator.nsqds:
            if node.distributed_id == distributed_id:
                return node
        raise HttpError(400, "the node is not found")


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


def _do(status: int, act: Callable[[], None]) -> None:
    try:
        act()
    except ChangeRefusedError as error:
        raise HttpError(status, str(error)) from None
