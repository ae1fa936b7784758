"""The options of producers and consumers: each is declared here, once, with its type, range, default and reason.

``keywords`` repeats their names and types for type checkers.

``language`` says how a declaration is read, and what is derived from it. Producers and consumers take the same names
as keyword arguments. Times are in seconds, sizes in bytes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Self

from msgspec import Meta

from nsq_ha.base.redaction import HiddenText, conceal, hides_secrets
from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import MAX_TAG_BYTES, check_topic, lookupd_urls, nsqd_addresses, shown
from nsq_ha.options.ext_filter import ExtFilter
from nsq_ha.options.language import Bytes, Seconds, check_all, declared, did_you_mean, option
from nsq_ha.options.start_from import Start, check_read
from nsq_ha.options.types import Backoff, Compression, Tls, check_lookupd_tls
from nsq_ha.options.values import (
    EventFunction,
    SecretFunction,
    distinct_partitions,
    label,
    plain_function,
    secret,
    secret_text,
    skipped_headers,
    source_host,
    traced_topics,
    utf8,
)

_DAY: Final = 86400.0

MAX_ATTEMPTS: Final = 4000
"""Largest ``max_attempts``: the partitioned nsqd counts no further."""

MsgTimeout = Annotated[Seconds, Meta(ge=1, le=10 * _DAY)]
"""Time limit of a message in flight; nsqd's own is mostly less."""

_MOST: Final = 2**31 - 1
"""Largest size that the servers read."""

Secret = str | SecretFunction
"""The secret for AUTH, or a function that returns it."""

Sharding = Literal["murmur3", "java", "modulo"] | Callable[[Any], int]
"""The hash of keys: a named rule, or a function that returns an int of 0 or more."""

FrameBytes = Annotated[Bytes, Meta(ge=1024, le=_MOST)]
"""Size of a frame, which holds one message."""

BodyCodec = Literal["gzip", "snappy", "lz4"]
"""How the bodies of messages are compressed."""

GiveUp = Literal["drop", "republish", "dead_letter"] | Callable[[Any], Any]
"""What happens to a message after ``max_attempts``: see :attr:`ConsumerConfig.on_give_up`."""


def _codecs(value: object) -> Mapping[str, BodyCodec]:
    if not isinstance(value, Mapping):
        raise ValueError  # noqa: TRY004 - as for all wrong values
    return {check_topic(topic): option(f"of {topic}", BodyCodec).check(codec) for topic, codec in value.items()}


_Codecs = Annotated[Mapping[str, BodyCodec], _codecs, Meta(description="a mapping of topics to these")]


@hides_secrets
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Options that producers and consumers share."""

    lookupd: Annotated[tuple[str, ...], lookupd_urls] = ()
    """HTTP addresses of nsqlookupds. One of a partitioned cluster is enough, since it lists the others; those of a
    plain cluster do not. Addresses of two clusters are refused when the client starts."""
    nsqd: Annotated[tuple[str, ...], nsqd_addresses] = ()
    """TCP addresses (``host:port``) of plain nsqds, instead of ``lookupd``. They support no partitions, keys, traces or
    headers."""
    connect_timeout: Annotated[Seconds, Meta(ge=0.001, le=_DAY)] = 1.0
    """Time limit for connecting to an nsqd, including its answer to IDENTIFY, since a frozen node accepts connections
    but never answers."""
    lookup_timeout: Annotated[Seconds, Meta(ge=0.001, le=_DAY)] = 1.0
    """Time limit for one request to one nsqlookupd. All are asked at the same time, so one that hangs delays a lookup
    by no more than this."""
    lookup_interval: Annotated[Seconds, Meta(ge=0.001, le=_DAY)] = 5.0
    """Time between periodic lookups of a topic after a change or a failure. While nothing changes they are 60 seconds
    apart, or 12 times ``lookup_interval`` if that is less; so late may consumers find new partitions. Each time is
    shortened at random. After a failure the topic is looked up immediately."""
    heartbeat_interval: Annotated[Seconds, Meta(ge=1, le=_DAY)] = 2.0
    """Time between nsqd's heartbeats, from 1 up to its ``--max-heartbeat-interval`` (60). A connection is closed after
    two intervals without a byte, so a frozen node is left after about 4 s. A consumer asks for a longer interval after
    its event loop was blocked. An nsqd that allows only less than the default is asked for 1."""
    output_buffer_timeout: Annotated[Seconds, Meta(ge=0.001, le=3600)] | None = None
    """How long nsqd may collect messages before it writes them, up to its ``--max-output-buffer-timeout`` (1). On a
    nearly empty channel, this is most of a message's delay. None asks for the minimum that servers have without flags:
    0.01, or 0.025 with a plain nsqd; one that forbids it uses its own ``--output-buffer-timeout`` (0.25). Ordered
    channels do not wait for it."""
    output_buffer_bytes: Annotated[Bytes, Meta(ge=64, le=_MOST)] = 16384
    """How many bytes nsqd may collect before it writes them, from 64 up to its ``--max-output-buffer-size`` (65536).
    An nsqd that forbids the default uses its own."""
    close_timeout: Annotated[Seconds, Meta(ge=0.001, le=_DAY)] = 5.0
    """Time limit for closing, whatever the cluster does, so that a service can always stop."""
    max_frame_bytes: FrameBytes = 16 * 1024 * 1024
    """Largest accepted frame: raise it for larger messages. A connection that announces a larger one is closed before
    memory is allocated for it."""
    backoff: Backoff = Backoff()
    """Delay between attempts to reach a failing partition: short at first, since a new leader is often elected within a
    second."""
    compression: Compression = Compression.NONE
    """Compression of connections to nsqd; not used if the server does not offer it."""
    deflate_level: Annotated[int, Meta(ge=1, le=9)] = 6
    """Level of deflate, 1..9; nsqd lowers it to its ``--max-deflate-level`` (6). Without a level the server sends
    uncompressed blocks."""
    tls: Tls | None = None
    """TLS for connections to nsqd; None for plain TCP. An ``ssl.SSLContext`` is used as it is: whether it verifies
    certificates and names, and which versions it accepts, is up to you. The partitioned nsqd stops writing to a TLS
    connection after 5 s, so connections are replaced before that: see the page "TLS, AUTH and compression"."""
    lookupd_tls: Tls | None = None
    """TLS for requests to nsqlookupds whose address begins with ``https://``. None verifies them against the system's
    authorities."""
    auth_secret: Annotated[Secret, secret] | None = field(default=None, repr=False)
    """Secret for servers that require AUTH; never logged or shown. A function is called for each connection whose nsqd
    asks for AUTH, so secrets may change: an ``async`` one in the event loop, a plain one in a thread. It must return
    within ``connect_timeout``; if it fails, connecting is retried."""
    client_id: Annotated[str, label] = ""
    """Name of this client in the server's statistics; empty for ``hostname``."""
    hostname: Annotated[str, label] = ""
    """Name of this machine in the server's statistics; empty for the system's name."""
    user_agent: Annotated[str, label] = ""
    """Name and version of this program in the server's statistics; empty for those of this library."""
    topology_region: Annotated[str, label] = ""
    """Region of this client, such as ``eu-west-1``. A plain nsqd with ``--topology-region``, ``--topology-zone`` and
    ``--enable-experiment=topology-aware-consumption`` prefers consumers of its own zone, then those of its region.
    Other servers ignore it. Empty for none."""
    topology_zone: Annotated[str, label] = ""
    """Zone of this client, such as ``eu-west-1a``; see ``topology_region``."""
    local_addr: Annotated[str, source_host] | None = None
    """Source address of connections, for machines with several: an IP address or a host name of this machine. A pair of
    it and the port 0 is accepted, too. None lets the system choose."""
    on_event: Annotated[EventFunction, plain_function] | None = None
    """Called with each event of ``nsq_ha.events``, such as a change of a leader. A plain function, called in the event
    loop: it must not block. An error in it is logged once and changes nothing."""

    def __post_init__(self) -> None:
        """Check every option.

        Raises:
            ConfigError: An option is wrong; the text names it and the allowed values.
        """
        check_all(self)
        if self.nsqd and self.lookupd:
            raise ConfigError("give either lookupd= or nsqd=, not both")
        check_lookupd_tls(self.lookupd_tls, self.lookupd)
        if isinstance(self.auth_secret, str):
            conceal(self.auth_secret)

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Self:
        """Create the options from keyword arguments.

        Raises:
            ConfigError: An option is unknown or wrong; the text suggests the nearest name.
        """
        known = declared(cls)
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known) or f"; known are: {', '.join(sorted(known))}"
                for other, owner in ((ProducerConfig, "producers"), (ConsumerConfig, "consumers")):
                    if name in declared(other):
                        hint = f": it is an option of {owner}"
                if issubclass(cls, ConsumerConfig) and name in _ARGUMENTS_OF_RUN:
                    hint = f": it is no option but an argument: give it to {_ARGUMENTS_OF_RUN[name]}"
                raise ConfigError(f"unknown option {name!r}{hint}")
        return cls(**options)  # type: ignore[arg-type]  # the declarations check the types


_ARGUMENTS_OF_RUN: Final = {
    "concurrency": "run() of a consumer, or to add() of a worker",
    "handler": "run() of a consumer, or to add() of a worker",
    "install_signal_handlers": "run()",
    "message_handler": "run() of a consumer, or to add() of a worker",
}
"""What people give to a consumer, and where it belongs."""


@hides_secrets
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Options of a producer."""

    publish_timeout: Annotated[Seconds, Meta(ge=0.001, le=_DAY)] = 30.0
    """Default time limit of a publish, including retries; longer than an election (22 s)."""
    sharding: Sharding = "murmur3"
    """Hash of keys: ``murmur3`` (as in Go programs), ``java``, ``modulo`` or a function. All producers of a topic must
    use the same one."""
    strategy: Literal["round_robin", "least_loaded"] = "round_robin"
    """Partition of a message without a key: each writable one in turn, or the less loaded of two neighbours. Among
    plain nsqds it is always the less loaded of two."""
    trace: bool | Annotated[frozenset[str], traced_topics] = False
    """Whether to publish with trace ids: never, always, or for these topics. Can be changed on a running producer."""
    on_unreachable: Literal["retry", "fail"] = "retry"
    """``retry`` repeats a failing publish until its time limit; ``fail`` reports the first failure and looks up the
    topic immediately."""
    window: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Unanswered publishes on one connection, of different keys; enough to hide a round trip."""
    idle_timeout: Annotated[Seconds, Meta(ge=1, le=_DAY)] = 600.0
    """Time without publishes after which a connection is closed, and a topic is no longer looked up until the next
    publish. A topic that does not exist is forgotten after 10 s."""
    connections_per_nsqd: Annotated[int, Meta(ge=0, le=100_000)] = 64
    """Number of partitions of one nsqd that have a connection each, so that many topics do not use up descriptors. All
    further ones share one more. Topics of plain nsqds always share one connection to each."""
    max_message_bytes: Annotated[Bytes, Meta(ge=1, le=_MOST)] = 1024 * 1024
    """Largest message that nsqd accepts, with trace id and headers: the value of nsqd's ``--max-msg-size``, which nsqd
    does not report. A larger message is refused before it is sent."""
    max_batch_bytes: Annotated[Bytes, Meta(ge=64, le=_MOST)] = 5 * 1024 * 1024
    """Largest batch that nsqd accepts as one command: the value of nsqd's ``--max-body-size``, which nsqd does not
    report, either. A larger batch is sent in parts, and a message that fits into no batch alone."""

    compress_body: BodyCodec | _Codecs | None = None
    """Compress bodies as Go programs do, for all topics or, with a mapping, for these: see "Compressed bodies". The
    topics must be extended, since headers say how a body is compressed."""


@hides_secrets
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Options of a consumer."""

    ordered: bool | Literal["auto"] = "auto"
    """``auto`` does what the topic's metadata says. True on a topic that is not ordered makes the *channel* ordered
    for all its consumers, until an operator changes it back."""
    partitions: Annotated[tuple[int, ...], distinct_partitions] | None = None
    """Partitions to read. None for all, including those that are added later."""
    start_from: Start | None = None
    """Position at which the channel starts: one for all partitions, or a mapping by partition; partitions that it does
    not name stay where they are. None leaves the channel where it is."""
    max_in_flight: Annotated[int, Meta(ge=0, le=1_000_000)] = 200
    """Maximum number of unanswered messages over all partitions: enough to hide a round trip. As many may be
    redelivered after a crash. Slow handlers get only as many as they can start within half of ``msg_timeout``. The
    server allows 2500 per connection (``--max-rdy-count``), and one per partition of an ordered channel. 0 starts
    paused: nothing is requested until :meth:`~nsq_ha.Consumer.set_max_in_flight` raises it."""
    max_rate: Annotated[float, Meta(ge=0.001, le=1_000_000)] | None = None
    """Messages handed out a second, at most, for work that must not overwhelm what it calls; after a time without
    messages, one second's worth comes at once. Only about as many as are
    due in the next second are requested, so that others wait at the server for other consumers. None for no limit;
    :meth:`~nsq_ha.Consumer.set_max_rate` changes it. A limit of a fleet is to be divided by its consumers."""
    max_in_flight_bytes: Annotated[Bytes, Meta(ge=1, le=2**40)] = 256 * 1024 * 1024
    """Maximum bytes of unanswered message bodies. If messages are large, fewer than ``max_in_flight`` are requested.
    The default is enough for the default ``max_in_flight`` of the largest messages. If more than 64 MiB arrive beyond
    it, the connection is closed."""
    msg_timeout: MsgTimeout | None = None
    """Time after which the server redelivers an unanswered message, from 1 up to its ``--max-msg-timeout`` (900). None
    for the server's default (60 s)."""
    auto_touch: bool | Annotated[Seconds, Meta(ge=0.1, lt=10 * _DAY)] = False
    """Whether to restart the message timeout (TOUCH) of messages that are being worked on: those of running handlers,
    and those that a task got by iterating and has not answered. True does so each half of ``msg_timeout``, a number
    after so many seconds, but only up to the server's ``-max-msg-timeout`` (15 minutes). False by default, since a
    handler that hangs would keep its message that long."""
    sample_rate: Annotated[int, Meta(ge=0, le=99)] = 0
    """Percentage of messages to receive, 1..99; the server *confirms* the others for the channel. 0 for all. The
    partitioned server may deliver finished messages again while it does that."""
    tag: Annotated[str, utf8(MAX_TAG_BYTES, "None receives all messages")] | None = None
    """Receive only messages with this dispatch tag. Only extended topics have tags; with others, `async with` fails."""
    ext_filter: ExtFilter | None = None
    """Receive only messages whose headers match; the server *confirms* the others for the channel. Only extended topics
    have headers; with others, `async with` fails."""
    skip_header: Annotated[str | Mapping[str, object], skipped_headers] | None = None
    """Finish messages that have this header without handing them out, or, with a mapping, that have one of these
    headers with the given value."""
    decompress: bool = True
    """Decompress bodies that their headers mark as compressed, as Go programs and ``compress_body`` write them. A
    message whose body cannot be decompressed counts as failed. False hands out all bodies as they are stored."""
    max_decompressed_bytes: Annotated[Bytes, Meta(ge=1, le=_MOST)] = 16 * 1024 * 1024
    """Largest body after decompression; a message with a larger one counts as failed, and is not handed out."""
    requeue_backoff: Backoff = Backoff(initial=10.0, maximum=900.0, factor=2.0)
    """Delay of a requeue without ``delay``, without its jitter; it grows with the message's attempts. The default is
    longer than any pause of ``handler_backoff``, so that a message that fails each time is not what ends the pause. On
    an ordered topic the message blocks its partition, so there it waits no longer than ``handler_backoff`` for as many
    failures."""
    handler_backoff: Backoff | None = Backoff(initial=1.0, maximum=4.0, factor=2.0, jitter=0.3)
    """Pause of the consumer if one message fails, and the next one, too, by an exception in the handler or a requeue
    without ``delay``: it asks for no messages, then for one as a test. If that fails, the next pause is longer; if it
    succeeds, messages flow as before. A message that failed before neither begins a pause nor makes one longer. The
    maximum is short, since messages wait that long after a repair. None never pauses."""
    start_timeout: Annotated[Seconds, Meta(ge=0, le=_DAY)] = 5.0
    """How long `async with` waits for all partitions; then it logs a warning, which names those that may not have the
    channel yet, and continues in the background."""
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    """Number of deliveries after which the consumer gives up on a message that fails, as ``on_give_up`` says; at most
    4000, since the server counts no further. Only after 10 more deliveries does it give up without calling the handler.
    None never gives up, so that no message is dropped unless you ask for it."""
    on_give_up: GiveUp | None = None
    """What to do with a message that the consumer gives up on, before finishing it: ``drop`` does nothing,
    ``republish`` publishes it to the end of its topic, ``dead_letter`` to ``dead_letter_topic``; a function gets it, a
    plain one in a thread. None means ``drop`` if ``max_attempts`` is given. All others need ``max_attempts``;
    ``republish`` and ``dead_letter`` need an open ``producer=``."""
    dead_letter_topic: Annotated[str, check_topic] | None = None
    """Topic for ``on_give_up="dead_letter"``; it must exist and must not be the consumer's own."""

    def __post_init__(self) -> None:
        """Check every option.

        Raises:
            ConfigError: An option is wrong; the text names it and the allowed values.
        """
        ClientConfig.__post_init__(self)
        if self.nsqd:
            check_plain(self)
        check_read(self.start_from, self.partitions)
        if not isinstance(self.auto_touch, bool) and self.auto_touch >= (self.msg_timeout or math.inf):
            raise ConfigError(
                f"auto_touch={self.auto_touch:g} must be less than msg_timeout={self.msg_timeout:g}, which would be"
                f" over first: give fewer seconds, or True for half of it"
            )
        _check_giving_up(self)


def check_plain(config: ConsumerConfig) -> None:
    """Reject options that only the partitioned server supports.

    Raises:
        ConfigError: An option is such a one.
    """
    reasons = {
        "partitions": "has no partitions",
        "start_from": "supports no start positions",
        "tag": "has no tags and would deliver every message",
        "ext_filter": "has no headers and would deliver every message",
    }
    for name, reason in reasons.items():
        if getattr(config, name) is not None:
            raise ConfigError(f"remove {name}=: it needs the partitioned server, and plain nsqd {reason}")
    if config.ordered is True:
        raise ConfigError("remove ordered=True: it needs the partitioned server, and plain nsqd keeps no order")


def checked_secret(value: object) -> str:
    """Return a secret that can be sent; neither an error nor its ``repr`` shows it.

    Raises:
        ConfigError: It is not text, empty or too long.
    """
    found: str = option("auth_secret", Annotated[str, secret_text]).check(value)
    return HiddenText(found)


def _check_giving_up(config: ConsumerConfig) -> None:
    """Reject options that would be ignored, or would drop messages that should be kept."""
    policy, topic = config.on_give_up, config.dead_letter_topic
    if policy == "dead_letter" and topic is None:
        raise ConfigError("on_give_up='dead_letter' needs dead_letter_topic")
    if policy != "dead_letter" and topic is not None:
        raise ConfigError(
            f"dead_letter_topic needs on_give_up='dead_letter', not {shown(policy or 'drop')}: {topic!r} would get no"
            f" message"
        )
    if policy is not None and config.max_attempts is None:
        raise ConfigError(
            f"on_give_up={shown(policy)} needs max_attempts, the number of deliveries after which it applies: without"
            f" it no message is given up"
        )
