"""Cut the entries of an answer, and the messages in them, with numpy: no object per entry or message.

The invariants: the entries of the result follow each other without a gap in the partition's log, and the messages of
each entry fill it exactly. So each message begins where the one before it ends, which is the chain rule.

**Source:** ``spark.pull.calls``, which has the same formats one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.spark.pull.calls import EXT_MARK, EXT_MASK, HEAD_BYTES, MAX_ENTRIES, Pulled
from nsq_ha.spark.pull.gob import decode_uint, wrong
from nsq_ha.spark.read.frames import RawMessages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from nsq_ha.spark.plan.batch_planner import Range

    Numbers = NDArray[np.int64]
    Data = NDArray[np.uint8]

_WIDTHS: Final = np.array([1] * 128 + [257 - digit for digit in range(128, 256)], np.int64)
_SKIPS: Final = tuple(_WIDTHS.tolist())
_LARGEST_DIGIT: Final = 128
_MAX_WIDTH: Final = 8
_LIMITS: Final = np.array([1 << 7, 1 << 8, 1 << 16, 1 << 24], np.int64)
"""Sizes from which the size itself takes a byte more."""

_ALIKE: Final = 16  # entries of the same shape that are worth an array operation
_EQUAL: Final = 64  # messages that are worth one
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


class StoredMessages(RawMessages):
    """Messages as they are stored, in the order of the log and without a gap.

    Args:
        data: Bytes of the answer.
        starts: Where each message begins in them.
        heads: The head of each message.
        source: Names their topic and partition.
        offsets: Where each message begins in the partition's log.
    """

    __slots__ = ("_offsets", "_source")

    HEAD_BYTES: ClassVar[int] = HEAD_BYTES

    def __init__(self, data: Data, starts: Numbers, heads: NDArray[np.void], source: Range, offsets: Numbers) -> None:
        super().__init__(data, starts, heads, source.topic, source.partition)
        self._source = source
        self._offsets = offsets

    def part(self, first: int, last: int) -> StoredMessages:
        """Return the messages with these numbers, from 0, without the last one."""
        which = slice(first, last)
        return StoredMessages(self.data, self.starts[which], self.heads[which], self._source, self._offsets[which])

    @property
    def offsets(self) -> Numbers:
        """Where each message begins in the partition's log."""
        return self._offsets

    @property
    def raw_sizes(self) -> Numbers:
        """Bytes of each message in the log."""
        return self.heads["size"].astype(np.int64) + 4

    @property
    def attempts(self) -> NDArray[np.integer[Any]]:
        """1 for each: a stored message was not delivered yet; a new channel would deliver it for the first time."""
        return np.ones(len(self), np.int16)

    @property
    def end(self) -> int:
        """Where the last message ends in the log."""
        return int(self._offsets[-1]) + int(self.heads["size"][-1]) + 4

    @property
    def bodies(self) -> Numbers:
        """Where each body begins in the data.

        Raises:
            DamagedLogError: A header is longer than its message.
        """
        return self._parts()[1]

    def exts(self) -> list[bytes | None] | None:
        """Return the extension header of each message; raises as :attr:`bodies`."""
        headers, bodies = self._parts()
        # A message with a version only has no header; an empty header is one.
        has = bodies - self.starts > self.HEAD_BYTES + 1
        if not has.any():
            return None
        bounds = zip(has.tolist(), headers.tolist(), bodies.tolist(), strict=True)
        return [self.data[begin:end].tobytes() if is_there else None for is_there, begin, end in bounds]

    def _parts(self) -> tuple[Numbers, Numbers]:
        """Return where the extension header of each message begins, and where its body does; the same for no header."""
        starts, data = self.starts + self.HEAD_BYTES, self.data
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


@dataclass(frozen=True, slots=True)
class Cut:
    """What an answer contains.

    Attributes:
        entries: Number of its entries.
        offsets: Where each entry begins in the partition's log.
        sizes: Bytes of each entry.
        rows: The messages of the entries.
    """

    entries: int
    offsets: Numbers
    sizes: Numbers
    rows: StoredMessages


def cut(pulled: Pulled, asked: Range) -> Cut | None:
    """Cut an answer.

    Args:
        pulled: The answer.
        asked: The range that was asked for.

    Returns:
        The entries; None if there are none.

    Raises:
        DamagedLogError: The messages of an entry do not fill it, belong to another partition, or an entry does not
            follow the one before it.
        RemoteProtocolError: The answer is not understood.
    """
    view = pulled.data
    data: Data = np.frombuffer(view, np.uint8)
    if len(view) == 1 and not view[0]:
        return None
    step, at = decode_uint(view, 0)
    count, at = decode_uint(view, at)
    if step != 1 or not 0 < count < len(view):
        raise wrong("an answer without entries")
    if count > MAX_ENTRIES:  # looking for entries that are alike takes time with each kind of them
        raise wrong(f"{count} entries")
    starts, end = _entries(view, data, at, count)
    offsets, sizes = _places(data, starts, pulled.fields)
    if (sizes <= 0).any() or (offsets[1:] != (offsets + sizes)[:-1]).any():
        raise DamagedLogError("the entries of the log do not follow each other")
    pieces = _pieces(view, data, end, sizes)
    rows = _rows(view, data, pieces, sizes, offsets, asked)
    partitions = rows.partitions
    if len(others := partitions[partitions != asked.partition]):
        raise DamagedLogError(f"a message belongs to partition {int(others[0])}")
    return Cut(count, offsets, sizes, rows)


# ---------------------------------------------------------------- entries


def _entries(view: memoryview, data: Data, at: int, count: int) -> tuple[Numbers, int]:
    """Return where each entry begins, and where the last one ends."""
    found: list[Numbers] = []
    left = count
    while left:
        alike = _alike(view, data, at, left) if left >= _ALIKE else None
        if alike is None:
            alike, at = _one_by_one(view, at, min(left, _ALIKE))
        else:
            at = int(alike[-1])
            alike = alike[:-1]
        found.append(alike)
        left -= len(alike)
    return np.concatenate(found), at


def _alike(view: memoryview, data: Data, at: int, count: int) -> Numbers | None:
    """Return where the next entries begin, and where the last one ends; None if few have the shape of the first."""
    (_,), end = _one_by_one(view, at, 1)
    size = end - at
    count = min(count, (len(data) - at) // size)
    if count < _ALIKE:
        return None
    steps, numbers, place = [], [], at
    while view[place]:
        steps.append(place - at)
        numbers.append(place + 1 - at)
        place += 1 + _SKIPS[view[place + 1]]
    steps.append(place - at)
    entries = data[at : at + count * size].reshape(count, size)
    # A number below 128 is one byte; the first byte of another one tells its length.
    lengths = entries[:, numbers]
    lengths = np.where(lengths < _LARGEST_DIGIT, 0, lengths)
    same = (entries[:, steps] == entries[0, steps]).all(axis=1) & (lengths == lengths[0]).all(axis=1)
    count = count if same.all() else int(same.argmin())
    return np.arange(at, at + (count + 1) * size, size, dtype=np.int64) if count >= _ALIKE else None


def _one_by_one(view: memoryview, at: int, count: int) -> tuple[Numbers, int]:
    """Return where the following entries begin, and where the last one ends."""
    found: list[int] = []
    try:
        for _ in range(count):
            found.append(at)
            while view[at]:
                at += 1 + _SKIPS[view[at + 1]]
            at += 1
    except IndexError:
        raise wrong("entries that are cut") from None
    return np.array(found, np.int64), at


def _places(data: Data, starts: Numbers, fields: tuple[str, ...]) -> tuple[Numbers, Numbers]:
    """Return where each entry begins in the log, and its size; all entries together, field by field."""
    wanted = {number: name for number, name in enumerate(fields) if name in ("MsgOffset", "MsgSize")}
    found = {name: np.zeros(len(starts), np.int64) for name in ("MsgOffset", "MsgSize")}
    at, field = starts.copy(), np.full(len(starts), -1, np.int64)
    while len(left := np.flatnonzero(data[at])):
        field[left] += data[at[left]]
        if (field >= len(fields)).any():
            raise wrong("an entry with more fields than its type")
        for number, name in wanted.items():
            having = left[field[left] == number]
            if len(having):
                # The last bit is the sign; all 64 are used.
                found[name][having] = _numbers(data, at[having] + 1).view(np.uint64) >> 1
        widths = _WIDTHS[data[at[left] + 1]]
        if (widths > 1 + _MAX_WIDTH).any():
            raise wrong(f"a number of {widths.max() - 1} bytes")
        at[left] += 1 + widths
    return found["MsgOffset"], found["MsgSize"]


def _numbers(data: Data, at: Numbers) -> Numbers:
    """Decode the numbers at these places."""
    first = data[at]
    found = first.astype(np.int64)
    for digit in np.unique(first[first >= _LARGEST_DIGIT]).tolist():
        width = 256 - digit
        which = np.flatnonzero(first == digit)
        if width > _MAX_WIDTH or int(at[which[-1]]) + width >= len(data):
            raise wrong(f"a number of {width} bytes")
        number = np.zeros(len(which), np.int64)
        for place in range(1, width + 1):
            number = number << 8 | data[at[which] + place]
        found[which] = number
    return found


def _pieces(view: memoryview, data: Data, at: int, sizes: Numbers) -> Numbers:
    """Return where the messages of each entry begin. Their sizes are known, and are checked."""
    step, at = decode_uint(view, at)
    count, at = decode_uint(view, at)
    if step != 1 or count != len(sizes):
        raise wrong(f"{len(sizes)} entries, but the messages of {count if step == 1 else 0}")
    if (sizes > len(view)).any():
        raise wrong("an entry larger than the answer")
    lengths = 1 + np.searchsorted(_LIMITS, sizes, "right")
    ends = at + np.cumsum(lengths + sizes)
    begins = ends - sizes - lengths
    if int(ends[-1]) + 1 != len(view) or view[-1] or (_numbers(data, begins) != sizes).any():
        raise wrong("messages of another size than their entries")
    return begins + lengths


# ---------------------------------------------------------------- messages


def _rows(  # noqa: PLR0917 - all that is known of an answer
    view: memoryview, data: Data, pieces: Numbers, sizes: Numbers, offsets: Numbers, asked: Range
) -> StoredMessages:
    """Return the messages of all entries."""
    if (sizes < HEAD_BYTES).any():
        raise DamagedLogError("an entry of the log is smaller than a message")
    everywhere: NDArray[Any] = np.ndarray(len(data) - HEAD_BYTES + 1, _HEAD, data, strides=(1,))
    heads = everywhere[pieces]
    several = np.flatnonzero(heads["size"].astype(np.int64) + 4 != sizes)
    if not len(several):
        _check_heads(heads)
        return StoredMessages(data, pieces, heads, asked, offsets)
    counts = np.ones(len(pieces), np.int64)
    parts: list[Numbers] = []
    for number in several.tolist():
        begin = int(pieces[number])
        part = _messages(view, data, begin, begin + int(sizes[number]))
        parts.append(part)
        counts[number] = len(part)
    entry = np.repeat(np.arange(len(pieces)), counts)
    starts = pieces[entry]
    is_several = np.zeros(len(pieces), np.bool_)
    is_several[several] = True
    starts[is_several[entry]] = np.concatenate(parts)
    heads = everywhere[starts]
    _check_heads(heads)
    return StoredMessages(data, starts, heads, asked, starts - pieces[entry] + offsets[entry])


def _check_heads(heads: NDArray[np.void]) -> None:
    if (heads["size"] < HEAD_BYTES - 4).any():
        raise DamagedLogError("a message of the log is smaller than its head")


def _messages(view: memoryview, data: Data, begin: int, end: int) -> Numbers:
    """Return where the messages of one entry begin."""
    size = 4 + int(_SIZE(view, begin)[0])
    count, rest = divmod(end - begin, size)
    if not rest and count >= _EQUAL:
        words = np.ascontiguousarray(data[begin:end].reshape(count, size)[:, :4])
        if (words == words[0]).all():
            return np.arange(begin, end, size, dtype=np.int64)
    found: list[int] = []
    append, at, last = found.append, begin, end - HEAD_BYTES
    while at <= last:
        append(at)
        at += 4 + _SIZE(view, at)[0]
    if at != end:
        raise DamagedLogError("the messages of an entry of the log do not fill it")
    return np.array(found, np.int64)
