"""What the clients of one event loop share, without naming it.

Clients with the same nsqlookupds, security settings and pace of lookups share the HTTP client, the known nsqlookupds
and the budget of their lookups. The first one that is entered starts the engine, the last one that closes
ends it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.base.unexpected import log_traceback
from nsq_ha.engine.fixed import FixedNodes
from nsq_ha.engine.http import new_client
from nsq_ha.engine.lookups import LookupCounts, TopicWatch, again
from nsq_ha.engine.loops import PerLoop
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.engine.servers import LookupdOutage, Servers
from nsq_ha.errors import ClosedError
from nsq_ha.options.checks import check_topic
from nsq_ha.policy.lookup_pace import LOOKUPS_AT_ONCE, calm_rate

if TYPE_CHECKING:
    from collections.abc import Coroutine, Hashable

    from nsq_ha.engine.lookupd import Access
    from nsq_ha.events import Event
    from nsq_ha.options.config import ClientConfig

_log: Final = logging.getLogger("nsq_ha.discovery")

LIST_INTERVAL: Final = 30.0
"""Seconds between two requests for the list of nsqlookupds."""

MANY_TOPICS: Final = 16
"""Number of topics above which a plain nsqlookupd is asked for all nsqds and their topics instead of for each topic."""

_CLOSE_LIMIT: Final = 1.0
"""Seconds that closing may take even if ``close_timeout`` is shorter; less could leave sockets open."""


class Engine:
    """What clients share: those whose options that decide how nsqlookupds are asked are equal.

    Attributes:
        lookup_interval: The option.
        clients: Those that use it. They get the events, and are ended if the engine ends because of a bug of ours.
        servers: The known nsqlookupds. None with ``nsqd=``.
        source: The same, or the fixed nodes.
        in_flight: Held by each lookup.
        watches: The topics of all clients.
    """

    def __init__(self, config: ClientConfig, key: Hashable) -> None:
        self._key = key
        self.lookup_interval: float = config.lookup_interval
        self.clients: dict[Lookups, None] = {}
        self.servers: Servers | None = None
        self.in_flight: asyncio.Semaphore = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self.watches: set[TopicWatch] = set()
        self._slots: dict[Access, float] = {"r": -math.inf, "w": -math.inf}
        self._tasks: set[asyncio.Task[None]] = set()
        if config.nsqd:
            self.source: Servers | FixedNodes = FixedNodes(config.nsqd)
            return
        http = new_client(config.lookupd, config.lookupd_tls, config.local_addr)
        self.source = self.servers = Servers(
            config.lookupd, timeout=config.lookup_timeout, client=http, on_event=self._report
        )
        self.start(self.servers.keep_lists(LIST_INTERVAL), "nsq_ha lists of nsqlookupds")

    @classmethod
    def join(cls, config: ClientConfig, client: Lookups) -> Engine:
        """Return the engine for these options in the running event loop; start it if there is none."""
        addresses = (config.lookupd, config.nsqd, config.lookupd_tls, config.local_addr)
        key = (*addresses, config.lookup_timeout, config.lookup_interval)
        engines = _engines.here()
        engine = engines.get(key) or cls(config, key)
        engines[key] = engine
        engine.clients[client] = None
        return engine

    async def leave(self, client: Lookups) -> None:
        """Stop using the engine; the last one ends it. A second call does nothing."""
        if self.clients.keys() == {client}:
            self._forget()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self.servers is not None:
                await self.servers.aclose()
                await self.servers.http.aclose()
        self.clients.pop(client, None)  # at the end: a call that was cancelled is repeated

    @property
    def has_many_topics(self) -> bool:
        """Whether to ask a plain nsqlookupd for all nsqds and their topics instead of for each topic."""
        return len(self.watches) > MANY_TOPICS

    def slot(self, access: Access) -> float:
        """Return when the next periodic lookup may begin, in the loop's time; the time belongs to the caller."""
        slot = max(self._slots[access], asyncio.get_running_loop().time())
        if self.servers is not None:  # else a lookup sends nothing
            consumed = sum(each.access == "r" for each in self.watches) if access == "r" else 0
            self._slots[access] = slot + 1 / calm_rate(self.lookup_interval, consumed)
        return slot

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` until the engine ends. An error in it is a bug of ours, and ends all clients."""
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
        closed = ClosedError("the lookups failed because of an internal error")
        closed.__cause__ = error
        for client in tuple(self.clients):
            client.end(closed)

    def _report(self, event: Event) -> None:
        for client in tuple(self.clients):
            client.observer.event(event)

    def _forget(self) -> None:
        if (engines := _engines.here()).get(self._key) is self:
            del engines[self._key]


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
        self.counts: LookupCounts = LookupCounts()
        self.observer: Observer = observer
        self._config = config
        self._channel = channel
        self._access: Access = access
        self._engine: Engine | None = None
        self._watches: dict[str, TopicWatch] = {}
        self._closed: ClosedError | None = None
        self._closer: asyncio.Task[None] | None = None

    @property
    def silence(self) -> LookupdOutage | None:
        """Set while no nsqlookupd answers, as far as a client without topics knows. None with ``nsqd=``."""
        return None if self._engine is None or self._engine.servers is None else self._engine.servers.silence

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

        async def close() -> None:
            await asyncio.gather(*(each.aclose() for each in siblings))
            if self._engine is not None:
                await self._engine.leave(self)

        if self._closer is None or self._closer.cancelled():
            self._closer = asyncio.create_task(close(), name="nsq_ha lookups close")
        limit = max(self._config.close_timeout, _CLOSE_LIMIT)
        done, _ = await asyncio.wait({self._closer}, timeout=limit)
        if not done:
            _log.warning("closing the lookups takes longer than %g s; it continues in the background", limit)

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
            watch = TopicWatch(
                topic, self._access, self._engine, self.observer, counts=self.counts, channel=self._channel
            )
            self._watches[topic] = watch
            self._engine.watches.add(watch)
        return watch

    def unwatch(self, topic: str) -> None:
        """Stop the lookups of ``topic``; an unknown one is ignored."""
        watch = self._watches.pop(topic, None)
        if watch is not None:
            self._end_watch(watch, ClosedError(f"the lookups of topic {topic!r} were stopped"))

    def end(self, cause: ClosedError) -> None:
        """Refuse everything from now on, and end all watches."""
        self._closed = self._closed or cause
        for watch in self._watches.values():
            self._end_watch(watch, cause)
        self._watches.clear()

    def _end_watch(self, watch: TopicWatch, cause: ClosedError) -> None:
        watch.end(cause)
        if self._engine is not None:
            self._engine.watches.discard(watch)
