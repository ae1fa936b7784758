"""nsqd's HTTP for messages: publish, and get one by id, count or offset.

Source: server protocol 12; Spark design 1.1; youzan/nsq ``internalPUB``, ``doMPUB``, ``doMessageGet``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.devcluster.http.envelope import NOT_EXIST, HttpError, replica_of
from nsq_ha.devcluster.http.requests import counted_messages, read_body
from nsq_ha.devcluster.storage.log import Draft
from nsq_ha.devcluster.storage.replica import EXITING
from nsq_ha.devcluster.storage.search import SearchError, by_count, by_id, by_offset
from nsq_ha.identity import partition_of
from nsq_ha.message import TRACE_KEY

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.storage.log import Log, Record
    from nsq_ha.devcluster.storage.replica import Replica
    from nsq_ha.devcluster.storage.replicas import StorageNode

_EXT_PREFIX: Final = "x-nsqext-"
_BAD_HEADER: Final = "E_INVALID_JSON_HEADER"
_BAD_TRACE_ID: Final = "INVALID_TRACE_ID"


class PubRoutes:
    """Publish to one node."""

    def __init__(self, node: StorageNode) -> None:
        self._node = node

    async def pub(self, request: Request) -> str:
        """``/pub``."""
        replica, body = await self._begin(request)
        await self._store(replica, [Draft(body)])
        return "OK"

    async def pub_trace(self, request: Request) -> dict[str, Any]:
        """``/pubtrace``."""
        replica, body = await self._begin(request)
        text = request.query_params.get("trace_id", "")
        trace_id = _trace_id(text)
        records = await self._store(replica, [Draft(body, trace_id)])
        return _traced(records[0], text)

    async def pub_ext(self, request: Request) -> str | dict[str, Any]:
        """``/pub_ext``: the header is in ``ext`` and ``X-Nsqext-*``."""
        replica, body = await self._begin(request)
        header = _header(request)
        trace = header.get(TRACE_KEY)
        trace_id = 0
        if trace is not None:
            if not isinstance(trace, str):
                raise HttpError(400, _BAD_TRACE_ID)
            trace_id = _trace_id(trace)
        if not replica.options.extended:
            raise HttpError(400, "E_EXT_NOT_SUPPORT")
        # Go's encoder sorts the keys of a map.
        ext = json.dumps(header, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
        records = await self._store(replica, [Draft(body, trace_id, ext)])
        return "OK" if not isinstance(trace, str) else _traced(records[0], trace)

    async def mpub(self, request: Request) -> str:
        """``/mpub``: lines, or counted messages if ``binary`` is set."""
        replica = replica_of(self._node, request)
        limits = self._node.host.limits
        body = await read_body(request, limits.max_body_bytes, "BODY_TOO_BIG")
        messages = counted_messages(body) if "binary" in request.query_params else [m for m in body.split(b"\n") if m]
        if any(len(message) > limits.max_message_bytes for message in messages):
            raise HttpError(413, "MSG_TOO_BIG")
        await self._store(replica, [Draft(message) for message in messages])
        return "OK"

    async def _begin(self, request: Request) -> tuple[Replica, bytes]:
        """Read the body and find the replica.

        Raises:
            HttpError: The body is empty or too big, or this node has no replica that leads.
        """
        body = await read_body(request, self._node.host.limits.max_message_bytes, "MSG_TOO_BIG")
        if not body:
            raise HttpError(406, "MSG_EMPTY")
        try:
            replica = replica_of(self._node, request)
        except HttpError:
            raise HttpError(404, NOT_EXIST) from None
        _may_write(replica)
        return replica, body

    async def _store(self, replica: Replica, drafts: Sequence[Draft]) -> list[Record]:
        _may_write(replica)
        if replica.stalled:
            return await _stored(replica, drafts)
        records = replica.store(drafts)
        replica.deliver(self._node.host.now())
        return records


def _may_write(replica: Replica) -> None:
    if replica.node.exiting:
        raise HttpError(503, EXITING.decode())
    if replica.refusal is not None:
        raise HttpError(400, replica.refusal.decode().rstrip())


async def _stored(replica: Replica, drafts: Sequence[Draft]) -> list[Record]:
    """Store once the followers answer.

    Raises:
        HttpError: The wait for the followers ended without an answer.
    """
    done: asyncio.Future[list[Record] | bytes] = asyncio.get_running_loop().create_future()

    def end(result: list[Record] | bytes) -> None:
        if not done.done():
            done.set_result(result)

    replica.store_later(drafts, end, end)
    result = await done
    if isinstance(result, bytes):
        raise HttpError(400, result.decode().rstrip())
    return result


def _trace_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64):
        raise HttpError(400, _BAD_TRACE_ID)
    return int(text)


def _header(request: Request) -> dict[str, Any]:
    try:
        header = json.loads(request.query_params.get("ext", ""))
    except (ValueError, RecursionError):
        raise HttpError(400, _BAD_HEADER) from None
    if not isinstance(header, dict):
        raise HttpError(400, _BAD_HEADER)
    for name, value in request.headers.items():
        if name.startswith(_EXT_PREFIX):
            header[name.removeprefix(_EXT_PREFIX)] = value
    return header


def _traced(record: Record, trace_id: str) -> dict[str, Any]:
    return {
        "status": "OK",
        "id": record.internal_id,
        "trace_id": trace_id,
        "queue_offset": record.offset,
        "rawsize": record.raw_size,
    }


async def get_message(node: StorageNode, request: Request) -> dict[str, Any]:
    """``/message/get``: wrong for messages that are not flushed, like nsqd."""
    asked = request.query_params
    mode = asked.get("search_mode", "")
    position = _number(asked.get("search_pos", ""), "ParseInt")
    partition = partition_of(position) if mode == "id" else _number(asked.get("partition", ""), "Atoi")
    replica = node.replicas.get((asked.get("topic", ""), partition))
    if replica is None:
        raise HttpError(400, "topic not exist")
    try:
        index = _index(replica.log, mode, position)
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


def _index(log: Log, mode: str, position: int) -> int:
    if mode == "id":
        return by_id(log, position)
    if mode == "count":
        return by_count(log, position)
    if mode == "virtual_offset":
        return by_offset(log, position)
    raise HttpError(400, "search mode should be one of id/count/virtual_offset")


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
