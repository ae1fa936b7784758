"""HTTP of the partitioned nsqd: the node, its channels and messages; ``stats`` has its numbers.

Source: server protocol 12; Spark design 1.1; youzan/nsq ``nsqdserver/http.go`` ``internalPUB``, ``doMPUB``,
``doMessageGet``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.base.identity import partition_of
from nsq_ha.devcluster.host import VERSION
from nsq_ha.devcluster.http import answers
from nsq_ha.devcluster.http.answers import HttpError, bare, enveloped, gets, named, posts, require
from nsq_ha.devcluster.http.stats import node_stats
from nsq_ha.devcluster.storage.channel import Channel
from nsq_ha.devcluster.storage.log import Draft, Log, SearchError, by_count, by_id, by_offset, start_index
from nsq_ha.devcluster.storage.replica import EXITING, NOT_WRITABLE, Replica

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

    from nsq_ha.devcluster.control.placement import Placement
    from nsq_ha.devcluster.nsqd.node import HaNsqd

_NOT_EXIST: Final = "E_TOPIC_NOT_EXIST"
_NOT_LEADER: Final = "E_FAILED_ON_NOT_LEADER"

_CHANNEL_CHANGES: Final[dict[str, Callable[[Channel, float], None]]] = {
    "/channel/pause": Channel.pause,
    "/channel/unpause": Channel.unpause,
    "/channel/skip": Channel.skip,
    "/channel/unskip": Channel.unskip,
    "/channel/empty": Channel.empty_and_dispatch,
}


def nsqd_app(node: HaNsqd, placement: Placement) -> Starlette:
    """Return the HTTP application of one nsqd."""
    this = _NsqdRoutes(node, placement)
    return answers.app_of(
        posts(enveloped, named(this.pub, this.mpub)),
        posts(bare, dict.fromkeys(_CHANNEL_CHANGES, this.change)),
        posts(bare, named(this.channel_create, this.channel_delete, this.channel_setorder, this.channel_setoffset)),
        posts(bare, named(this.message_finish)),
        gets(enveloped, named(this.info, this.stats)),
        gets(bare, named(this.message_get, this.message_stats, this.coordinator_stats)),
    )


class _NsqdRoutes:
    """Answers for one node."""

    def __init__(self, node: HaNsqd, placement: Placement) -> None:
        self._node = node
        self._placement = placement
        self._limits = node.host.limits

    # ------------------------------------------------------------ the node

    async def info(self, _request: Request) -> dict[str, Any]:
        """``/info``."""
        return {
            **answers.ports_of(self._node, VERSION),
            "start_time": int(self._node.start_time),
            "ha_support": True,
        }

    async def stats(self, request: Request) -> dict[str, Any]:
        """``/stats``, always as JSON."""
        return node_stats(self._node, request.query_params)

    async def coordinator_stats(self, request: Request) -> dict[str, Any]:
        """``/coordinator/stats``: the replicas of all partitions that this node holds."""
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
                    "catchup_stats": [
                        {"hostname": "", "node_id": member.distributed_id, "progress": 0}
                        for member in held.replicas
                        if member not in held.isr
                    ]
                    or None,
                }
                for name, number in sorted(self._node.replicas)
                if topic in (None, name) and partition in (None, str(number))
                if (held := self._placement.partition(name, number)) is not None
            ],
        }

    # ------------------------------------------------------------ arguments

    def _replica(self, request: Request) -> Replica:
        """Return the replica that ``topic`` and ``partition`` name; without ``partition``, any that the node leads."""
        topic = answers.valid_name(require(request, "topic", "MISSING_ARG_TOPIC"), "INVALID_ARG_TOPIC")
        try:
            number = int(request.query_params.get("partition") or "-1")
        except ValueError:
            raise HttpError(400, "INVALID_ARG_TOPIC_PARTITION") from None
        replica = self._node.find(topic, None if number == -1 else number)
        if replica is None:
            raise HttpError(404, _NOT_EXIST)
        return replica

    def _names(self, request: Request) -> tuple[Replica, str]:
        """Return replica and channel of a request."""
        replica = self._replica(request)
        return replica, answers.valid_name(require(request, "channel", "MISSING_ARG_CHANNEL"), "INVALID_ARG_CHANNEL")

    def _led_channel(self, request: Request) -> Channel:
        """Return the live channel that a request names."""
        replica, name = self._names(request)
        if name not in replica.cursors:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        if not replica.leads:
            raise HttpError(400, _NOT_LEADER)
        return replica.channel(name)

    # ------------------------------------------------------------ channels

    async def change(self, request: Request) -> None:
        """Change a channel on its leader."""
        _CHANNEL_CHANGES[request.url.path](self._led_channel(request), self._node.host.now())

    async def channel_create(self, request: Request) -> None:
        """``/channel/create``: the followers know the channel at once, also on ordered topics."""
        replica, name = self._names(request)
        if not replica.leads:
            raise HttpError(400, _NOT_LEADER)
        if replica.options.disable_channel_auto_create:
            raise HttpError(403, f"channel {name} not registered. channel should be initialized before use.")
        replica.channel(name).share()

    async def channel_delete(self, request: Request) -> None:
        """``/channel/delete``: an unknown channel counts as deleted."""
        replica, name = self._names(request)
        if not replica.leads:
            raise HttpError(400, _NOT_LEADER)
        if replica.options.disable_channel_auto_create:
            text = f"channel {name} cuold not be deleted localy in nsqd."
            raise HttpError(403, f"topic {replica.topic} has channel auto create disabled. {text}")
        replica.remove_channel(name)

    async def channel_setorder(self, request: Request) -> None:
        """``/channel/setorder``: ``false`` disconnects the consumers."""
        channel = self._led_channel(request)
        order = request.query_params.get("order")
        if order == "true":
            channel.switch_to_ordered()
            channel.dispatch(self._node.host.now())
        elif order == "false":
            channel.switch_to_unordered()
        else:
            raise HttpError(400, "INVALID_OPTION")

    async def channel_setoffset(self, request: Request) -> None:
        """``/channel/setoffset``: the body is ``type:value``."""
        replica, name = self._names(request)
        if name in replica.partition.channels:
            # A leader has registered channels even before a consumer subscribes.
            replica.channel(name)
        if name not in replica.cursors:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        body = await request.body()
        if not body:
            raise HttpError(406, "MSG_EMPTY")
        channel = self._led_channel(request)
        try:
            index = start_index(replica.log, channel.end, body.decode("utf-8", "replace"))
        except ValueError as error:
            raise HttpError(400, str(error)) from None
        except SearchError as error:
            raise HttpError(500, str(error)) from None
        channel.reset(index)
        channel.dispatch(self._node.host.now())

    async def message_finish(self, request: Request) -> None:
        """``/message/finish``: a message in flight, whoever has it."""
        channel = self._led_channel(request)
        message_id = _number(request.query_params.get("msgid", ""), "ParseInt")
        held = channel.in_flight.get(message_id)
        if held is None:
            raise HttpError(500, "ErrType:7 ErrCode:0 : Message ID not in flight")
        channel.finish(message_id, held.consumer, self._node.host.now())

    # ------------------------------------------------------------ publish

    async def pub(self, request: Request) -> str:
        """``/pub``."""
        body = await answers.read_body(request, self._limits.max_message_bytes, "MSG_TOO_BIG")
        if not body:
            raise HttpError(406, "MSG_EMPTY")
        try:
            replica = self._replica(request)
        except HttpError:
            raise HttpError(404, _NOT_EXIST) from None
        self._store(replica, [Draft(body)])
        return "OK"

    async def mpub(self, request: Request) -> str:
        """``/mpub``: lines, or counted messages if ``binary`` is set."""
        replica = self._replica(request)
        body = await answers.read_body(request, self._limits.max_body_bytes, "BODY_TOO_BIG")
        split = answers.counted_messages if "binary" in request.query_params else answers.lines_of
        messages = split(body, self._limits.max_message_bytes)
        self._store(replica, [Draft(message) for message in messages])
        return "OK"

    def _store(self, replica: Replica, drafts: Sequence[Draft]) -> None:
        if replica.node.exiting:
            raise HttpError(503, EXITING.decode())
        if replica.refusal is not None:
            raise HttpError(400, replica.refusal.decode().rstrip())
        if replica.stalled:  # the real one waits for the replicas first
            raise HttpError(400, NOT_WRITABLE.decode().rstrip())
        replica.store(drafts)
        replica.dispatch(self._node.host.now())

    # ------------------------------------------------------------ read

    async def message_stats(self, request: Request) -> str:
        """``/message/stats``: of a text for people, the line that says where the channel ends."""
        channel, log = self._led_channel(request), self._replica(request).log
        end = log.records[channel.end].offset if channel.end < len(log.records) else log.end_offset
        return f"channel end : &{{{{{{0 {end}}} {end}}} {channel.end}}}\n"

    async def message_get(self, request: Request) -> dict[str, Any]:
        """``/message/get``: wrong for messages that are not flushed, like nsqd."""
        asked = request.query_params
        mode = asked.get("search_mode", "")
        position = _number(asked.get("search_pos", ""), "ParseInt")
        partition = partition_of(position) if mode == "id" else _number(asked.get("partition", ""), "Atoi")
        replica = self._node.replicas.get((asked.get("topic", ""), partition))
        if replica is None:
            raise HttpError(400, "topic not exist")
        search = {"id": by_id, "count": by_count, "virtual_offset": by_offset}.get(mode)
        if search is None:
            raise HttpError(400, "search mode should be one of id/count/virtual_offset")
        try:
            index = search(replica.log, position)
        except SearchError as error:
            raise HttpError(404, str(error)) from None
        index = _read(replica.log, index)
        record = replica.log.records[index]
        ext = record.ext if asked.get("needext") == "true" and record.ext else b""
        return {
            "id": record.internal_id,
            "trace_id": record.trace_id,
            "body": record.body.decode("utf-8", "replace"),
            "timestamp": record.timestamp_ns,
            "attempts": 0,
            "offset": record.offset,
            "queue_cnt_index": index + 1,
            "ext": ext.decode("utf-8", "replace"),
        }


def _read(log: Log, index: int) -> int:
    """Return the index of the record that nsqd reads at ``index``.

    nsqd does not check whether it could move there: after the end it stays where it
    started, so it answers with the queue's first message. Exactly at the end there
    is nothing to read, and it fails.
    """
    if index > log.flushed:
        index = log.start
    if index >= log.flushed:
        raise HttpError(500, "INTERNAL_ERROR")
    return index


def _number(text: str, function: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise HttpError(400, f'strconv.{function}: parsing "{text}": invalid syntax') from None
