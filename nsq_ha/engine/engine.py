"""The lookups of all topics of one client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsq_ha.engine.lookups import Engine, LookupCounts, TopicWatch, again
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.errors import ClosedError
from nsq_ha.options.checks import check_topic

if TYPE_CHECKING:
    from nsq_ha.engine.lookupd import Access
    from nsq_ha.engine.servers import LookupdOutage
    from nsq_ha.options.config import ClientConfig


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
            self._engine = Engine.join(self._config, self.observer)
            if self._engine.servers is not None:
                await self._engine.servers.started()

    async def aclose(self) -> None:
        """End all watches and close the connections, in little more than a second; a second call does nothing.

        Callers that wait for a view get :class:`ClosedError`. If this is cancelled, call it again.
        """
        self._closed = self._closed or ClosedError("the client was closed")
        watches = list(self._watches.values())
        for watch in watches:
            watch.end(self._closed)
        await asyncio.gather(*(watch.ended() for watch in watches))
        self._watches.clear()
        if self._engine is not None:
            await self._engine.leave(self.observer)
            self._engine = None

    def watch(self, topic: str) -> TopicWatch:
        """Return the watch of ``topic``; the first call starts its lookups.

        Raises:
            ConfigError: The name is not legal.
            ClosedError: It was not started, or was closed.
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
        return watch

    def unwatch(self, topic: str) -> None:
        """Stop the lookups of ``topic``; an unknown one is ignored."""
        watch = self._watches.pop(topic, None)
        if watch is not None:
            watch.end(ClosedError(f"the lookups of topic {topic!r} were stopped"))
