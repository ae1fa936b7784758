"""Types of options: delays between retries, TLS files, compression. All are frozen and checked when created."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nsq_ha.checks import (
    MAX_SECONDS,
    Rule,
    apply_rules,
    file_name,
    instance_of,
    is_host_name,
    is_ip,
    is_number,
    optional,
    text,
)
from nsq_ha.errors import ConfigError


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
                f"Backoff needs 0 < initial <= maximum <= {MAX_SECONDS} seconds, factor >= 1, jitter 0..1, not {self}"
            )


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS for connections to nsqd. The certificate is verified unless ``verify`` is False.

    Attributes:
        ca_file: PEM file of the authorities to trust; for a self-signed server, its certificate. None for the
            system's.
        cert_file: PEM file of the client certificate. None to send none.
        key_file: PEM file of its key. None if the key is in ``cert_file``.
        verify: False accepts any certificate: only for tests.
        server_name: Host name that the certificate must contain. None for the address of nsqd.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: An option has a wrong type, or does not fit the others.
        """
        apply_rules(self, _TLS_RULES)
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("key_file needs cert_file, the client certificate that the key belongs to")


def _server_name(name: str, value: object) -> str:
    found = text(name, value)
    if not is_host_name(found) and not is_ip(found):
        raise ConfigError(f"{name} {value!r} is not legal: give a host name, or an IP address without brackets")
    return found


_TLS_RULES: Final[Mapping[str, Rule]] = {
    "ca_file": optional(file_name),
    "cert_file": optional(file_name),
    "key_file": optional(file_name),
    "verify": instance_of(bool),
    "server_name": optional(_server_name),
}
