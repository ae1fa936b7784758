"""nsqd's ``/message/get``: one stored message by id, count or offset.

Source: protocol reference 13; Spark reference 1.1; youzan/nsq ``doMessageGet``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsq_ha.devcluster.http.answers import HttpError
from nsq_ha.devcluster.storage.search import SearchError, by_count, by_id, by_offset
from nsq_ha.message import partition_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.nsqd.node import Nsqd
    from nsq_ha.devcluster.storage.log import Log


class Search:
    """Finds messages on this node, with nsqd's mistakes for fresh ones."""

    def __init__(self, node: Nsqd) -> None:
        """Search one node."""
        self._node = node

    async def get(self, request: Request) -> dict[str, Any]:
        """``/message/get``."""
        asked = request.query_params
        mode = asked.get("search_mode", "")
        position = _number(asked.get("search_pos", ""), "ParseInt")
        partition = partition_of(position) if mode == "id" else _number(asked.get("partition", ""), "Atoi")
        replica = self._node.replicas.get((asked.get("topic", ""), partition))
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

    nsqd does not check whether its seek worked: behind the end it stays at the
    beginning and answers with the queue's first message. At the end itself there
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
