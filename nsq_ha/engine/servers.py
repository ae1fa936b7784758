"""The known nsqlookupds, and one round of lookups at them.

Configured servers stay; others come from ``/listlookup``. A round asks all that work at the same time, and one that
fails only ``PROBE_GAP`` seconds after the last request. ``lookups`` decides when a round is due, ``policy.topology``
merges its answers.

The configured servers must belong to one cluster: answers of two cannot be merged. Whenever they have sent their lists
they are compared, as ``policy.one_cluster`` says; while they differ, no round asks anybody.

The invariants: once a server has answered, no other one can delay a round for more than a short time. An answer can
make only its own request fail, and no error keeps it in memory.

Source: server failures 3.6, 4.1; server protocol 11.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from nsq_ha.base.redaction import redact
from nsq_ha.base.tasks import Tasks
from nsq_ha.base.unexpected import report_unexpected, without_frames
from nsq_ha.engine.answers import LookupdList
from nsq_ha.engine.lookupd import Access, LookupClient
from nsq_ha.engine.names import addresses
from nsq_ha.engine.waiting import wait_until_set
from nsq_ha.errors import ConfigError, LookupUnavailableError
from nsq_ha.events import Event, LookupdFailed, LookupdRecovered
from nsq_ha.options.checks import is_ip
from nsq_ha.policy.lookup_pace import JITTER
from nsq_ha.policy.one_cluster import Sight, separate_clusters
from nsq_ha.policy.timing import QUICK_GAP, SLOW_GAP, Rarely
from nsq_ha.policy.topology import LookupAnswer, Round

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    import httpx

T = TypeVar("T")

GRACE: Final = QUICK_GAP
"""Seconds that a round waits for other servers after the first answer, but at least as long as that answer took."""

PROBE_GAP: Final = SLOW_GAP
"""Least seconds between two lookups at a server that fails, for all topics together."""

COMPARE_LIMIT: Final = SLOW_GAP
"""Seconds from the start of the first client on for which starting clients wait for the comparison of the configured
servers, if there are several."""

LIST_INTERVAL: Final = 30.0
"""Seconds between two requests for the lists of nsqlookupds."""

LIST_GAP: Final = 5.0
"""The same after a failure."""

_QUICK: Final = QUICK_GAP
"""Seconds within which a failure may be that of a kept connection that the server has closed."""

_NO_ANSWER: Final = "no nsqlookupd gave a usable answer"

_log = logging.getLogger("nsq_ha.discovery")

_Lookup = asyncio.Task[LookupAnswer | None]


class LookupdOutage(NamedTuple):
    """No nsqlookupd answers.

    Attributes:
        error: The failures.
        since: When the first requests failed, in the loop's time.
    """

    error: LookupUnavailableError
    since: float


class Server:
    """One nsqlookupd and its health.

    Attributes:
        url: Base URL.
        client: Asks it.
        configured: The user configured it, so it is never forgotten.
        leads: The lists name it as the leading one.
        error: Why the last lookup got no usable answer. None if it got one.
        retry_at: When a lookup may ask it again after an error.
        has_answered: A lookup has got a usable answer.
        addresses: Host and port, also of the addresses that its name has.
    """

    def __init__(self, url: str, client: LookupClient, *, configured: bool) -> None:
        self.url: str = url
        self.client: LookupClient = client
        self.configured: bool = configured
        self.leads: bool = False
        self.error: LookupUnavailableError | None = None
        self.retry_at: float = 0.0
        self.has_answered: bool = False
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
            self.error, self._is_logged, self.has_answered = None, False, True
            return None if before is None else LookupdRecovered(lookupd=self.url)
        self.error, reason = found, reason_of(found)
        # One may fail at every other lookup, as one that cannot answer for one of many topics.
        if not self._is_logged and self._lines.take(now) is not None:
            self._is_logged = True
            text = "nsqlookupd %s gave no usable answer: %s; %s"
            _log.log(level, text, self.url, reason, others, extra=extra)
        return LookupdFailed(lookupd=self.url, reason=reason) if before is None else None


class Servers:
    """The known nsqlookupds. Create it inside a running loop; close it with :meth:`aclose`.

    Args:
        configured: Base URLs, as :func:`nsq_ha.options.checks.lookupd_urls` returns them.
        timeout: Seconds for one request.
        client: The HTTP client, which the caller closes.
        on_event: Called when a server fails or recovers.
        level: The level of the log lines about servers that fail.

    Attributes:
        http: The HTTP client.
        silence: Set while no server answers even the requests for lists, which are all that a client without topics
            asks. None if one did, or has answered a lookup since.
        conflict: Which configured servers belong to different clusters, as text. None if none are known to.
        has_lists: A server has sent a list of nsqlookupds, which those of a plain cluster do not have.
    """

    def __init__(
        self,
        configured: Iterable[str],
        *,
        timeout: float,
        client: httpx.AsyncClient,
        on_event: Callable[[Event], object] = lambda _: None,
        level: int = logging.WARNING,
    ) -> None:
        self.http: httpx.AsyncClient = client
        self.silence: LookupdOutage | None = None
        self.conflict: str | None = None
        self.has_lists: bool = False
        self._on_event = on_event
        self._level = level
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(_log)
        self._list_wanted = asyncio.Event()
        self._compared = asyncio.Event()
        self._compare_until = self._loop.time() + COMPARE_LIMIT
        self._servers: list[Server] = []
        for url in configured:
            self._learn(url, configured=True)

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of all known servers, configured ones first."""
        return tuple(server.url for server in self._servers)

    @property
    def leader(self) -> str | None:
        """Base URL of the leading server according to the lists. None if they name none."""
        return next((server.url for server in self._servers if server.leads), None)

    async def aclose(self) -> None:
        """Cancel pending requests."""
        await self._tasks.close()

    # ------------------------------------------------------------ lookups

    async def look_up(self, topic: str, access: Access) -> Round:
        """Look a topic up, in at most about twice the time limit of a request.

        If cancelled, it cancels its requests.
        """
        if self.conflict is not None:
            return Round((), LookupUnavailableError(self.conflict))
        began = self._loop.time()
        asked = [server for server in self._servers if server.error is None or server.retry_at <= began]
        answers: list[LookupAnswer] = []
        pending = {self._ask(topic, access, server, began) for server in asked}
        until: float | None = None
        try:
            while pending:
                wait = None if until is None else max(0.0, until - self._loop.time())
                done, pending = await asyncio.wait(pending, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                found = [None if task.cancelled() else task.result() for task in done]
                answers += [answer for answer in found if answer is not None]
                if answers and until is None:
                    now = self._loop.time()
                    until = now + max(GRACE, now - began)
        except asyncio.CancelledError:
            for task in pending:
                task.cancel()
            raise
        causes = (cause for server in self._servers if server.error is not None for cause in server.error.causes)
        return Round(tuple(answers), None if answers else LookupUnavailableError(_NO_ANSWER, tuple(causes)))

    def _ask(self, topic: str, access: Access, server: Server, now: float) -> _Lookup:
        """Look up at one server; the request may outlive its round."""

        async def question() -> LookupAnswer | None:
            found = await server.lookup(topic, access)
            others = "asking the others" if len(self._servers) > 1 else "retrying; leaders known so far stay in use"
            event = server.answered(found, self._loop.time(), self._level, others)
            if event is not None:
                self._on_event(event)
                self._list_wanted.set()
            if isinstance(found, LookupUnavailableError):
                return None
            self.silence = None
            return dataclasses.replace(found, leads=server.leads)

        server.retry_at = now if server.error is None else now + PROBE_GAP
        return self._tasks.start(question(), f"lookup {topic} at {server.url}")

    async def channels(self, topic: str, partition: int) -> frozenset[str] | None:
        """Return the channels of a partition, as the first working one lists them: an nsqd registers them at all.

        One that has answered a lookup is asked first, of these the leading one. None if none answers, which does not
        count as a failure.
        """
        working = [server for server in self._servers if server.error is None]
        for server in sorted(working, key=lambda server: (not server.has_answered, not server.leads)):
            found = await tried(server.url, partial(server.client.channels, topic, partition))
            if not isinstance(found, LookupUnavailableError):
                return frozenset(found)
        return None

    # ------------------------------------------------------------ lists

    async def keep_lists(self) -> None:
        """Request the lists at once, then periodically, and earlier after a failure."""
        while True:
            self._list_wanted.clear()
            await self.refresh_lists()
            await asyncio.sleep(LIST_GAP)
            wait = LIST_INTERVAL * (1 - JITTER * random.random()) - LIST_GAP  # noqa: S311 - spreads load
            await wait_until_set(self._list_wanted, wait)

    async def refresh_lists(self) -> None:
        """Request the list of nsqlookupds from every known one, and use those that the lists name."""

        async def ask(server: Server) -> LookupdList | LookupUnavailableError:
            await self._resolve(server)
            return await tried(server.url, server.client.list_lookupd)

        asked = tuple(self._servers)
        try:
            found = dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))
            lists = {server: listed for server, listed in found.items() if isinstance(listed, LookupdList)}
            if lists:
                self.silence = None
                self.has_lists |= any(listed.supported for listed in lists.values())
                self._use_lists(asked, lists)
            else:
                failures = [(each.url, reason_of(e)) for each, e in found.items() if not isinstance(e, LookupdList)]
                since = self._loop.time() if self.silence is None else self.silence.since
                self.silence = LookupdOutage(LookupUnavailableError(_NO_ANSWER, tuple(failures)), since)
                self._list_wanted.set()
            await self._compare({server: listed for server, listed in lists.items() if server.configured})
        finally:
            self._compared.set()

    def _use_lists(self, asked: Iterable[Server], lists: Mapping[Server, LookupdList]) -> None:
        """Learn servers, forget those that fail and that no list names, and find the leading one.

        Args:
            asked: Those that were asked for their lists.
            lists: The lists of those that gave one.
        """
        for server, listed in lists.items():
            for url in listed.nodes:
                if self._learn(url):
                    _log.info("found nsqlookupd %s in the list of %s", url, server.url, extra={"lookupd": url})
        named = {self._find(url) for listed in lists.values() for url in listed.nodes}
        gone = {server for server in asked if not server.configured} - named - lists.keys()
        self._servers = [server for server in self._servers if server not in gone]
        votes: Counter[Server] = Counter()
        for server, listed in lists.items():
            leader = None if listed.leader is None else self._find(listed.leader)
            if leader is not None and server.error is None:
                votes[leader] += 3 if leader is server else 2  # a tie goes to one that names itself
        best = max(votes, key=lambda server: votes[server], default=None)
        for server in self._servers:
            server.leads = server is best

    async def started(self) -> None:
        """Wait until :meth:`keep_lists` has compared the configured servers, but not long for one that hangs.

        Raises:
            ConfigError: They belong to several clusters.
        """
        if sum(server.configured for server in self._servers) > 1:
            await wait_until_set(self._compared, max(0.0, self._compare_until - self._loop.time()))
        self.check()

    def check(self) -> None:
        """Check that no configured servers are known to belong to different clusters.

        Raises:
            ConfigError: They do.
        """
        if self.conflict is not None:
            raise ConfigError(self.conflict)

    async def _compare(self, lists: Mapping[Server, LookupdList]) -> None:
        """Compare servers by their lists. Nothing changes without proof of a conflict, or of its end."""
        # One that lists no nsqlookupd, not even itself, has no etcd now.
        seen = [server for server, listed in lists.items() if listed.nodes or not listed.supported]
        sights = [Sight(server.url, frozenset(lists[server].nodes)) for server in seen]
        if len(separate_clusters(sights)) > 1:
            found = await asyncio.gather(*(tried(server.url, server.client.nodes) for server in seen))
            nsqds = [() if isinstance(each, LookupUnavailableError) else each for each in found]
            sights = [
                sight._replace(nsqds=frozenset(info.node.address for info in each))
                for sight, each in zip(sights, nsqds, strict=True)
            ]
        clusters = separate_clusters(sights)
        proven = [sight.lookupd for sight in clusters if sight.nsqds]
        if len(proven) > 1:
            text = (
                f"lookupd names nsqlookupds of {len(proven)} clusters, which list different nsqlookupds and different"
                f" nsqds: {' and '.join(proven)}. Give the addresses of one cluster"
            )
            if self.conflict is None:
                _log.error("%s", text)
            self.conflict = text
        elif len(clusters) == 1 and len(sights) == sum(server.configured for server in self._servers):
            self.conflict = None

    def know(self, urls: Iterable[str]) -> None:
        """Ask these, too, which were known before; one that fails, and that no list names, is forgotten."""
        for url in urls:
            self._learn(url)

    def _learn(self, url: str, *, configured: bool = False) -> bool:
        """Ask this one, too, unless it is known; return whether it is new."""
        is_new = self._find(url) is None
        if is_new:
            client = LookupClient(url, timeout=self._timeout, client=self.http)
            self._servers.append(Server(url, client, configured=configured))
        return is_new

    def _find(self, url: str) -> Server | None:
        return next((server for server in self._servers if address_of(url) in server.addresses), None)

    async def _resolve(self, server: Server) -> None:
        """Resolve a configured host name, so that a list with the server's address does not add it again.

        A name with several addresses of one kind may stand for several servers. Then each one that is listed is added:
        whoever answers to the name may be any of them.
        """
        host, port = address_of(server.url)
        if is_ip(host) or not server.configured:
            return
        try:
            async with asyncio.timeout(self._timeout):
                found = await addresses(host, port)
        except (OSError, ValueError) as error:  # a UnicodeError is a ValueError, a TimeoutError an OSError
            _log.debug("nsqlookupd %s cannot be resolved: %r", server.url, error, extra={"lookupd": server.url})
            return
        is_one = len(found) == len({":" in each for each in found})
        server.addresses = {address_of(server.url), *((each, port) for each in found if is_one)}


async def tried(url: str, ask: Callable[[], Awaitable[T]]) -> T | LookupUnavailableError:
    """Return what a server answers, or its failure, without frames: they hold the whole answer.

    An error that an answer causes counts as that server's failure and must not end anything else.
    """
    try:
        return await ask()
    except LookupUnavailableError as error:
        _log.debug("nsqlookupd %s: %s", url, error)
        return without_frames(error)
    except Exception as error:  # noqa: BLE001 - one server must not hide what the others say
        report_unexpected(_log, f"nsqlookupd {url}", error)
        return LookupUnavailableError("no usable answer", ((url, repr(error)),))


def reason_of(error: LookupUnavailableError) -> str:
    """Return the causes of a failure as text."""
    return redact("; ".join(text for _, text in error.causes) or str(error))


def address_of(url: str) -> tuple[str, int]:
    """Return the host and the port of a base URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 443  # http:// URLs have a port, see checks.lookupd_urls
