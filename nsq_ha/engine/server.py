"""One nsqlookupd, as the lookups of many topics ask it.

Plain nsqlookupds are asked for all nsqds and their topics instead of for each topic if there are many.

The invariant: an answer can make only its own request fail, and no error keeps it in memory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

from nsq_ha.base.redaction import redact
from nsq_ha.base.threads import in_thread
from nsq_ha.base.unexpected import report_unexpected, without_frames
from nsq_ha.engine.answers import LookupdList, NodeInfo, plain_answer
from nsq_ha.errors import LookupUnavailableError, NsqError
from nsq_ha.options.types import Backoff
from nsq_ha.policy.timing import Rarely, delay_after

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from nsq_ha.engine.lookupd import Access, LookupClient
    from nsq_ha.policy.topology import LookupAnswer, Node

T = TypeVar("T")

FAILING_GAP: Final = 0.5
"""Least seconds between two lookups at a server that fails, for all topics of a client together."""

_PROBES: Final = Backoff(initial=1.0, maximum=5.0, factor=2.0, jitter=0.3)

_QUESTIONS_AT_ONCE: Final = 8
"""httpx looks at each connection several times for each request: a lookup took 2.5 ms with 16, 1.8 ms with 8."""

_log = logging.getLogger("nsq_ha.discovery")


class Listing:
    """All nsqds of a plain nsqlookupd with their topics: one answer for the lookups of many topics."""

    def __init__(self, lookupd: str, nodes: Iterable[NodeInfo]) -> None:
        self._lookupd = lookupd
        # Not by topic: there may be 400,000, and each would take three times as much.
        self._nodes = [(info.node, frozenset(info.topics) - info.tombstoned, info.tombstoned) for info in nodes]

    def answer(self, topic: str, access: Access) -> LookupAnswer | None:
        """Return the answer to a lookup. None if only the nsqlookupd itself can answer it."""
        nodes = tuple(node for node, topics, _ in self._nodes if topic in topics)
        candidates: tuple[Node, ...] = ()
        if not nodes and access == "w":
            candidates = tuple(node for node, _, tombstoned in self._nodes if topic not in tombstoned)
        if not nodes and not candidates:
            return None  # it may know the topic, though no nsqd has it
        return dataclasses.replace(plain_answer(self._lookupd, nodes), candidates=candidates)


class Server:
    """One nsqlookupd and its health.

    Attributes:
        url: Base URL.
        client: Asks it.
        configured: The user configured it, so it is never forgotten.
        leads: The lists name it as the leading one.
        list: The latest list that it gave.
        failures: Number of lookups in a row without a usable answer.
        causes: Why the last one gave none.
        asking: The topics that it is being asked about.
        addresses: Host and port, also of the addresses that its name has.
        is_plain: Its last answer was that of a plain one.
        is_logged: A line says that it fails.
        lines: Decides which failures have one.
    """

    def __init__(self, url: str, client: LookupClient, *, configured: bool, timeout: float) -> None:
        self.url: str = url
        self.client: LookupClient = client
        self.configured: bool = configured
        self.leads: bool = False
        self.list: LookupdList | None = None
        self.failures: int = 0
        self.causes: tuple[tuple[str, str], ...] = ()
        self.asking: set[tuple[str, Access]] = set()
        self.addresses: set[tuple[str, int]] = {address_of(url)}
        self.is_plain: bool = False
        self.is_logged: bool = False
        self.lines: Rarely = Rarely()
        # Requests wait here before their time limit starts, so that a burst over many topics does not look like a slow
        # server.
        self._slots = asyncio.Semaphore(_QUESTIONS_AT_ONCE)
        self._probe_at = self._free_at = 0.0
        self._listed_at = float("-inf")
        self._listing: Listing | LookupUnavailableError | None = None
        self._listing_turn = asyncio.Lock()
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()

    def is_due(self, now: float) -> bool:
        """Return whether to ask it while others work: it works, too, or its pause is over."""
        return not self.failures or self._probe_at <= now

    def may_ask(self) -> bool:
        """Return whether a lookup may ask it now; it is not asked for each topic while it fails."""
        now = self._loop.time()
        if self.failures and now < self._free_at:
            return False
        self._free_at = now + FAILING_GAP if self.failures else 0.0
        return True

    def failed(self, error: LookupUnavailableError) -> None:
        """Record a lookup without a usable answer."""
        self.failures += 1
        self.causes = error.causes
        self._probe_at = self._loop.time() + delay_after(_PROBES, self.failures, random.random)

    async def lookup(self, topic: str, access: Access, since: float | None) -> LookupAnswer | LookupUnavailableError:
        """Look a topic up.

        Args:
            topic: The topic.
            access: For publishing or consuming.
            since: If not None, use a list of all nsqds and their topics that was asked for at this time or later.
        """
        if since is not None:
            listing = await self._list_nodes(since)
            if isinstance(listing, LookupUnavailableError):
                return listing
            if (answer := listing.answer(topic, access)) is not None:
                return answer
        async with self._slots:
            return await tried(self, partial(self._twice, partial(self.client.lookup, topic, access)))

    def listed(self, topic: str, access: Access, since: float) -> LookupAnswer | None:
        """Return the answer of the list of nsqds that :meth:`lookup` would use. None if it would ask for one."""
        if self.failures or self._listed_at < since or not isinstance(self._listing, Listing):
            return None
        return self._listing.answer(topic, access)

    async def _list_nodes(self, since: float) -> Listing | LookupUnavailableError:
        """Return a list that was asked for at ``since`` or later; all who wait for one share it."""
        async with self._listing_turn:
            if self._listing is not None and self._listed_at >= since:
                return self._listing
            began_at = self._loop.time()
            found: Listing | LookupUnavailableError = await tried(self, partial(self._twice, self._list))
            self._listing, self._listed_at = found, began_at
            return found

    async def _list(self) -> Listing:
        return await in_thread(partial(Listing, self.url, await self.client.nodes()))

    async def _twice(self, ask: Callable[[], Awaitable[T]]) -> T:
        began = self._loop.time()
        try:
            return await ask()
        except LookupUnavailableError:
            # A kept connection that the server has closed fails at once; try a new one.
            if self.failures or self._loop.time() - began > self._timeout / 4:
                raise
            return await ask()


async def tried(server: Server, ask: Callable[[], Awaitable[T]]) -> T | LookupUnavailableError:
    """Return what a server answers, or its failure, without frames: they hold the whole answer.

    An error that an answer causes counts as that server's failure and must not end anything else.
    """
    try:
        return await ask()
    except LookupUnavailableError as error:
        _log.debug("nsqlookupd %s: %s", server.url, error)
        return without_frames(error)
    except NsqError as error:
        return LookupUnavailableError("no usable answer", ((server.url, str(error)),))
    except Exception as error:  # noqa: BLE001 - mapped to ours
        report_unexpected(_log, f"nsqlookupd {server.url}", error)
        return LookupUnavailableError("no usable answer", ((server.url, repr(error)),))


def reason_of(error: LookupUnavailableError) -> str:
    """Return the causes of a failure as text."""
    return redact("; ".join(text for _, text in error.causes) or str(error))


def address_of(url: str) -> tuple[str, int]:
    """Return the host and the port of a base URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 443  # http:// URLs have a port, see checks.lookupd_urls
