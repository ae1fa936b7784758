"""Positions in a partition by count, offset, id or time, found as nsqd finds them: with its mistakes.

nsqd looks in two places. The commit log names every acknowledged record, one
entry for each publish; the queue's file holds only what was flushed. A search
begins in the first and goes on in the second, so it says wrong things about
records that are in the one and not yet in the other.

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
    """Index of record number ``count``, from 1; what is not there is found at the nearest end.

    Raises:
        SearchError: There is no record, or the search began behind what can be read.
    """
    wanted = count - 1
    return _in_queue(log, _within(log, wanted), wanted)


def by_offset(log: Log, offset: int) -> int:
    """Index of the record at ``offset``, or of the next one when ``offset`` is inside a record.

    Raises:
        SearchError: As for :func:`by_count`.
    """
    wanted = log.index_at_offset(offset)
    inside = wanted == log.committed or log.records[wanted].offset > offset
    return _in_queue(log, _within(log, wanted - 1 if inside else wanted), wanted)


def by_id(log: Log, internal_id: int) -> int:
    """Index of the batch that a message id belongs to; what is not there is found at the nearest end.

    Raises:
        SearchError: There is no record.
    """
    wanted = log.index_at_id(internal_id)
    return log.entry_at(_within(log, wanted))


def by_time(log: Log, timestamp_ns: int) -> int:
    """Index of the first readable record that is not older than ``timestamp_ns``; their end when there is none.

    Raises:
        SearchError: There is no record.
    """
    _within(log, log.start)
    return log.index_at_time(timestamp_ns)


def _within(log: Log, index: int) -> int:
    """The nearest index of the commit log."""
    if log.start >= log.committed:
        raise SearchError(EMPTY)
    return min(max(index, log.start), log.committed - 1)


def _in_queue(log: Log, found: int, wanted: int) -> int:
    """Go on in the queue's file from the entry that the commit log named."""
    entry = log.entry_at(found)
    if wanted <= entry:
        return entry
    if entry > log.flushed:
        raise SearchError(OVERFLOWED)
    return min(wanted, log.flushed)
