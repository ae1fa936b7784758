"""Decode and encode messages (frames of type 2) and the answers to traced publishes.

A frame does not name its layout: the subscription's command and the topic
determine it (see :func:`layout_for`). After a head of 26 bytes it has::

    plain       body
    ext         ext part, body
    detail      offset, raw size, body
    ext+detail  ext part, offset, raw size, body

The ext part is a version byte and, unless that is 0, a 16-bit length and that
many bytes. Offset is 8 bytes, raw size 4. All integers are big-endian.

This module has the layouts in both directions. The readers are the hot path: one
pass over the received data, one ``unpack_from`` per message, one copy per body.

Source: server protocol 2; youzan/nsq ``nsqd/message.go`` ``WriteToClient``.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import msgspec

from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.base.redaction import excerpt
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.message import Message, MessageSource
from nsq_ha.protocol.frames import FrameType

_MESSAGE: Final = int(FrameType.MESSAGE)
_FRAME: Final = struct.Struct(">iiqH16s")
_FRAME_DETAIL: Final = struct.Struct(">iiqH16sQI")
_HEAD: Final = struct.Struct(">qH16s")
_DETAIL: Final = struct.Struct(">QI")
_TRACED: Final = struct.Struct(">2sQQQI")
_SMALLEST: Final = struct.calcsize(">iqH16s")  # size word of a message frame without anything after its head
TRACED_BYTES: Final = _TRACED.size
"""Size of the answer to a traced publish."""


class Layout(enum.Enum):
    """The parts between a message's head and its body; the value is (ext, detail)."""

    PLAIN = (False, False)
    EXT = (True, False)
    DETAIL = (False, True)
    EXT_DETAIL = (True, True)

    @property
    def ext(self) -> bool:
        """Whether messages have an ext part."""
        return self.value[0]

    @property
    def detail(self) -> bool:
        """Whether messages have offset and raw size."""
        return self.value[1]


def layout_for(*, detail: bool, ext: bool) -> Layout:
    """Return the layout of a subscription.

    Args:
        detail: Whether it uses ``SUB_ADVANCED`` or ``SUB_ORDERED``. The command
            decides, not the channel: a plain ``SUB`` on an ordered channel gets
            the plain layout.
        ext: Whether the topic is extended and IDENTIFY had ``extend_support``.

    Source: server protocol 2.
    """
    return Layout((ext, detail))


class DamagedMessage(msgspec.Struct, frozen=True):
    """A message with a complete head and damaged parts.

    The stream stays aligned, so the messages after it are valid. It is in flight
    like any other: requeue it, and finish it if each delivery is damaged.

    Attributes:
        message_id: The 16 bytes for answers to it.
        attempts: Deliveries so far.
        timestamp_ns: Time of the publish.
        reason: What is wrong with it.
    """

    message_id: bytes
    attempts: int
    timestamp_ns: int
    reason: str


Reader = Callable[[bytes, int, int, MessageSource, list[Message]], int]
"""Reads complete, valid message frames of one layout from ``data``, starting at a position.

Arguments are the data, the position of a frame, the largest size word, the
source and the list to append to. Returns the position of the first frame that
is of another type, incomplete, damaged or has a bad size.
"""


def _read_plain(data: bytes, position: int, largest: int, source: MessageSource, sink: list[Message]) -> int:
    unpack = _FRAME.unpack_from
    append = sink.append
    end = len(data)
    last = end - 34
    while position <= last:
        size, kind, timestamp, attempts, message_id = unpack(data, position)
        stop = position + 4 + size
        if kind != _MESSAGE or stop > end or not _SMALLEST <= size <= largest:
            break
        append(Message(message_id, data[position + 34 : stop], attempts, timestamp, source))
        position = stop
    return position


def _read_detail(data: bytes, position: int, largest: int, source: MessageSource, sink: list[Message]) -> int:
    unpack = _FRAME_DETAIL.unpack_from
    append = sink.append
    end = len(data)
    last = end - 46
    while position <= last:
        size, kind, timestamp, attempts, message_id, offset, raw_size = unpack(data, position)
        stop = position + 4 + size
        if kind != _MESSAGE or stop > end or not 42 <= size <= largest or size - 12 > raw_size > 0:
            break
        append(Message(message_id, data[position + 46 : stop], attempts, timestamp, source, offset, raw_size))
        position = stop
    return position


def _read_extended(
    data: bytes, position: int, largest: int, source: MessageSource, sink: list[Message], *, detail: int
) -> int:
    """Read the layouts with an ext part; ``detail`` is the number of bytes between it and the body, 0 or 12."""
    unpack = _FRAME.unpack_from
    unpack_detail = _DETAIL.unpack_from
    append = sink.append
    end = len(data)
    last = end - 35
    offset: int | None = None
    raw_size: int | None = None
    while position <= last:
        size, kind, timestamp, attempts, message_id = unpack(data, position)
        stop = position + 4 + size
        if kind != _MESSAGE or stop > end or not _SMALLEST < size <= largest:
            break
        ext: bytes | None = None
        after = position + 35
        # Every nonzero version is length-prefixed; 4 is JSON, and today's server writes no others.
        if data[position + 34]:
            after = position + 37
            if after > stop:
                break
            after += data[position + 35] << 8 | data[position + 36]
            ext = data[position + 37 : after]
        body = after + detail
        if body > stop:
            break
        if detail:
            offset, raw_size = unpack_detail(data, after)
            if size - 13 > raw_size > 0:
                break
        append(Message(message_id, data[body:stop], attempts, timestamp, source, offset, raw_size, ext))
        position = stop
    return position


_READERS: Final[dict[Layout, Reader]] = {
    Layout.PLAIN: _read_plain,
    Layout.EXT: partial(_read_extended, detail=0),
    Layout.DETAIL: _read_detail,
    Layout.EXT_DETAIL: partial(_read_extended, detail=_DETAIL.size),
}


def reader_for(layout: Layout) -> Reader:
    """Return the reader of message frames for ``layout``."""
    return _READERS[layout]


def damage_of(data: bytes, layout: Layout) -> DamagedMessage:
    """Describe a message that its reader rejected.

    Frames have no checksum. A frame with a damaged size word can end exactly where a later frame ends: then its
    "body" contains the messages in between, and only the size in the partition's log shows it. A frame may be smaller
    than that, since the log may skip damaged bytes, and one byte larger on a topic that was upgraded to extended
    headers after the message was stored.

    Args:
        data: The data of its frame.
        layout: The layout of the subscription.

    Raises:
        RemoteProtocolError: The head is incomplete, so the message cannot be
            answered, or the frame has a wrong size: drop the connection.
    """
    if len(data) < _HEAD.size:
        raise RemoteProtocolError(f"message frame has {len(data)} bytes, less than the head of {_HEAD.size}")
    raw_size = _raw_size_of(data, layout)
    if raw_size is not None and len(data) - 8 - layout.ext > raw_size > 0:
        raise RemoteProtocolError(f"message frame has {len(data)} bytes, but the message has {raw_size} in the log")
    timestamp, attempts, message_id = _HEAD.unpack_from(data)
    what = f"message of {len(data)} bytes is cut inside its {' and '.join(_parts(layout))}"
    return DamagedMessage(message_id, attempts, timestamp, what)


def _raw_size_of(data: bytes, layout: Layout) -> int | None:
    """Return the size in the partition's log. None if the frame is too short or its layout has none."""
    position = _HEAD.size
    if layout.ext:
        header = data[position : position + 3]
        position += 3 + int.from_bytes(header[1:], "big") if header[:1] != b"\0" else 1
    if not layout.detail or len(data) < position + _DETAIL.size:
        return None
    return int(_DETAIL.unpack_from(data, position)[1])


def _parts(layout: Layout) -> list[str]:
    return ["extension header"] * layout.ext + ["offset and raw size"] * layout.detail


class Traced(msgspec.Struct, frozen=True):
    """The server's answer to a traced publish.

    Attributes:
        internal_id: The server's id of the message; for a batch, of the first message.
        trace_id: The trace id as it was sent; 0 for a batch.
        offset: Byte position in the partition's disk queue.
        raw_size: The size there in bytes; for a batch, of all messages.
    """

    internal_id: int
    trace_id: int
    offset: int
    raw_size: int


def decode_traced(data: bytes) -> Traced:
    """Decode the answer to ``PUB_TRACE``, ``MPUB_TRACE`` or a ``PUB_EXT`` with a trace id.

    All integers are big-endian::

        0   2 bytes  b"OK"
        2   8 bytes  internal message id, unsigned
        10  8 bytes  trace id, unsigned
        18  8 bytes  offset in the partition's disk queue, in bytes
        26  4 bytes  size on disk, in bytes

    Raises:
        RemoteProtocolError: ``data`` is not exactly 30 bytes, or not OK.

    Source: youzan/nsq ``nsqdserver/protocol_v2.go`` ``getTracedReponse``.
    """
    if len(data) != _TRACED.size or not data.startswith(b"OK"):
        raise RemoteProtocolError(f"answer to a traced publish is not OK and 28 bytes but {excerpt(data)}")
    _, internal_id, trace_id, offset, raw_size = _TRACED.unpack(data)
    return Traced(internal_id, trace_id, offset, raw_size)


def check_traced(traced: Traced, *, trace_id: int, partition: int, sizes: Collection[int]) -> None:
    """Check that the answer to a traced publish belongs to it.

    Answers have no number, so nothing else shows that an answer belongs to another publish.

    Args:
        traced: The answer.
        trace_id: The trace id that was sent; 0 for a batch.
        partition: The partition that was published to.
        sizes: The possible sizes on disk of the message or the whole batch.

    Raises:
        RemoteProtocolError: It does not. Later answers on this connection cannot be
            trusted: drop it, and report the publish as uncertain.
    """
    found = traced.internal_id >> PARTITION_SHIFT
    wrong = ""
    if traced.trace_id != trace_id:
        wrong = f"trace id {traced.trace_id} instead of {trace_id}"
    elif found != partition:
        wrong = f"partition {found} instead of {partition}"
    elif traced.raw_size not in sizes:
        wrong = f"{traced.raw_size} bytes instead of {' or '.join(map(str, sizes))}"
    if wrong:
        raise RemoteProtocolError(f"the answer to a traced publish belongs to another publish: it names {wrong}")


def traced_size(body_bytes: int, ext_bytes: int | None = None) -> tuple[int, int]:
    """Return the possible sizes of a message in the partition's queue: on an ordinary and on an extended topic.

    Args:
        body_bytes: Size of its body.
        ext_bytes: Size of its extension header. None for no header.

    Source: youzan/nsq ``nsqd/message.go`` ``internalWriteTo``, and 4 bytes for the size. A server with
    ``allow-ext-compatible`` omits headers on an ordinary topic.
    """
    plain = 4 + _HEAD.size + body_bytes
    return plain, plain + 1 + (2 + ext_bytes if ext_bytes is not None else 0)
