"""Check and normalise addresses of nsqlookupds and nsqds."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from nsq_ha.errors import ConfigError

DEFAULT_PORT: Final = 4161
"""Default port of nsqlookupd's HTTP."""


def lookupd_urls(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Return base URLs for one address or several: ``host``, ``host:port`` or ``http[s]://host[:port]``.

    Raises:
        ConfigError: An address is not a string, empty, or has another form; an IPv6 host needs brackets.
    """
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


def is_host_name(text: str) -> bool:
    """Return whether a resolver accepts ``text`` as a name: labels of 1..63 bytes with dots between them.

    A resolver raises ``UnicodeError`` or ``ValueError`` for other names, not an ``OSError``.
    """
    if not text.isascii():
        try:
            text = text[:_MAX_HOST_NAME].encode("idna").decode()
        except UnicodeError:
            return False
    if len(text) > _MAX_HOST_NAME or not text.isprintable() or any(c in text for c in " :[]"):
        return False
    return all(1 <= len(label) <= 63 for label in text.removesuffix(".").split("."))


_MAX_HOST_NAME: Final = 253
_LABELS: Final = "a host name consists of labels of 1..63 characters with single dots between them"
_BRACKETS: Final = "write an IPv6 host in brackets, as in [::1]:port"


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536


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
