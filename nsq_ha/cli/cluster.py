"""The cluster that a command works with: its addresses and its security settings.

``options`` has the flags. Everything else comes from ``NSQ_HA_*`` variables and their TOML file.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, cast

from nsq_ha.engine.tls import ssl_context
from nsq_ha.errors import ConfigError, TopicNotFoundError
from nsq_ha.options.checks import DEFAULT_LOOKUPD
from nsq_ha.options.config import ClientConfig, ConsumerConfig, ProducerConfig, checked_secret
from nsq_ha.options.environment import OF_ADMIN, admin_from_env, config_from_env, settings_from_env
from nsq_ha.options.types import TlsConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsq_ha import Consumer, LookupClient, Producer
    from nsq_ha.admin import AdminClient
    from nsq_ha.options.keywords import ClientOptions, ConsumerOptions, ProducerOptions

_Result = TypeVar("_Result")

QUESTION_TIMEOUT = 2.0
"""Seconds for one request; longer than the library's limit, since only a person is waiting."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """How to reach a cluster. It creates the clients of a command, which must be used as context managers.

    Attributes:
        lookupd: Base URLs of the nsqlookupds.
        tls: TLS of connections to nsqds.
        lookupd_tls: TLS of requests to https nsqlookupds.
    """

    lookupd: tuple[str, ...]
    tls: TlsConfig | None
    lookupd_tls: TlsConfig | None
    _given: ClientOptions = field(repr=False)

    @classmethod
    def of(
        cls,
        lookupd: tuple[str, ...] = (),
        *,
        tls_ca: str | None = None,
        cert: str | None = None,
        key_file: str | None = None,
        auth_secret_file: str | None = None,
    ) -> Self:
        """Return the cluster that flags and the environment name.

        Args:
            lookupd: Base URLs; empty for those of the environment, or the default one.
            tls_ca: PEM file of the authorities to trust; switches TLS on, as the next two do.
            cert: PEM file of the client certificate.
            key_file: PEM file of its key. None if it is in ``cert``.
            auth_secret_file: File whose first line is the secret for AUTH.

        Raises:
            ConfigError: A file cannot be used, or a variable is wrong.
        """
        found = settings_from_env(ClientConfig).options
        urls = lookupd or cast("tuple[str, ...]", found.get("lookupd")) or (DEFAULT_LOOKUPD,)
        given: ClientOptions = {"lookupd": urls}
        is_https = any(url.startswith("https:") for url in urls)
        if lookupd and not is_https:
            given["lookupd_tls"] = None  # what the environment has is for other addresses
        if (tls_ca, cert, key_file) != (None, None, None):
            given["tls"] = _tls(found.get("tls"), tls_ca, cert, key_file)
            if is_https:
                given["lookupd_tls"] = _tls(found.get("lookupd_tls"), tls_ca, cert, key_file)
        if auth_secret_file is not None:
            secret_in(auth_secret_file)
            given["auth_secret"] = lambda: secret_in(auth_secret_file)
        known = {**found, **given}
        tls, lookupd_tls = (cast("TlsConfig | None", known.get(name)) for name in ("tls", "lookupd_tls"))
        return cls(urls, tls, lookupd_tls, given)

    def producer(self, timeout: float | None = None, **options: Unpack[ProducerOptions]) -> Producer:
        """Return a producer. ``options`` win over flags, and these over the environment.

        Args:
            timeout: The option ``publish_timeout``. None for that of the environment.
            **options: Others.

        Raises:
            ConfigError: An option is wrong.
        """
        from nsq_ha import Producer  # a command loads the client that it uses

        if timeout is not None:
            options["publish_timeout"] = timeout
        return Producer(config=config_from_env(ProducerConfig, {**self._given, **options}))

    def consumer(self, topic: str, channel: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Return a consumer. ``options`` win over flags, and these over the environment.

        It hands out bodies as they are stored, see :func:`nsq_ha.cli.reading.expanded`: one that cannot be decompressed
        stops no command.

        Raises:
            ConfigError: An option is wrong.
        """
        from nsq_ha import Consumer

        options["decompress"] = False
        return Consumer(topic, channel, config=config_from_env(ConsumerConfig, {**self._given, **options}))

    def admin(self) -> AdminClient:
        """Return an admin client.

        Raises:
            ConfigError: A variable is wrong.
        """
        from nsq_ha.admin import AdminClient

        given = {name: value for name, value in self._given.items() if name in OF_ADMIN}
        return AdminClient(**admin_from_env(given))  # type: ignore[arg-type]  # its options

    async def ask(self, question: Callable[[AdminClient], Awaitable[_Result]], topic: str | None = None) -> _Result:
        """Ask the cluster one thing, or change one, with an admin client.

        Args:
            question: Asks it.
            topic: The topic that it concerns: an error that there is none says which may be meant. None for none.

        Raises:
            NsqError: As ``question``.
        """
        async with self.admin() as admin:
            try:
                return await question(admin)
            except TopicNotFoundError as error:
                if topic is None or "does not exist" not in str(error):
                    raise
                raise TopicNotFoundError.named(topic, [each.name for each in await admin.topics()]) from error

    def lookup_client(self, url: str) -> LookupClient:
        """Return a client of one nsqlookupd."""
        from nsq_ha import LookupClient

        tls = self.lookupd_tls if url.startswith("https:") else None
        return LookupClient(url, timeout=QUESTION_TIMEOUT, lookupd_tls=tls)


def secret_in(file: str) -> str:
    """Return the first line of a file.

    Raises:
        ConfigError: The file cannot be read, or its first line is empty or no secret. The error does not show it.
    """
    try:
        with Path(file).open(encoding="utf-8-sig") as opened:
            text = opened.readline()
    except UnicodeDecodeError:
        raise ConfigError(f"the secret's file {file!r} is not text in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"the secret's file {file!r} cannot be read: {error.strerror}") from None
    secret = text.rstrip("\r\n")
    if not secret:
        raise ConfigError(f"the secret's file {file!r} is empty: its first line must be the secret")
    return checked_secret(secret)


def _tls(known: object, ca: str | None, cert: str | None, key: str | None) -> TlsConfig:
    """Return TLS with the files that are given, and the rest of what is known."""
    changes = {"ca_file": ca} if ca is not None else {}
    if cert is not None:
        changes |= {"cert_file": cert, "key_file": key or ""}
    elif key is not None:
        changes |= {"key_file": key}
    base = known if isinstance(known, TlsConfig) else TlsConfig()
    if key is not None and cert is None and base.cert_file is None:
        raise ConfigError("--tls-key needs --cert, the client certificate that the key belongs to")
    tls = dataclasses.replace(base, **{name: value or None for name, value in changes.items()})  # type: ignore[arg-type]  # files
    ssl_context(tls, "TLS")
    return tls
