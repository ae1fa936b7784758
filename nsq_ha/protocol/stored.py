"""Messages as nsqd stores them in a partition's queue, one after the other without a gap.

A message is its size (4 bytes, without themselves), timestamp (8), attempts (2), internal id (8), trace id (8),
an ext part or none, and the body. All integers are big-endian. The four highest bits of the attempts are ``0xa``
if there is an ext part: a version byte and, unless that is 0, a 16-bit length and that many bytes. An extended topic
may hold older messages without an ext part; an ordinary topic has none.

Source: youzan/nsq ``nsqd/message.go`` ``internalWriteTo`` and ``decodeMessage``.
"""

from __future__ import annotations

import struct
from typing import Final

HEAD_BYTES: Final = 30
"""Bytes before the ext part or the body."""

EXT_MARK: Final = 0xA000
"""The highest bits of the attempts of a message with an ext part."""

EXT_MASK: Final = 0xF000
"""These bits."""

_HEAD: Final = struct.Struct(">IqHQQ")
_JSON: Final = 4


def encode_stored(
    timestamp_ns: int, internal_id: int, trace_id: int, body: bytes, ext: bytes | None = None, *, extended: bool = False
) -> bytes:
    """Encode a message that was not delivered yet.

    Args:
        timestamp_ns: Time of the publish.
        internal_id: The server's number of it.
        trace_id: The publisher's number of it.
        body: The payload.
        ext: The JSON header. None for none.
        extended: Whether the topic is extended.
    """
    part = b""
    if extended:
        part = b"\0" if ext is None else bytes((_JSON,)) + len(ext).to_bytes(2, "big") + ext
    size = HEAD_BYTES - 4 + len(part) + len(body)
    head = _HEAD.pack(size, timestamp_ns, EXT_MARK if extended else 0, internal_id, trace_id)
    return b"".join((head, part, body))
