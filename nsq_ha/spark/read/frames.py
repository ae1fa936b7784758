"""Cut the message frames of one read with numpy, without an object for each message.

Only the layout of ordinary and ordered replays is cut here: a head, offset and size in the log, and
the body. What this module does not take (few frames, other types of frames, extension headers,
damaged messages) goes to the readers of ``protocol``, which are always right.

The invariant: cutting gives the same messages as those readers, up to the first frame that it does
not take.

**Source:** server protocol 2; ``protocol.messages`` for the layout and for what is damaged.
"""

from __future__ import annotations

import itertools
from struct import Struct
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from nsq_ha.base.identity import PARTITION_MASK, PARTITION_SHIFT
from nsq_ha.message import Message, MessageSource
from nsq_ha.protocol.frames import FrameType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

FEWEST_BYTES: Final = 8 * 1024
"""Below this size of a read, objects cost less than the calls of numpy."""

BATCH_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the log after which rows are yielded, so that large messages do not fill memory."""

LEAST_ROOM: Final = 512 * 1024
"""Room for each read; decompressed pieces are no larger."""

HEAD_BYTES: Final = 46
"""Bytes of a frame before its body."""

_WITHOUT_BODY: Final = HEAD_BYTES - 4  # the size word of a frame with an empty body
_NOT_IN_LOG: Final = 12  # bytes that a frame has and the log has not: offset and size
_SIZE: Final = Struct(">I").unpack_from
_SIZE_BYTES: Final = 4
_HEAD: Final = np.dtype(
    {
        "names": ["size", "kind", "timestamp", "attempts", "id", "internal", "trace", "offset", "raw_size"],
        "formats": [">u4", ">u4", ">i8", ">u2", "V16", ">u8", ">i8", ">u8", ">u4"],
        "offsets": [0, 4, 8, 16, 18, 18, 26, 34, 42],
        "itemsize": HEAD_BYTES,
    }
)
_FIELDS: Final = ("id", "attempts", "timestamp", "offset", "raw_size")
_FIN: Final = np.frombuffer(b"FIN " + bytes(16) + b"\n", np.uint8)


class ReceiveBuffer:
    """What one connection has received and nobody has taken yet, in memory that its reads share.

    A body is copied from here to Arrow, and nowhere before. The memory serves again and again, since the first use of
    new memory costs as much as the copy.

    Attributes:
        memory: The memory.
        start: Where the bytes begin that nobody has taken.
        end: Where they end.
    """

    def __init__(self) -> None:
        self.memory: memoryview = memoryview(bytearray())
        self.start: int = 0
        self.end: int = 0

    def __len__(self) -> int:
        return self.end - self.start

    def room(self, least: int = LEAST_ROOM) -> memoryview:
        """Return where the next bytes go, ``least`` of them or more; then raise ``end``."""
        if len(self.memory) - self.end < least:
            self._move_to(np.empty(max(2 * (len(self) + least), BATCH_BYTES + 8 * LEAST_ROOM), np.uint8).data)
        return self.memory[self.end :]

    def renew(self) -> None:
        """Have room for a whole batch, in the memory of frames that nobody needs any more."""
        if len(self.memory) - self.end < BATCH_BYTES + LEAST_ROOM:
            self._move_to(self.memory)

    def _move_to(self, memory: memoryview) -> None:
        size = len(self)
        memory[:size] = self.memory[self.start : self.end]
        self.memory, self.start, self.end = memory, 0, size

    def fill(self, read: Callable[[memoryview], int]) -> None:
        """Append what ``read`` writes into the room that it is given, and returns the size of."""
        room = self.room()  # first: it may move the end
        self.end += read(room)

    def put(self, data: bytes) -> None:
        """Append bytes that were received elsewhere."""
        self.room(len(data))[: len(data)] = data
        self.end += len(data)

    def take(self) -> bytes:
        """Return and forget all."""
        data = bytes(self.memory[self.start : self.end])
        self.start = self.end
        return data

    def is_cut(self, largest: int) -> bool:
        """Return whether it holds nothing but a part of a valid message frame, or nothing."""
        if len(self) < _SIZE_BYTES:
            return True
        size = _SIZE(self.memory, self.start)[0]
        if size > largest:
            return False
        if len(self) < 2 * _SIZE_BYTES:
            return True
        kind = _SIZE(self.memory, self.start + _SIZE_BYTES)[0]
        return bool(kind == FrameType.MESSAGE and len(self) - _SIZE_BYTES < size)


class RawMessages:
    """Messages of one partition as received bytes and arrays of the places in them, without an object for each.

    Args:
        data: The received bytes.
        starts: Where the head of each message begins in them.
        heads: The head of each message.
        topic: Their topic.
        partition: Their partition.

    Attributes:
        data: As given, as are the others.
    """

    __slots__ = ("data", "heads", "partition", "starts", "topic")

    HEAD_BYTES: ClassVar[int]
    """Bytes of a message before its body, or before its extension header."""

    def __init__(
        self,
        data: Any,  # noqa: ANN401 - any buffer
        starts: Numbers,
        heads: NDArray[np.void],
        topic: str,
        partition: int,
    ) -> None:
        self.data: Any = data
        self.starts: Numbers = starts
        self.heads: NDArray[np.void] = heads
        self.topic: str = topic
        self.partition: int = partition

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def offsets(self) -> Numbers:
        """Offset of each message in the partition's log."""
        return self.heads["offset"].astype(np.int64)

    @property
    def raw_sizes(self) -> Numbers:
        """Size of each message in the partition's log, in bytes."""
        return self.heads["raw_size"].astype(np.int64)

    @property
    def attempts(self) -> NDArray[np.integer[Any]]:
        """Number of deliveries of each message."""
        return self.heads["attempts"]

    @property
    def partitions(self) -> Numbers:
        """The partition that the id of each message names."""
        return (self.heads["internal"].astype(np.int64) >> PARTITION_SHIFT) & PARTITION_MASK

    @property
    def bodies(self) -> Numbers:
        """Where each body begins in the data."""
        return self.starts + self.HEAD_BYTES

    @property
    def ends(self) -> Numbers:
        """Where each message ends in the data."""
        return self.starts + 4 + self.heads["size"].astype(np.int64)

    @property
    def ids(self) -> NDArray[np.uint8]:
        """The 16 bytes of each id, a row each."""
        return self.heads["id"].copy().view(np.uint8).reshape(-1, 16)

    def exts(self) -> list[bytes | None] | None:
        """Return the extension header of each message. None if no message has one."""
        return None


class Frames(RawMessages):
    """Whole, valid message frames in a row, as a subscription delivers them.

    Iterating and :meth:`messages` make ordinary messages of them.

    Args:
        data: The memory of the read, which others may share.
        starts: Where each frame begins.
        heads: The head of each frame.
        source: What the messages are answered through; it names their topic and partition.
    """

    __slots__ = ("source",)

    HEAD_BYTES: ClassVar[int] = HEAD_BYTES

    def __init__(self, data: memoryview, starts: Numbers, heads: NDArray[np.void], source: MessageSource) -> None:
        super().__init__(data, starts, heads, source.topic, source.partition)
        self.source: MessageSource = source

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    def first(self, count: int) -> Frames:
        """Return the first ``count`` frames."""
        if count == len(self):
            return self
        return Frames(self.data, self.starts[:count], self.heads[:count], self.source)

    @property
    def largest_body(self) -> int:
        """Bytes of the largest body."""
        return int(self.heads["size"].max()) - _WITHOUT_BODY

    def fins(self) -> bytes:
        """Return the commands that finish all."""
        commands = np.repeat(_FIN[None, :], len(self), 0)
        commands[:, 4:20] = self.ids
        return commands.tobytes()

    def messages(self, first: int = 0) -> list[Message]:
        """Return the messages from number ``first`` on."""
        data, source = self.data, self.source
        columns = [self.starts, self.ends, *(self.heads[name] for name in _FIELDS)]
        rows = zip(*(column[first:].tolist() for column in columns), strict=True)
        return [
            Message(id_, bytes(data[start + HEAD_BYTES : end]), attempts, timestamp, source, offset, raw_size)
            for start, end, id_, attempts, timestamp, offset, raw_size in rows
        ]


class Rows:
    """Accepted messages in the order of the chain, as bytes and as objects. Iterating gives delivered ones."""

    def __init__(self, *parts: RawMessages) -> None:
        self._parts: list[list[Message] | RawMessages] = [*parts]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Message]:
        for part in self._parts:
            if not isinstance(part, list | Frames):
                raise TypeError("copied messages cannot become objects")
            yield from part

    def add(self, frames: Frames) -> None:
        """Append frames."""
        self._parts.append(frames)

    def messages(self) -> list[Message]:
        """Return the list to append messages to."""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, list):
            last = []
            self._parts.append(last)
        return last

    def parts(self) -> Iterator[list[Message] | RawMessages]:
        """Yield the rows in as few parts as their kinds, and the memory of frames, allow."""
        for (kind, _), group in itertools.groupby(filter(len, self._parts), _kind_of):
            if kind is Frames:
                yield joined([part for part in group if isinstance(part, Frames)])
            elif kind is list:
                yield [message for part in group if isinstance(part, list) for message in part]
            else:
                yield from group


def _kind_of(part: list[Message] | RawMessages) -> tuple[type, int]:
    return type(part), id(part.data) if isinstance(part, Frames) else 0


def joined(parts: Sequence[Frames]) -> Frames:
    """Return frames of several reads that share their memory as one."""
    if len(parts) == 1:
        return parts[0]
    starts, heads = (np.concatenate([getattr(part, name) for part in parts]) for name in ("starts", "heads"))
    return Frames(parts[0].data, starts, heads, parts[0].source)


def cut(buffer: ReceiveBuffer, largest: int, source: MessageSource) -> Frames | None:
    """Take the message frames at the start of what was received.

    Args:
        buffer: Received bytes, from the start of a frame.
        largest: Largest size word of a valid frame.
        source: What the messages are answered through.

    Returns:
        The frames before the first one that is incomplete, damaged or of another type. None if ``protocol`` should
        read all.
    """
    if len(buffer) < max(FEWEST_BYTES, HEAD_BYTES):
        return None
    starts, heads = _equal(buffer) or _unequal(buffer)
    if not len(starts):
        return None
    size, raw_size = heads["size"], heads["raw_size"]
    is_whole = (heads["kind"] == FrameType.MESSAGE) & (size >= _WITHOUT_BODY) & (size <= largest)
    is_whole &= (raw_size == 0) | (size - _NOT_IN_LOG <= raw_size)
    count = len(starts) if is_whole.all() else int(is_whole.argmin())
    if not count:
        return None
    buffer.start = int(starts[count - 1]) + 4 + int(size[count - 1])
    return Frames(buffer.memory, starts, heads, source).first(count)


def _equal(buffer: ReceiveBuffer) -> tuple[Numbers, NDArray[np.void]] | None:
    """Return starts and heads if all frames have the size of the first one; the usual case of uniform bodies."""
    memory, start = buffer.memory, buffer.start
    step = 4 + _SIZE(memory, start)[0]
    count = len(buffer) // step
    if step < HEAD_BYTES or not count:
        return None
    heads: NDArray[Any] = np.ndarray(count, _HEAD, memory, start, (step,))
    end = start + count * step
    if not (heads["size"] == step - 4).all() or (buffer.end - end >= 4 and _SIZE(memory, end)[0] != step - 4):
        return None
    return np.arange(start, end, step, dtype=np.int64), heads


def _unequal(buffer: ReceiveBuffer) -> tuple[Numbers, NDArray[np.void]]:
    """Return starts and heads of frames of any sizes."""
    found: list[int] = []
    append, memory, position, end = found.append, buffer.memory, buffer.start, buffer.end
    last = end - HEAD_BYTES
    while position <= last:
        following = position + 4 + _SIZE(memory, position)[0]
        if following > end:
            break
        append(position)
        position = following
    starts = np.array(found, np.int64)
    everywhere: NDArray[Any] = np.ndarray(last + 1 - buffer.start, _HEAD, memory, buffer.start, (1,))
    return starts, everywhere[starts - buffer.start]
