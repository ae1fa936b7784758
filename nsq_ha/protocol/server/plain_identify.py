"""IDENTIFY on the side of an upstream nsqd: its defaults, its limits and its answer.

Source: nsqio/nsq ``nsqd/client_v2.go`` ``Identify`` and the setters it calls; ``nsqd/protocol_v2.go`` ``IDENTIFY``.
"""

from __future__ import annotations

from typing import Final

from nsq_ha.protocol.identify import LEAST_UPSTREAM_GATHER_MS, Identity
from nsq_ha.protocol.server.command_lines import Malformed, refusal
from nsq_ha.protocol.server.identify import (
    MAX_DEFLATE_LEVEL,
    SessionSettings,
    complaint_of_ranges,
    decode_identify,
    interval,
)
from nsq_ha.protocol.server.stream import Limits

PLAIN_SETTINGS: Final = SessionSettings(output_buffer_size=16384, output_buffer_timeout=250)
"""The settings of a client that did not identify."""
PLAIN_LIMITS: Final = Limits(max_line_bytes=16_384, max_delay=3_600_000, max_gather=30_000)
"""The default limits of an upstream nsqd."""
_WORD: Final = b"IDENTIFY"


def read_plain_identify(
    data: bytes, before: SessionSettings = PLAIN_SETTINGS, limits: Limits = PLAIN_LIMITS
) -> SessionSettings | Malformed:
    """Return the settings that the body of an IDENTIFY asks for, or the server's refusal.

    Args:
        data: The body.
        before: The settings until now; intervals, buffers and timeouts that are
            absent or 0 do not change.
        limits: The limits of the server.
    """
    try:
        body = decode_identify(data)
    except ValueError:
        return refusal(_WORD, "E_BAD_BODY", "IDENTIFY failed to decode JSON body")
    gathering = range(LEAST_UPSTREAM_GATHER_MS, limits.max_gather + 1)
    complaint = complaint_of_ranges(
        ("heartbeat interval", body.heartbeat_interval, range(1000, limits.max_heartbeat + 1), (-1, 0)),
        ("output buffer timeout", body.output_buffer_timeout, gathering, (-1, 0)),
        ("output buffer size", body.output_buffer_size, range(64, limits.max_gather_bytes + 1), (-1, 0)),
        ("sample rate", body.sample_rate, range(100), ()),
        ("msg timeout", body.msg_timeout, range(1000, limits.max_msg_timeout + 1), (0,)),
    )
    if complaint is not None:
        return refusal(_WORD, "E_BAD_BODY", f"IDENTIFY {complaint}")
    unbuffered = body.output_buffer_size == -1
    return SessionSettings(
        client_id=body.client_id or "",
        hostname=body.hostname or "",
        user_agent=body.user_agent or "",
        feature_negotiation=bool(body.feature_negotiation),
        heartbeat_interval=interval(body.heartbeat_interval, before.heartbeat_interval),
        output_buffer_size=1 if unbuffered else body.output_buffer_size or before.output_buffer_size,
        output_buffer_timeout=0 if unbuffered else interval(body.output_buffer_timeout, before.output_buffer_timeout),
        sample_rate=body.sample_rate or 0,
        msg_timeout=body.msg_timeout or before.msg_timeout,
        tls_v1=bool(body.tls_v1),
        snappy=bool(body.snappy),
        deflate=bool(body.deflate),
        deflate_level=body.deflate_level or 0,
    )


def plain_identity(
    settings: SessionSettings, version: str, *, tls: bool, auth: bool = False, limits: Limits = PLAIN_LIMITS
) -> Identity:
    """Return the answer to IDENTIFY.

    Args:
        settings: What the client asked for.
        version: The server's version.
        tls: The server has a certificate.
        auth: The server requires AUTH.
        limits: The limits of the server.
    """
    asked = settings.deflate_level if settings.deflate and settings.deflate_level > 0 else MAX_DEFLATE_LEVEL
    return Identity(
        version=version,
        max_rdy_count=limits.max_ready_count,
        max_msg_timeout=limits.max_msg_timeout,
        msg_timeout=settings.msg_timeout,
        tls_v1=tls and settings.tls_v1,
        deflate=settings.deflate,
        deflate_level=min(asked, MAX_DEFLATE_LEVEL),
        max_deflate_level=MAX_DEFLATE_LEVEL,
        snappy=settings.snappy,
        sample_rate=settings.sample_rate,
        auth_required=auth,
        output_buffer_size=settings.output_buffer_size,
        output_buffer_timeout=settings.output_buffer_timeout,
    )
