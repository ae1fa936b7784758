"""The port of one nsqd from which other nsqds copy partitions: what it answers, and a connection to it.

The port has neither TLS nor AUTH, also if the other ports require them. It knows one call
(:mod:`nsq_ha.spark.pull.calls`). An entry is what one PUB or MPUB wrote. The call reads whole entries: committed ones,
of any replica, whether it leads or not. It fails as a whole if the first one is not flushed yet.

Source: youzan/nsq ``consistence/nsqd_coordinator.go`` ``pullCommitLogsAndData``, ``readTopicRawData``;
``consistence/commitlog.go`` ``ConvertToOffsetIndex``; ``nsqd/disk_queue_snapshot.go``.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Self

from nsq_ha.devcluster.nodes import Accepted
from nsq_ha.devcluster.storage.log import Log, raw_size
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.spark.pull.calls import encode_stored
from nsq_ha.spark.pull.serving import AnswerWriter, Called, CallReader, StoredEntry, within_limits

if TYPE_CHECKING:
    from nsq_ha.devcluster.nodes import ClusterNode
    from nsq_ha.devcluster.storage.replica import Replica


NOT_HERE: Final = "ErrType:5 ErrCode:24 : missing topic coordinator"
CLEANED: Final = "commit log read index is less than segment start"
BEYOND: Final = "commit log offset is out of bound"
NOT_FLUSHED: Final = "ErrType:7 ErrCode:1 : EOF: local commit log data end mismatch queue data end"
OVERFLOWED: Final = "ErrType:7 ErrCode:1 : disk reader move offset overflowed the end"


class PullError(Exception):
    """The call fails; the text is the server's."""


def pull(replica: Replica | None, entry: int, count: int) -> list[StoredEntry]:
    """Return entries of a log.

    Args:
        replica: The partition's replica on this node. None if there is none.
        entry: Number of the first one, from 0.
        count: Number of them at most.

    Raises:
        PullError: The first one does not exist, was cleaned or is not flushed.
    """
    if replica is None:
        raise PullError(NOT_HERE)
    log = replica.log
    total = bisect_left(log.entries, log.committed)
    if entry < bisect_left(log.entries, log.start):
        raise PullError(CLEANED)
    if entry > total:
        raise PullError(BEYOND)
    stop = min(total, entry + max(count, 0))
    firsts = log.entries[entry:stop]
    lasts = [*firsts[1:], log.entries[stop] if stop < total else log.committed][: len(firsts)]
    sizes = [log.offset_at(last) - log.offset_at(first) for first, last in zip(firsts, lasts, strict=True)]
    limit = within_limits(sizes)
    readable = log.offset_at(log.flushed)
    found: list[StoredEntry] = []
    for first, last in zip(firsts[:limit], lasts[:limit], strict=True):
        if log.offset_at(first) == readable:
            if found:
                break
            raise PullError(NOT_FLUSHED)
        if log.offset_at(last) > readable:
            raise PullError(OVERFLOWED)
        found.append(_stored(log, first, last))
    return found


def _stored(log: Log, first: int, last: int) -> StoredEntry:
    records = log.records[first:last]
    data = b"".join(
        encode_stored(
            each.timestamp_ns,
            each.internal_id,
            each.trace_id,
            each.body,
            each.ext,
            extended=each.raw_size > raw_size(each.body, None, extended=False),  # not if it is older than the upgrade
        )
        for each in records
    )
    return StoredEntry(records[0].internal_id, records[-1].internal_id, records[0].offset, first, last - first, data)


class CopyConnection(Accepted):
    """One connection.

    Args:
        node: The nsqd.
        connections: The open connections of the port.
        replicas: The replicas of the node, by topic and partition.
    """

    def __init__(self, node: ClusterNode, connections: set[Self], replicas: Mapping[tuple[str, int], Replica]) -> None:
        super().__init__(node, connections)
        self._replicas = replicas
        self._reader = CallReader()
        self._writer = AnswerWriter()

    def data_received(self, data: bytes) -> None:
        """Answer the calls that are complete; close the connection after bytes that are none."""
        try:
            for call in self._reader.feed(data):
                if self.node.delay > 0:
                    self.node.host.after(self.node.delay, functools.partial(self._answer, call))
                else:
                    self._answer(call)
        except RemoteProtocolError:
            self.abort()

    def _answer(self, call: Called) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        asked = call.pull
        if asked is None:
            answer = self._writer.refuse(call.number, f"gorpc.Dispatcher: unknown method [{call.method}]")
        else:
            replica = self._replicas.get((asked.topic, asked.partition))
            try:
                answer = self._writer.answer(call.number, pull(replica, asked.entry, asked.count))
            except PullError as error:
                answer = self._writer.refuse(call.number, str(error))
        self._transport.write(answer)
