"""Frames that are written often, packed without intermediate objects.

The layouts are those of ``protocol.messages``; golden exchanges hold both to
the real server's bytes.

Source: protocol reference 2, 6.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from nsq_ha.protocol.frames import OK, FrameType, encode_frame

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.record import Record
    from nsq_ha.protocol.messages import Layout

OK_FRAME: Final = encode_frame(FrameType.RESPONSE, OK)
_HEAD: Final = struct.Struct(">iiqHQQ")
_DETAIL: Final = struct.Struct(">QI")
_TRACED: Final = struct.Struct(">ii2sQQQI")
_JSON: Final = b"\x04"


def message_frame(record: Record, attempts: int, layout: Layout) -> bytes:
    """One message frame: size, type, timestamp, attempts, id, then what the layout asks for, and the body."""
    ext, detail = layout.value
    parts = b""
    if ext:
        header = record.ext
        parts = b"\0" if header is None else _JSON + len(header).to_bytes(2, "big") + header
    if detail:
        parts += _DETAIL.pack(record.offset, record.raw_size)
    body = record.body
    size = 30 + len(parts) + len(body)
    head = _HEAD.pack(size, 2, record.timestamp_ns, attempts, record.internal_id, record.trace_id)
    return head + parts + body


def traced_frame(record: Record, trace_id: int, raw_size: int) -> bytes:
    """The 30-byte answer to a traced publish, as a frame."""
    return _TRACED.pack(34, 0, OK, record.internal_id, trace_id, record.offset, raw_size)


def error_frame(data: bytes) -> bytes:
    """An error frame; ``data`` is the code, a blank, and the text that may be empty."""
    return encode_frame(FrameType.ERROR, data)
