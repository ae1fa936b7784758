"""The keyword arguments of producers and consumers, for type checkers and editors.

Type checkers cannot derive them from ``config``, which declares what each is. A test keeps the names the same.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Literal, TypedDict

from nsq_ha.options.config import BodyCodec, GiveUp, Secret, Sharding
from nsq_ha.options.ext_filter import ExtFilter
from nsq_ha.options.start_from import StartFrom
from nsq_ha.options.types import Backoff, Compression, TlsConfig
from nsq_ha.options.values import EventFunction


class ClientOptions(TypedDict, total=False):
    """Options that producers and consumers share: the fields of :class:`~nsq_ha.ClientConfig`."""

    lookupd: str | Iterable[str]
    nsqd: str | Iterable[str]
    connect_timeout: float
    lookup_timeout: float
    lookup_interval: float
    heartbeat_interval: float
    output_buffer_timeout: float | None
    output_buffer_bytes: int
    close_timeout: float
    max_frame_bytes: int
    backoff: Backoff
    compression: Compression | Literal["none", "snappy", "deflate"]
    deflate_level: int
    tls: TlsConfig | ssl.SSLContext | None
    lookupd_tls: TlsConfig | ssl.SSLContext | None
    auth_secret: Secret | None
    client_id: str
    hostname: str
    user_agent: str
    topology_region: str
    topology_zone: str
    local_addr: str | tuple[str, int] | None
    on_event: EventFunction | None


class ProducerOptions(ClientOptions, total=False):
    """Keyword arguments of a producer: the fields of :class:`~nsq_ha.ProducerConfig`.

    Use it for a function of yours that passes options on: ``**options: Unpack[ProducerOptions]``.
    """

    publish_timeout: float
    sharding: Sharding
    strategy: Literal["round_robin", "least_loaded"]
    trace: bool | Iterable[str]
    on_unreachable: Literal["retry", "fail"]
    window: int
    idle_timeout: float
    connections_per_nsqd: int
    compress_body: BodyCodec | Mapping[str, BodyCodec] | None
    max_message_bytes: int
    max_batch_bytes: int


class ConsumerOptions(ClientOptions, total=False):
    """Keyword arguments of a consumer: the fields of :class:`~nsq_ha.ConsumerConfig`.

    Use it for a function of yours that passes options on: ``**options: Unpack[ConsumerOptions]``.
    """

    ordered: bool | Literal["auto"]
    partitions: Iterable[int] | None
    start_from: StartFrom | Mapping[int, StartFrom] | None
    max_in_flight: int
    max_rate: float | None
    max_in_flight_bytes: int
    msg_timeout: float | None
    auto_touch: bool | float
    sample_rate: int
    tag: str | None
    ext_filter: ExtFilter | None
    skip_header: str | Mapping[str, object] | None
    decompress: bool
    max_decompressed_bytes: int
    requeue_backoff: Backoff
    handler_backoff: Backoff | None
    start_timeout: float
    max_attempts: int | None
    on_give_up: GiveUp | None
    dead_letter_topic: str | None


class AdminOptions(TypedDict, total=False):
    """Arguments of :class:`~nsq_ha.admin.AdminClient`."""

    lookupd: str | Iterable[str]
    question_timeout: float
    lookupd_tls: TlsConfig | ssl.SSLContext | None
    tls: TlsConfig | ssl.SSLContext | None
