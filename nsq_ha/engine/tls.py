"""The SSL context for the TLS options. The certificate is verified unless an option switches that off."""

from __future__ import annotations

import functools
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError

if TYPE_CHECKING:
    from nsq_ha.options.types import TlsConfig


def ssl_context(tls: TlsConfig | ssl.SSLContext, option: str = "tls") -> ssl.SSLContext:
    """Return the context for ``tls``; a context of the user's own is returned unchanged and unchecked.

    Equal options share one context, so changed files need a new process.

    Args:
        tls: The value of the option.
        option: Its name, for errors.

    Raises:
        ConfigError: ``ca_file``, ``cert_file`` or ``key_file`` cannot be used; the text names the file.
    """
    if isinstance(tls, ssl.SSLContext):
        return tls
    try:
        return _created(tls, option)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from error.__cause__


def server_name(tls: TlsConfig | ssl.SSLContext, host: str) -> str:
    """Return the name that the certificate of the server at ``host`` must contain."""
    return host if isinstance(tls, ssl.SSLContext) else tls.server_name or host


@functools.lru_cache(maxsize=32)
def _created(tls: TlsConfig, _option: str) -> ssl.SSLContext:
    # Each option has its own context: HTTP clients add their protocol's name to it.
    context = trusting(tls.ca_file)
    context.minimum_version = max(context.minimum_version, _VERSIONS[tls.minimum_version])
    if tls.cert_file:
        _load_certificate(context, tls.cert_file, tls.key_file, tls.key_password)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def trust_hint(error: BaseException | None) -> str:
    """Return advice about a certificate or a version that was not accepted; empty for other errors."""
    if isinstance(error, ssl.SSLError) and error.reason in _WANTS_CERTIFICATE:
        return "; the server may demand a client certificate: give cert_file= with its PEM file"
    if isinstance(error, ssl.SSLError) and error.reason in _OTHER_VERSION:
        return "; the server speaks no version of TLS that minimum_version= allows"
    if not isinstance(error, ssl.SSLCertVerificationError):
        return ""
    if error.verify_code in _OTHER_NAME:
        return "; give server_name=, the name that the certificate is for"
    if error.verify_code in _OTHER_TIME:
        return "; the server needs a newer certificate, or a clock is wrong"
    return (
        "; if nsqd's certificate is self-signed or from your own authority, give ca_file= with its PEM file"
        + broken_cert_file()
    )


_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

_OTHER_VERSION: Final = frozenset({"TLSV1_ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "WRONG_SSL_VERSION"})
"""OpenSSL's reasons if client and server have no version in common."""

_WANTS_CERTIFICATE: Final = frozenset({"SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV13_ALERT_CERTIFICATE_REQUIRED"})
"""OpenSSL's reasons if the server got no client certificate and demands one. In TLS 1.3, it is known only after the
client's handshake."""

_OTHER_NAME: Final = frozenset({62, 64})
"""OpenSSL's error codes for a certificate of another host name or address."""


_OTHER_TIME: Final = frozenset({9, 10})
"""Its codes for a certificate that is not valid yet, or not any more."""


def trusting(ca_file: str | None = None) -> ssl.SSLContext:
    """Return a context that trusts the authorities of a PEM file. None trusts the system's.

    Raises:
        ConfigError: The file cannot be used, or that of the environment variable SSLKEYLOGFILE not be written.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except _UNUSABLE as error:
        if isinstance(error, OSError) and error.filename and error.filename == os.environ.get("SSLKEYLOGFILE"):
            raise ConfigError(
                f"the environment variable SSLKEYLOGFILE names {error.filename!r}, which cannot be written:"
                f" {error.strerror}"
            ) from error
        raise _refusal("ca_file", ca_file, "the certificates of authorities", error) from error


def broken_cert_file() -> str:
    """Return why the file of the environment variable SSL_CERT_FILE is not trusted; empty if it is, or none is named.

    OpenSSL ignores a file that it cannot use.
    """
    name = os.environ.get("SSL_CERT_FILE")
    try:
        if name:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(name)
    except _UNUSABLE as error:
        reason = "it has no certificate in PEM format" if isinstance(error, ssl.SSLError) else _reason(error)
        return f" (SSL_CERT_FILE is {name!r} now, which cannot be used: {reason})"
    return ""


def _load_certificate(context: ssl.SSLContext, cert_file: str, key_file: str | None, key_password: str | None) -> None:
    for option, name in (("cert_file", cert_file), ("key_file", key_file)):
        try:
            if name is not None:
                Path(name).open("rb").close()  # OpenSSL's error does not say which of the two files it means
        except _UNUSABLE as error:
            raise _refusal(option, name, "", error) from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cert_file)
    except _UNUSABLE as error:
        raise _refusal("cert_file", cert_file, "a certificate", error) from error
    questions: list[None] = []

    def password() -> str:
        # Without this function, OpenSSL asks for a missing password at the terminal, and the program waits.
        questions.append(None)
        return key_password or ""

    try:
        context.load_cert_chain(cert_file, key_file, password)
    except _UNUSABLE as error:
        option, name = ("cert_file", cert_file) if key_file is None else ("key_file", key_file)
        if questions:
            problem = "is encrypted: give key_password" if key_password is None else "does not open with key_password"
            raise ConfigError(f"{option} {name!r} cannot be used: its key {problem}") from error
        raise _refusal(option, name, f"the private key of the certificate in {cert_file!r}", error) from error


def _refusal(option: str, name: str | None, wanted: str, error: Exception) -> ConfigError:
    needs = f" (it must hold {wanted} in PEM format)" if isinstance(error, ssl.SSLError | ValueError) else ""
    return ConfigError(f"{option} {name!r} cannot be used: {_reason(error)}{needs}")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    return str(error)


_UNUSABLE: Final = (OSError, ValueError)
"""An SSLError is an OSError; a file name with a NUL raises ValueError."""
