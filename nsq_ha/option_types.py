"""Types of options: delays between retries, TLS files, compression. All are frozen and checked when created."""

from __future__ import annotations

import enum
import math
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from nsq_ha.checks import (
    MAX_SECONDS,
    Check,
    Rule,
    apply_rules,
    file_name,
    instance_of,
    is_host_name,
    is_ip,
    is_number,
    one_of,
    optional,
    shown,
    text,
    text_of,
)
from nsq_ha.errors import ConfigError

MAX_KEY_PASSWORD_BYTES: Final = 1024
"""Maximum length of ``key_password``; Python's ssl refuses longer ones."""


class Compression(enum.Enum):
    """Compression of a whole connection; none is used if the server does not offer it."""

    NONE = "none"
    SNAPPY = "snappy"
    DEFLATE = "deflate"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays between retries: the delay after the n-th failure in a row.

    Attributes:
        initial: Seconds after the first failure.
        maximum: Longest delay in seconds.
        factor: Factor by which each further failure multiplies the delay.
        jitter: Random share of the delay, 0..1, so that many clients do not
            reconnect at the same time.
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
                f"Backoff needs 0 < initial <= maximum <= {MAX_SECONDS} seconds, factor >= 1, jitter 0..1, not"
                f" {shown(self)}"
            )


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS for connections. The server's certificate is verified unless ``verify`` is False.

    Attributes:
        ca_file: PEM file of the authorities to trust; for a self-signed server, its certificate. None for the
            system's.
        cert_file: PEM file of the client certificate. None to send none.
        key_file: PEM file of its key. None if the key is in ``cert_file``.
        key_password: Password of an encrypted key; never shown.
        verify: False accepts any certificate: only for tests.
        server_name: Host name that the certificate must contain. None for the address of the server.
        minimum_version: Oldest version of TLS to accept, ``1.2`` or ``1.3``. The system's OpenSSL may demand a newer
            one than this.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None
    minimum_version: Literal["1.2", "1.3"] = "1.2"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: An option has a wrong type, or does not fit the others.
        """
        apply_rules(self, _TLS_RULES)
        for option in ("key_file", "key_password"):
            if getattr(self, option) is not None and self.cert_file is None:
                raise ConfigError(f"{option} needs cert_file, the client certificate that the key belongs to")


TLS: Final = Check(
    "a TlsConfig, or an ssl.SSLContext for clients",
    lambda value: (
        isinstance(value, TlsConfig)
        or (isinstance(value, ssl.SSLContext) and value.protocol is not ssl.PROTOCOL_TLS_SERVER)
    ),
    is_shown=False,
)
"""The rule of an option for TLS."""


def check_lookupd_tls(tls: object, urls: Iterable[str]) -> None:
    """Check the option ``lookupd_tls``.

    Args:
        tls: Its value.
        urls: Base URLs of the nsqlookupds.

    Raises:
        ConfigError: It has a wrong type, or no URL uses it.
    """
    if tls is not None:
        TLS("lookupd_tls", tls)
        if not any(url.startswith("https:") for url in urls):
            raise ConfigError("lookupd_tls needs an address with https:// in lookupd; the given ones are not encrypted")


def _server_name(name: str, value: object) -> str:
    found = text(name, value)
    if not is_host_name(found) and not is_ip(found):
        raise ConfigError(f"{name} {value!r} is not legal: give a host name, or an IP address without brackets")
    return found


_TLS_RULES: Final[Mapping[str, Rule]] = {
    "ca_file": optional(file_name),
    "cert_file": optional(file_name),
    "key_file": optional(file_name),
    "key_password": optional(text_of(MAX_KEY_PASSWORD_BYTES, "None for a key that is not encrypted")),
    "verify": instance_of(bool),
    "server_name": optional(_server_name),
    "minimum_version": one_of("1.2", "1.3"),
}
