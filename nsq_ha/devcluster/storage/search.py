"""Find positions in a partition by count, offset, id or time, with the mistakes of nsqd.

nsqd searches in two places. The commit log has an entry for each acknowledged
publish; the queue's file holds only flushed records. A search starts in the
first and continues in the second, so it returns wrong results for records that
are not in the second yet.

Source: youzan/nsq ``SearchLogByMsgCnt``, ``SearchLogByMsgOffset``, ``SearchLogByMsgTimestamp``; measured, see
the reference page of the embedded cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.log import Log

EMPTY: Final = "commit log end of file"
OVERFLOWED: Final = "disk reader move offset overflowed the end"


class SearchError(Exception):
    """The server's text for a search that failed."""


def by_count(log: Log, count: int) -> int:
    """Return the index of record number ``count``, from 1; the nearest end if there is none.

    Raises:
        SearchError: There is no record, or the search started behind the readable part.
    """
    wanted = count - 1
    return _in_queue(log, _within(log, wanted), wanted)


def by_offset(log: Log, offset: int) -> int:
    """Return the index of the record at ``offset``, or of the next one if ``offset`` is inside a record.

    Raises:
        SearchError: As for :func:`by_count`.
    """
    wanted = log.index_at_offset(offset)
    inside = wanted == log.committed or log.records[wanted].offset > offset
    return _in_queue(log, _within(log, wanted - 1 if inside else wanted), wanted)


def by_id(log: Log, internal_id: int) -> int:
    """Return the index of the batch of a message id; the nearest end if there is none.

    Raises:
        SearchError: There is no record.
    """
    wanted = log.index_at_id(internal_id)
    return log.entry_at(_within(log, wanted))


def by_time(log: Log, timestamp_ns: int) -> int:
    """Return the index of the first readable record not older than ``timestamp_ns``, or their end.

    Raises:
        SearchError: There is no record.
    """
    _within(log, log.start)
    return log.index_at_time(timestamp_ns)


def _within(log: Log, index: int) -> int:
    """Return the nearest index of the commit log."""
    if log.start >= log.committed:
        raise SearchError(EMPTY)
    return min(max(index, log.start), log.committed - 1)


def _in_queue(log: Log, found: int, wanted: int) -> int:
    """Continue in the queue's file from the entry of the commit log."""
    entry = log.entry_at(found)
    if wanted <= entry:
        return entry
    if entry > log.flushed:
        raise SearchError(OVERFLOWED)
    return min(wanted, log.flushed)
