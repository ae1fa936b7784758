"""Encode the answers of nsqd that are more than ``OK``: to IDENTIFY, and to publishes with a trace.

Source: server protocol 3, 6; youzan/nsq ``nsqd/protocol_v2.go`` ``IDENTIFY``, ``nsqdserver/protocol_v2.go``
``getTracedReponse``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from nsq_ha.protocol.identify import Identity
    from nsq_ha.protocol.messages import Traced

_TRACED: Final = struct.Struct(">2sQQQI")


def encode_identity(identity: Identity) -> bytes:
    """Encode the answer to IDENTIFY in the server's order of fields."""
    fields = msgspec.to_builtins(identity)
    if not identity.desired_tag:
        del fields["desired_tag"]
    return msgspec.json.encode(fields)


def encode_plain_identity(identity: Identity) -> bytes:
    """Encode the answer of an upstream nsqd to IDENTIFY."""
    fields = {**msgspec.to_builtins(identity), "topology_region": "", "topology_zone": ""}
    del fields["desired_tag"]
    return msgspec.json.encode(fields)


def encode_traced(traced: Traced) -> bytes:
    """Encode what :func:`nsq_ha.protocol.messages.decode_traced` reads."""
    return _TRACED.pack(b"OK", traced.internal_id, traced.trace_id, traced.offset, traced.raw_size)
