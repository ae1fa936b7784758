"""The connections of an admin client: its options, and its life as an async context manager.

``client`` adds the calls, which are in modules of their own.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from functools import partial
from typing import Self, Unpack

from nsq_ha.admin.leading import Leading
from nsq_ha.base.forks import OfOneProcess
from nsq_ha.engine.http import load
from nsq_ha.engine.tls import ssl_context
from nsq_ha.errors import ClosedError, ConfigError
from nsq_ha.options.checks import check_timeout, lookupd_urls
from nsq_ha.options.environment import admin_from_env
from nsq_ha.options.keywords import AdminOptions
from nsq_ha.options.language import option
from nsq_ha.options.types import Tls, TlsConfig, check_lookupd_tls


class AdminBase(OfOneProcess):
    """What all calls of an admin client share.

    Args:
        lookupd: HTTP address of one nsqlookupd or several.
        question_timeout: Seconds for one request to one server.
        lookupd_tls: TLS for ``https://`` addresses. None trusts the system's authorities.
        tls: TLS for the HTTPS of nsqds that refuse plain HTTP (``-tls-required``). None trusts the system's
            authorities.

    Raises:
        ConfigError: An address or ``question_timeout`` is not legal, or ``lookupd_tls`` or ``tls`` cannot be used.
    """

    def __init__(
        self,
        lookupd: str | Iterable[str],
        *,
        question_timeout: float = 2.0,
        lookupd_tls: TlsConfig | ssl.SSLContext | None = None,
        tls: TlsConfig | ssl.SSLContext | None = None,
    ) -> None:
        urls = lookupd_urls(lookupd)
        if not urls:
            raise ConfigError("AdminClient needs the address of an nsqlookupd")
        check_lookupd_tls(lookupd_tls, urls)
        if lookupd_tls is not None:
            ssl_context(lookupd_tls, "lookupd_tls")
        if tls is not None:
            option("tls", Tls).check(tls)
            ssl_context(tls)
        check_timeout(question_timeout, "question_timeout")
        load()
        self._open = partial(Leading, urls, timeout=question_timeout, tls=lookupd_tls, nsqd_tls=tls)
        self._opened: Leading | None = None

    @classmethod
    def from_env(cls, **overrides: Unpack[AdminOptions]) -> Self:
        """Create a client with the options of ``NSQ_HA_*`` variables and of the TOML file of ``NSQ_HA_CONFIG``.

        They are those that clients have, too: ``lookupd``, ``lookupd_tls`` and ``tls``.

        Args:
            **overrides: Arguments that win over both.

        Raises:
            ConfigError: A name or a value is wrong, or no address is given. The error names the variable, or the key
                and the file.
        """
        return cls(**admin_from_env(overrides))

    async def __aenter__(self) -> Self:
        """Open it.

        Raises:
            ConfigError: The nsqlookupds belong to several clusters.
        """
        self._opened = self._open()
        try:
            await self._opened.start()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; a second call does nothing."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()

    @property
    def _leading(self) -> Leading:
        if self._opened is None:
            raise ClosedError("the AdminClient is not open: use it as `async with AdminClient(...)`")
        return self._opened
