"""What the clients of one event loop share, without naming it.

Clients with the same nsqlookupds, security settings and pace of lookups share the HTTP client, the known nsqlookupds,
the lookups of each topic and their budget. The first one that is entered starts the engine, the last one that closes
ends it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.checks import check_topic
from nsq_ha.engine.fixed import FixedNodes
from nsq_ha.engine.http import new_client
from nsq_ha.engine.lookups import LookupCounts, TopicLookups, TopicWatch, again
from nsq_ha.engine.loops import PerLoop
from nsq_ha.engine.servers import LookupdOutage, Servers
from nsq_ha.errors import ClosedError
from nsq_ha.observe import SILENT, Observer
from nsq_ha.policy.lookup_pace import LOOKUPS_AT_ONCE, LookupsInFlight, Slots, calm_rate, longest_interval
from nsq_ha.unexpected import log_traceback

if TYPE_CHECKING:
    from collections.abc import Coroutine, Hashable, Sequence

    from nsq_ha.engine.lookupd import Access
    from nsq_ha.engine.siblings import Siblings
    from nsq_ha.events import Event
    from nsq_ha.options.config import ClientConfig

_log: Final = logging.getLogger("nsq_ha.discovery")

LIST_INTERVAL: Final = 30.0
"""Seconds between two requests for the list of nsqlookupds."""


_CLOSE_LIMIT: Final = 1.0
"""Seconds that closing may take even if ``close_timeout`` is shorter; less could leave sockets open."""

_CLOSE_TURNS: Final = 64
"""Minimum turns of the event loop for closing. It needs 7 to 16 and waits for no server, so only a busy loop can delay
it."""


class Engine:
    """What clients share; :meth:`join` it, and :meth:`leave` it again.

    Attributes:
        servers: The known nsqlookupds. None with ``nsqd=``.
    """

    def __init__(self, config: ClientConfig, key: Hashable, engines: dict[Hashable, Engine]) -> None:
        self._config = config
        self._key = key
        self._engines = engines
        self._clients: dict[Lookups, None] = {}
        self._lookups: dict[tuple[str, Access], TopicLookups] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # With nsqd= a lookup sends nothing.
        self._in_flight = LookupsInFlight(math.inf if config.nsqd else LOOKUPS_AT_ONCE)
        self._slots: dict[Access, Slots] = {"r": Slots(math.inf), "w": Slots(math.inf)}
        self.servers: Servers | None = None
        if config.nsqd:
            self._source: Servers | FixedNodes = FixedNodes(config.nsqd)
            return
        http = new_client(config.lookupd, config.lookupd_tls, config.local_addr)
        self._source = self.servers = Servers(
            config.lookupd, timeout=config.lookup_timeout, client=http, on_event=self._report
        )
        self._start(self.servers.keep_lists(LIST_INTERVAL, config.lookup_jitter), "nsq_ha lists of nsqlookupds")

    @classmethod
    def join(cls, config: ClientConfig, client: Lookups) -> Engine:
        """Return the engine for these options in the running event loop; start it if there is none.

        Args:
            config: Options; the addresses, ``lookupd_tls``, ``local_addr`` and ``lookup_*`` decide who shares.
            client: Gets the events, and is ended if the engine ends because of a bug in this library.
        """
        engines = _engines.here()
        addresses = (config.lookupd, config.nsqd, config.lookupd_tls, config.local_addr)
        pace = (config.lookup_timeout, config.lookup_jitter, config.lookup_interval, config.max_lookup_interval)
        key = (*addresses, *pace)
        engine = engines.get(key)
        if engine is None:
            engine = engines[key] = cls(config, key, engines)
        engine._clients[client] = None
        return engine

    async def leave(self, client: Lookups) -> None:
        """Stop using the engine; the last one ends it. A second call does nothing."""
        if client not in self._clients:
            return
        if len(self._clients) > 1:
            del self._clients[client]
            return
        self._forget()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.servers is not None:
            await self.servers.aclose()
            await self.servers.http.aclose()
        self._clients.pop(client, None)  # at the end: a call that was cancelled is repeated

    def lookups_of(self, topic: str, access: Access) -> TopicLookups:
        """Return the lookups of a topic; start them if nobody watches it."""
        found = self._lookups.get((topic, access))
        if found is None:
            found = TopicLookups(
                topic,
                access,
                self._source,
                self._config,
                slots=self._slots[access],
                in_flight=self._in_flight,
                start=self._start,
            )
            self._lookups[topic, access] = found
            self._count_topics()
        return found

    def release_unwatched(self, topic: str, access: Access) -> None:
        """Stop the lookups of a topic if nobody watches it any more."""
        found = self._lookups.get((topic, access))
        if found is not None and not found.watches:
            found.end()
            del self._lookups[topic, access]
            self._count_topics()

    def _count_topics(self) -> None:
        if self.servers is None:
            return
        self.servers.topics = len(self._lookups)
        shortest = self._config.lookup_interval
        longest = longest_interval(shortest, self._config.max_lookup_interval)
        consumed = sum(access == "r" for _, access in self._lookups)
        self._slots["r"].rate = calm_rate(shortest, longest, consumed)
        self._slots["w"].rate = calm_rate(shortest, longest)

    def _report(self, event: Event) -> None:
        for client in tuple(self._clients):
            client.observer.event(event)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        # All errors of servers are handled, so this is a bug in this library: fail every caller.
        self._forget()
        log_traceback(_log, "the lookups failed", error)
        for client in tuple(self._clients):
            closed = ClosedError("the lookups failed because of an internal error")
            closed.__cause__ = error
            client.end(closed)

    def _forget(self) -> None:
        if self._engines.get(self._key) is self:
            del self._engines[self._key]


_engines: Final[PerLoop[dict[Hashable, Engine]]] = PerLoop(dict)


class Lookups:
    """Finds the leaders of topics, for one producer or consumer.

    Args:
        config: Options of a client, with addresses; ``lookupd``, ``nsqd`` and ``lookup_*`` are used.
        access: ``w`` for publishing, ``r`` for consuming.
        observer: The client's.
        channel: The consumer's channel, for events. None for a producer.

    Attributes:
        counts: Counts of all lookups.
        observer: As given.
    """

    def __init__(
        self, config: ClientConfig, *, access: Access, observer: Observer = SILENT, channel: str | None = None
    ) -> None:
        self._config = config
        self.counts: LookupCounts = LookupCounts()
        self.observer: Observer = observer
        self._channel = channel
        self._access: Access = access
        self._engine: Engine | None = None
        self._watches: dict[str, TopicWatch] = {}
        self._closed: ClosedError | None = None
        self._closer: asyncio.Task[None] | None = None

    @property
    def silence(self) -> LookupdOutage | None:
        """Set while no nsqlookupd answers, as far as a client without topics knows. None with ``nsqd=``."""
        engine = self._engine
        return None if engine is None or engine.servers is None else engine.servers.silence

    async def start(self) -> None:
        """Start the lookups, after comparing the nsqlookupds if there are several. A second call does nothing.

        It waits for no server but for this, and then not long for one that hangs.

        Raises:
            ClosedError: It was closed.
            ConfigError: The nsqlookupds belong to several clusters.
        """
        if self._closed is not None:
            raise again(self._closed)
        if self._engine is None:
            self._engine = Engine.join(self._config, self)
            if self._engine.servers is not None:
                await self._engine.servers.started()

    async def aclose(self) -> None:
        """End all watches and close the connections; a second call does nothing.

        This takes at most ``close_timeout``, or one second if that is longer. Callers that wait for a view get
        :class:`ClosedError`.

        If this is cancelled or late, a separate task continues; another call waits for it.
        """
        siblings = [watch.siblings for watch in self._watches.values() if watch.siblings is not None]
        self.end(ClosedError("the client was closed"))
        if self._closer is None or self._closer.cancelled():
            self._closer = asyncio.create_task(self._close(siblings), name="nsq_ha lookups close")
        limit = max(self._config.close_timeout, _CLOSE_LIMIT)
        await asyncio.wait({self._closer}, timeout=limit)
        for _ in range(_CLOSE_TURNS):
            if self._closer.done():
                return
            await asyncio.sleep(0)
        _log.warning("closing the lookups takes longer than %g s; it continues in the background", limit)

    async def _close(self, siblings: Sequence[Siblings]) -> None:
        await asyncio.gather(*(each.aclose() for each in siblings))
        if self._engine is not None:
            await self._engine.leave(self)

    def watch(self, topic: str) -> TopicWatch:
        """Return the watch of ``topic``; the first call starts its lookups.

        Raises:
            ConfigError: The name is not legal.
            ClosedError: It was not started, was closed, or its task died (``__cause__``).
        """
        check_topic(topic)
        if self._closed is not None:
            raise again(self._closed)
        if self._engine is None:
            raise ClosedError("the lookups are not running: use the object with 'async with'")
        watch = self._watches.get(topic)
        if watch is None:
            lookups = self._engine.lookups_of(topic, self._access)
            watch = TopicWatch(lookups, self.observer, counts=self.counts, channel=self._channel)
            self._watches[topic] = watch
        return watch

    def unwatch(self, topic: str) -> None:
        """Stop the lookups of ``topic``; an unknown one is ignored."""
        watch = self._watches.pop(topic, None)
        if watch is not None:
            self._end_watch(watch, ClosedError(f"the lookups of topic {topic!r} were stopped"))

    def end(self, cause: ClosedError) -> None:
        """Refuse everything from now on, and end all watches."""
        if self._closed is None:
            self._closed = cause
        for watch in self._watches.values():
            self._end_watch(watch, cause)
        self._watches.clear()

    def _end_watch(self, watch: TopicWatch, cause: ClosedError) -> None:
        watch.end(cause)
        if watch.siblings is not None:
            watch.siblings.cancel()
        if self._engine is not None:
            self._engine.release_unwatched(watch.topic, self._access)
