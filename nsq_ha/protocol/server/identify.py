"""IDENTIFY on the server's side: turn the client's JSON into session settings, and these into the answer.

The two kinds of nsqd have other defaults, check in another order, and treat buffers and compression levels differently.

Source: server protocol 3; youzan/nsq and nsqio/nsq ``nsqd/client_v2.go`` ``Identify`` and the setters it calls;
``nsqd/protocol_v2.go`` ``IDENTIFY``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec

from nsq_ha.protocol.ext_filter import FilterRule
from nsq_ha.protocol.identify import LEAST_UPSTREAM_GATHER_MS, Identity
from nsq_ha.protocol.server.command_lines import Malformed, refusal
from nsq_ha.protocol.server.stream import Limits

_MAX_TAG_BYTES: Final = 100
_MAX_DEFLATE_LEVEL: Final = 6
HA_LIMITS: Final = Limits()
"""The default limits of the partitioned server."""
PLAIN_LIMITS: Final = Limits(max_line_bytes=16_384, max_delay=3_600_000, max_gather=30_000)
"""The default limits of an upstream nsqd."""
_WORD: Final = b"IDENTIFY"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """The settings of one session. The defaults hold for a client that did not identify.

    Attributes:
        client_id: Short name.
        hostname: Name of the client's machine.
        user_agent: The client's library.
        topology_region: The client's region.
        topology_zone: The client's zone.
        feature_negotiation: Answer with JSON and upgrade; if false, answer a plain ``OK``.
        heartbeat_interval: Milliseconds; 0 if switched off, which forbids SUB.
        output_buffer_size: Bytes.
        output_buffer_timeout: Milliseconds; 0 writes at once.
        sample_rate: Percent; 0 for all messages.
        msg_timeout: Milliseconds.
        tls_v1: The client requests TLS.
        snappy: The client requests snappy.
        deflate: The client requests DEFLATE.
        deflate_level: As given, 0 if absent.
        desired_tag: Dispatch tag; empty for no tag.
        extend_support: The client reads extension headers.
        ext_filter: The client's filter. None if there is none.
    """

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 30_000
    output_buffer_size: int = 100
    output_buffer_timeout: int = 50
    sample_rate: int = 0
    msg_timeout: int = 60_000
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    desired_tag: str = ""
    extend_support: bool = False
    ext_filter: FilterRule | None = None

    def identity(self, version: str, *, tls: bool, auth: bool = False, limits: Limits = HA_LIMITS) -> Identity:
        """Return the answer of a partitioned nsqd to IDENTIFY.

        Args:
            version: The server's version.
            tls: The server has a certificate.
            auth: The server requires AUTH.
            limits: The limits of the server.
        """
        level = max(0, min(self.deflate_level, _MAX_DEFLATE_LEVEL)) if self.deflate else 0
        return self._identity(version, limits, tls=tls, auth=auth, level=level, tag=self.desired_tag)

    def plain_identity(self, version: str, *, tls: bool, auth: bool = False, limits: Limits = PLAIN_LIMITS) -> Identity:
        """Return the answer of an upstream nsqd to IDENTIFY; for the arguments see :meth:`identity`."""
        asked = self.deflate_level if self.deflate and self.deflate_level > 0 else _MAX_DEFLATE_LEVEL
        return self._identity(version, limits, tls=tls, auth=auth, level=min(asked, _MAX_DEFLATE_LEVEL))

    def _identity(self, version: str, limits: Limits, *, tls: bool, auth: bool, level: int, tag: str = "") -> Identity:
        return Identity(
            version=version,
            max_rdy_count=limits.max_ready_count,
            max_msg_timeout=limits.max_msg_timeout,
            msg_timeout=self.msg_timeout,
            tls_v1=tls and self.tls_v1,
            deflate=self.deflate,
            deflate_level=level,
            max_deflate_level=_MAX_DEFLATE_LEVEL,
            snappy=self.snappy,
            sample_rate=self.sample_rate,
            auth_required=auth,
            output_buffer_size=self.output_buffer_size,
            output_buffer_timeout=self.output_buffer_timeout,
            desired_tag=tag,
        )


PLAIN_SETTINGS: Final = SessionSettings(output_buffer_size=16384, output_buffer_timeout=250)
"""The settings of a client of an upstream nsqd that did not identify."""

_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class IdentifyBody(msgspec.Struct):
    """The JSON of IDENTIFY; null counts as absent, and names may come in any case, as in Go's decoder."""

    short_id: str | None = None
    long_id: str | None = None
    client_id: str | None = None
    hostname: str | None = None
    heartbeat_interval: _Int | None = None
    output_buffer_size: _Int | None = None
    output_buffer_timeout: _Int | None = None
    feature_negotiation: bool | None = None
    tls_v1: bool | None = None
    deflate: bool | None = None
    deflate_level: _Int | None = None
    snappy: bool | None = None
    sample_rate: _Int32 | None = None
    user_agent: str | None = None
    topology_region: str | None = None
    topology_zone: str | None = None
    msg_timeout: _Int | None = None
    desired_tag: str | None = None
    extend_support: bool | None = None
    ext_filter: FilterRule | None = None


_fields_are_known: Final = msgspec.json.Decoder(IdentifyBody)
"""Made before any thread needs it, see ``shapes``."""


def _lowered(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return ``value`` with the names of all its objects in lower case."""
    if isinstance(value, dict):
        return {name.lower(): _lowered(inside) for name, inside in value.items()}
    return [_lowered(each) for each in value] if isinstance(value, list) else value


def read_identify(
    data: bytes, before: SessionSettings | None = None, limits: Limits = HA_LIMITS
) -> SessionSettings | Malformed:
    """Return the settings that the body of an IDENTIFY requests, or the refusal of a partitioned nsqd.

    Args:
        data: The body.
        before: The previous settings; intervals, buffers and timeouts that are
            absent or 0 do not change.
        limits: The limits of the server.
    """
    before = before or SessionSettings()
    body = _decoded(data)
    if isinstance(body, Malformed):
        return body
    size = body.output_buffer_size or 0
    complaint = _complaint(
        body,
        limits,
        ("output buffer size", body.output_buffer_size, range(64, 2**63), (-1, 0)),
        ("output buffer timeout", body.output_buffer_timeout, range(1, limits.max_gather + 1), (-1, 0)),
    ) or _complaint_of_tag(body.desired_tag or "")
    if complaint is not None:
        return refusal(_WORD, "E_BAD_BODY", f"IDENTIFY {complaint}")
    return replace(
        _settings(body, before),
        client_id=body.client_id or body.short_id or "",
        hostname=body.hostname or body.long_id or "",
        output_buffer_size=1 if size == -1 else min(size, limits.max_gather_bytes) or before.output_buffer_size,
        output_buffer_timeout=_interval(_floor(body.output_buffer_timeout), before.output_buffer_timeout),
        desired_tag=body.desired_tag or before.desired_tag,
        # Cannot be switched off again.
        extend_support=bool(body.extend_support) or before.extend_support,
        ext_filter=body.ext_filter,
    )


def read_plain_identify(
    data: bytes, before: SessionSettings = PLAIN_SETTINGS, limits: Limits = PLAIN_LIMITS
) -> SessionSettings | Malformed:
    """Return the settings that the body of an IDENTIFY requests, or the refusal of an upstream nsqd.

    For the arguments see :func:`read_identify`.
    """
    body = _decoded(data)
    if isinstance(body, Malformed):
        return body
    gathering = range(LEAST_UPSTREAM_GATHER_MS, limits.max_gather + 1)
    complaint = _complaint(
        body,
        limits,
        ("output buffer timeout", body.output_buffer_timeout, gathering, (-1, 0)),
        ("output buffer size", body.output_buffer_size, range(64, limits.max_gather_bytes + 1), (-1, 0)),
    )
    if complaint is not None:
        return refusal(_WORD, "E_BAD_BODY", f"IDENTIFY {complaint}")
    unbuffered = body.output_buffer_size == -1
    return replace(
        _settings(body, before),
        client_id=body.client_id or "",
        hostname=body.hostname or "",
        output_buffer_size=1 if unbuffered else body.output_buffer_size or before.output_buffer_size,
        output_buffer_timeout=0 if unbuffered else _interval(body.output_buffer_timeout, before.output_buffer_timeout),
    )


def _decoded(data: bytes) -> IdentifyBody | Malformed:
    try:
        content = msgspec.json.decode(data.decode("utf-8", "replace"), type=dict[str, Any] | None)
        return msgspec.convert(_lowered(content or {}), IdentifyBody)
    except (msgspec.MsgspecError, RecursionError):
        return refusal(_WORD, "E_BAD_BODY", "IDENTIFY failed to decode JSON body")


def _settings(body: IdentifyBody, before: SessionSettings) -> SessionSettings:
    """Return what both kinds of nsqd read alike."""
    return SessionSettings(
        user_agent=body.user_agent or "",
        topology_region=body.topology_region or "",
        topology_zone=body.topology_zone or "",
        feature_negotiation=bool(body.feature_negotiation),
        heartbeat_interval=_interval(body.heartbeat_interval, before.heartbeat_interval),
        sample_rate=body.sample_rate or 0,
        msg_timeout=body.msg_timeout or before.msg_timeout,
        tls_v1=bool(body.tls_v1),
        snappy=bool(body.snappy),
        deflate=bool(body.deflate),
        deflate_level=body.deflate_level or 0,
    )


def _interval(value: int | None, before: int) -> int:
    """Return the setting that a value asks for: -1 switches off, 0 and None change nothing."""
    return 0 if value == -1 else value or before


def _floor(timeout: int | None) -> int | None:
    return 10 if timeout is not None and 0 < timeout < 10 else timeout


_Range = tuple[str, int | None, range, tuple[int, ...]]
"""A number's name, the number, the legal ones and the special ones."""


def _complaint(body: IdentifyBody, limits: Limits, *buffers: _Range) -> str | None:
    """Return the server's complaint about the first number, in its order, that is neither legal nor special."""
    ranges: tuple[_Range, ...] = (
        ("heartbeat interval", body.heartbeat_interval, range(1000, limits.max_heartbeat + 1), (-1, 0)),
        *buffers,
        ("sample rate", body.sample_rate, range(100), ()),
        ("msg timeout", body.msg_timeout, range(1000, limits.max_msg_timeout + 1), (0,)),
    )
    for name, value, legal, special in ranges:
        if value is not None and value not in legal and value not in special:
            return f"{name} ({value}) is invalid"
    return None


def _complaint_of_tag(tag: str) -> str | None:
    length = len(tag.encode())
    return f"invalid tag len {length}, exceed limit {_MAX_TAG_BYTES}" if length > _MAX_TAG_BYTES else None
