"""Look up one topic periodically, and quickly on demand, for one client.

This module decides when to look up. It knows neither the nsqlookupds (``servers``) nor the rules of a view
(``policy.topology``). A client has a :class:`TopicWatch` for each of its topics.

A topic is looked up periodically, as ``policy.lookup_pace`` says; on demand at once, and then as ``policy.timing`` says
while a caller waits for news.

Source: server failures 3.6, 4.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from nsq_ha.base.tasks import Tasks
from nsq_ha.base.unexpected import report_unexpected
from nsq_ha.engine.fixed import FixedNodes
from nsq_ha.engine.http import new_client
from nsq_ha.engine.lookup_log import log_changes
from nsq_ha.engine.loops import PerLoop
from nsq_ha.engine.new_partitions import NewPartitions
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.engine.servers import Servers
from nsq_ha.engine.waiting import is_foreign
from nsq_ha.errors import ClosedError, DiscoveryError, LookupUnavailableError
from nsq_ha.events import LeaderChanged, Repartitioned
from nsq_ha.policy.lookup_pace import LOOKUPS_AT_ONCE, interval_after
from nsq_ha.policy.plain_topology import PlainTopic, merge_round
from nsq_ha.policy.timing import SLOW_GAP, gap_after
from nsq_ha.policy.topology import TopicView, changed_leaders

if TYPE_CHECKING:
    from collections.abc import Hashable

    from nsq_ha.engine.lookupd import Access
    from nsq_ha.events import Event
    from nsq_ha.options.config import ClientConfig

_log = logging.getLogger("nsq_ha.discovery")


Listener = Callable[[TopicView], None]
"""Called in the loop with each view that differs from the previous one."""


class LookupCounts(msgspec.Struct):
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ProducerStats` with the same names."""

    lookups: int = 0
    lookup_failures: int = 0
    lookup_seconds: float = 0.0
    leader_changes: int = 0


class Engine:
    """What the clients of one event loop share for their lookups, if the options that decide how to ask are equal.

    The first one that is entered starts it, the last one that closes ends it.

    Attributes:
        lookup_interval: The option.
        observers: Those of the clients that use it. They get the events.
        servers: The known nsqlookupds. None with ``nsqd=``.
        source: The same, or the fixed nodes.
        in_flight: Held by each lookup.
        tasks: The lookups of all topics.
    """

    def __init__(self, config: ClientConfig, key: Hashable) -> None:
        self._key = key
        self.lookup_interval: float = config.lookup_interval
        self.observers: list[Observer] = []
        self.servers: Servers | None = None
        self.in_flight: asyncio.Semaphore = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self.tasks: Tasks = Tasks(_log)
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


class TopicWatch:
    """What one client knows of a topic, from repeated lookups. Create it with :meth:`Lookups.watch`.

    Args:
        topic: The topic.
        access: ``w`` for publishing, ``r`` for consuming: nsqlookupds answer these differently.
        engine: What the lookups of all topics share.
        observer: The client's.
        counts: The client's.
        channel: The consumer's channel, for events. None for a producer.

    Attributes:
        topic: As given.
        access: As given.
        observer: The client's; the parts that follow the watch report through it.
        new_partitions: Gives them the channels of the others. None for a plain cluster, and before the first view.
        view: The latest view of the topic. None until the first answer.
        error: The error of the last round. None if it got an answer.
        failing_since: Since when rounds have got no answer, in the loop's time. None if the last one got one.
        absent_since: Since when no answer has named a partition, or an nsqd of a plain cluster. None if one did.
        leaderless_since: Since when partitions have had no leader; not of a plain cluster.
    """

    def __init__(
        self,
        topic: str,
        access: Access,
        engine: Engine,
        observer: Observer = SILENT,
        *,
        counts: LookupCounts,
        channel: str | None = None,
    ) -> None:
        self.topic: str = topic
        self.access: Access = access
        self.observer: Observer = observer
        self.new_partitions: NewPartitions | None = None
        self.view: TopicView | None = None
        self.error: DiscoveryError | None = None
        self.failing_since: float | None = None
        self.absent_since: float | None = None
        self.leaderless_since: Mapping[int, float] = {}
        self._engine = engine
        self._shortest = engine.lookup_interval
        self._counts = counts
        self._channel = channel
        self._plain = PlainTopic()
        self._listener: Listener = lambda _: None
        self._closed: ClosedError | None = None
        self._loop = asyncio.get_running_loop()
        self._begun = self._ended = 0  # rounds
        self._begun_at = float("-inf")
        self._chance = random.random()  # noqa: S311 - the same until the next round begins
        self._calm_rounds = 0
        self._streak = 0  # rounds on demand without news
        self._is_wanted = True
        self._is_awaited = False
        self._sooner = asyncio.Event()
        self._round_ended = asyncio.Event()
        self._task = engine.tasks.start(self._keep(), f"lookups of {topic}")

    def name_of(self, partition: int) -> str:
        """Return how texts name a partition: ``orders-3``, or only the topic if the cluster has no partitions."""
        return f"{self.topic}-{partition}" if self.view is None else self.view.name_of(partition)

    @property
    def lookupds(self) -> tuple[str, ...]:
        """Base URLs of all nsqlookupds in use."""
        return self._engine.source.urls

    @property
    def is_nowhere(self) -> bool:
        """Whether every nsqlookupd of a plain cluster answered that it does not know the topic."""
        is_absent = self.view is not None and self.view.is_plain and not self.view.exists
        return is_absent and set(self.lookupds) <= set(self._plain.answers)

    def refresh_soon(self) -> None:
        """Look up as soon as the pace allows; all requests until then share one round.

        A running round does not count, since it may have begun before the trouble.
        """
        self._is_wanted = True
        self._sooner.set()

    def refresh_if_old(self) -> None:
        """Look up soon if the last round began more than ``lookup_interval`` ago: its view is about to be used."""
        if self._loop.time() - self._begun_at > self._shortest:
            self.refresh_soon()

    def look_up_often(self, *, is_wanted: bool) -> None:
        """Look up often from now on, since something waits for a change; or no longer."""
        self._is_awaited = is_wanted
        self._sooner.set()

    async def next_round(self) -> None:
        """Wait for the end of a round that begins after this call, even if it gets no answer.

        A round takes at most about twice ``lookup_timeout``.

        Raises:
            ClosedError: The client was closed.

        If this is cancelled, the round continues for other callers.
        """
        target = self._begun + 1
        self.refresh_soon()
        while self._ended < target:
            await self.round_end()

    async def round_end(self) -> None:
        """Wait for the end of any round.

        Raises:
            ClosedError: The client was closed.
        """
        if self._closed is None:
            await self._round_ended.wait()
        if self._closed is not None:
            raise again(self._closed)

    def listen(self, callback: Listener) -> None:
        """Call ``callback`` with each changed view, but not with the current one."""
        self._listener = callback

    def end(self, cause: ClosedError) -> None:
        """Stop looking up, and fail all waiters with ``cause``."""
        self._closed = cause
        self._task.cancel()
        self._round_ended.set()
        if self.new_partitions is not None:
            self.new_partitions.cancel()

    async def ended(self) -> None:
        """Wait until nothing of it runs any more."""
        await asyncio.wait({self._task})
        if self.new_partitions is not None:
            await self.new_partitions.aclose()

    # ------------------------------------------------------------ rounds

    async def _keep(self) -> None:
        """Look up whenever a round is due."""
        while True:
            while (wait := self._until_due()) > 0:
                self._sooner.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._sooner.wait()
            async with self._engine.in_flight:
                await self._round()
            await asyncio.sleep(0)  # waiters whose condition is met leave first, and the pace depends on the others

    def _until_due(self) -> float:
        """Return the seconds until a round is due. Waiters may come and leave meanwhile, so ask again then."""
        now = self._loop.time()
        if self._is_demanded:
            if now - self._begun_at > 2 * SLOW_GAP:  # nobody has waited meanwhile
                self._streak = 0
            return self._begun_at + gap_after(self._streak, lambda: self._chance) - now
        return self._begun_at + interval_after(self._calm_rounds, self._shortest, self._chance) - now

    @property
    def _is_demanded(self) -> bool:
        return self._is_wanted or self._is_awaited or (self.view is not None and self.view.unsettled)

    async def _round(self) -> None:
        is_periodic, self._is_wanted = not self._is_demanded, False
        self._begun += 1
        self._begun_at = self._loop.time()
        self._chance = random.random()  # noqa: S311 - spreads load
        old = self.view
        try:
            await self._look_up()
        except (Exception, asyncio.CancelledError) as error:
            if not is_foreign(error):
                raise
            report_unexpected(_log, f"lookup of {self.topic}", error)
            self.view = old  # the client may not have taken the new one: the next round brings it again
            self.error = LookupUnavailableError(f"the lookup failed with an unexpected error: {error!r}")
        is_changed = self.view is not None and self.view != old
        is_calm = not is_changed and self.error is None and self.view is not None and self.view.complete
        self._streak = 0 if is_periodic or is_changed else self._streak + 1
        self._calm_rounds = self._calm_rounds + 1 if is_calm and is_periodic else 0
        self._end_round()

    async def _look_up(self) -> None:
        result = await self._engine.source.look_up(self.topic, self.access)
        old, self.error = self.view, result.error
        if result.answers:
            self.view, self._plain = merge_round(self.topic, old, self._plain, result.answers)
        if self.view is not None and self.view != old:
            self._use(self.view)
            self._report(old, self.view)

    def _end_round(self) -> None:
        """Keep since when each trouble has lasted, count the round, and wake those that wait for its end."""
        now, view, before = self._loop.time(), self.view, self.leaderless_since
        self._ended = self._begun
        self.failing_since = None if self.error is None else (self.failing_since or now)
        is_absent = view is None or not view.partition_num or (view.is_plain and not view.leaders)
        self.absent_since = (self.absent_since or now) if is_absent else None
        # An nsqd that leaves a plain cluster may have left for good.
        led = range(0 if view is None or is_absent or view.is_plain else view.partition_num)
        self.leaderless_since = {
            number: before.get(number, now) for number in led if view is not None and number not in view.leaders
        }
        if self._engine.source.urls:  # else the nodes are fixed, and no server was asked
            self._counts.lookups += 1
            self._counts.lookup_failures += self.error is not None
            self._counts.lookup_seconds += now - self._begun_at
        self._round_ended.set()
        self._round_ended.clear()

    def _use(self, view: TopicView) -> None:
        source = self._engine.source
        if self.new_partitions is None and not view.is_plain and isinstance(source, Servers):
            self.new_partitions = NewPartitions(self.topic, source, self.observer, channel=self._channel)
        if self.new_partitions is not None and not view.exists:
            self.new_partitions.forget()
        self._listener(view)

    def _report(self, old: TopicView | None, view: TopicView) -> None:
        log_changes(old, view)
        for partition, (before, after) in changed_leaders(old, view).items():
            self._counts.leader_changes += before is not None
            self.observer.event(
                LeaderChanged(
                    topic=self.topic,
                    channel=self._channel,
                    partition=partition,
                    before=None if before is None else before.address,
                    after=None if after is None else after.address,
                )
            )
        numbers = 0 if old is None else old.partition_num, view.partition_num
        if all(numbers) and numbers[0] != numbers[1] and not view.is_plain:
            self.observer.event(
                Repartitioned(topic=self.topic, channel=self._channel, before=numbers[0], after=numbers[1])
            )


def again(error: ClosedError) -> ClosedError:
    """Return a copy of ``error``, since an error raised to many waiters collects a traceback from each."""
    copy = ClosedError(*error.args)
    copy.__cause__ = error.__cause__
    return copy
