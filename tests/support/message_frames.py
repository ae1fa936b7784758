"""The data of a message frame as nsqd writes it: the devcluster has a faster form, which golden exchanges compare."""

import struct
from typing import Final

from nsq_ha.message import Message
from nsq_ha.protocol.messages import Layout

_HEAD: Final = struct.Struct(">qH16s")
_DETAIL: Final = struct.Struct(">QI")
_JSON_HEADER: Final = 4


def encode_message(message: Message, layout: Layout, *, ext_version: int = _JSON_HEADER) -> bytes:
    """Encode the data of a message frame; a layout without an ext part omits the header, as for old clients."""
    parts = [_HEAD.pack(message.timestamp_ns, message.attempts, message.id)]
    if layout.ext and message.ext is None:
        parts.append(b"\0")
    elif layout.ext and message.ext is not None:
        parts += (bytes((ext_version,)), len(message.ext).to_bytes(2, "big"), message.ext)
    if layout.detail:
        parts.append(_DETAIL.pack(message.offset or 0, message.raw_size or 0))
    parts.append(message.body)
    return b"".join(parts)
