"""IDENTIFY: the client's offer, the server's answer, and the order of the upgrades.

Owns the JSON of both directions. ``protocol.handshake`` owns when to send it and
when to switch to TLS or compression.

The invariant: an :class:`Identity` holds only valid values, so no other module
checks them again.

Source: server protocol 3; youzan/nsq ``nsqdserver/protocol_v2.go``
``IDENTIFY`` and ``nsqd/client_v2.go`` ``Identify``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

import msgspec

from nsq_ha.base.shapes import decoder
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.options.checks import MAX_INT64
from nsq_ha.options.config import ClientConfig, ConsumerConfig
from nsq_ha.options.types import Compression
from nsq_ha.protocol.commands import Identify
from nsq_ha.protocol.ext_filter import FilterRule, rule_of
from nsq_ha.protocol.frames import OK

LEAST_GATHER_MS: Final = 10
"""Shortest time for which the HA server gathers messages; it treats a lower number as this one."""

LEAST_UPSTREAM_GATHER_MS: Final = 25
"""Shortest time for which an upstream nsqd gathers by default; it refuses IDENTIFY with less."""

LEAST_HEARTBEAT_MS: Final = 1000
"""Shortest time between heartbeats that nsqd can be asked for."""

DEFAULTS: Final[Mapping[str, object]] = {
    name: ClientConfig.__dataclass_fields__[name].default
    for name in ("heartbeat_interval", "output_buffer_bytes", "output_buffer_timeout")
}
"""Defaults of options that flags of nsqd may forbid."""

Upgrade = Literal["tls", "snappy", "deflate"]
"""One switch of the connection to another layer; each is confirmed by an ``OK`` inside the new layer."""

_Positive = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT64)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT64)]
_MSG_TIMEOUT: Final = 60_000
OLDEST: Final = "0.2.23"
"""The oldest upstream nsqd that this library works with."""

_Text = Annotated[str, msgspec.Meta(max_length=256)]  # each connection keeps it


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a client sends with IDENTIFY, with the wire's names and units.

    Attributes:
        client_id: Short name.
        hostname: Name of the machine.
        user_agent: Name and version of the library.
        topology_region: Region of the client; empty for none, and not sent then, as the next, tag and filter.
        topology_zone: Zone of the client; empty for none.
        heartbeat_interval: Milliseconds, 1000..60000.
        output_buffer_size: Bytes, 64..65536; -1 sends each message at once; 0 for the server's default.
        output_buffer_timeout: Milliseconds, 10..1000; 0 for the server's default.
        sample_rate: Percent, 1..99; 0 for all messages.
        msg_timeout: Milliseconds, 1000..900000; 0 for the server's default.
        tls: Require TLS.
        compression: Request compression; the server may not support it.
        deflate_level: 1..6. It is always sent: without a level the server does not compress.
        desired_tag: Dispatch tag; empty for no tag.
        extend_support: Must match the topic: true for extended topics only.
        ext_filter: Server-side filter on extension headers. None for no filter.
    """

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    heartbeat_interval: int = 30000
    output_buffer_size: int = 16384
    output_buffer_timeout: int = 25
    sample_rate: int = 0
    msg_timeout: int = 0
    tls: bool = False
    compression: Compression = Compression.NONE
    deflate_level: int = 6
    desired_tag: str = ""
    extend_support: bool = False
    ext_filter: FilterRule | None = None

    @classmethod
    def of(
        cls,
        config: ClientConfig,
        *,
        hostname: str,
        user_agent: str,
        extend_support: bool = False,
        is_plain: bool = False,
        is_modest: bool = False,
    ) -> Self:
        """Return the offer for ``config``; a :class:`ConsumerConfig` adds fields.

        Args:
            config: The options of the producer or consumer.
            hostname: Name of this machine; also the client id if ``config`` has none.
            user_agent: Name and version of the library.
            extend_support: Whether the connection is for an extended topic (consumers only).
            is_plain: Whether the nsqd is an upstream one, which accepts only longer ``output_buffer_timeout``.
            is_modest: Whether nsqd refused a default of this library: its own take the place of all of
                ``DEFAULTS``. A heartbeat of its own could be too rare, so the shortest is asked for.
        """
        consumer = config if isinstance(config, ConsumerConfig) else None
        # A host name need not be UTF-8; other bytes become surrogates, which JSON cannot represent.
        hostname = hostname.encode("utf-8", "replace").decode()
        left = {name for name, default in DEFAULTS.items() if is_modest and getattr(config, name) == default}
        heartbeat = LEAST_HEARTBEAT_MS if "heartbeat_interval" in left else round(config.heartbeat_interval * 1000)
        return cls(
            client_id=config.client_id or hostname,
            hostname=hostname,
            user_agent=user_agent,
            topology_region=config.topology_region,
            topology_zone=config.topology_zone,
            heartbeat_interval=heartbeat,
            output_buffer_size=0 if "output_buffer_bytes" in left else config.output_buffer_bytes,
            output_buffer_timeout=0 if "output_buffer_timeout" in left else _gather_ms(config, is_plain=is_plain),
            sample_rate=consumer.sample_rate if consumer else 0,
            msg_timeout=round((consumer.msg_timeout or 0) * 1000) if consumer else 0,
            tls=config.tls is not None,
            compression=config.compression,
            deflate_level=config.deflate_level,
            desired_tag=(consumer.tag if consumer else None) or "",
            extend_support=extend_support,
            ext_filter=rule_of(consumer.ext_filter) if consumer and consumer.ext_filter else None,
        )

    def command(self) -> Identify:
        """Return the command to send."""
        fields = msgspec.structs.asdict(self)
        # Without feature_negotiation, the server answers a plain OK and upgrades nothing.
        fields |= {"feature_negotiation": True, "tls_v1": fields.pop("tls")}
        chosen = fields.pop("compression")
        fields |= {each.value: each is chosen for each in (Compression.SNAPPY, Compression.DEFLATE)}
        is_set = {
            name: bool(fields[name]) for name in ("topology_region", "topology_zone", "desired_tag", "ext_filter")
        }
        return Identify(msgspec.json.encode({name: value for name, value in fields.items() if is_set.get(name, True)}))


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What the server agreed to, with the wire's names, in its order; times in milliseconds.

    The defaults are nsqd's, for a server that answers a plain ``OK``.

    Attributes:
        max_rdy_count: Largest RDY.
        version: The server's version; empty if unknown.
        max_msg_timeout: How long TOUCH can keep a message, milliseconds.
        msg_timeout: Message timeout of this connection, milliseconds. nsqd 0.2.29 and 0.2.30 say 0 for their default,
            which they do not name; it is taken for 60 s.
        tls_v1: Switch to TLS.
        deflate: Switch to DEFLATE.
        deflate_level: The server's level.
        max_deflate_level: The server's maximum.
        snappy: Switch to snappy.
        sample_rate: Percent; 0 for all.
        auth_required: AUTH must come next.
        output_buffer_size: Bytes that the server gathers before it writes.
        output_buffer_timeout: Milliseconds for which it gathers.
        desired_tag: Dispatch tag; empty for no tag.
    """

    max_rdy_count: _Positive = 2500
    version: _Text = ""
    max_msg_timeout: _Positive = 900_000
    msg_timeout: _Natural = _MSG_TIMEOUT
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: _Natural = 0
    max_deflate_level: _Natural = 0
    snappy: bool = False
    sample_rate: Annotated[int, msgspec.Meta(ge=0, le=99)] = 0
    auth_required: bool = False
    output_buffer_size: _Natural = 0
    output_buffer_timeout: _Natural = 0
    desired_tag: _Text = ""

    @property
    def is_too_old(self) -> bool:
        """Whether it is older than ``OLDEST``; versions of other servers are not compared."""
        return re.match(r"0\.(?:[01]|2\.(?:1?[0-9]|2[0-2]))(?![0-9])", self.version) is not None

    @property
    def counts_ready_down(self) -> bool:
        """Whether each message lowers RDY at the server, so that it must be sent again: nsqd before 0.3.0."""
        return self.version.startswith("0.2.")


def decode_identity(data: bytes) -> Identity:
    """Decode the answer to IDENTIFY.

    A plain ``OK`` is the answer of a server that negotiates nothing, nsqd before 0.2.20. Unknown
    fields are ignored, missing ones have the server's defaults.

    Raises:
        RemoteProtocolError: It is neither ``OK`` nor JSON, or a value is not valid
            (RDY limit or message timeout below 1). Drop the connection.
    """
    if data == OK:
        return Identity(version="0.2.19")  # or older
    try:
        identity: Identity = decoder(Identity).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"answer to IDENTIFY cannot be used: {error}") from error
    if identity.snappy and identity.deflate:
        raise RemoteProtocolError("answer to IDENTIFY switches on both snappy and deflate")
    return identity if identity.msg_timeout else msgspec.structs.replace(identity, msg_timeout=_MSG_TIMEOUT)


def upgrades(identity: Identity, offer: Offer | None = None) -> tuple[Upgrade, ...]:
    """Return the layers to switch on, in order; each is confirmed by an ``OK`` inside it.

    TLS comes first, compression runs inside it.

    Args:
        identity: The server's answer.
        offer: The client's offer. None skips the comparison.

    Raises:
        RemoteProtocolError: The server switches on a layer that was not offered.
            Drop the connection.

    Source: server protocol 3.2.
    """
    switched: dict[Upgrade, bool] = {"tls": identity.tls_v1, "snappy": identity.snappy, "deflate": identity.deflate}
    order = tuple(upgrade for upgrade, is_on in switched.items() if is_on)
    for upgrade in order:
        if offer is not None and upgrade not in {"tls" if offer.tls else "", offer.compression.value}:
            raise RemoteProtocolError(f"answer to IDENTIFY switches on {upgrade}, which was not offered")
    return order


def _gather_ms(config: ClientConfig, *, is_plain: bool) -> int:
    if config.output_buffer_timeout is not None:
        return round(config.output_buffer_timeout * 1000)
    return LEAST_UPSTREAM_GATHER_MS if is_plain else LEAST_GATHER_MS
