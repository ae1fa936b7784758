"""Types of options: delays between retries, TLS files, compression. All are frozen and checked when created."""

import enum
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from msgspec import Meta

from nsq_ha.base.redaction import hides_secrets
from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import MAX_SECONDS, shown
from nsq_ha.options.language import Seconds, check_all, option
from nsq_ha.options.values import certificate_name, file_name, utf8

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

    initial: Annotated[Seconds, Meta(gt=0, le=MAX_SECONDS)] = 0.05
    maximum: Annotated[Seconds, Meta(gt=0, le=MAX_SECONDS)] = 1.0
    factor: Annotated[float, Meta(ge=1, le=1e300)] = 2.0
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.3

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: A value is out of range.
        """
        check_all(self)
        if self.initial > self.maximum:
            raise ConfigError(f"initial must be at most maximum, not {shown(self)}")


@hides_secrets
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

    ca_file: Annotated[str, file_name] | None = None
    cert_file: Annotated[str, file_name] | None = None
    key_file: Annotated[str, file_name] | None = None
    key_password: (
        Annotated[str, utf8(MAX_KEY_PASSWORD_BYTES, "leave it out for a key that is not encrypted")] | None
    ) = field(default=None, repr=False)
    verify: bool = True
    server_name: Annotated[str, certificate_name] | None = None
    minimum_version: Literal["1.2", "1.3"] = "1.2"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: An option has a wrong type, or does not fit the others.
        """
        check_all(self)
        for name in ("key_file", "key_password"):
            if getattr(self, name) is not None and self.cert_file is None:
                raise ConfigError(f"{name} needs cert_file, the client certificate that the key belongs to")


def _tls(value: object) -> TlsConfig | ssl.SSLContext:
    if isinstance(value, TlsConfig):
        return value
    if not isinstance(value, ssl.SSLContext) or value.protocol is ssl.PROTOCOL_TLS_SERVER:
        # Without the value, which may be secret.
        raise ConfigError(f"must be a TlsConfig, or an ssl.SSLContext for clients, not {type(value).__name__}")
    return value


Tls = TlsConfig | Annotated[ssl.SSLContext, _tls]
"""How to secure connections: files, or a context of the user's own."""


def check_lookupd_tls(tls: object, urls: Iterable[str]) -> None:
    """Check the option ``lookupd_tls``.

    Args:
        tls: Its value.
        urls: Base URLs of the nsqlookupds.

    Raises:
        ConfigError: It has a wrong type, or no URL uses it.
    """
    if tls is not None:
        option("lookupd_tls", Tls).check(tls)
        if not any(url.startswith("https:") for url in urls):
            raise ConfigError("lookupd_tls needs an address with https:// in lookupd; the given ones are not encrypted")
