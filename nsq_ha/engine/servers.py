"""The known nsqlookupds, and one round of lookups at them.

Owns the list of servers (configured ones stay, others come from ``/listlookup``),
which of them work, which one leads, and how a round asks: all working ones at the
same time, failing ones only if a probe is due or no other answers. ``lookups``
decides when a round is due, ``policy.topology`` merges its answers.

The configured servers must belong to one cluster: answers of two cannot be merged. Whenever they have sent their lists
they are compared, as ``policy.one_cluster`` says; while they differ, no round asks anybody.

The invariant: once a server has answered, no other one can delay a round for more
than a short time, and an answer can make only its own request fail.

Source: server failures 3.6, 4.1; server protocol 11.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from nsq_ha.checks import is_ip
from nsq_ha.engine.answers import LookupdList, NodeInfo, plain_answer
from nsq_ha.engine.body import NO_TURN
from nsq_ha.engine.lookupd import Access, LookupClient
from nsq_ha.engine.names import addresses, places_of
from nsq_ha.errors import ConfigError, LookupUnavailableError, NsqError, RemoteProtocolError
from nsq_ha.events import Event, LookupdFailed, LookupdRecovered
from nsq_ha.options.types import Backoff
from nsq_ha.policy.one_cluster import Sight, may_differ, separate_clusters
from nsq_ha.policy.timing import Rarely, delay_after
from nsq_ha.policy.topology import LookupAnswer, Node, Round
from nsq_ha.redaction import redact
from nsq_ha.threads import in_thread
from nsq_ha.unexpected import report_unexpected, without_frames

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager

    import httpx


T = TypeVar("T")

GRACE: Final = 0.08
"""Seconds that a round waits for other servers after a complete answer, but at least as long as that answer took."""

INCOMPLETE_GRACE: Final = 0.25
"""The same after an incomplete answer, since another server may know more."""

HEDGE: Final = 0.2
"""Seconds without any answer after which failing servers are asked, too."""

FORGET_AFTER: Final = 3600.0
"""Seconds after which a failing nsqlookupd is forgotten if it is neither configured nor in any list."""

COMPARE_LIMIT: Final = 0.5
"""Seconds that the start of a client waits for the lists of the configured servers, if there are several."""

MAX_LEARNT: Final = 32
"""Maximum number of nsqlookupds taken from lists, which are untrusted."""

MANY_TOPICS: Final = 16
"""Number of topics above which a plain nsqlookupd is asked for all nsqds and their topics instead of for each topic."""

FAILING_GAP: Final = 0.5
"""Least seconds between two lookups at a server that fails, for all topics of a client together."""

_PROBES: Final = Backoff(initial=1.0, maximum=5.0, factor=2.0, jitter=0.3)
MOST_NSQDS: Final = 8192
"""Leaders of the partitions of all topics; each may take 1 KiB."""

_MOST_CHANNELS: Final = 100_000
"""Channels that are kept of the answers for all topics together ..."""

_LEAST_CHANNELS: Final = 1000
"""... and those of each topic even so."""

_STATISTICS_AT_ONCE: Final = 4
"""Statistics of nsqds that are read at the same time for all topics."""

_QUESTIONS_AT_ONCE: Final = 8
"""httpx looks at each connection several times for each request: a lookup took 2.5 ms with 16, 1.8 ms with 8."""
_QUESTIONS_TO_LEARNT: Final = 32
"""The same for all servers that lists name together, of which one may list itself ``MAX_LEARNT`` times."""

_LARGE_OF_LEARNT: Final = 2
"""Large answers of these that are read at the same time."""

_LIST_GAP: Final = 5.0

_log = logging.getLogger("nsq_ha.discovery")


class Server:
    """One nsqlookupd and its health.

    Attributes:
        url: Base URL.
        configured: The user configured it, so it is never forgotten.
        leads: The lists name it as the leading one.
        failures: Number of lookups in a row without a usable answer.
        gave_list: It gave its list when it was last asked; a client without topics asks nothing else.
        probe_at: The loop's time from which it is asked again although it fails.
        free_at: The loop's time before which, while it fails, no lookup asks it; they end as the last one did.
        causes: Why the last lookup gave no usable answer.
    """

    def __init__(self, url: str, client: LookupClient, *, configured: bool, now: float) -> None:
        self.url = url
        self.client = client
        self.configured = configured
        self.leads = False
        self.failures = 0
        self.probe_at: float = 0.0
        self.free_at: float = 0.0
        self.causes: tuple[tuple[str, str], ...] = ()
        self.listed_at = now
        self.list: LookupdList | None = None
        self.gave_list = True
        self.aliases: set[tuple[str, int]] = {_address(url)}
        # Requests wait here before their time limit starts, so that a burst over many topics does not look like a slow
        # server.
        self.slots: asyncio.Semaphore = asyncio.Semaphore(_QUESTIONS_AT_ONCE)
        self.shared: AbstractAsyncContextManager[None] = NO_TURN
        self.is_plain = False  # by its last answer
        self.is_logged = False  # that it fails
        self.lines: Rarely = Rarely()
        self.listing: Listing | None = None
        self.listed: asyncio.Task[Listing] | None = None


class Listing:
    """All nsqds of a plain nsqlookupd with their topics: one answer for the lookups of many topics.

    Attributes:
        began_at: When it was asked for, in the loop's time.
    """

    def __init__(self, began_at: float, lookupd: str, nodes: Iterable[NodeInfo]) -> None:
        self.began_at: float = began_at
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


class LookupdOutage(NamedTuple):
    """No nsqlookupd answers.

    Attributes:
        error: The failures.
        since: When the first requests failed, in the loop's time.
    """

    error: LookupUnavailableError
    since: float


class Servers:
    """The known nsqlookupds. Create it inside a running loop; close it with :meth:`aclose`.

    Args:
        configured: Base URLs, as :func:`nsq_ha.checks.lookupd_urls` returns them.
        timeout: Seconds for one request.
        client: The HTTP client, which the caller closes.
        on_event: Called when a server fails or recovers. None for nobody.
        level: The level of the log lines about servers that fail.

    Attributes:
        http: The HTTP client.
        silence: Set while no server answers even the requests for lists, which are all that a client without topics
            asks. None if one did, or has answered a lookup since.
        conflict: Which configured servers belong to different clusters, as text. None if none are known to.
        topics: Number of topics that are looked up.
        reading: Held while the statistics of an nsqd are read, which may be megabytes.
        turn: Held while they are decoded.
    """

    def __init__(
        self,
        configured: Iterable[str],
        *,
        timeout: float,
        client: httpx.AsyncClient,
        on_event: Callable[[Event], None] | None = None,
        level: int = logging.WARNING,
    ) -> None:
        self._on_event = on_event
        self._level = level
        self._timeout = timeout
        self.http: httpx.AsyncClient = client
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[LookupAnswer]] = set()
        # Requests that outlived their round; until they end, the server is not asked again about the topic.
        self._strays: dict[tuple[str, str, Access], asyncio.Task[LookupAnswer]] = {}
        self.topics: int = 0
        self.reading: asyncio.Semaphore = asyncio.Semaphore(_STATISTICS_AT_ONCE)
        self.turn: asyncio.Lock = asyncio.Lock()
        self._nodes: WeakValueDictionary[tuple[object, ...], Node] = WeakValueDictionary()
        self._learnt = asyncio.Semaphore(_QUESTIONS_TO_LEARNT)
        self._large_of_learnt = asyncio.Semaphore(_LARGE_OF_LEARNT)
        self._list_wanted = asyncio.Event()
        self.silence: LookupdOutage | None = None
        self.conflict: str | None = None
        self._listed = asyncio.Event()
        self._compared = asyncio.Event()
        self._has_started = False
        self._servers: list[Server] = []
        for url in configured:
            self._add(url, configured=True)

    @property
    def urls(self) -> tuple[str, ...]:
        """Base URLs of all known servers, configured ones first."""
        return tuple(server.url for server in self._servers)

    @property
    def leader(self) -> str | None:
        """Base URL of the leading server according to the lists. None if they name none."""
        return next((server.url for server in self._servers if server.leads), None)

    @property
    def has_lists(self) -> bool:
        """Whether a server has sent a list of nsqlookupds, which those of a plain cluster do not have."""
        return any(server.list is not None and server.list.supported for server in self._servers)

    async def aclose(self) -> None:
        """Cancel pending requests."""
        listed = (server.listed for server in self._servers)
        tasks: list[asyncio.Task[Any]] = [*self._tasks, *(task for task in listed if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look_up(self, topic: str, access: Access, *, max_age: float = 0.0) -> Round:
        """Look a topic up, in at most about twice the time limit of a request.

        Args:
            topic: The topic.
            access: For publishing or consuming.
            max_age: How many seconds before this call an answer for many topics may have been asked for.

        If cancelled, it cancels its requests.
        """
        if self.conflict is not None:
            return Round((), LookupUnavailableError(self.conflict))
        now = self._loop.time()
        first, rest = self._choose(topic, access, now)
        since = now - max_age
        listed = self._listed_answers(first, topic, access, since)
        return Round(listed, None) if listed else await self._ask_round(first, rest, topic, access, since)

    async def _ask_round(
        self, first: Sequence[Server], rest: Sequence[Server], topic: str, access: Access, since: float
    ) -> Round:
        """Ask ``first``, and ``rest`` if these give no answer."""
        began = self._loop.time()
        asked = {self._begin(server, topic, access, since): server for server in first}
        answers: list[LookupAnswer] = []
        causes: list[tuple[str, str]] = []
        until: float | None = None
        try:
            while asked:
                hedge = began + HEDGE if rest and not answers else None
                limit = until if until is not None else hedge
                wait = None if limit is None else max(0.0, limit - self._loop.time())
                done, _ = await asyncio.wait(asked, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                if not done and until is not None:
                    break
                for task in done:
                    _collect(asked.pop(task), task, answers, causes)
                if answers:
                    until = _grace_end(answers, began, self._loop.time(), until)
                elif rest and (not asked or not done):
                    asked |= {self._begin(server, topic, access, since): server for server in rest}
                    rest = ()
        except asyncio.CancelledError:
            for task in asked:
                task.cancel()
            raise
        self._strays |= {(server.url, topic, access): task for task, server in asked.items() if not task.done()}
        if answers:
            return Round(tuple(answers), None)
        return Round((), LookupUnavailableError("no nsqlookupd gave a usable answer", tuple(causes)))

    async def channels(self, topic: str, partition: int) -> frozenset[str] | None:
        """Return the channels of a partition, as one server lists them: an nsqd registers its channels at all.

        Asks the working ones one after the other; the next one, too, while one is slow. None if none answers, which
        does not count as a failure.
        """
        well = [server for server in self._servers if not server.failures]
        tasks: list[asyncio.Task[frozenset[str] | None]] = []
        try:
            while len(tasks) < len(well) or any(not task.done() for task in tasks):
                if len(tasks) < len(well):
                    tasks.append(self._loop.create_task(self._channels(well[len(tasks)], topic, partition)))
                pending = [task for task in tasks if not task.done()]
                hedge = HEDGE if len(tasks) < len(well) else None
                done, _ = await asyncio.wait(pending, timeout=hedge, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if (found := task.result()) is not None:
                        return found
            return None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _channels(self, server: Server, topic: str, partition: int) -> frozenset[str] | None:
        async with server.slots, server.shared:
            found = await _tried(server, server.client.channels(topic, partition))
        return None if isinstance(found, NsqError) else frozenset(found)

    async def keep_lists(self, interval: float, jitter: float) -> None:
        """Request the lists at once, then every ``interval`` seconds, and earlier after a failure."""
        while True:
            self._list_wanted.clear()
            try:
                await self.refresh_lists()
            except Exception as error:  # noqa: BLE001 - the lists are requested again
                report_unexpected(_log, "lists of nsqlookupds", error)
            await asyncio.sleep(_LIST_GAP)
            wait = max(0.0, interval * (1 - jitter * random.random()) - _LIST_GAP)  # noqa: S311 - spreads load
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._list_wanted.wait()

    async def refresh_lists(self) -> None:
        """Request the list of nsqlookupds from every known one, and add those that it names."""
        try:
            asked = tuple(self._servers)
            await asyncio.gather(*(self._resolve(server) for server in asked))
            failures = await asyncio.gather(*(self._ask_list(server) for server in asked))
            self._hear(failures)
            self._forget()
            self._listed.set()
            await self._compare(
                [
                    server
                    for server, failure in zip(asked, failures, strict=True)
                    if failure is None and server.configured
                ]
            )
        finally:
            self._listed.set()
            self._compared.set()

    async def started(self) -> None:
        """Wait until :meth:`keep_lists` has compared the configured servers, but not long for one that hangs.

        Raises:
            ConfigError: They belong to several clusters.
        """
        if sum(server.configured for server in self._servers) > 1:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMPARE_LIMIT):
                    await self._listed.wait()
            if self._listed.is_set():
                await self._compared.wait()
        self.check()
        self._has_started = True

    def check(self) -> None:
        """Check that no configured servers are known to belong to different clusters.

        Raises:
            ConfigError: They do.
        """
        if self.conflict is not None:
            raise ConfigError(self.conflict)

    async def _compare(self, servers: Sequence[Server]) -> None:
        """Compare servers whose lists have just come. Nothing changes without proof of a conflict, or of its end."""
        sights = [sight for server in servers if (sight := _sight(server)) is not None]
        if may_differ(sights):
            sights = list(await asyncio.gather(*map(self._with_nsqds, sights)))
        found = [sight.lookupd for sight in separate_clusters(sights)]
        if found:
            text = (
                f"lookupd names nsqlookupds of {len(found)} clusters, which list different nsqlookupds and different"
                f" nsqds: {' and '.join(found)}. Give the addresses of one cluster"
            )
            if self._has_started and self.conflict is None:
                _log.error("%s. Leaders known so far stay in use", text)
            self.conflict = text
        elif not may_differ(sights) and len(sights) == sum(server.configured for server in self._servers):
            self.conflict = None

    async def _with_nsqds(self, sight: Sight) -> Sight:
        server = next(server for server in self._servers if server.url == sight.lookupd)
        nodes = await _tried(server, server.client.nodes())
        if isinstance(nodes, NsqError):
            return sight
        return Sight(sight.lookupd, sight.lookupds, frozenset(info.node.address for info in nodes))

    def _hear(self, failures: Sequence[tuple[str, str] | None]) -> None:
        """Keep whether any server has answered.

        Args:
            failures: Of each server its base URL and why it gave no list. None if it gave one.
        """
        causes = tuple(failure for failure in failures if failure is not None)
        if len(causes) < len(failures):
            self.silence = None
            return
        since = self._loop.time() if self.silence is None else self.silence.since
        self.silence = LookupdOutage(LookupUnavailableError("no nsqlookupd gave a usable answer", causes), since)
        self._list_wanted.set()

    def _choose(self, topic: str, access: Access, now: float) -> tuple[list[Server], list[Server]]:
        """Return the servers to ask at once, and those to ask if the first give no answer."""
        free = [server for server in self._servers if (server.url, topic, access) not in self._strays]
        well = [server for server in free if not server.failures]
        if not well:
            # Cancel a request that has hung since the last round: its answer would be older than this round.
            for server in self._servers:
                stray = self._strays.pop((server.url, topic, access), None)
                if stray is not None:
                    stray.cancel()
            return list(self._servers), []
        due = [server for server in free if server.failures and server.probe_at <= now]
        return well + due, [server for server in free if server.failures and server.probe_at > now]

    def _begin(self, server: Server, topic: str, access: Access, since: float) -> asyncio.Task[LookupAnswer]:
        key = (server.url, topic, access)
        question = self._question(server, topic, access, since)
        task = self._loop.create_task(question, name=f"lookup {topic} at {server.url}")
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(key, ended))
        return task

    def _ended(self, key: tuple[str, str, Access], task: asyncio.Task[LookupAnswer]) -> None:
        self._tasks.discard(task)
        if self._strays.get(key) is task:
            del self._strays[key]
        if not task.cancelled():
            task.exception()  # else asyncio would log it; the failure is already counted

    async def _question(self, server: Server, topic: str, access: Access, since: float) -> LookupAnswer:
        if server.failures:
            now = self._loop.time()
            if now < server.free_at:
                raise LookupUnavailableError("no usable answer", server.causes)
            server.free_at = now + FAILING_GAP
        answer = await _tried(server, self._answer(server, topic, access, since))
        if isinstance(answer, NsqError):
            self._failed(server, answer)
            raise answer
        self._succeeded(server)
        server.is_plain = answer.nodes is not None
        return dataclasses.replace(answer, leads=server.leads)

    async def _answer(self, server: Server, topic: str, access: Access, since: float) -> LookupAnswer:
        if self._is_listing(server):
            answer = (await self._listing(server, since)).answer(topic, access)
            if answer is not None:
                return answer
        async with server.slots, server.shared:
            answer = await self._ask(server, lambda: server.client.lookup(topic, access))
        most = max(_LEAST_CHANNELS, _MOST_CHANNELS // max(1, self.topics))
        partitions = {number: self._known(node) for number, node in answer.partitions.items()}
        return dataclasses.replace(answer, partitions=partitions, channels=answer.channels[:most])

    def _known(self, node: Node) -> Node:
        """Return the same object for each equal one, since nsqds lead partitions of many topics."""
        key = (node.address, node.http_port, node.distributed_id, node.is_plain)
        if len(self._nodes) >= MOST_NSQDS and key not in self._nodes:
            raise RemoteProtocolError(f"the answers for all topics together name more than {MOST_NSQDS} nsqds")
        return self._nodes.setdefault(key, node)

    def _is_listing(self, server: Server) -> bool:
        """Return whether to ask a server for all nsqds instead of for each topic."""
        return server.is_plain and self.topics > MANY_TOPICS

    def _listed_answers(
        self, servers: Sequence[Server], topic: str, access: Access, since: float
    ) -> tuple[LookupAnswer, ...]:
        """Return the answers of all these servers if none must be asked; else nothing."""
        answers: list[LookupAnswer] = []
        for server in servers:
            listing = None if server.failures or not self._is_listing(server) else server.listing
            if listing is None or listing.began_at < since or (answer := listing.answer(topic, access)) is None:
                return ()
            answers.append(answer)  # a plain nsqlookupd leads no others
        return tuple(answers)

    async def _ask(self, server: Server, ask: Callable[[], Awaitable[T]]) -> T:
        began = self._loop.time()
        try:
            return await ask()
        except LookupUnavailableError:
            # A kept connection that the server has closed fails at once; try a new one.
            if server.failures or self._loop.time() - began > self._timeout / 4:
                raise
            return await ask()

    async def _listing(self, server: Server, since: float) -> Listing:
        """Return a listing that was asked for at ``since`` or later; all who wait for one share it.

        Raises:
            NsqError: No usable answer.
        """
        while server.listing is None or server.listing.began_at < since:
            task = server.listed
            if task is None:
                task = server.listed = self._loop.create_task(self._list(server), name=f"nsqds of {server.url}")
            await asyncio.wait({task})
            if server.listed is task:
                server.listed = None
            if task.cancelled():
                raise LookupUnavailableError("the lookups were stopped")
            error = task.exception()
            if isinstance(error, LookupUnavailableError):
                raise LookupUnavailableError("no usable answer", error.causes)
            server.listing = task.result()
        return server.listing

    async def _list(self, server: Server) -> Listing:
        began_at = self._loop.time()
        server.listing = None  # it may have megabytes, as the next one has
        nodes = await self._ask(server, server.client.nodes)
        return await in_thread(partial(Listing, began_at, server.url, nodes))

    def _failed(self, server: Server, error: NsqError) -> None:
        server.failures += 1
        now, reason = self._loop.time(), _reason_of(error)
        server.causes = _causes_of(server, error)
        server.probe_at = now + delay_after(_PROBES, server.failures, random.random)
        # One may fail at every other lookup, as one that cannot answer for one of many topics.
        if not server.is_logged and server.lines.take(now) is not None:
            server.is_logged = True
            others = "asking the others" if len(self._servers) > 1 else "retrying; leaders known so far stay in use"
            text = "nsqlookupd %s gave no usable answer: %s; %s"
            _log.log(self._level, text, server.url, reason, others, extra={"lookupd": server.url})
        if server.failures == 1:
            self._report(LookupdFailed(lookupd=server.url, reason=reason))
            self._list_wanted.set()

    def _succeeded(self, server: Server) -> None:
        if server.failures:
            if server.is_logged:
                _log.info("nsqlookupd %s answers again", server.url, extra={"lookupd": server.url})
            server.is_logged = False
            self._report(LookupdRecovered(lookupd=server.url))
            self._list_wanted.set()
        server.failures = 0
        self.silence = None

    def _report(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def know(self, urls: Iterable[str]) -> None:
        """Ask these, too, which were known before; one that fails, and that none lists, is forgotten."""
        for url in [url for url in urls if self._find(url) is None][:MAX_LEARNT]:
            self._add(url, configured=False)

    def _add(self, url: str, *, configured: bool) -> Server:
        client = LookupClient(url, timeout=self._timeout, client=self.http)
        server = Server(url, client, configured=configured, now=self._loop.time())
        if not configured:
            server.shared, client.large = self._learnt, self._large_of_learnt
        self._servers.append(server)
        return server

    async def _ask_list(self, server: Server) -> tuple[str, str] | None:
        """Request the list of one server; return its base URL and why it gave none, or None."""
        failure = await _tried(server, self._learn(server))
        server.gave_list = not isinstance(failure, NsqError)
        if not isinstance(failure, NsqError):
            return None
        if server.list is not None:
            # One that led and died named itself: its old word must not outweigh the newer one of another.
            server.list = dataclasses.replace(server.list, leader=None)
            self._count_leaders()
        return server.url, _reason_of(failure)

    async def _learn(self, server: Server) -> None:
        async with server.slots, server.shared:
            server.list = listed = await server.client.list_lookupd()
        now = self._loop.time()
        for url in listed.nodes:
            known = self._find(url)
            if known is None and sum(not each.configured for each in self._servers) < MAX_LEARNT:
                known = self._add(url, configured=False)
                _log.info("found nsqlookupd %s in the list of %s", url, server.url, extra={"lookupd": url})
            if known is not None:
                known.listed_at = now
        self._count_leaders()

    def _count_leaders(self) -> None:
        """Let the server lead that most lists name; a tie goes to one that names itself."""
        votes: Counter[str] = Counter()
        for server in self._servers:
            leader = None if server.list is None or server.list.leader is None else self._find(server.list.leader)
            if leader is not None and not server.failures:
                votes[leader.url] += 3 if leader is server else 2
        best = max(votes, key=lambda url: votes[url], default=None)
        for server in self._servers:
            server.leads = server.url == best

    def _find(self, url: str) -> Server | None:
        return next((server for server in self._servers if _address(url) in server.aliases), None)

    def _forget(self) -> None:
        oldest = self._loop.time() - FORGET_AFTER
        self._servers = [
            server
            for server in self._servers
            if server.configured or server.listed_at > oldest or (server.gave_list and not server.failures)
        ]

    async def _resolve(self, server: Server) -> None:
        """Resolve a configured host name, so that a list with the server's address does not add it again.

        A name with several addresses of one kind may stand for several servers. Then each one that is listed is added:
        whoever answers to the name may be any of them.
        """
        host, port = _address(server.url)
        if is_ip(host) or not server.configured:
            return
        try:
            async with asyncio.timeout(self._timeout):
                found = await addresses(host, port, places_of((server.url,)))
        except Exception as error:  # noqa: BLE001 - a resolver raises UnicodeError and ValueError, too
            _log.debug("nsqlookupd %s cannot be resolved: %r", server.url, error, extra={"lookupd": server.url})
            return
        is_one = len(found) == len({":" in each for each in found})
        server.aliases = {_address(server.url), *((each, port) for each in found if is_one)}


async def _tried(server: Server, asking: Awaitable[T]) -> T | NsqError:
    """Return what a server answers, or its failure, without frames: they hold the whole answer.

    An error that an answer causes counts as that server's failure and must not end anything else.
    """
    try:
        return await asking
    except NsqError as error:
        _log.debug("nsqlookupd %s: %s", server.url, error)
        return without_frames(error)
    except Exception as error:  # noqa: BLE001 - mapped to ours
        report_unexpected(_log, f"nsqlookupd {server.url}", error)
        return LookupUnavailableError("no usable answer", ((server.url, repr(error)),))


def _sight(server: Server) -> Sight | None:
    """Return what a server says of its cluster. None if it lists no nsqlookupd, as one without etcd may do."""
    if server.list is None or (server.list.supported and not server.list.nodes):
        return None
    return Sight(server.url, frozenset(server.list.nodes))


def _reason_of(error: NsqError) -> str:
    causes = error.causes if isinstance(error, LookupUnavailableError) else ()
    return redact("; ".join(text for _, text in causes) or str(error))


def _causes_of(server: Server, error: BaseException) -> tuple[tuple[str, str], ...]:
    return error.causes if isinstance(error, LookupUnavailableError) else ((server.url, repr(error)),)


def _collect(
    server: Server,
    task: asyncio.Task[LookupAnswer],
    answers: list[LookupAnswer],
    causes: list[tuple[str, str]],
) -> None:
    error = None if task.cancelled() else task.exception()
    if task.cancelled():
        causes.append((server.url, "cancelled"))
    elif error is not None:
        causes.extend(_causes_of(server, error))
    else:
        answers.append(task.result())


def _grace_end(answers: list[LookupAnswer], began: float, now: float, until: float | None) -> float:
    """Return when the round ends, even if requests are pending."""
    whole = any(
        answer.meta is not None and all(number in answer.partitions for number in range(answer.meta.partition_num))
        for answer in answers
    )
    end = now + max(GRACE if whole else INCOMPLETE_GRACE, now - began)
    return end if until is None else min(until, end)


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 443  # http:// URLs have a port, see checks.lookupd_urls
