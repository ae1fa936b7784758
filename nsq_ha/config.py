"""Options of producers and consumers, as frozen values that are checked when made.

Owns every default and its reason. Producers and consumers take the same names
as keyword arguments and build one of these; the table in the docs is made from
the attribute docstrings below. Times are seconds, sizes are bytes.
"""

from __future__ import annotations

import dataclasses
import enum
import ipaddress
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Self

from nsq_ha.addresses import is_host_name, lookupd_urls, nsqd_addresses
from nsq_ha.errors import ConfigError
from nsq_ha.names import MAX_TAG_BYTES, check_partition, check_topic
from nsq_ha.option_checks import (
    MAX_SECONDS,
    MAX_SECRET_BYTES,
    Check,
    Rule,
    did_you_mean,
    file_name,
    instance_of,
    is_number,
    named,
    number,
    one_of,
    optional,
    seconds,
    several,
    shown,
    text,
    text_of,
    whole,
)
from nsq_ha.redaction import conceal
from nsq_ha.start_from import StartFrom, check_read, start_position

_DAY: Final = 86400.0

MAX_ATTEMPTS: Final = 4000
"""Largest ``max_attempts``: the partitioned nsqd counts no further."""

Sharding = Literal["murmur3", "java", "modulo"] | Callable[[Any], int]
"""How a key becomes a number: a named rule, or a function to a non-negative hash."""


class Compression(enum.Enum):
    """Compression of a whole connection; the server may not offer it, then none is used."""

    NONE = "none"
    SNAPPY = "snappy"
    DEFLATE = "deflate"


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait after the n-th failure in a row.

    Attributes:
        initial: Seconds after the first failure.
        maximum: Ceiling in seconds.
        factor: Growth for each further failure.
        jitter: Share of the delay that is left to chance, 0..1; keeps many
            clients from coming back at once.
    """

    initial: float = 0.05
    maximum: float = 1.0
    factor: float = 2.0
    jitter: float = 0.3

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: A value is out of range.
        """
        numbers = (self.initial, self.maximum, self.factor, self.jitter)
        if not all(is_number(number) for number in numbers) or not (
            0 < self.initial <= self.maximum <= MAX_SECONDS and 1 <= self.factor < math.inf and 0 <= self.jitter <= 1
        ):
            raise ConfigError(
                f"Backoff needs 0 < initial <= maximum <= {MAX_SECONDS} seconds, factor >= 1 and jitter 0..1, not {self}"
            )


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS towards nsqd. The certificate is verified unless ``verify`` is switched off by name.

    Attributes:
        ca_file: PEM file of the authorities to trust. None for the system's.
        cert_file: PEM file of a client certificate. None for none.
        key_file: PEM file of its key. None when it is in ``cert_file``.
        verify: False accepts any certificate: only for tests.
        server_name: Name to expect in the certificate. None for the address.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: One is of a wrong type, or does not fit the others.
        """
        _apply(self, _TLS_RULES)
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("key_file needs cert_file, the client certificate that the key belongs to")


def _server_name(name: str, value: object) -> str:
    found = text(name, value)
    if not is_host_name(found) and not _is_ip(found):
        raise ConfigError(f"{name} {value!r} is not legal: give a host name, or an IP address without brackets")
    return found


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


_TLS_RULES: Final[Mapping[str, Rule]] = {
    "ca_file": optional(file_name),
    "cert_file": optional(file_name),
    "key_file": optional(file_name),
    "verify": instance_of(bool),
    "server_name": optional(_server_name),
}
_BACKOFF: Final = instance_of(Backoff)
_COMPRESSION: Final = one_of(*(entry.value for entry in Compression))


_CLIENT_RULES: Final[Mapping[str, Rule]] = {
    "lookupd": lambda name, value: lookupd_urls(several(name, value)),
    "nsqd": lambda name, value: nsqd_addresses(several(name, value)),
    "connect_timeout": seconds(0.001, _DAY),
    "lookup_timeout": seconds(0.001, _DAY),
    "lookup_interval": seconds(0.001, _DAY),
    "lookup_jitter": number(0.0, 1.0),
    "heartbeat_interval": seconds(1.0, 60.0),
    "output_buffer_timeout": optional(seconds(0.01, 1.0)),
    "output_buffer_bytes": whole(64, 65536),
    "close_timeout": seconds(0.001, _DAY),
    "max_frame_bytes": whole(1024, 2**31 - 1),
    "backoff": _BACKOFF,
    "compression": lambda name, value: Compression(_COMPRESSION(name, getattr(value, "value", value))),
    "deflate_level": whole(1, 6),
    "tls": optional(instance_of(TlsConfig)),
    "auth_secret": optional(text_of(MAX_SECRET_BYTES, "None for servers that do not ask for AUTH")),
    "client_id": text,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What producers and consumers have in common."""

    _rules: ClassVar = _CLIENT_RULES

    lookupd: tuple[str, ...] = ()
    """Base URLs of nsqlookupd's HTTP, one is enough: the others are found from it."""
    nsqd: tuple[str, ...] = ()
    """``host:port`` of plain nsqds, in the place of ``lookupd``: no partitions, keys, traces or headers."""
    connect_timeout: float = 1.0
    """Limit for connecting to an nsqd up to its IDENTIFY answer: a frozen node accepts and never answers."""
    lookup_timeout: float = 1.0
    """Limit for one question to one nsqlookupd; all are asked at once, so one that hangs costs no more than this."""
    lookup_interval: float = 5.0
    """Between periodic look-ups of a topic: a safety net only, since trouble asks at once."""
    lookup_jitter: float = 0.2
    """Share of ``lookup_interval`` that chance takes away, so that many clients do not ask together."""
    heartbeat_interval: float = 2.0
    """Seconds between nsqd's heartbeats (1..60). A connection is closed after two of them without a byte, so a frozen
    node is left after about 4 s. A consumer asks for a longer interval after its event loop was blocked."""
    output_buffer_timeout: float | None = None
    """How long nsqd may gather messages before it writes (0.01..1); on a channel that is nearly empty this is nearly
    all of a message's delay. None for the least that servers take: 0.01, and 0.025 with ``nsqd``, since an upstream
    nsqd refuses less. A value is asked for as it is. An ordered channel never waits for it."""
    output_buffer_bytes: int = 16384
    """How much nsqd may gather before it writes (64..65536)."""
    close_timeout: float = 5.0
    """Limit of closing, whatever the cluster does: a service must be able to stop."""
    max_frame_bytes: int = 16 * 1024 * 1024
    """A frame that announces more ends its connection before anything is reserved for it."""
    backoff: Backoff = Backoff()
    """Between tries to reach a partition in trouble: quick at first, since a leader often changes within a second."""
    compression: Compression = Compression.NONE
    """Of the connections to nsqd; none where the server does not offer it."""
    deflate_level: int = 6
    """1..6; without a level the server stores blocks uncompressed."""
    tls: TlsConfig | None = None
    """None for plain TCP. The partitioned nsqd stops writing to a TLS connection after 5 s, so each one is replaced in
    time: see the page "TLS, AUTH and compression"."""
    auth_secret: str | None = field(default=None, repr=False)
    """For servers that ask for AUTH; never shown."""
    client_id: str = ""
    """Short name shown by the server; empty for the host's name."""

    def __post_init__(self) -> None:
        """Check every range.

        Raises:
            ConfigError: Names the option and what it may be.
        """
        _apply(self, self._rules)
        if self.nsqd and self.lookupd:
            raise ConfigError("give either lookupd= or nsqd=, not both")
        conceal(self.auth_secret)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Build from keyword options.

        Raises:
            ConfigError: An option is unknown (the nearest ones are named) or out of range.
        """
        known = {entry.name for entry in dataclasses.fields(cls)}
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known) or f"; known are: {', '.join(sorted(known))}"
                raise ConfigError(f"unknown option {name!r}{hint}")
        return cls(**options)


_PRODUCER_RULES: Final[Mapping[str, Rule]] = {
    **_CLIENT_RULES,
    "publish_timeout": seconds(0.001, _DAY),
    "sharding": one_of("murmur3", "java", "modulo", function=True),
    "strategy": one_of("round_robin", "least_loaded"),
    "trace": lambda _, value: traced_topics(value),
    "on_unreachable": one_of("retry", "fail"),
    "new_partition_delay": seconds(0.0, _DAY),
    "partition_change": one_of("follow", "refuse", "drain"),
    "on_partition_change": Check("a function or None", lambda value: value is None or callable(value)),
    "max_pending_bytes": whole(1, 2**40),
    "window": whole(1, 100_000),
    "idle_timeout": seconds(1.0, _DAY),
    "max_connections": whole(1, 100_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Options of a producer."""

    _rules: ClassVar = _PRODUCER_RULES

    publish_timeout: float = 30.0
    """Limit of a whole publish, retries included, where the call gives none; longer than an election (22 s)."""
    sharding: Sharding = "murmur3"
    """Key to hash: ``murmur3`` (the Go users' rule), ``java``, ``modulo`` or a function. One rule a topic."""
    strategy: Literal["round_robin", "least_loaded"] = "round_robin"
    """Which writable partition takes a message without key: each in turn, or the less loaded of two neighbours."""
    trace: bool | frozenset[str] = False
    """Publish with a trace id: never, always, or for these topics. Changeable while running."""
    on_unreachable: Literal["retry", "fail"] = "retry"
    """``fail`` ends a publish at the first sign of trouble and looks up at once; ``retry`` uses the time limit."""
    new_partition_delay: float = 5.0
    """When a topic grows, its new partitions are published to this much later, so that consumers are there first:
    a channel starts at the end of a partition. Not less than the consumers' ``lookup_interval``, or they may miss
    messages; 0 for at once."""
    partition_change: Literal["follow", "refuse", "drain"] = "follow"
    """When the number of partitions changes, keys go to other partitions. ``follow`` goes on at once, ``drain`` first
    waits until all that is under way is answered, ``refuse`` lets every later publish with a key fail."""
    on_partition_change: Callable[[str, int, int], object] | None = None
    """Called with topic, old and new number when another number of partitions is taken into use; must not block."""
    max_pending_bytes: int = 64 * 1024 * 1024
    """Bytes of message bodies that the producer may hold; further publishes wait for space within their time limit. No
    partition may hold more than is left free: one alone holds at most half, and a failing one always leaves space for
    the others. A partition that holds nothing accepts one publish of any size."""
    window: int = 1000
    """Unanswered publishes on one connection, of different keys; enough to hide a round trip."""
    idle_timeout: float = 600.0
    """Seconds without publishes after which a connection closes, and a topic is no longer looked up until the next
    publish. A topic that does not exist is forgotten after 10 s."""
    max_connections: int = 1024
    """Maximum number of open connections, so that many topics do not use up descriptors; the longest idle one closes
    first. A TLS connection that is being replaced counts twice; at the limit, publishes wait for its replacement."""


GiveUp = Literal["drop", "republish", "dead_letter"] | Callable[[Any], Any]
"""What happens to a message beyond ``max_attempts``: see :attr:`ConsumerConfig.on_give_up`."""


_CONSUMER_RULES: Final[Mapping[str, Rule]] = {
    **_CLIENT_RULES,
    "ordered": Check("True, False or 'auto'", lambda value: isinstance(value, bool) or value == "auto"),
    "partitions": optional(lambda name, value: _partitions(several(name, value))),
    "start_from": start_position,
    "max_in_flight": whole(1, 1_000_000),
    "max_in_flight_bytes": whole(1, 2**40),
    "msg_timeout": optional(seconds(1.0, 900.0)),
    "sample_rate": whole(0, 99),
    "tag": optional(text_of(MAX_TAG_BYTES, "None receives all messages")),
    "requeue_backoff": _BACKOFF,
    "start_timeout": seconds(0.0, _DAY),
    "max_attempts": optional(whole(1, MAX_ATTEMPTS)),
    "warn_attempts": whole(0, 65535),
    "on_give_up": one_of("drop", "republish", "dead_letter", function=True),
    "dead_letter_topic": optional(lambda name, value: named(name, check_topic, value)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Options of a consumer."""

    _rules: ClassVar = _CONSUMER_RULES

    ordered: bool | Literal["auto"] = "auto"
    """``auto`` follows the topic's meta. Forcing True on an ordinary topic switches the *channel* to
    ordered for all its consumers until an operator undoes it."""
    partitions: tuple[int, ...] | None = None
    """None for all, those that come later included."""
    start_from: StartFrom | Mapping[int, StartFrom] | None = None
    """Where the channel starts, for all partitions, or as a mapping by partition; the others stay where they are. None
    where the channel stands."""
    max_in_flight: int = 200
    """Maximum number of unanswered messages over all partitions: enough to hide a round trip; as many are redelivered
    after a crash. Slow handlers get fewer: as many as they can start within half of ``msg_timeout``. The server allows
    2500 per connection, and one per partition of an ordered channel."""
    max_in_flight_bytes: int = 256 * 1024 * 1024
    """Bytes of bodies that may be unanswered: where messages are so large that ``max_in_flight`` of them would be more,
    fewer are asked for. Above what the default ``max_in_flight`` of the largest messages comes to. If more than 64 MiB
    arrive beyond that, the connection is closed."""
    msg_timeout: float | None = None
    """How long a message may stay unanswered (1..900). None for the server's default (60 s)."""
    sample_rate: int = 0
    """Percent of messages to take, 1..99; the others are *confirmed* for the channel. 0 for all."""
    tag: str | None = None
    """Receive only messages with this dispatch tag. Other topics than extended ones have no tags; entering fails."""
    requeue_backoff: Backoff = Backoff(initial=1.0, maximum=900.0, factor=2.0, jitter=0.1)
    """Delay of a requeue that names none, by the message's attempts."""
    start_timeout: float = 5.0
    """How long entering waits for all partitions to be subscribed, before it warns and goes on; the rest follow."""
    max_attempts: int | None = None
    """Number of deliveries after which ``on_give_up`` applies, as soon as the last one fails; at most 4000, since the
    server counts no further. None never gives up, so that no message is dropped unless you ask for it."""
    warn_attempts: int = 10
    """From this delivery on a message is warned about, then at each doubling. 0 never."""
    on_give_up: GiveUp = "drop"
    """``drop`` (FIN), ``republish`` (to the topic's tail, then FIN), ``dead_letter`` (to
    ``dead_letter_topic``, then FIN) or a function of the message, async or not, after which it is FINed. All but
    ``drop`` need ``max_attempts``; ``republish`` and ``dead_letter`` need a ``producer=`` that was entered."""
    dead_letter_topic: str | None = None
    """Topic for ``on_give_up="dead_letter"``; must exist, and not be the consumer's own."""

    def __post_init__(self) -> None:
        """Check every range.

        Raises:
            ConfigError: Names the option and what it may be.
        """
        ClientConfig.__post_init__(self)
        if self.nsqd:
            _check_plain(self)
        check_read(self.start_from, self.partitions)
        _check_giving_up(self)


def _apply(config: object, rules: Mapping[str, Rule]) -> None:
    """Check the options of a new value, and bring them into their form."""
    for name, rule in rules.items():
        object.__setattr__(config, name, rule(name, getattr(config, name)))


def traced_topics(trace: object) -> bool | frozenset[str]:
    """Return the option ``trace`` in its form: a bool, or a set of topics for one topic or several.

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
    return tuple(sorted({named("partitions", check_partition, value) for value in values}))


def _check_plain(config: ConsumerConfig) -> None:
    """Reject options that only the partitioned server supports."""
    plain = "nsqds given by nsqd="
    if config.start_from is not None:
        raise ConfigError(f"start_from needs lookupd=: {plain} support no start positions")
    if config.ordered is True:
        raise ConfigError(f"ordered=True needs lookupd=: {plain} have no ordered channels")
    if config.tag is not None:
        raise ConfigError(f"tag needs lookupd=: {plain} have no tags and would deliver every message")


def _check_giving_up(config: ConsumerConfig) -> None:
    """Reject options that would be ignored, or drop messages that are meant to be kept."""
    policy, topic = config.on_give_up, config.dead_letter_topic
    if policy == "dead_letter" and topic is None:
        raise ConfigError("on_give_up='dead_letter' needs dead_letter_topic")
    if policy != "dead_letter" and topic is not None:
        raise ConfigError(
            f"dead_letter_topic needs on_give_up='dead_letter', not {shown(policy)}: {topic!r} would get no message"
        )
    if policy != "drop" and config.max_attempts is None:
        raise ConfigError(
            f"on_give_up={shown(policy)} needs max_attempts, the number of deliveries after which it applies: without"
            f" it no message is given up"
        )
