"""Find positions in a partition by count, offset, id or time as nsqd does, including its mistakes.

nsqd searches in two places. The commit log has every acknowledged record, one
entry for each publish; the queue's file has only flushed records. A search
begins in the commit log and continues in the file, so its results are wrong for
records that are not flushed yet.

Source: youzan/nsq ``SearchLogByMsgCnt``, ``SearchLogByMsgOffset``, ``SearchLogByMsgTimestamp``; measured, see the
reference page of the embedded cluster. Start positions: server protocol 5.2; Spark design 1.1.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.log import Log

EMPTY: Final = "commit log end of file"
OVERFLOWED: Final = "disk reader move offset overflowed the end"
_SECOND_NS: Final = 1_000_000_000
_LARGEST_NS: Final = 2**63 - 1
_FORM: Final = re.compile(r"(timestamp|special|virtual_queue|msgcount):([^:]*)")


class SearchError(Exception):
    """The server's text for a search that failed."""


def by_count(log: Log, count: int) -> int:
    """Return the index of record number ``count``, from 1, or the nearest end.

    Raises:
        SearchError: There is no record, or the search started after the flushed records.
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
    """Return the index of the batch that a message id belongs to, or the nearest end.

    Raises:
        SearchError: There is no record.
    """
    wanted = log.index_at_id(internal_id)
    return log.entry_at(_within(log, wanted))


def by_time(log: Log, timestamp_ns: int) -> int:
    """Return the index of the first readable record that is not older than ``timestamp_ns``, or their end.

    Raises:
        SearchError: There is no record.
    """
    _within(log, log.start)
    return log.index_at_time(timestamp_ns)


def start_index(log: Log, end: int, start: str) -> int:
    """Return the index of the first message to deliver for a start position. A channel ignores one after its end.

    Args:
        log: The log to search.
        end: The channel's end.
        start: ``type:value``.

    Raises:
        ValueError: ``start`` does not have this form; with the server's text.
        SearchError: The position cannot be found; with the server's text.
    """
    form = _FORM.fullmatch(start)
    if form is None:
        raise ValueError(f"invalid consume offset:{start}")
    kind, text = form.groups()
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None
    if kind == "special":
        if value != -1:
            raise SearchError("not supported offset type")
        return end
    if kind == "timestamp":
        if value < 0 or value * _SECOND_NS > _LARGEST_NS:
            raise SearchError(f"Invalid timestamp {value}")
        return by_time(log, value * _SECOND_NS)
    return by_count(log, value) if kind == "msgcount" else by_offset(log, value)


def _within(log: Log, index: int) -> int:
    """Return the nearest index of the commit log."""
    if log.start >= log.committed:
        raise SearchError(EMPTY)
    return min(max(index, log.start), log.committed - 1)


def _in_queue(log: Log, found: int, wanted: int) -> int:
    """Continue in the queue's file from the entry that the commit log has."""
    entry = log.entry_at(found)
    if wanted <= entry:
        return entry
    if entry > log.flushed:
        raise SearchError(OVERFLOWED)
    return min(wanted, log.flushed)
