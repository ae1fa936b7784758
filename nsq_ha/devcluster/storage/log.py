"""The message queue of one replica, and how far a channel has read it.

A log has a flushed part that can be read, a committed part, and a pending part.
Committed records are on every in-sync replica; pending ones are on this replica
and perhaps on others. A pending record may be committed later or cut off, so a
publish without an answer is in doubt. A committed record is acknowledged, but it
stays in the writer's buffer until that is flushed, and only then can it be read.

nsqd searches a position in two places, by count, offset, id or time. The commit log has every acknowledged record, one
entry for each publish; the queue's file has only flushed records. A search
begins in the commit log and continues in the file, so its results are wrong for
records that are not flushed yet.

Source: youzan/nsq ``SearchLogByMsgCnt``, ``SearchLogByMsgOffset``, ``SearchLogByMsgTimestamp``; measured, see the
reference page of the embedded cluster. Start positions: server protocol 5.2; Spark design 1.1.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from operator import attrgetter
from typing import Final

import msgspec

from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.options.checks import EPHEMERAL_SUFFIX

FIRST_SEQUENCE: Final = 2
"""Sequence number of a partition's first message, as the real cluster counts."""
HEADER_BYTES: Final = 30
"""Size word (4), timestamp (8), attempts (2) and id (16) of a record in the queue."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A message in a partition's queue. All replicas share the same object, so a body exists once.

    Attributes:
        internal_id: ``partition << 50 | sequence``.
        trace_id: The publisher's trace id; 0 if there is none.
        timestamp_ns: Time of the publish.
        offset: Byte position in the queue; the next record is at ``offset + raw_size``.
        raw_size: Bytes of the record in the queue.
        body: The payload.
        ext: JSON header of an extended topic. None if there is none.
        number: Number within its batch, from 0.
    """

    internal_id: int
    trace_id: int
    timestamp_ns: int
    offset: int
    raw_size: int
    body: bytes
    ext: bytes | None = None
    number: int = 0


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message as a publisher sends it; the leader turns it into a record."""

    body: bytes
    trace_id: int = 0
    ext: bytes | None = None


def raw_size(body: bytes, ext: bytes | None, *, extended: bool) -> int:
    """Return the bytes that a message takes in the queue.

    An extended topic stores one version byte, and two more for the length of a header.

    Source: server protocol 2.
    """
    size = HEADER_BYTES + len(body)
    if extended:
        size += 1 if ext is None else 3 + len(ext)
    return size


_CLEANED: Final = Record(0, 0, 0, 0, 0, b"")
"""Replaces a cleaned record: indexes stay valid, and the memory is freed."""


class Log:
    """Records of one replica of one partition.

    Attributes:
        records: All records, committed ones first. Index 0 is the first message ever.
        committed: Number of committed records.
        flushed: Number of records that can be read; never above ``committed``.
        start: Index of the oldest kept record; older ones were cleaned up.
        entries: Index of the first record of each batch, including cleaned and pending ones.
        end_offset: Byte position after the last record, including pending ones.
        extended: New records have a version byte, and may have a header.
    """

    __slots__ = ("_next_id", "committed", "end_offset", "entries", "extended", "flushed", "records", "start")

    def __init__(self, partition: int, *, extended: bool) -> None:
        self.records: list[Record] = []
        self.committed: int = 0
        self.flushed: int = 0
        self.start: int = 0
        self.entries: list[int] = []
        self.extended: bool = extended
        self._next_id = (partition << PARTITION_SHIFT) + FIRST_SEQUENCE
        self.end_offset: int = 0

    def append(self, draft: Draft, timestamp_ns: int, number: int = 0) -> Record:
        """Add ``draft``, number ``number`` of its batch, to the pending part and return its record."""
        size = raw_size(draft.body, draft.ext, extended=self.extended)
        record = Record(
            self._next_id, draft.trace_id, timestamp_ns, self.end_offset, size, draft.body, draft.ext, number
        )
        self._next_id += 1
        self.end_offset += size
        self._add(record)
        return record

    def receive(self, record: Record) -> None:
        """Add a leader's record to the pending part."""
        self._add(record)
        self.skip_id()
        self.end_offset = record.offset + record.raw_size

    def _add(self, record: Record) -> None:
        if not record.number:
            self.entries.append(len(self.records))
        self.records.append(record)

    def commit(self) -> None:
        """Commit all pending records."""
        self.committed = len(self.records)

    def flush(self) -> bool:
        """Make all committed records readable; return whether there were unflushed ones."""
        grew = self.flushed < self.committed
        self.flushed = self.committed
        return grew

    def cut_pending(self) -> int:
        """Drop the pending part and return how many records it had; their ids are not used again."""
        dropped = len(self.records) - self.committed
        if dropped:
            self.end_offset = self.records[self.committed].offset
            del self.records[self.committed :]
            del self.entries[bisect_left(self.entries, self.committed) :]
        return dropped

    def follow(self, leader: Log) -> None:
        """Become equal to ``leader``: cut records that it lacks, copy missing ones, commit what it committed."""
        mine, theirs = self.records, leader.records
        # Records that were cleaned up here but are kept there must be copied, too.
        low, high = 0, min(len(mine), len(theirs)) if self.start <= leader.start else 0
        while low < high:  # Two logs that differ once differ from there on, so binary search works.
            middle = (low + high + 1) // 2
            if mine[middle - 1] is theirs[middle - 1]:
                low = middle
            else:
                high = middle - 1
        is_equal = low == len(mine) == len(theirs)
        mine[low:] = theirs[low:]
        self.committed = self.flushed = leader.committed
        self.start = leader.start
        self.entries = leader.entries.copy()
        self.end_offset = leader.end_offset
        if not is_equal:
            self._next_id = leader._next_id
            self.skip_id()

    def skip_id(self) -> None:
        """Skip one id, as a node does that did not assign the last id itself or has restarted since."""
        if self.records and self.records[-1] is not _CLEANED:
            self._next_id = self.records[-1].internal_id + 2

    @property
    def start_offset(self) -> int:
        """Byte position of the oldest kept record."""
        return self.offset_at(self.start)

    def offset_at(self, index: int) -> int:
        """Return the byte position of a kept record, or of the end for an index after the last one."""
        return self.records[index].offset if index < len(self.records) else self.end_offset

    def entry_at(self, index: int) -> int:
        """Return the index of the first record of the batch that ``index`` belongs to."""
        return max(self.start, index - self.records[index].number)

    def index_at_offset(self, offset: int) -> int:
        """Return the index of the first committed record at or after ``offset``, or the end."""
        return bisect_left(self.records, offset, self.start, self.committed, key=attrgetter("offset"))

    def index_at_time(self, timestamp_ns: int) -> int:
        """Return the index of the first readable record not older than ``timestamp_ns``, or their end."""
        return bisect_left(
            self.records, timestamp_ns, self.start, max(self.start, self.flushed), key=attrgetter("timestamp_ns")
        )

    def index_at_id(self, internal_id: int) -> int:
        """Return the index of the first committed record whose id is not below ``internal_id``, or the end."""
        return bisect_left(self.records, internal_id, self.start, self.committed, key=attrgetter("internal_id"))

    def clean(self, index: int) -> None:
        """Forget the committed records before ``index``, as retention does."""
        start = max(self.start, min(index, self.committed))
        self.records[self.start : start] = [_CLEANED] * (start - self.start)
        self.start = start
        self.flushed = max(self.flushed, start)


def is_ephemeral(channel: str) -> bool:
    """Return whether a channel disappears with its last consumer and is not replicated."""
    return channel.endswith(EPHEMERAL_SUFFIX)


class Cursor:
    """The confirmed records of one channel: the only part of a channel that is replicated.

    The rest (messages in flight, attempts, delays) is only in the leader's memory, so
    after a change of leader unanswered messages are delivered again with attempts 1.

    Attributes:
        confirmed: Index of the first record that is not confirmed.
        beyond: Indexes confirmed out of order after it. The followers learn them only now and then.
        ranges: Number of unbroken runs in ``beyond``; the server stops reading when there are too many.
        shared: The followers know the channel. They learn of an ordered one when its position or state is set, or its
            first message is finished; until then it is lost with its leader (``trySyncTopicChannels``).
    """

    __slots__ = ("beyond", "confirmed", "ranges", "shared")

    def __init__(self, confirmed: int, *, shared: bool = True) -> None:
        self.confirmed: int = confirmed
        self.beyond: set[int] = set()
        self.ranges: int = 0
        self.shared: bool = shared

    def confirm(self, index: int) -> None:
        """Confirm one record."""
        beyond = self.beyond
        if index == self.confirmed:
            self.confirmed = index + 1
            if beyond:
                self._merge()
        elif index > self.confirmed and index not in beyond:
            self.ranges += 1 - ((index - 1) in beyond) - ((index + 1) in beyond)
            beyond.add(index)

    def advance(self, confirmed: int) -> None:
        """Confirm all records before ``confirmed``."""
        for index in range(self.confirmed, confirmed):
            self.confirm(index)

    def reset(self, index: int) -> None:
        """Start again at ``index``, with nothing confirmed after it."""
        self.confirmed = index
        self.beyond.clear()
        self.ranges = 0

    def copy_from(self, other: Cursor) -> None:
        """Become equal to another replica's cursor."""
        self.confirmed = other.confirmed
        self.beyond = set(other.beyond)
        self.ranges = other.ranges
        self.shared = other.shared

    def _merge(self) -> None:
        beyond = self.beyond
        if self.confirmed not in beyond:
            return
        self.ranges -= 1
        while self.confirmed in beyond:
            beyond.remove(self.confirmed)
            self.confirmed += 1


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
