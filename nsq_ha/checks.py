"""Check names, addresses and the values of options.

Names become part of command lines unchanged, so a blank or a newline in a name
would start another command: every name must be checked here before it is encoded.

A rule of an option is called with the name and the value of the option. It
returns the normalised value, or raises a ConfigError that names the option, the
allowed values and the given one. ``config`` lists the rule of each option.

Source: server protocol 3.4; youzan/nsq ``protocol/names.go``.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeGuard, TypeVar

import msgspec

from nsq_ha.errors import ConfigError

MAX_NAME_LENGTH: Final = 64
"""Maximum length of a topic or channel name in characters, including the suffix."""

MAX_PARTITIONS: Final = 255
"""Maximum number of partitions of a topic; partition numbers are 0..254 in practice."""

MAX_PARTITION_ID: Final = 1023
"""Largest partition number that fits a message id (10 bits)."""

MAX_TAG_BYTES: Final = 100
"""Maximum length of a dispatch tag."""

MAX_LABEL_BYTES: Final = 255
"""Maximum length of a name that nsqd only shows in its statistics."""

EPHEMERAL_SUFFIX: Final = "#ephemeral"
"""A channel with this suffix is deleted when its last client leaves."""

_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?")

DEFAULT_PORT: Final = 4161
"""Default port of nsqlookupd's HTTP."""

_MAX_HOST_NAME: Final = 253
_LABELS: Final = "a host name consists of labels of 1..63 characters with single dots between them"
_BRACKETS: Final = "write an IPv6 host in brackets, as in [::1]:port"

MAX_INT64: Final = 2**63 - 1
"""Largest number that the server reads."""

MAX_SECONDS: Final = MAX_INT64 // 10**9
"""Largest time and delay that the server, which counts nanoseconds, can represent: later than the year 2261."""

MAX_SECRET_BYTES: Final = 64 * 1024
"""Maximum length of ``auth_secret``; nsqd passes it on in a URL, and servers refuse longer ones."""

_SHOWN: Final = 80

Rule = Callable[[str, Any], Any]
"""Takes the name and the value of an option; returns the normalised value or raises ConfigError."""

_T = TypeVar("_T")
_V = TypeVar("_V")


def is_valid_name(name: str) -> bool:
    """Return whether ``name`` is legal for a topic or a channel (1..64 characters)."""
    return 1 <= len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def check_topic(topic: object) -> str:
    """Return ``topic`` if it is legal.

    Raises:
        ConfigError: It is not a string of 1..64 of ``[.a-zA-Z0-9_-]``, with an
            optional ``#ephemeral``. Correct the name; nothing was sent.
    """
    return _check("topic", topic)


def check_channel(channel: object) -> str:
    """Return ``channel`` if it is legal.

    Raises:
        ConfigError: As for :func:`check_topic`.
    """
    return _check("channel", channel)


def check_partition(partition: object) -> int:
    """Return ``partition`` if it is a number from 0 to 1023.

    Raises:
        ConfigError: It is not an int (or is a bool) or out of range. The
            upper bound comes from the bits of the partition in a message id; only
            a lookup shows whether the topic has that partition.
    """
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise ConfigError(f"partition must be an int, not {type(partition).__name__}")
    if not 0 <= partition <= MAX_PARTITION_ID:
        raise ConfigError(f"partition must be 0..{MAX_PARTITION_ID}, not {shown(partition)}")
    return partition


def _check(kind: str, name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"{kind} must be a str, not {type(name).__name__}")
    if not is_valid_name(name):
        shown = name if len(name) <= MAX_NAME_LENGTH else name[:MAX_NAME_LENGTH] + "..."
        raise ConfigError(
            f"{kind} {shown!r} is not legal: 1..{MAX_NAME_LENGTH} characters of [.a-zA-Z0-9_-], "
            f"optionally ending in {EPHEMERAL_SUFFIX}"
        )
    return name


def lookupd_urls(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Return the base URLs of one address or several: ``host``, ``host:port`` or ``http[s]://host[:port]``.

    Raises:
        ConfigError: There is none, or an address is not a string, empty, or has another form; an IPv6 host needs
            brackets.
    """
    if not isinstance(addresses, Iterable):
        raise ConfigError(
            f"lookupd must be the HTTP address of an nsqlookupd, such as 'http://127.0.0.1:4161', or several, not"
            f" {shown(addresses)}"
        )
    listed = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    urls: list[str] = []
    for address in listed:
        url = _lookupd_url(address)
        if url not in urls:
            urls.append(url)
    return tuple(urls)


def nsqd_addresses(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of one nsqd or several, each ``host:port``; IPv6 hosts need brackets.

    Raises:
        ConfigError: An address is not a string or has another form.
    """
    listed: Iterable[object] = addresses.split(",") if isinstance(addresses, str) else addresses
    found: list[str] = []
    for address in listed:
        if not isinstance(address, str):
            raise ConfigError(f"nsqd address must be a str, not {type(address).__name__}")
        text = address.strip()
        if _may_hold_a_secret(text):
            raise ConfigError("nsqd address must be host:port, without a user, password or query (not shown here)")
        host, _, port = text.rpartition(":")
        if not host or not _is_port(port) or any(c in text for c in "/?#@ \t\r\n\\"):
            raise ConfigError(f"nsqd address {address!r} is not legal: give host:port")
        if (problem := _problem_of(host)) is not None:
            raise ConfigError(f"nsqd address {address!r} is not legal: {problem}")
        if text not in found:
            found.append(text)
    return tuple(found)


def is_ip(text: str) -> bool:
    """Return whether ``text`` is an IP address, without brackets."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_host_name(text: str) -> bool:
    """Return whether a resolver accepts ``text`` as a name: labels of 1..63 bytes with dots between them.

    For other names a resolver raises ``UnicodeError`` or ``ValueError``, not ``OSError``.
    """
    if not text.isascii():
        try:
            text = text[:_MAX_HOST_NAME].encode("idna").decode()
        except UnicodeError:
            return False
    if len(text) > _MAX_HOST_NAME or not text.isprintable() or any(c in text for c in " :[]"):
        return False
    return all(1 <= len(label) <= 63 for label in text.removesuffix(".").split("."))


def is_port(number: int) -> bool:
    """Return whether ``number`` is a port."""
    return 0 < number < 65536


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and is_port(int(text))


def _may_hold_a_secret(text: str) -> bool:
    return any(sign in text.lower() for sign in ("@", "%40", "?", "#"))


def _problem_of(host: str) -> str | None:
    if not any(c in host for c in ":[]"):
        return None if is_host_name(host) else _LABELS
    if not (host.startswith("[") and host.endswith("]")):
        return _BRACKETS
    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return _BRACKETS
    return None


def _lookupd_url(address: object) -> str:
    if not isinstance(address, str):
        raise ConfigError(f"lookupd address must be a str, not {type(address).__name__}")
    text = address.strip().rstrip("/")
    if _may_hold_a_secret(text):
        raise ConfigError("lookupd address must be host:port, without a user, password or query (not shown here)")
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator:
        scheme, rest = "http", text
    if scheme not in ("http", "https") or not rest or any(c in rest for c in "/?#@ \t\r\n\\"):
        raise ConfigError(f"lookupd address {address!r} is not legal: give host:port or http://host:port")
    host, colon, port = rest.rpartition(":")
    if not colon or rest.endswith("]"):
        host, colon, port = rest, "", ""
    if not host:
        raise ConfigError(f"lookupd address {address!r} has no host: give host:port or http://host:port")
    if (problem := _problem_of(host)) is not None:
        raise ConfigError(f"lookupd address {address!r} is not legal: {problem}")
    if not colon:
        return f"{scheme}://{rest}:{DEFAULT_PORT}" if scheme == "http" else f"{scheme}://{rest}"
    if not _is_port(port):
        raise ConfigError(f"lookupd address {address!r} has no legal port: give host:port or http://host:port")
    return f"{scheme}://{rest}"


class Check(msgspec.Struct, frozen=True):
    """A rule that changes nothing.

    Attributes:
        wanted: Completes "must be ..." in the error.
        allows: Returns whether a value is legal.
        is_shown: False for values that may be secret; then the error shows only their type.
    """

    wanted: str
    allows: Callable[[Any], bool]
    is_shown: bool = True

    def __call__(self, name: str, value: Any) -> Any:  # noqa: ANN401 - any value may be given
        """Return ``value`` if it is legal.

        Raises:
            ConfigError: It is not.
        """
        if not self.allows(value):
            found = shown(value) if self.is_shown else type(value).__name__
            raise ConfigError(f"{name} must be {self.wanted}, not {found}")
        return value


def is_number(value: object) -> TypeGuard[float]:
    """Return whether ``value`` is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether ``value`` is an int; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Return ``value`` as a short literal."""
    try:
        found = repr(value)
    except Exception:  # noqa: BLE001 - Python refuses to print an int of more than 4300 digits; a repr may raise anything
        found = f"a {type(value).__name__}"
    return found if len(found) <= _SHOWN else f"{found[:_SHOWN]}..."


OTHER_NAMES: Final[Mapping[str, str]] = {
    "backoff_multiplier": "handler_backoff",
    "default_requeue_delay": "requeue_backoff",
    "deflate": "compression",
    "desired_tag": "tag",
    "dial_timeout": "connect_timeout",
    "enable_ordered": "ordered",
    "enable_trace": "trace",
    "hasher": "sharding",
    "lookupd_connect_timeout": "lookup_timeout",
    "lookupd_http_address": "lookupd",
    "lookupd_http_addresses": "lookupd",
    "lookupd_poll_interval": "max_lookup_interval",
    "lookupd_poll_jitter": "lookup_jitter",
    "lookupd_request_timeout": "lookup_timeout",
    "max_backoff_duration": "handler_backoff",
    "max_requeue_delay": "requeue_backoff",
    "max_tries": "max_attempts",
    "nsqd_tcp_address": "nsqd",
    "nsqd_tcp_addresses": "nsqd",
    "output_buffer_size": "output_buffer_bytes",
    "pub_strategy": "strategy",
    "pub_timeout": "publish_timeout",
    "reconnect_interval": "backoff",
    "requeue_delay": "requeue_backoff",
    "snappy": "compression",
    "tls_config": "tls",
    "tls_insecure_skip_verify": "tls",
    "tls_options": "tls",
    "tls_root_ca_file": "tls",
    "tls_v1": "tls",
}
"""Names of options in pynsq, gnsq and go-nsq, and ours; they often resemble another option more."""


def own_name(name: object) -> str | None:
    """Return our name for an option of another client. None if it is none."""
    return OTHER_NAMES.get(name.lower().replace("-", "_")) if isinstance(name, str) else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ``: did you mean ...?`` with the known names that resemble ``name``; empty if none does."""
    known = list(known)
    if (own := own_name(name)) in known:
        return f": did you mean {own!r}?"
    near = difflib.get_close_matches(name.lower(), known) if isinstance(name, str) else []
    return f": did you mean {' or '.join(map(repr, near))}?" if near else ""


def number(low: float, high: float, unit: str = "") -> Rule:
    """Allow numbers of a range; errors name the unit, if there is one."""
    wanted = f"{low:g}..{high:g} {unit}".rstrip()
    return Check(wanted, lambda value: is_number(value) and low <= value <= high)


def seconds(low: float, high: float) -> Rule:
    """Allow times of a range."""
    return number(low, high, "seconds")


def whole(low: int, high: int) -> Rule:
    """Allow whole numbers of a range."""
    return Check(f"a whole number, {low}..{high}", lambda value: is_whole(value) and low <= value <= high)


def instance_of(kind: type) -> Rule:
    """Allow instances of ``kind``; errors do not show the value, since it may be secret."""
    return Check(f"a {kind.__name__}", lambda value: isinstance(value, kind), is_shown=False)


def optional(rule: Rule) -> Rule:
    """Also allow None."""
    return lambda name, value: None if value is None else rule(name, value)


def one_of(*words: str, function: bool = False) -> Rule:
    """Allow some words, and functions if ``function``; errors name the words that resemble a wrong one."""
    names = [*map(repr, words), *(["a function"] if function else [])]
    wanted = f"{', '.join(names[:-1])} or {names[-1]}"

    def check(name: str, value: Any) -> Any:  # noqa: ANN401 - any value may be given
        if value in words or (function and callable(value)):
            return value
        raise ConfigError(f"{name} must be {wanted}, not {shown(value)}{did_you_mean(value, words)}")

    return check


def text(name: str, value: Any) -> str:  # noqa: ANN401 - any value may be given
    """Return text that can be encoded as UTF-8; errors do not show it, since it may be secret.

    Raises:
        ConfigError: It is not text, or contains surrogates, for example from ``surrogateescape``.
    """
    found: str = instance_of(str)(name, value)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} must be text that UTF-8 can encode; it contains surrogates") from None
    return found


def label(name: str, value: Any) -> str:  # noqa: ANN401 - any value may be given
    """Return a short text that terminals and log viewers can show; it may be empty.

    Raises:
        ConfigError: It is not text, too long, or contains control characters.
    """
    found = text(name, value)
    if not found.isprintable():
        raise ConfigError(f"{name} must contain no control characters, not {shown(found)}")
    if (size := len(found.encode())) > MAX_LABEL_BYTES:
        raise ConfigError(f"{name} must have at most {MAX_LABEL_BYTES} bytes, not {size}")
    return found


def source_host(name: str, value: Any) -> str:  # noqa: ANN401 - any value may be given
    """Return the host of a source address, which is given as a host or as ``(host, 0)``.

    Raises:
        ConfigError: It is neither, or has another port.
    """
    host = value
    if isinstance(value, tuple | list) and len(value) == 2:
        host, port = value
        if not is_whole(port) or port != 0:
            raise ConfigError(f"{name} must have port 0, since each connection needs one of its own")
    if not isinstance(host, str) or not (is_ip(host) or is_host_name(host)):
        wanted = "an IP address without brackets or a host name of this machine, or a pair of that and 0"
        raise ConfigError(f"{name} must be {wanted}, not {shown(value)}")
    return host


def text_of(most: int, when_empty: str) -> Rule:
    """Allow text of 1 to ``most`` bytes; ``when_empty`` says what to give instead of an empty text."""

    def check(name: str, value: Any) -> str:  # noqa: ANN401 - any value may be given
        size = len(text(name, value).encode())
        if size == 0:
            raise ConfigError(f"{name} must not be empty: {when_empty}")
        if size > most:
            raise ConfigError(f"{name} must have at most {most} bytes, not {size}")
        return str(value)

    return check


def file_name(name: str, value: Any) -> str:  # noqa: ANN401 - any value may be given
    """Return the name of a file, given as text or as a path.

    Raises:
        ConfigError: It is neither, or empty.
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    found: str = instance_of(str)(name, path)
    if not found:
        raise ConfigError(f"{name} must not be empty: give None for no file")
    return found


def several(name: str, value: Any) -> Iterable[Any]:  # noqa: ANN401 - any value may be given
    """Return ``value`` if it is an iterable; its items are not checked.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, Iterable):
        raise ConfigError(f"{name} must be a single value or a sequence of values, not {shown(value)}")
    return value


def named(name: str, check: Callable[[_V], _T], value: _V) -> _T:
    """Return what ``check`` returns; its error begins with the option's name.

    Raises:
        ConfigError: ``check`` raised it.
    """
    try:
        return check(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def apply_rules(config: object, rules: Mapping[str, Rule]) -> None:
    """Check the options of a new frozen dataclass, and normalise them."""
    for name, rule in rules.items():
        object.__setattr__(config, name, rule(name, getattr(config, name)))


def check_timeout(timeout: object) -> float:
    """Return ``timeout``, the time limit of a call.

    Raises:
        ConfigError: It is not a number of seconds above 0 and up to a day.
    """
    if not is_number(timeout) or not 0 < timeout <= 86400.0:
        raise ConfigError(f"timeout must be a number of seconds above 0 and up to a day, not {shown(timeout)}")
    return timeout
