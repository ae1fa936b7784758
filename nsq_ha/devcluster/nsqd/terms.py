"""What IDENTIFY settled for one connection, in seconds and bytes as the dev cluster needs them.

Source: protocol reference 3; youzan/nsq ``nsqd/client_v2.go`` ``SwitchToConsumer``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from nsq_ha.devcluster.version import VERSION
from nsq_ha.protocol.identify import Identity

if TYPE_CHECKING:
    from nsq_ha.protocol.introduction import Introduction

_MAX_DEFLATE_LEVEL: Final = 6
_SMALL_BUFFER: Final = 100
_CONSUMER_BUFFER: Final = 4096


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of a connection.

    Attributes:
        client: What the client said.
        heartbeat: Seconds between heartbeats; 0 when they are off.
        msg_timeout: Seconds until an unanswered message comes again.
        gather_bytes: How much a consumer's connection gathers; the small default grows with SUB.
        gather_timeout: Seconds that it gathers.
    """

    client: Introduction
    heartbeat: float
    msg_timeout: float
    gather_bytes: int
    gather_timeout: float

    @classmethod
    def of(cls, client: Introduction) -> Self:
        """Work the terms out."""
        size = client.output_buffer_size
        return cls(
            client,
            client.heartbeat_interval / 1000,
            client.msg_timeout / 1000,
            _CONSUMER_BUFFER if size == _SMALL_BUFFER else size,
            client.output_buffer_timeout / 1000,
        )

    def identity(self, *, tls: bool) -> Identity:
        """The answer to IDENTIFY.

        Args:
            tls: The server has a certificate.
        """
        client = self.client
        return Identity(
            version=VERSION,
            msg_timeout=client.msg_timeout,
            tls_v1=tls and client.tls_v1,
            deflate=client.deflate,
            deflate_level=max(0, min(client.deflate_level, _MAX_DEFLATE_LEVEL)) if client.deflate else 0,
            max_deflate_level=_MAX_DEFLATE_LEVEL,
            snappy=client.snappy,
            sample_rate=client.sample_rate,
            output_buffer_size=client.output_buffer_size,
            output_buffer_timeout=client.output_buffer_timeout,
            desired_tag=client.desired_tag,
        )
