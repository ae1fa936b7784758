"""Check names and addresses.

Names become part of command lines unchanged, so a blank or a newline in a name
would start another command: every name must be checked here before it is encoded.

Source: server protocol 3.4; youzan/nsq ``protocol/names.go``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Final, TypeGuard

from nsq_ha.errors import ConfigError

MAX_NAME_LENGTH: Final = 64
"""Maximum length of a topic or channel name in characters, including the suffix."""

MAX_PARTITIONS: Final = 255
"""Maximum number of partitions of a topic; partition numbers are 0..254 in practice."""

MAX_PARTITION_ID: Final = 1023
"""Largest partition number that fits a message id (10 bits)."""

MAX_TAG_BYTES: Final = 100
"""Maximum length of a dispatch tag."""

EPHEMERAL_SUFFIX: Final = "#ephemeral"
"""A channel with this suffix is deleted when its last client leaves."""

_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?")

DEFAULT_PORT: Final = 4161
"""Default port of nsqlookupd's HTTP."""

DEFAULT_LOOKUPD: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
"""Address of an nsqlookupd on this machine, which the command line uses if none is given."""

_MAX_HOST_NAME: Final = 253
_NO_HOST: Final = frozenset("/?#@ \t\r\n\\")
_LABELS: Final = "a host name consists of labels of 1..63 characters with single dots between them"
_BRACKETS: Final = "write an IPv6 host in brackets, as in [::1]:port"

MAX_FILTER_BYTES: Final = 4096
"""Longest key, value or pattern of a filter: RE2 bounds what it makes of a pattern, not the effort of reading it."""
MAX_INT64: Final = 2**63 - 1
"""Largest number that the server reads."""

MAX_SECONDS: Final = MAX_INT64 // 10**9
"""Largest time and delay that the server, which counts nanoseconds, can represent: later than the year 2261."""

_SHOWN: Final = 80


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
            f"{shown!r} is not a valid {kind} name: 1..{MAX_NAME_LENGTH} characters of [.a-zA-Z0-9_-], "
            f"optionally ending in {EPHEMERAL_SUFFIX}"
        )
    return name


def lookupd_urls(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Return the base URLs of one address or several: ``host``, ``host:port`` or ``http[s]://host[:port]``.

    Raises:
        ConfigError: There is none, or an address is not a string, empty, or has another form; an IPv6 host needs
            brackets.
    """
    return _each(
        "lookupd", "the HTTP address of an nsqlookupd, such as 'http://127.0.0.1:4161'", _lookupd_url, addresses
    )


def nsqd_addresses(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of one nsqd or several, each ``host:port``; IPv6 hosts need brackets.

    Raises:
        ConfigError: An address is not a string or has another form.
    """
    return _each("nsqd", "the TCP address of an nsqd, such as '127.0.0.1:4150'", _nsqd_address, addresses)


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


def _each(kind: str, wanted: str, read: Callable[[object], str], addresses: object) -> tuple[str, ...]:
    if addresses is None:
        raise ConfigError(
            f"{kind} must be {wanted}, or several, not None: is the setting or variable that it comes from empty? Leave"
            f" {kind} out if you do not need it"
        )
    if not isinstance(addresses, Iterable):
        raise ConfigError(f"{kind} must be {wanted}, or several, not {shown(addresses)}")
    return tuple(dict.fromkeys(map(read, addresses.split(",") if isinstance(addresses, str) else addresses)))


def _nsqd_address(address: object) -> str:
    text = _without_secrets("nsqd", address)
    host, _, port = text.rpartition(":")
    if not host or not _is_port(port) or not _NO_HOST.isdisjoint(text):
        raise ConfigError(f"nsqd address {address!r} is not valid: give host:port")
    _check_host("nsqd", address, host)
    return text


def _lookupd_url(address: object) -> str:
    text = _without_secrets("lookupd", address).rstrip("/")
    scheme, separator, rest = text.partition("://")
    scheme, rest = (scheme.lower(), rest) if separator else ("http", text)
    if rest.startswith("["):
        rest = rest.replace("%25", "%")  # the sign before a zone, as URLs write it; a resolver takes it literally
    if scheme not in ("http", "https") or not rest or not _NO_HOST.isdisjoint(rest):
        raise ConfigError(f"lookupd address {address!r} is not valid: give host:port or http://host:port")
    host, colon, port = rest.rpartition(":") if ":" in rest and not rest.endswith("]") else (rest, "", "")
    if not host:
        raise ConfigError(f"lookupd address {address!r} has no host: give host:port or http://host:port")
    _check_host("lookupd", address, host)
    if colon and not _is_port(port):
        raise ConfigError(f"lookupd address {address!r} has no legal port: give host:port or http://host:port")
    return f"{scheme}://{rest}" + (f":{DEFAULT_PORT}" if scheme == "http" and not colon else "")


def _without_secrets(kind: str, address: object) -> str:
    if not isinstance(address, str):
        raise ConfigError(f"{kind} address must be a str, not {type(address).__name__}")
    if any(sign in address.lower() for sign in ("@", "%40", "?", "#")):
        raise ConfigError(f"{kind} address must be host:port, without a user, password or query (not shown here)")
    return address.strip()


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and is_port(int(text))


def _check_host(kind: str, address: object, host: str) -> None:
    has_brackets = host.startswith("[") and host.endswith("]")
    is_name = not any(c in host for c in ":[]")
    if not (is_host_name(host) if is_name else has_brackets and ":" in host and is_ip(host[1:-1])):
        raise ConfigError(f"{kind} address {address!r} is not valid: {_LABELS if is_name else _BRACKETS}")


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


def check_timeout(timeout: object, name: str = "timeout") -> float:
    """Return ``timeout``, the time limit of a call, or of each request.

    Raises:
        ConfigError: It is not a number of seconds above 0 and up to a day.
    """
    if not is_number(timeout) or not 0 < timeout <= 86400.0:
        raise ConfigError(f"{name} must be a number of seconds above 0 and up to a day, not {shown(timeout)}")
    return timeout
