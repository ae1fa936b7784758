"""Encode the answers of nsqd that are more than ``OK``: to IDENTIFY, and to publishes with a trace.

Source: server protocol 3, 6; youzan/nsq ``nsqd/protocol_v2.go`` ``IDENTIFY``, ``nsqdserver/protocol_v2.go``
``getTracedReponse``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from nsq_ha.protocol.identify import Identity
    from nsq_ha.protocol.messages import Traced

_TRACED: Final = struct.Struct(">2sQQQI")


def encode_identity(identity: Identity) -> bytes:
    """Encode the answer to IDENTIFY in the server's order of fields."""
    order = _in_order(identity)
    if identity.desired_tag:
        order["desired_tag"] = identity.desired_tag
    return msgspec.json.encode(order)


def encode_plain_identity(identity: Identity) -> bytes:
    """Encode the answer of an upstream nsqd to IDENTIFY."""
    return msgspec.json.encode({**_in_order(identity), "topology_region": "", "topology_zone": ""})


def _in_order(identity: Identity) -> dict[str, Any]:
    return {
        "max_rdy_count": identity.max_rdy_count,
        "version": identity.version,
        "max_msg_timeout": identity.max_msg_timeout,
        "msg_timeout": identity.msg_timeout,
        "tls_v1": identity.tls_v1,
        "deflate": identity.deflate,
        "deflate_level": identity.deflate_level,
        "max_deflate_level": identity.max_deflate_level,
        "snappy": identity.snappy,
        "sample_rate": identity.sample_rate,
        "auth_required": identity.auth_required,
        "output_buffer_size": identity.output_buffer_size,
        "output_buffer_timeout": identity.output_buffer_timeout,
    }


def encode_traced(traced: Traced) -> bytes:
    """Encode what :func:`nsq_ha.protocol.messages.decode_traced` reads."""
    return _TRACED.pack(b"OK", traced.internal_id, traced.trace_id, traced.offset, traced.raw_size)
