"""Cut the messages in the entries of an answer with numpy: no object per message.

The invariants: the entries of the result follow each other without a gap in the partition's log, and the messages of
each entry fill it exactly. So each message begins where the one before it ends, which is the chain rule.

**Source:** ``entries``, which decodes the entries; ``spark.pull.calls``, which has the format of a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nsq_ha.base.identity import PARTITION_MASK, PARTITION_SHIFT
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.spark.pull.calls import EXT_MARK, EXT_MASK, HEAD_BYTES, Pulled
from nsq_ha.spark.read.bulk.entries import entries_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsq_ha.spark.plan.batch_planner import Range

    Numbers = NDArray[np.int64]
    Data = NDArray[np.uint8]

_SIZE: Final = Struct(">I").unpack_from
_HEAD: Final = np.dtype(
    {
        "names": ["size", "timestamp", "attempts", "id", "internal", "trace"],
        "formats": [">u4", ">i8", ">u2", "V16", ">u8", ">i8"],
        "offsets": [0, 4, 12, 14, 14, 22],
        "itemsize": HEAD_BYTES,
    }
)


class DamagedLogError(RemoteProtocolError):
    """The messages of an entry do not fill it, or belong to another partition."""


@dataclass(slots=True, eq=False)
class StoredMessages:
    """Messages of one partition as they are stored, in the order of the log and without a gap; no object for each.

    Attributes:
        data: Bytes of the answer.
        starts: Where each message begins in them.
        heads: The head of each message.
        source: Names their topic and partition.
        offsets: Where each message begins in the partition's log.
    """

    data: Data
    starts: Numbers
    heads: NDArray[np.void]
    source: Range
    offsets: Numbers
    _parts: tuple[Numbers, Numbers] | None = None  # several columns ask for them

    def __len__(self) -> int:
        return len(self.starts)

    def part(self, first: int, last: int) -> StoredMessages:
        """Return the messages with these numbers, from 0, without the last one."""
        which = slice(first, last)
        return StoredMessages(self.data, self.starts[which], self.heads[which], self.source, self.offsets[which])

    @property
    def raw_sizes(self) -> Numbers:
        """Bytes of each message in the log."""
        return self.heads["size"].astype(np.int64) + 4

    @property
    def partitions(self) -> Numbers:
        """The partition that the id of each message names."""
        return (self.heads["internal"].astype(np.int64) >> PARTITION_SHIFT) & PARTITION_MASK

    @property
    def ends(self) -> Numbers:
        """Where each message ends in the data."""
        return self.starts + self.raw_sizes

    @property
    def ids(self) -> NDArray[np.uint8]:
        """The 16 bytes of each id, a row each."""
        return self.heads["id"].copy().view(np.uint8).reshape(-1, 16)

    @property
    def end(self) -> int:
        """Where the last message ends in the log."""
        return int(self.offsets[-1]) + int(self.heads["size"][-1]) + 4

    @property
    def parts(self) -> tuple[Numbers, Numbers]:
        """Where the extension header of each message begins in the data, and where its body does.

        The same for a message without a header; one with an empty header has its body two bytes later.

        Raises:
            DamagedLogError: A header is longer than its message.
        """
        if self._parts is None:
            self._parts = self._found_parts()
        return self._parts

    def _found_parts(self) -> tuple[Numbers, Numbers]:
        starts, data = self.starts + HEAD_BYTES, self.data
        marked = np.flatnonzero((self.heads["attempts"] & EXT_MASK) == EXT_MARK)
        if not len(marked):
            return starts, starts
        headers, bodies, ends = starts.copy(), starts.copy(), self.ends
        versions = starts[marked]
        if (versions >= ends[marked]).any():
            raise DamagedLogError("a message of an extended topic has no version of its header")
        bodies[marked] += 1
        headers[marked] += 1
        headed = marked[data[versions] != 0]
        lengths = starts[headed] + 1
        if (lengths + 2 > ends[headed]).any():
            raise DamagedLogError("a message is cut inside its extension header")
        headers[headed] += 2
        bodies[headed] = headers[headed] + (data[lengths].astype(np.int64) << 8) + data[lengths + 1]
        if (bodies > ends).any():
            raise DamagedLogError("a message is cut inside its extension header")
        return headers, bodies


def cut(pulled: Pulled, asked: Range) -> tuple[StoredMessages, int] | None:
    """Cut an answer.

    Args:
        pulled: The answer.
        asked: The range that was asked for.

    Returns:
        The messages, and the number of the entries that they fill; None if there are none.

    Raises:
        DamagedLogError: The messages of an entry do not fill it, belong to another partition, or an entry does not
            follow the one before it.
        RemoteProtocolError: The answer is not understood.
    """
    offsets, sizes, pieces = entries_of(pulled)
    if not len(offsets):
        return None
    if (sizes <= 0).any() or (offsets[1:] != (offsets + sizes)[:-1]).any():
        raise DamagedLogError("the entries of the log do not follow each other")
    rows = _rows(pulled.data, pieces, sizes, offsets, asked)
    partitions = rows.partitions
    if len(others := partitions[partitions != asked.partition]):
        raise DamagedLogError(f"a message belongs to partition {int(others[0])}")
    return rows, len(offsets)


def _rows(view: memoryview, pieces: Numbers, sizes: Numbers, offsets: Numbers, asked: Range) -> StoredMessages:
    """Return the messages of all entries."""
    data: Data = np.frombuffer(view, np.uint8)
    if (sizes < HEAD_BYTES).any():
        raise DamagedLogError("an entry of the log is smaller than a message")
    # As bytes without fields, numpy copies them in a fifth of the time.
    everywhere: NDArray[Any] = np.ndarray(len(data) - HEAD_BYTES + 1, f"V{HEAD_BYTES}", data, strides=(1,))
    heads = everywhere[pieces].view(_HEAD)
    several = np.flatnonzero(heads["size"].astype(np.int64) + 4 != sizes)
    if not len(several):
        _check_heads(heads)
        return StoredMessages(data, pieces, heads, asked, offsets)
    sized: NDArray[Any] = np.ndarray(len(data) - 3, ">u4", data, strides=(1,))
    counts = np.ones(len(pieces), np.int64)
    parts: list[Numbers] = []
    for number in several.tolist():
        begin = int(pieces[number])
        part = _messages(view, sized, begin, begin + int(sizes[number]))
        parts.append(part)
        counts[number] = len(part)
    entry = np.repeat(np.arange(len(pieces)), counts)
    starts = pieces[entry]
    is_several = np.zeros(len(pieces), np.bool_)
    is_several[several] = True
    starts[is_several[entry]] = np.concatenate(parts)
    heads = everywhere[starts].view(_HEAD)
    _check_heads(heads)
    return StoredMessages(data, starts, heads, asked, starts - pieces[entry] + offsets[entry])


def _check_heads(heads: NDArray[np.void]) -> None:
    if (heads["size"] < HEAD_BYTES - 4).any():
        raise DamagedLogError("a message of the log is smaller than its head")


def _messages(view: memoryview, sized: NDArray[Any], begin: int, end: int) -> Numbers:
    """Return where the messages of one entry begin; ``sized`` has the size that each place of the data would name."""
    size = 4 + _SIZE(view, begin)[0]
    if size >= HEAD_BYTES and (end - begin) % size == 0 and (sized[begin:end:size] == size - 4).all():
        return np.arange(begin, end, size)  # all of one size
    found: list[int] = []
    append, at, last = found.append, begin, end - HEAD_BYTES
    while at <= last:
        append(at)
        at += 4 + _SIZE(view, at)[0]
    if at != end:
        raise DamagedLogError("the messages of an entry of the log do not fill it")
    return np.array(found, np.int64)
