"""What the clients of one event loop share for their lookups.

nsqds given by address instead of nsqlookupds are plain servers without partitions. Each address is one pseudo
partition, numbered in the given order, so that producers and consumers treat both kinds of server alike.
"""

from __future__ import annotations

import asyncio
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from nsq_ha.base.tasks import Tasks
from nsq_ha.engine.http import new_client
from nsq_ha.engine.loops import PerLoop
from nsq_ha.engine.servers import Servers
from nsq_ha.policy.lookup_pace import LOOKUPS_AT_ONCE
from nsq_ha.policy.topology import LookupAnswer, Node, Round, TopicMeta

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from nsq_ha.engine.lookupd import Access
    from nsq_ha.engine.observe import Observer
    from nsq_ha.events import Event
    from nsq_ha.options.config import ClientConfig


class FixedNodes:
    """Answers every lookup with the same nodes, as :class:`~nsq_ha.engine.servers.Servers` does with those it finds.

    Args:
        addresses: ``host:port`` of each nsqd's TCP, as :func:`nsq_ha.options.checks.nsqd_addresses` returns them.
    """

    urls: Final[tuple[str, ...]] = ()
    """There is no nsqlookupd."""

    def __init__(self, addresses: Sequence[str]) -> None:
        nodes = {}
        for number, address in enumerate(addresses):
            host, _, port = address.rpartition(":")
            nodes[number] = Node(host.strip("[]"), int(port), 0, is_plain=True)
        meta = TopicMeta(partition_num=len(nodes), is_partitioned=False)
        self._answer = LookupAnswer("", leads=True, meta=meta, partitions=MappingProxyType(nodes))

    async def look_up(self, topic: str, access: Access) -> Round:
        """Return the fixed answer without asking a server."""
        return Round((self._answer,), None)


class Engine:
    """What the clients of one event loop share for their lookups, if the options that decide how to ask are equal.

    The first one that is entered starts it, the last one that closes ends it.

    Attributes:
        observers: Those of the clients that use it. They get the events.
        servers: The known nsqlookupds. None with ``nsqd=``.
        source: The same, or the fixed nodes.
        in_flight: Held by each lookup.
        tasks: The lookups of all topics.
    """

    def __init__(self, config: ClientConfig, key: Hashable) -> None:
        self._key = key
        self.observers: list[Observer] = []
        self.servers: Servers | None = None
        self.in_flight: asyncio.Semaphore = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self.tasks: Tasks = Tasks(logging.getLogger("nsq_ha.discovery"))
        if config.nsqd:
            self.source: Servers | FixedNodes = FixedNodes(config.nsqd)
            return
        http = new_client(config.lookupd, config.lookupd_tls, config.local_addr)
        self.source = self.servers = Servers(
            config.lookupd, timeout=config.lookup_timeout, client=http, on_event=self._report
        )
        self.tasks.start(self.servers.keep_lists(), "nsq_ha lists of nsqlookupds")

    @classmethod
    def join(cls, config: ClientConfig, observer: Observer) -> Engine:
        """Return the engine for these options in the running event loop; start it if there is none."""
        addresses = (config.lookupd, config.nsqd, config.lookupd_tls, config.local_addr)
        key = (*addresses, config.lookup_timeout, config.lookup_interval)
        engines = _engines.here()
        engine = engines.get(key) or cls(config, key)
        engines[key] = engine
        engine.observers.append(observer)
        return engine

    async def leave(self, observer: Observer) -> None:
        """Stop using the engine; the last one ends it."""
        if len(self.observers) == 1:
            if (engines := _engines.here()).get(self._key) is self:
                del engines[self._key]
            await self.tasks.close()
            if self.servers is not None:
                await self.servers.aclose()
                await self.servers.http.aclose()
        if observer in self.observers:  # at the end: a call that was cancelled is repeated
            self.observers.remove(observer)

    def _report(self, event: Event) -> None:
        for observer in tuple(self.observers):
            observer.event(event)


_engines: Final[PerLoop[dict[Hashable, Engine]]] = PerLoop(dict)
