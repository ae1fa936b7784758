"""The SSL context for the TLS options: the certificate is verified unless that is switched off by name."""

from __future__ import annotations

import functools
import ssl
from typing import TYPE_CHECKING

from nsq_ha.errors import ConfigError

if TYPE_CHECKING:
    from nsq_ha.config import TlsConfig


@functools.lru_cache(maxsize=32)
def ssl_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the context for ``tls``; made once for equal options, so changed files need a new process.

    Raises:
        ConfigError: A file cannot be read or is no PEM. Correct ``ca_file``,
            ``cert_file`` or ``key_file``.
    """
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ValueError) as error:  # an SSLError is an OSError; a name with a NUL in it is neither
        raise ConfigError(f"tls: the files cannot be used: {error}") from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
