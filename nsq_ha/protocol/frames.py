"""Frames: the length-prefixed units in which nsqd sends answers, errors and messages.

The layout of a frame::

    0   4 bytes  size of all that follows, signed, 4 or more
    4   4 bytes  type: 0 response, 1 error, 2 message
    8   ...      data, size - 4 bytes

Owns this layout for tools, tests and the server's side. The client's own hot path
reads the same layout without creating frame objects (``protocol.client``).

The invariant: a size is checked before memory is reserved for it.

Source: server protocol 1; youzan/nsq ``internal/protocol/protocol.go`` ``SendFramedResponse``.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from nsq_ha.errors import RemoteProtocolError

FRAME_HEAD: Final = struct.Struct(">ii")
"""Size and type of a frame."""

HEARTBEAT: Final = b"_heartbeat_"
"""Data of the response frame that asks whether the client is alive; answer it with ``NOP``."""

OK: Final = b"OK"
"""Data of the plain success answer."""

CLOSE_WAIT: Final = b"CLOSE_WAIT"
"""Data of the answer to ``CLS``."""


class FrameType(enum.IntEnum):
    """The type word of a frame."""

    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2


class Frame(NamedTuple):
    """One frame.

    Attributes:
        kind: Its type.
        data: The bytes after the type.
    """

    kind: FrameType
    data: bytes


def encode_frame(kind: FrameType, data: bytes) -> bytes:
    """Return the bytes of one frame."""
    return FRAME_HEAD.pack(4 + len(data), kind) + data


def check_size(size: int, largest: int) -> None:
    """Check a frame's size word.

    Raises:
        RemoteProtocolError: It is below 4 or above ``largest``: the stream is
            no longer aligned, or is not NSQ's at all. Drop the connection.
    """
    if (other := _OTHER_PROTOCOLS.get(size)) is not None:
        raise RemoteProtocolError(
            f"the server answers in {other}: this is an {other} port. Give nsqd's TCP port, which is 4150 by default"
        )
    if size < 4:
        raise RemoteProtocolError(
            f"frame announces {size} bytes, which is impossible: the stream is damaged, or the server is not an nsqd"
        )
    if size > largest:
        raise RemoteProtocolError(
            f"frame announces {size} bytes, more than max_frame_bytes={largest}: raise it if messages can be that large"
        )


_OTHER_PROTOCOLS: Final = {
    int.from_bytes(b"HTTP"): "HTTP",
    int.from_bytes(b"\x15\x03\x01\0"): "HTTPS",
    int.from_bytes(b"\x15\x03\x03\0"): "HTTPS",
}
"""The first four bytes of other protocols' answers, read as a size word."""
_BARE_ERROR: Final = int.from_bytes(b"E_BA")
"""The type word in an answer of nsqlookupd's TCP port, whose frames have no type: ``E_BAD_PROTOCOL``."""
FRAME_TYPES: Final[frozenset[int]] = frozenset(FrameType)
"""All type words that exist."""


def unknown_type(kind: int) -> RemoteProtocolError:
    """Return the error for a type word that does not exist."""
    if kind == _BARE_ERROR:
        return RemoteProtocolError(
            "the server is not an nsqd, perhaps the TCP port of an nsqlookupd. Give nsqd's TCP port, which is 4150 by"
            " default, or nsqlookupd's HTTP address as lookupd="
        )
    return RemoteProtocolError(f"frame type {kind} is unknown")


class FrameDecoder:
    """Cuts a stream into frames.

    Args:
        max_frame_bytes: Largest accepted size word.
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self._largest = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Add data and return the frames that are now complete.

        Raises:
            RemoteProtocolError: A size or type is not valid. Drop the connection; the decoder cannot continue.
        """
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        position = 0
        while len(buffer) - position >= 4:
            size = int.from_bytes(buffer[position : position + 4], "big", signed=True)
            check_size(size, self._largest)
            stop = position + 4 + size
            if stop > len(buffer):
                break
            kind = int.from_bytes(buffer[position + 4 : position + 8], "big", signed=True)
            if kind not in FRAME_TYPES:
                raise unknown_type(kind)
            frames.append(Frame(FrameType(kind), bytes(buffer[position + 8 : stop])))
            position = stop
        del buffer[:position]
        return frames
