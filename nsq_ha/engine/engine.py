"""What the clients of one event loop share for their lookups.

Clients with the same nsqlookupds and security settings share the HTTP client, the known nsqlookupds and the budget of
lookups in flight, without naming it: the first one that is entered starts it, the last one that closes ends it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from nsq_ha.engine.http import new_client
from nsq_ha.engine.servers import Servers
from nsq_ha.observe import Observer
from nsq_ha.policy.lookup_pace import LookupsInFlight
from nsq_ha.unexpected import log_traceback

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from nsq_ha.config import ClientConfig
    from nsq_ha.events import Event

_log: Final = logging.getLogger("nsq_ha.discovery")

LIST_INTERVAL: Final = 30.0
"""Seconds between two requests for the list of nsqlookupds."""


class _Observers(Observer):
    """Passes events of nsqlookupds on to the clients that use them."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Observer] = []

    def event(self, event: Event) -> None:
        """Report ``event`` to all of them."""
        for observer in tuple(self.all):
            observer.event(event)


class Engine:
    """The lookups of the clients of one event loop; :meth:`join` it, and :meth:`leave` it again.

    Attributes:
        servers: The known nsqlookupds.
        in_flight: The lookups in flight.
    """

    def __init__(self, config: ClientConfig, key: Hashable, engines: dict[Hashable, Engine]) -> None:
        self._key = key
        self._engines = engines
        self._observers = _Observers()
        self._users: dict[Callable[[Exception], None], Observer] = {}
        self._client = new_client(config.lookupd, config.lookupd_tls, config.local_addr)
        self.servers: Servers = Servers(
            config.lookupd, timeout=config.lookup_timeout, client=self._client, observer=self._observers
        )
        self.in_flight: LookupsInFlight = LookupsInFlight()
        self._task = asyncio.create_task(self._run(config.lookup_jitter), name="nsq_ha engine")

    @classmethod
    def join(cls, config: ClientConfig, observer: Observer, on_death: Callable[[Exception], None]) -> Engine:
        """Return the engine for these options in the running event loop; start it if there is none.

        Args:
            config: Options; ``lookupd``, ``lookupd_tls``, ``local_addr``, ``lookup_timeout`` and ``lookup_jitter``
                decide who shares.
            observer: The client's.
            on_death: Called if the engine ends because of a bug in this library.
        """
        engines = _here.engines.setdefault(asyncio.get_running_loop(), {})
        key = (config.lookupd, config.lookupd_tls, config.local_addr, config.lookup_timeout, config.lookup_jitter)
        engine = engines.get(key)
        if engine is None:
            engine = engines[key] = cls(config, key, engines)
        engine._users[on_death] = observer
        engine._observers.all.append(observer)
        return engine

    async def leave(self, on_death: Callable[[Exception], None]) -> None:
        """Stop using the engine; the last one ends it. A second call does nothing."""
        observer = self._users.pop(on_death, None)
        if observer is None:
            return
        self._observers.all.remove(observer)
        if self._users:
            return
        self._forget()
        self._task.cancel()
        await asyncio.wait({self._task})
        await self.servers.aclose()
        await self._client.aclose()

    def _forget(self) -> None:
        if self._engines.get(self._key) is self:
            del self._engines[self._key]

    async def _run(self, jitter: float) -> None:
        try:
            await self.servers.keep_lists(LIST_INTERVAL, jitter)
        except Exception as error:  # noqa: BLE001
            # Servers handles all errors of servers, so this is a bug in this library: fail every caller.
            self._forget()
            log_traceback(_log, "the lookups failed", error)
            for on_death in tuple(self._users):
                on_death(error)


class _Here(threading.local):
    """The engines of this thread's event loops."""

    def __init__(self) -> None:
        self.engines: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, Engine]] = WeakKeyDictionary()


_here: Final = _Here()
