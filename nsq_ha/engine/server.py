"""One nsqlookupd and its health.

The invariant: an answer can make only its own request fail, and no error keeps it in memory.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from nsq_ha.base.redaction import redact
from nsq_ha.base.unexpected import report_unexpected, without_frames
from nsq_ha.errors import LookupUnavailableError, NsqError
from nsq_ha.events import Event, LookupdFailed, LookupdRecovered
from nsq_ha.policy.timing import QUICK_GAP, Rarely

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsq_ha.engine.lookupd import Access, LookupClient
    from nsq_ha.policy.topology import LookupAnswer

T = TypeVar("T")

_QUICK: Final = QUICK_GAP
"""Seconds within which a failure may be that of a kept connection that the server has closed."""

_log = logging.getLogger("nsq_ha.discovery")


class Server:
    """One nsqlookupd and its health.

    Attributes:
        url: Base URL.
        client: Asks it.
        configured: The user configured it, so it is never forgotten.
        leads: The lists name it as the leading one.
        error: Why the last lookup got no usable answer. None if it got one.
        retry_at: When a lookup may ask it again after an error.
        addresses: Host and port, also of the addresses that its name has.
    """

    def __init__(self, url: str, client: LookupClient, *, configured: bool) -> None:
        self.url: str = url
        self.client: LookupClient = client
        self.configured: bool = configured
        self.leads: bool = False
        self.error: LookupUnavailableError | None = None
        self.retry_at: float = 0.0
        self.addresses: set[tuple[str, int]] = {address_of(url)}
        self._lines = Rarely()
        self._is_logged = False  # a line says that it fails

    async def lookup(self, topic: str, access: Access) -> LookupAnswer | LookupUnavailableError:
        """Look a topic up."""
        now, ask = asyncio.get_running_loop().time, partial(self.client.lookup, topic, access)
        began, found = now(), await tried(self.url, ask)
        if isinstance(found, LookupUnavailableError) and self.error is None and now() - began <= _QUICK:
            found = await tried(self.url, ask)
        return found

    def answered(
        self, found: LookupAnswer | LookupUnavailableError, now: float, level: int, others: str
    ) -> Event | None:
        """Record and log the result of a lookup; return what to report. None if nothing changed."""
        before, extra = self.error, {"lookupd": self.url}
        if not isinstance(found, LookupUnavailableError):
            if self._is_logged:
                _log.info("nsqlookupd %s answers again", self.url, extra=extra)
            self.error, self._is_logged = None, False
            return None if before is None else LookupdRecovered(lookupd=self.url)
        self.error, reason = found, reason_of(found)
        # One may fail at every other lookup, as one that cannot answer for one of many topics.
        if not self._is_logged and self._lines.take(now) is not None:
            self._is_logged = True
            text = "nsqlookupd %s gave no usable answer: %s; %s"
            _log.log(level, text, self.url, reason, others, extra=extra)
        return LookupdFailed(lookupd=self.url, reason=reason) if before is None else None


async def tried(url: str, ask: Callable[[], Awaitable[T]]) -> T | LookupUnavailableError:
    """Return what a server answers, or its failure, without frames: they hold the whole answer.

    An error that an answer causes counts as that server's failure and must not end anything else.
    """
    try:
        return await ask()
    except LookupUnavailableError as error:
        _log.debug("nsqlookupd %s: %s", url, error)
        return without_frames(error)
    except NsqError as error:
        reason = str(error)
    except Exception as error:  # noqa: BLE001 - one server must not hide what the others say
        report_unexpected(_log, f"nsqlookupd {url}", error)
        reason = repr(error)
    return LookupUnavailableError("no usable answer", ((url, reason),))


def reason_of(error: LookupUnavailableError) -> str:
    """Return the causes of a failure as text."""
    return redact("; ".join(text for _, text in error.causes) or str(error))


def address_of(url: str) -> tuple[str, int]:
    """Return the host and the port of a base URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 443  # http:// URLs have a port, see checks.lookupd_urls
