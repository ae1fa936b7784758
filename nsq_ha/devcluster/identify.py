"""What a client said of itself in IDENTIFY, checked and completed as nsqd does it.

Source: protocol reference 3; youzan/nsq ``nsqd/client_v2.go`` ``Identify``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from nsq_ha.protocol.identify import MAX_TAG_BYTES, Identity

MAX_DEFLATE_LEVEL: Final = 6
_DEFAULT_BUFFER: Final = 100
_CONSUMER_BUFFER: Final = 4096
_LARGEST_BUFFER: Final = 65536
_SMALLEST_BUFFER_TIMEOUT: Final = 10


class Client(msgspec.Struct, kw_only=True):
    """The fields of IDENTIFY, in the wire's names; absent ones have the wire's zero."""

    client_id: str = ""
    short_id: str = ""
    hostname: str = ""
    long_id: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    sample_rate: int = 0
    msg_timeout: int = 0
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    desired_tag: str = ""
    extend_support: bool = False

    @classmethod
    def decode(cls, body: bytes) -> Client:
        """Read the JSON of IDENTIFY; ``null`` counts as absent.

        Raises:
            ValueError: With the text of nsqd's error frame behind ``IDENTIFY``.
        """
        try:
            fields = msgspec.json.decode(body)
            if fields is None:
                fields = {}
            client = msgspec.convert({name: value for name, value in fields.items() if value is not None}, cls)
        except (msgspec.MsgspecError, AttributeError, RecursionError, ValueError):
            raise ValueError("failed to decode JSON body") from None
        client.check()
        return client

    def check(self) -> None:
        """Check the ranges, in nsqd's order.

        Raises:
            ValueError: With the text of nsqd's error frame behind ``IDENTIFY``.
        """
        ranges = (
            ("heartbeat interval", self.heartbeat_interval, 1000, 60000, True),
            ("output buffer size", self.output_buffer_size, 64, 2**62, True),
            ("output buffer timeout", self.output_buffer_timeout, 1, 1000, True),
            ("sample rate", self.sample_rate, 0, 99, False),
            ("msg timeout", self.msg_timeout, 1000, 900_000, False),
        )
        for name, value, low, high, may_be_off in ranges:
            if value != 0 and not low <= value <= high and not (may_be_off and value == -1):
                raise ValueError(f"{name} ({value}) is invalid")
        length = len(self.desired_tag.encode())
        if length > MAX_TAG_BYTES:
            raise ValueError(f"invalid tag len {length}, exceed limit {MAX_TAG_BYTES}")

    @property
    def heartbeat(self) -> float:
        """Seconds between heartbeats; 0 when they are off."""
        return 0.0 if self.heartbeat_interval < 0 else (self.heartbeat_interval or 30000) / 1000

    @property
    def message_timeout(self) -> float:
        """Seconds until an unanswered message comes again."""
        return (self.msg_timeout or 60000) / 1000

    @property
    def buffer_bytes(self) -> int:
        """Bytes that are gathered, as IDENTIFY answers."""
        if self.output_buffer_size < 0:
            return 1
        return min(self.output_buffer_size or _DEFAULT_BUFFER, _LARGEST_BUFFER)

    @property
    def consumer_buffer_bytes(self) -> int:
        """Bytes that are gathered once subscribed: the small default grows."""
        return self.buffer_bytes if self.output_buffer_size else _CONSUMER_BUFFER

    @property
    def buffer_timeout_ms(self) -> int:
        """Milliseconds that messages are gathered."""
        if self.output_buffer_timeout < 0:
            return 0
        return max(self.output_buffer_timeout, _SMALLEST_BUFFER_TIMEOUT) if self.output_buffer_timeout else 50

    def identity(self, *, version: str, tls: bool) -> Identity:
        """The answer to this client.

        Args:
            version: Of the server.
            tls: The server has a certificate.
        """
        return Identity(
            version=version,
            max_deflate_level=MAX_DEFLATE_LEVEL,
            msg_timeout=self.msg_timeout or 60000,
            tls_v1=tls and self.tls_v1,
            deflate=self.deflate,
            deflate_level=max(0, min(self.deflate_level, MAX_DEFLATE_LEVEL)) if self.deflate else 0,
            snappy=self.snappy,
            sample_rate=self.sample_rate,
            output_buffer_size=self.buffer_bytes,
            output_buffer_timeout=self.buffer_timeout_ms,
            desired_tag=self.desired_tag,
        )
