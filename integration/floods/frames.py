"""Frames: sizes, types, cuts and pieces."""

import random
import struct
from typing import Final

from integration.floods.case import CONSUMER, Case, Moment, Then
from nsq_ha.protocol import Layout
from nsq_ha.protocol.frames import FrameType, encode_frame
from tests.support.nsqd import OK, message_data, message_id, response

HEARTBEAT: Final = response(b"_heartbeat_")
_MIB: Final = 1024 * 1024


def headed(size: int, kind: int = FrameType.MESSAGE.value, rest: bytes = b"") -> bytes:
    """Return a frame that announces a size, whatever follows."""
    return struct.pack(">iI", size, kind & 0xFFFFFFFF) + rest


def message(layout: Layout, body: bytes = b"m", number: int = 2) -> bytes:
    """Return a whole message frame."""
    return encode_frame(FrameType.MESSAGE, message_data(body, message_id(number), layout=layout))


def _flipped(layout: Layout) -> bytes:
    """Flip one bit in the size of a message frame, with good ones after it."""
    whole = message(layout)
    return bytes((whole[0], whole[1], whole[2] ^ 1, whole[3])) + whole[4:] + message(layout, number=3) * 5


_SIZES: Final = {
    **{f"size {size}": size for size in (0, 1, 2, 3, -1, -(2**31))},
    "size 2^31-1": 2**31 - 1,
    "256 MiB announced, never sent": 256 * _MIB,
    "an HTTP answer": int.from_bytes(b"HTTP", "big"),
    "a TLS record": int.from_bytes(b"\x15\x03\x03\x00", "big"),
}

CASES: Final = (
    *(Case(group="frames", name=name, data=headed(size, rest=b"x" * 40)) for name, size in _SIZES.items()),
    *(
        Case(group="frames", name=f"{name}, to IDENTIFY", data=headed(size, rest=b"x" * 40), moment=Moment.HELLO)
        for name, size in _SIZES.items()
    ),
    *(
        Case(group="frames", name=f"frame type {kind}", data=headed(6, kind, b"ab"))
        for kind in (3, 7, -1, -(2**31), 2**31 - 1)
    ),
    Case(group="frames", name="cut, then silence", data=headed(1000, rest=b"x" * 10), then=Then.HUSH),
    Case(group="frames", name="cut, then closed", data=headed(1000, rest=b"x" * 10), then=Then.CLOSE),
    Case(group="frames", name="cut, then reset", data=headed(1000, rest=b"x" * 10), then=Then.RESET),
    Case(group="frames", name="silence", moment=Moment.ANSWER, then=Then.HUSH),
    Case(group="frames", name="silence to IDENTIFY", moment=Moment.HELLO, then=Then.HUSH),
    Case(group="frames", name="closed at once", moment=Moment.HELLO, then=Then.CLOSE),
    Case(group="frames", name="reset at once", moment=Moment.HELLO, then=Then.RESET),
    Case(group="frames", name="closed instead of an answer", moment=Moment.ANSWER, then=Then.CLOSE),
    Case(group="frames", name="one bit of a size flipped", data=_flipped, clients=CONSUMER),
    Case(group="frames", name="random bytes", data=random.Random(1).randbytes(100_000)),
    Case(group="frames", name="zeros", data=bytes(100_000)),
    Case(
        group="frames",
        name="messages one byte at a time",
        data=lambda layout: b"".join(message(layout, number=2 + number) for number in range(20)),
        chunk=1,
        clients=CONSUMER,
    ),
    Case(group="frames", name="heartbeats one byte at a time", data=HEARTBEAT * 50, chunk=1),
    Case(group="frames", name="10,000 heartbeats", data=HEARTBEAT * 10_000),
    Case(group="frames", name="a response of 1 MiB", data=response(b"x" * _MIB)),
    Case(group="frames", name="answers nobody waits for", data=OK * 1000, clients=CONSUMER),
)
