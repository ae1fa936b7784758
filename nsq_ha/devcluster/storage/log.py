"""The queue of one replica: a flushed part that can be read, a committed part, and a pending part behind it.

The invariant: committed records are on every in-sync replica; pending ones are
on this replica and perhaps on others. A pending record may be committed later or
cut off, so a publish without an answer is in doubt.
A record is acknowledged once it is committed, but it stays in the writer's buffer
and cannot be read until the buffer is flushed.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.storage.record import Record, raw_size
from nsq_ha.message import PARTITION_SHIFT

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.record import Draft

FIRST_SEQUENCE: Final = 2
"""Sequence number of a partition's first message, as the real cluster counts."""
_CLEANED: Final = Record(0, 0, 0, 0, 0, b"")
"""Stands for what was cleaned: the places stay, so that indexes do, and the memory goes."""


class Log:
    """Records of one replica of one partition.

    Attributes:
        records: All records, committed ones first. Index 0 is the first message ever.
        committed: Number of committed records.
        flushed: Number of records that can be read; never above ``committed``.
        start: Index of the oldest record that is kept; earlier ones were cleaned.
    """

    __slots__ = ("_end_offset", "_extended", "_next_id", "committed", "flushed", "records", "start")

    def __init__(self, partition: int, *, extended: bool) -> None:
        """Make an empty log."""
        self.records: list[Record] = []
        self.committed = self.flushed = 0
        self.start = 0
        self._extended = extended
        self._next_id = (partition << PARTITION_SHIFT) + FIRST_SEQUENCE
        self._end_offset = 0

    def append(self, draft: Draft, timestamp_ns: int, place: int = 0) -> Record:
        """Append a pending record of ``draft``, number ``place`` of its batch."""
        size = raw_size(draft.body, draft.ext, extended=self._extended)
        record = Record(
            self._next_id, draft.trace_id, timestamp_ns, self._end_offset, size, draft.body, draft.ext, place
        )
        self._next_id += 1
        self._end_offset += size
        self.records.append(record)
        return record

    def receive(self, record: Record) -> None:
        """Put a leader's record into the pending part."""
        self.records.append(record)
        self._next_id = record.internal_id + 1
        self._end_offset = record.offset + record.raw_size

    def commit(self) -> None:
        """Make all pending records committed."""
        self.committed = len(self.records)

    def flush(self) -> bool:
        """Make all committed records readable; return whether there were any."""
        grew = self.flushed < self.committed
        self.flushed = self.committed
        return grew

    def cut_pending(self) -> int:
        """Drop the pending part and return how many records that were."""
        dropped = len(self.records) - self.committed
        if dropped:
            self._next_id = self.records[self.committed].internal_id
            self._end_offset = self.records[self.committed].offset
            del self.records[self.committed :]
        return dropped

    def follow(self, leader: Log) -> None:
        """Become equal to ``leader``: cut what it does not have, copy what is missing, commit what it committed."""
        mine, theirs = self.records, leader.records
        # What was cleaned here and is still kept there has to be copied, too.
        low, high = 0, min(len(mine), len(theirs)) if self.start <= leader.start else 0
        while low < high:  # Once two logs part they never meet again, so the common part can be halved towards.
            middle = (low + high + 1) // 2
            if mine[middle - 1] is theirs[middle - 1]:
                low = middle
            else:
                high = middle - 1
        mine[low:] = theirs[low:]
        self.committed = self.flushed = leader.committed
        self.start = leader.start
        self._next_id = leader._next_id
        self._end_offset = leader._end_offset

    @property
    def start_offset(self) -> int:
        """Byte position of the oldest record that is kept."""
        return self.offset_at(self.start)

    def offset_at(self, index: int) -> int:
        """Return the byte position of a kept record, or of the end."""
        return self.records[index].offset if index < len(self.records) else self._end_offset

    @property
    def end_offset(self) -> int:
        """Byte position behind the last record, pending ones included."""
        return self._end_offset

    def entry_at(self, index: int) -> int:
        """Return the index of the first record of the batch of ``index``."""
        return max(self.start, index - self.records[index].place)

    def index_at_offset(self, offset: int) -> int:
        """Index of the first committed record at or behind ``offset``; the end when there is none."""
        return bisect_left(self.records, offset, self.start, self.committed, key=_offset)

    def index_at_time(self, timestamp_ns: int) -> int:
        """Return the index of the first readable record not older than ``timestamp_ns``, or their end."""
        return bisect_left(self.records, timestamp_ns, self.start, max(self.start, self.flushed), key=_timestamp)

    def index_at_id(self, internal_id: int) -> int:
        """Return the index of the first committed record with an id of ``internal_id`` or more, or the end."""
        return bisect_left(self.records, internal_id, self.start, self.committed, key=_internal_id)

    def clean(self, index: int) -> None:
        """Forget the committed records before ``index``, as retention does."""
        start = max(self.start, min(index, self.committed))
        self.records[self.start : start] = [_CLEANED] * (start - self.start)
        self.start = start
        self.flushed = max(self.flushed, start)


def _offset(record: Record) -> int:
    return record.offset


def _timestamp(record: Record) -> int:
    return record.timestamp_ns


def _internal_id(record: Record) -> int:
    return record.internal_id
