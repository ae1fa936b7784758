"""What the clients of one event loop share, without naming it.

Clients with the same nsqlookupds, security settings and pace of lookups share the HTTP client, the known nsqlookupds
and the budget of their lookups. The first one that is entered starts the engine, the last one that closes
ends it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, Final, Protocol

from nsq_ha.base.unexpected import log_traceback
from nsq_ha.engine.fixed import FixedNodes
from nsq_ha.engine.http import new_client
from nsq_ha.engine.loops import PerLoop
from nsq_ha.engine.servers import Servers
from nsq_ha.errors import ClosedError
from nsq_ha.policy.lookup_pace import LOOKUPS_AT_ONCE, calm_rate

if TYPE_CHECKING:
    from collections.abc import Coroutine, Hashable

    from nsq_ha.engine.lookupd import Access
    from nsq_ha.engine.observe import Observer
    from nsq_ha.events import Event
    from nsq_ha.options.config import ClientConfig

_log: Final = logging.getLogger("nsq_ha.discovery")

LIST_INTERVAL: Final = 30.0
"""Seconds between two requests for the list of nsqlookupds."""


class EngineUser(Protocol):
    """The lookups of one client."""

    observer: Observer

    def end(self, cause: ClosedError) -> None:
        """Refuse everything from now on."""


class Engine:
    """What clients share: those whose options that decide how nsqlookupds are asked are equal.

    Attributes:
        lookup_interval: The option.
        clients: Those that use it. They get the events, and are ended if the engine ends because of a bug of ours.
        servers: The known nsqlookupds. None with ``nsqd=``.
        source: The same, or the fixed nodes.
        in_flight: Held by each lookup.
        consumed: Number of topics that are looked up for consumers.
    """

    def __init__(self, config: ClientConfig, key: Hashable) -> None:
        self._key = key
        self.lookup_interval: float = config.lookup_interval
        self.clients: dict[EngineUser, None] = {}
        self.servers: Servers | None = None
        self.in_flight: asyncio.Semaphore = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self.consumed: int = 0
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
    def join(cls, config: ClientConfig, client: EngineUser) -> Engine:
        """Return the engine for these options in the running event loop; start it if there is none."""
        addresses = (config.lookupd, config.nsqd, config.lookupd_tls, config.local_addr)
        key = (*addresses, config.lookup_timeout, config.lookup_interval)
        engines = _engines.here()
        engine = engines.get(key) or cls(config, key)
        engines[key] = engine
        engine.clients[client] = None
        return engine

    async def leave(self, client: EngineUser) -> None:
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

    def slot(self, access: Access) -> float:
        """Return when the next periodic lookup may begin, in the loop's time; the time belongs to the caller."""
        slot = max(self._slots[access], asyncio.get_running_loop().time())
        if self.servers is not None:  # else a lookup sends nothing
            consumed = self.consumed if access == "r" else 0
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
