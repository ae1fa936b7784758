"""Options of producers and consumers: frozen values that are checked when they are created.

Owns every default and its reason, and the rule of each option. Producers and
consumers take the same names as keyword arguments. The table in the docs is
generated from the attribute docstrings. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from nsq_ha.checks import (
    MAX_SECRET_BYTES,
    MAX_TAG_BYTES,
    Check,
    Rule,
    apply_rules,
    check_partition,
    check_topic,
    did_you_mean,
    instance_of,
    is_number,
    label,
    lookupd_urls,
    named,
    nsqd_addresses,
    number,
    one_of,
    optional,
    own_name,
    seconds,
    several,
    shown,
    source_host,
    text_of,
    whole,
)
from nsq_ha.errors import ConfigError
from nsq_ha.events import Event
from nsq_ha.ext_filter import ExtFilter
from nsq_ha.option_types import TLS, Backoff, Compression, TlsConfig, check_lookupd_tls
from nsq_ha.redaction import conceal
from nsq_ha.start_from import StartFrom, check_read, start_position

_DAY: Final = 86400.0

MAX_HEADER_BYTES: Final = 65535
"""Maximum length of an extension header, and so of a name in it."""

MAX_ATTEMPTS: Final = 4000
"""Largest ``max_attempts``: the partitioned nsqd counts no further."""

Sharding = Literal["murmur3", "java", "modulo"] | Callable[[Any], int]
"""The hash of keys: a named rule, or a function that returns an int of 0 or more."""


SecretFunction = Callable[[], str | Awaitable[str]]
"""Returns the present secret for AUTH."""

EventFunction = Callable[[Event], object]
"""Takes the events of a client."""

Secret = str | SecretFunction
"""The secret for AUTH, or a function that returns it."""

_SECRET: Final = text_of(MAX_SECRET_BYTES, "None for servers that do not ask for AUTH")


def checked_secret(value: object) -> str:
    """Return a secret that can be sent; an error does not show it.

    Raises:
        ConfigError: It is not text, empty or too long.
    """
    secret: str = _SECRET("auth_secret", value)
    return secret


def _secret(name: str, value: Any) -> Secret:  # noqa: ANN401 - any value may be given
    if not callable(value):
        return checked_secret(value)
    try:
        inspect.signature(value).bind()
    except TypeError:
        raise ConfigError(f"{name} must be text, or a function without arguments") from None
    except ValueError:  # some built-in functions have no signature
        pass
    found: Secret = value
    return found


def _plain_function(name: str, value: Any) -> EventFunction:  # noqa: ANN401 - any value may be given
    if not callable(value):
        raise ConfigError(f"{name} must be a function or None, not {shown(value)}")
    if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "__call__", None)):  # noqa: B004
        raise ConfigError(f"{name} must be a plain function (def): it is called in the event loop and not awaited")
    if any(map(inspect.isgeneratorfunction, (value, type(value).__call__))):
        raise ConfigError(f"{name} must be a plain function, not a generator, which would never run")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some built-in functions have none
        signature = None
    if signature is not None:
        try:
            signature.bind(None)
        except TypeError as error:
            what = getattr(value, "__qualname__", type(value).__qualname__)
            raise ConfigError(
                f"{name} must take one argument, the event; {what}{signature} does not: {error}"
            ) from None
    found: EventFunction = value
    return found


def _given(name: str, value: Any, example: str) -> Any:  # noqa: ANN401 - any value may be given
    if value is None:
        raise ConfigError(
            f"{name} must be an address or several, such as {example!r}, not None: is the setting or variable that it"
            f" comes from empty? Leave {name} out if you do not need it"
        )
    return value


_BACKOFF: Final = instance_of(Backoff)
_COMPRESSION: Final = one_of(*(entry.value for entry in Compression))


_CLIENT_RULES: Final[Mapping[str, Rule]] = {
    "lookupd": lambda name, value: lookupd_urls(several(name, _given(name, value, "http://127.0.0.1:4161"))),
    "nsqd": lambda name, value: nsqd_addresses(several(name, _given(name, value, "127.0.0.1:4150"))),
    "connect_timeout": seconds(0.001, _DAY),
    "lookup_timeout": seconds(0.001, _DAY),
    "lookup_interval": seconds(0.001, _DAY),
    "max_lookup_interval": optional(seconds(0.001, _DAY)),
    "lookup_jitter": number(0.0, 1.0),
    "heartbeat_interval": seconds(1.0, _DAY),
    "output_buffer_timeout": optional(seconds(0.001, 3600.0)),
    "output_buffer_bytes": whole(64, 2**31 - 1),
    "close_timeout": seconds(0.001, _DAY),
    "max_frame_bytes": whole(1024, 2**31 - 1),
    "backoff": _BACKOFF,
    "compression": lambda name, value: Compression(_COMPRESSION(name, getattr(value, "value", value))),
    "deflate_level": whole(1, 9),
    "tls": optional(TLS),
    "lookupd_tls": optional(TLS),
    "auth_secret": optional(_secret),
    "client_id": label,
    "hostname": label,
    "user_agent": label,
    "local_addr": optional(source_host),
    "on_event": optional(_plain_function),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Options that producers and consumers share."""

    _rules = _CLIENT_RULES

    lookupd: tuple[str, ...] = ()
    """HTTP addresses of nsqlookupds. One of a partitioned cluster is enough, since it lists the others; those of a
    plain cluster do not. Addresses of two clusters are refused when the client starts."""
    nsqd: tuple[str, ...] = ()
    """TCP addresses (``host:port``) of plain nsqds, instead of ``lookupd``. They support no partitions, keys, traces or
    headers."""
    connect_timeout: float = 1.0
    """Time limit for connecting to an nsqd, including its answer to IDENTIFY, since a frozen node accepts connections
    but never answers."""
    lookup_timeout: float = 1.0
    """Time limit for one request to one nsqlookupd. All are asked at the same time, so one that hangs delays a lookup
    by no more than this."""
    lookup_interval: float = 5.0
    """Shortest time between periodic lookups of a topic. After a failure the topic is looked up immediately."""
    max_lookup_interval: float | None = None
    """Longest time between periodic lookups of a topic. While nothing changes or fails, the time grows by half with
    each lookup; after a change, a failure or a lost connection it is ``lookup_interval`` again. None uses 60, or 12
    times ``lookup_interval`` if that is less. It is also how late a consumer may find new partitions."""
    lookup_jitter: float = 0.2
    """Random share by which each time between lookups is shortened, so that many clients do not ask at the same
    time."""
    heartbeat_interval: float = 2.0
    """Time between nsqd's heartbeats, from 1 up to its ``--max-heartbeat-interval`` (60). A connection is closed after
    two intervals without a byte, so a frozen node is left after about 4 s. A consumer asks for a longer interval after
    its event loop was blocked."""
    output_buffer_timeout: float | None = None
    """How long nsqd may collect messages before it writes them, up to its ``--max-output-buffer-timeout`` (1). On a
    nearly empty channel, this is most of a message's delay. None uses the server's minimum: 0.01, or 0.025 with a plain
    nsqd. Ordered channels do not wait for it."""
    output_buffer_bytes: int = 16384
    """How many bytes nsqd may collect before it writes them, from 64 up to its ``--max-output-buffer-size`` (65536)."""
    close_timeout: float = 5.0
    """Time limit for closing, whatever the cluster does, so that a service can always stop."""
    max_frame_bytes: int = 16 * 1024 * 1024
    """Largest accepted frame: raise it for larger messages. A connection that announces a larger one is closed before
    memory is allocated for it."""
    backoff: Backoff = Backoff()
    """Delay between attempts to reach a failing partition: short at first, since a new leader is often elected within a
    second."""
    compression: Compression = Compression.NONE
    """Compression of connections to nsqd; not used if the server does not offer it."""
    deflate_level: int = 6
    """Level of deflate, 1..9; nsqd lowers it to its ``--max-deflate-level`` (6). Without a level the server sends
    uncompressed blocks."""
    tls: TlsConfig | ssl.SSLContext | None = None
    """TLS for connections to nsqd; None for plain TCP. An ``ssl.SSLContext`` is used as it is: whether it verifies
    certificates and names, and which versions it accepts, is up to you. The partitioned nsqd stops writing to a TLS
    connection after 5 s, so connections are replaced before that: see the page "TLS, AUTH and compression"."""
    lookupd_tls: TlsConfig | ssl.SSLContext | None = None
    """TLS for requests to nsqlookupds whose address begins with ``https://``. None verifies them against the system's
    authorities."""
    auth_secret: Secret | None = field(default=None, repr=False)
    """Secret for servers that require AUTH; never logged or shown. A function is called for each connection whose nsqd
    asks for AUTH, so secrets may change: an ``async`` one in the event loop, a plain one in a thread. It must return
    within ``connect_timeout``; if it fails, connecting is retried."""
    client_id: str = ""
    """Name of this client in the server's statistics; empty for ``hostname``."""
    hostname: str = ""
    """Name of this machine in the server's statistics; empty for the system's name."""
    user_agent: str = ""
    """Name and version of this program in the server's statistics; empty for those of this library."""
    local_addr: str | None = None
    """Source address of connections, for machines with several: an IP address or a host name of this machine. A pair of
    it and the port 0 is accepted, too. None lets the system choose."""
    on_event: EventFunction | None = None
    """Called with each event of ``nsq_ha.events``, such as a change of a leader. A plain function, called in the event
    loop: it must not block. An error in it is logged once and changes nothing."""

    def __post_init__(self) -> None:
        """Check every option.

        Raises:
            ConfigError: An option is wrong; the text names it and the allowed values.
        """
        apply_rules(self, self._rules)
        if self.nsqd and self.lookupd:
            raise ConfigError("give either lookupd= or nsqd=, not both")
        check_lookupd_tls(self.lookupd_tls, self.lookupd)
        if self.max_lookup_interval is not None and self.max_lookup_interval < self.lookup_interval:
            raise ConfigError(
                f"max_lookup_interval={self.max_lookup_interval:g} is shorter than"
                f" lookup_interval={self.lookup_interval:g}: raise the one or lower the other"
            )
        if isinstance(self.auth_secret, str):
            conceal(self.auth_secret)

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Self:
        """Create the options from keyword arguments.

        Raises:
            ConfigError: An option is unknown or wrong; the text suggests the nearest name.
        """
        known = {entry.name for entry in dataclasses.fields(cls)}
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known) or f"; known are: {', '.join(sorted(known))}"
                for other, owner in ((ProducerConfig, "producers"), (ConsumerConfig, "consumers")):
                    own = own_name(name)
                    if own not in known and {own, name} & {entry.name for entry in dataclasses.fields(other)}:
                        hint = f": it is an option of {owner}" + (f", {own!r}" if own else "")
                if issubclass(cls, ConsumerConfig) and name in _ARGUMENTS_OF_RUN:
                    hint = f": it is no option but an argument: give it to {_ARGUMENTS_OF_RUN[name]}"
                raise ConfigError(f"unknown option {name!r}{hint}")
        return cls(**options)  # type: ignore[arg-type]  # the rules check the types


BodyCodec = Literal["gzip", "snappy", "lz4"]
"""How the bodies of messages are compressed."""

_CODEC: Final = one_of("gzip", "snappy", "lz4")

_ARGUMENTS_OF_RUN: Final = {
    "concurrency": "run() of a consumer, or to add() of a worker",
    "handler": "run() of a consumer, or to add() of a worker",
    "install_signal_handlers": "run()",
    "message_handler": "run() of a consumer, or to add() of a worker",
}
"""What people give to a consumer, and where it belongs."""


def _compressed_topics(name: str, value: object) -> BodyCodec | Mapping[str, BodyCodec]:
    if not isinstance(value, Mapping):
        found: BodyCodec = _CODEC(name, value)
        return found
    return {named(name, check_topic, topic): _CODEC(f"{name} of {topic}", codec) for topic, codec in value.items()}


_PRODUCER_RULES: Final[Mapping[str, Rule]] = {
    **_CLIENT_RULES,
    "publish_timeout": seconds(0.001, _DAY),
    "sharding": one_of("murmur3", "java", "modulo", function=True),
    "strategy": one_of("round_robin", "least_loaded"),
    "trace": lambda _, value: traced_topics(value),
    "on_unreachable": one_of("retry", "fail"),
    "new_partition_delay": optional(seconds(0.0, _DAY)),
    "partition_change": one_of("follow", "refuse", "drain"),
    "on_partition_change": Check("a function or None", lambda value: value is None or callable(value)),
    "max_pending_bytes": whole(1, 2**40),
    "window": whole(1, 100_000),
    "idle_timeout": seconds(1.0, _DAY),
    "max_connections": whole(1, 100_000),
    "compress_body": optional(_compressed_topics),
    "compress_min_bytes": whole(1, 2**30),
    "max_message_bytes": whole(1, 2**31 - 1),
    "max_batch_bytes": whole(64, 2**31 - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Options of a producer."""

    _rules = _PRODUCER_RULES

    publish_timeout: float = 30.0
    """Default time limit of a publish, including retries; longer than an election (22 s)."""
    sharding: Sharding = "murmur3"
    """Hash of keys: ``murmur3`` (as in Go programs), ``java``, ``modulo`` or a function. All producers of a topic must
    use the same one."""
    strategy: Literal["round_robin", "least_loaded"] = "round_robin"
    """Partition of a message without a key: each writable one in turn, or the less loaded of two neighbours. Among
    plain nsqds it is always the less loaded of two."""
    trace: bool | frozenset[str] = False
    """Whether to publish with trace ids: never, always, or for these topics. Can be changed on a running producer."""
    on_unreachable: Literal["retry", "fail"] = "retry"
    """``retry`` repeats a failing publish until its time limit; ``fail`` reports the first failure and looks up the
    topic immediately."""
    new_partition_delay: float | None = None
    """Delay before new partitions of a topic are published to, so that consumers subscribe first. The producer creates
    the channels there; if it cannot, consumers with a longer ``max_lookup_interval`` may miss messages. None uses
    ``max_lookup_interval`` plus ``lookup_interval``, 65 by default."""
    partition_change: Literal["follow", "refuse", "drain"] = "follow"
    """What to do if the number of partitions changes, since keys then go to other partitions. ``follow`` continues
    immediately, ``drain`` first waits for the answers to pending publishes, ``refuse`` fails all later publishes with
    a key."""
    on_partition_change: Callable[[str, int, int], object] | None = None
    """Called with the topic, the old and the new number of partitions when a new number is used; must not block."""
    max_pending_bytes: int = 64 * 1024 * 1024
    """Bytes of message bodies that the producer may hold; further publishes wait for space within their time limit. No
    partition may hold more than is left free: one alone holds at most half, and a failing one leaves space for the
    others. A partition that holds nothing accepts one publish of any size."""
    window: int = 1000
    """Unanswered publishes on one connection, of different keys; enough to hide a round trip."""
    idle_timeout: float = 600.0
    """Time without publishes after which a connection is closed, and a topic is no longer looked up until the next
    publish. A topic that does not exist is forgotten after 10 s."""
    max_connections: int = 1024
    """Maximum number of connections, so that many topics do not use up descriptors. Those being opened or closed count,
    too. Above it, partitions share connections by nsqd. TLS connections of partitioned nsqds are not shared: the
    longest idle one is closed first. One that is being replaced counts twice, so at the limit publishes wait for its
    replacement."""
    max_message_bytes: int = 1024 * 1024
    """Largest message that nsqd accepts, with trace id and headers: the value of nsqd's ``--max-msg-size``, which nsqd
    does not report. A larger message is refused before it is sent."""
    max_batch_bytes: int = 5 * 1024 * 1024
    """Largest batch that nsqd accepts as one command: the value of nsqd's ``--max-body-size``, which nsqd does not
    report, either. A larger batch is sent in parts, and a message that fits into no batch alone."""

    compress_body: BodyCodec | Mapping[str, BodyCodec] | None = None
    """Compress bodies as Go programs do, for all topics or, with a mapping, for these: see "Bodies and headers". The
    topics must be extended, since headers say how a body is compressed."""
    compress_min_bytes: int = 20 * 1024
    """Smallest body that ``compress_body`` compresses; the default of Go programs."""


GiveUp = Literal["drop", "republish", "dead_letter"] | Callable[[Any], Any]
"""What happens to a message after ``max_attempts``: see :attr:`ConsumerConfig.on_give_up`."""


DeadLetterFormat = Literal["auto", "headers", "envelope", "bare"]
"""How a dead letter carries where it comes from: see :attr:`ConsumerConfig.dead_letter_format`."""


def _skipped_headers(name: str, value: object) -> str | Mapping[str, object]:
    names = value if isinstance(value, Mapping) else (value,)
    if not names:
        raise ConfigError(f"{name} names no header: give None to skip nothing")
    for each in names:
        if not isinstance(each, str):
            wanted = "the name of a header, or a mapping from names to values"
            raise ConfigError(f"{name} must be {wanted}, not {shown(value)}")
        text_of(MAX_HEADER_BYTES, "None skips nothing")(name, each)
    return dict(value) if isinstance(value, Mapping) else str(value)


_CONSUMER_RULES: Final[Mapping[str, Rule]] = {
    **_CLIENT_RULES,
    "ordered": Check("True, False or 'auto'", lambda value: isinstance(value, bool) or value == "auto"),
    "partitions": optional(lambda name, value: _partitions(several(name, value))),
    "start_from": start_position,
    "max_in_flight": whole(0, 1_000_000),
    "max_in_flight_bytes": whole(1, 2**40),
    "msg_timeout": optional(seconds(1.0, 10 * _DAY)),
    "auto_touch": Check(
        "True, False, or 0.1 seconds or more, less than msg_timeout",
        lambda value: isinstance(value, bool) or (is_number(value) and 0.1 <= value < 10 * _DAY),
    ),
    "sample_rate": whole(0, 99),
    "tag": optional(text_of(MAX_TAG_BYTES, "None receives all messages")),
    "ext_filter": optional(Check("an ExtFilter", lambda value: isinstance(value, ExtFilter))),
    "skip_header": optional(_skipped_headers),
    "decompress": Check("True or False", lambda value: isinstance(value, bool)),
    "max_decompressed_bytes": whole(1, 2**31 - 1),
    "requeue_backoff": _BACKOFF,
    "handler_backoff": optional(_BACKOFF),
    "handler_backoff_scope": one_of("auto", "consumer", "connection"),
    "start_timeout": seconds(0.0, _DAY),
    "max_attempts": optional(whole(1, MAX_ATTEMPTS)),
    "warn_attempts": whole(0, 65535),
    "on_give_up": optional(one_of("drop", "republish", "dead_letter", function=True)),
    "dead_letter_topic": optional(lambda name, value: named(name, check_topic, value)),
    "dead_letter_format": one_of("auto", "headers", "envelope", "bare"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Options of a consumer."""

    _rules = _CONSUMER_RULES

    ordered: bool | Literal["auto"] = "auto"
    """``auto`` does what the topic's metadata says. True on a topic that is not ordered makes the *channel* ordered
    for all its consumers, until an operator changes it back."""
    partitions: tuple[int, ...] | None = None
    """Partitions to read. None for all, including those that are added later."""
    start_from: StartFrom | Mapping[int, StartFrom] | None = None
    """Position at which the channel starts: one for all partitions, or a mapping by partition; partitions that it does
    not name stay where they are. None leaves the channel where it is."""
    max_in_flight: int = 200
    """Maximum number of unanswered messages over all partitions: enough to hide a round trip. As many may be
    redelivered after a crash. Slow handlers get only as many as they can start within half of ``msg_timeout``. The
    server allows 2500 per connection (``--max-rdy-count``), and one per partition of an ordered channel. 0 starts
    paused: nothing is requested until :meth:`~nsq_ha.Consumer.set_max_in_flight` raises it."""
    max_in_flight_bytes: int = 256 * 1024 * 1024
    """Maximum bytes of unanswered message bodies. If messages are large, fewer than ``max_in_flight`` are requested.
    The default is enough for the default ``max_in_flight`` of the largest messages. If more than 64 MiB arrive beyond
    it, the connection is closed."""
    msg_timeout: float | None = None
    """Time after which the server redelivers an unanswered message, from 1 up to its ``--max-msg-timeout`` (900). None
    for the server's default (60 s)."""
    auto_touch: bool | float = False
    """Whether to restart the message timeout (TOUCH) of messages that are being worked on: those of running handlers,
    and those that a task got by iterating and has not answered. True does so each half of ``msg_timeout``, a number
    after so many seconds, but only up to the server's ``-max-msg-timeout`` (15 minutes). False by default, since a
    handler that hangs would keep its message that long."""
    sample_rate: int = 0
    """Percentage of messages to receive, 1..99; the server *confirms* the others for the channel. 0 for all. The
    partitioned server may deliver finished messages again while it does that."""
    tag: str | None = None
    """Receive only messages with this dispatch tag. Only extended topics have tags; with others, `async with` fails."""
    ext_filter: ExtFilter | None = None
    """Receive only messages whose headers match; the server *confirms* the others for the channel. Only extended topics
    have headers; with others, `async with` fails."""
    skip_header: str | Mapping[str, object] | None = None
    """Finish messages that have this header without handing them out, or, with a mapping, that have one of these
    headers with the given value."""
    decompress: bool = True
    """Decompress bodies that their headers mark as compressed, as Go programs and ``compress_body`` write them. False
    hands them out as they are stored."""
    max_decompressed_bytes: int = 16 * 1024 * 1024
    """Largest body after decompression; a message with a larger one counts as failed, and is not handed out."""
    requeue_backoff: Backoff = Backoff(initial=1.0, maximum=900.0, factor=2.0, jitter=0.1)
    """Delay of a requeue without ``delay``; it grows with the message's attempts."""
    handler_backoff: Backoff | None = Backoff(initial=1.0, maximum=120.0, factor=2.0, jitter=0.3)
    """Pause of the consumer after a handler failed, or after a requeue without ``delay``: it asks for no messages, then
    for one as a test, and as before when tests succeed. Otherwise a database that is down would make every message
    fail. None never pauses; a requeue with ``delay`` does not pause, either."""
    handler_backoff_scope: Literal["auto", "consumer", "connection"] = "auto"
    """What pauses: all of the ``consumer``, or only the ``connection`` that delivered the failed message. ``auto`` is
    ``connection`` for ordered topics, so that one partition's failures do not stop the others, and ``consumer``
    otherwise."""
    start_timeout: float = 5.0
    """How long `async with` waits for all partitions; then it logs a warning, which names those that may not have the
    channel yet, and continues in the background."""
    max_attempts: int | None = None
    """Number of deliveries after which a failure gives the message up, as ``on_give_up`` says; at most 4000, since the
    server counts no further. A message is given up unhandled only after 10 more deliveries. None never gives up, so
    that no message is dropped unless you ask for it."""
    warn_attempts: int = 10
    """Number of deliveries of a message at which a warning is logged, and again at each doubling. 0 for never."""
    on_give_up: GiveUp | None = None
    """What to do with a message that is given up, before it is finished: ``drop`` does nothing, ``republish`` publishes
    it to the end of its topic, ``dead_letter`` to ``dead_letter_topic``; a function is called with it, a plain one in a
    thread. None means ``drop`` if ``max_attempts`` is given. All others need ``max_attempts``; ``republish`` and
    ``dead_letter`` need an open ``producer=``."""
    dead_letter_topic: str | None = None
    """Topic for ``on_give_up="dead_letter"``; it must exist and must not be the consumer's own."""
    dead_letter_format: DeadLetterFormat = "auto"
    """How a dead letter carries where it comes from and why it failed: in ``headers`` on extended topics, in an
    ``envelope`` around the body on others, or ``bare``, not at all. ``auto`` uses headers if the topic accepts them,
    otherwise an envelope. :class:`nsq_ha.dead_letters.DeadLetter` reads both."""

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


def check_option(kind: type[ClientConfig], name: str, value: object, place: str) -> object:
    """Check the value of one option, and return it normalised.

    Args:
        kind: The class of the options.
        name: A field of it.
        value: The value.
        place: Where it stands; every error begins with it.

    Raises:
        ConfigError: The value is wrong.
    """
    try:
        return kind._rules[name](place, value)  # noqa: SLF001 - the class is this module's
    except ConfigError as error:
        found = str(error)
    raise ConfigError(found if found.startswith(place) else f"{place}: {found}")


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
    for option, reason in reasons.items():
        if getattr(config, option) is not None:
            raise ConfigError(f"remove {option}=: it needs the partitioned server, and plain nsqd {reason}")
    if config.ordered is True:
        raise ConfigError("remove ordered=True: it needs the partitioned server, and plain nsqd keeps no order")


def traced_topics(trace: object) -> bool | frozenset[str]:
    """Return the option ``trace`` as a bool, or as a set of topics.

    Raises:
        ConfigError: It is neither, or a name is not legal.
    """
    if isinstance(trace, bool):
        return trace
    if not isinstance(trace, Iterable):
        raise ConfigError(f"trace must be True, False or topics, not {shown(trace)}")
    topics: Iterable[object] = (trace,) if isinstance(trace, str) else trace
    return frozenset(named("trace", check_topic, topic) for topic in topics)


def _partitions(values: Iterable[object]) -> tuple[int, ...]:
    numbers = sorted(named("partitions", check_partition, value) for value in values)
    for one, following in itertools.pairwise(numbers):
        if one == following:
            raise ConfigError(f"partitions names partition {one} twice: name each one once")
    return tuple(numbers)


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
    if policy != "dead_letter" and config.dead_letter_format != "auto":
        raise ConfigError(
            f"dead_letter_format={config.dead_letter_format!r} needs on_give_up='dead_letter', not"
            f" {shown(policy or 'drop')}: there are no dead letters"
        )
    if policy is not None and config.max_attempts is None:
        raise ConfigError(
            f"on_give_up={shown(policy)} needs max_attempts, the number of deliveries after which it applies: without"
            f" it no message is given up"
        )
