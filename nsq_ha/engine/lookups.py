"""Look up the topics of one client periodically, and quickly on demand.

This module decides when to look up. It knows neither the nsqlookupds (``servers``) nor the rules of a view
(``policy.topology``). A client has a :class:`TopicWatch` for each of its topics.

A topic is looked up periodically, as ``policy.lookup_pace`` says; on demand at once, and then as ``policy.timing`` says
while a caller waits for news.

Source: server failures 3.6, 4.1.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from nsq_ha.base.unexpected import report_unexpected
from nsq_ha.engine.engine import Engine
from nsq_ha.engine.lookup_log import log_changes
from nsq_ha.engine.new_partitions import NewPartitions
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.engine.waiting import is_foreign, wait_until_set
from nsq_ha.errors import ClosedError, DiscoveryError, LookupUnavailableError
from nsq_ha.events import LeaderChanged, Repartitioned
from nsq_ha.options.checks import check_topic
from nsq_ha.policy.lookup_pace import interval_after
from nsq_ha.policy.plain_topology import merge_round
from nsq_ha.policy.timing import SLOW_GAP, gap_after
from nsq_ha.policy.topology import TopicView, changed_leaders, unanswered

if TYPE_CHECKING:
    from nsq_ha.engine.lookupd import Access
    from nsq_ha.engine.servers import LookupdOutage
    from nsq_ha.options.config import ClientConfig

_log = logging.getLogger("nsq_ha.discovery")

_CLOSED: Final = "the client was closed"

Listener = Callable[[TopicView], None]
"""Called in the loop with each view that differs from the previous one."""


class LookupCounts(msgspec.Struct):
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ProducerStats` with the same names."""

    lookups: int = 0
    lookup_failures: int = 0
    lookup_seconds: float = 0.0
    leader_changes: int = 0


class Lookups:
    """Finds the leaders of topics, for one producer or consumer.

    Args:
        config: Options of a client, with addresses; ``lookupd``, ``nsqd`` and ``lookup_*`` are used.
        access: ``w`` for publishing, ``r`` for consuming.
        observer: The client's.
        channel: The consumer's channel, for events. None for a producer.

    Attributes:
        config: As given.
        access: As given.
        observer: As given.
        channel: As given.
        counts: Counts of all lookups.
    """

    def __init__(
        self, config: ClientConfig, *, access: Access, observer: Observer = SILENT, channel: str | None = None
    ) -> None:
        self.config: ClientConfig = config
        self.access: Access = access
        self.observer: Observer = observer
        self.channel: str | None = channel
        self.counts: LookupCounts = LookupCounts()
        self._engine: Engine | None = None
        self._watches: dict[str, TopicWatch] = {}
        self._is_closed = False

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
        if self._is_closed:
            raise ClosedError(_CLOSED)
        if self._engine is None:
            self._engine = Engine.join(self.config, self.observer)
            if self._engine.servers is not None:
                await self._engine.servers.started()

    async def aclose(self) -> None:
        """End all watches and close the connections, in little more than a second; a second call does nothing.

        If this is cancelled, call it again.
        """
        self._is_closed = True
        watches = list(self._watches.values())
        for watch in watches:
            watch.end()
        await asyncio.gather(*(watch.ended() for watch in watches))
        self._watches.clear()
        if self._engine is not None:
            await self._engine.leave(self.observer)
            self._engine = None

    def watch(self, topic: str) -> TopicWatch:
        """Return the watch of ``topic``; the first call starts its lookups.

        Raises:
            ConfigError: The name is not valid.
            ClosedError: It was not started, or was closed.
        """
        check_topic(topic)
        if self._is_closed:
            raise ClosedError(_CLOSED)
        if self._engine is None:
            raise ClosedError("the lookups are not running: use the object with 'async with'")
        if topic not in self._watches:
            self._watches[topic] = TopicWatch(topic, self, self._engine)
        return self._watches[topic]

    def unwatch(self, topic: str) -> None:
        """Stop the lookups of ``topic``; an unknown one is ignored."""
        watch = self._watches.pop(topic, None)
        if watch is not None:
            watch.end()


class TopicWatch:
    """What one client knows of a topic, from repeated lookups. Create it with :meth:`Lookups.watch`.

    Args:
        topic: The topic.
        client: The lookups of its client.
        engine: What the lookups of all clients share.

    Attributes:
        topic: As given.
        observer: The client's; the parts that follow the watch report through it.
        new_partitions: Gives them the channels of the others. None for a plain cluster, and before the first view.
        view: The latest view of the topic.
        error: The error of the last round. None if it got an answer.
        failing_since: Since when rounds have got no answer, in the loop's time. None if the last one got one.
        absent_since: Since when no answer has named a partition, or an nsqd of a plain cluster. None if one did.
        leaderless_since: Since when partitions have had no leader; not of a plain cluster.
    """

    def __init__(self, topic: str, client: Lookups, engine: Engine) -> None:
        self.topic: str = topic
        self.observer: Observer = client.observer
        self.new_partitions: NewPartitions | None = None
        self.view: TopicView = unanswered(topic)
        self.error: DiscoveryError | None = None
        self.failing_since: float | None = None
        self.absent_since: float | None = None
        self.leaderless_since: Mapping[int, float] = {}
        self._client = client
        self._engine = engine
        self._shortest = client.config.lookup_interval
        self._listener: Listener = lambda _: None
        self._is_over = False
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

    @property
    def lookupds(self) -> tuple[str, ...]:
        """Base URLs of all nsqlookupds in use."""
        return self._engine.source.urls

    @property
    def is_nowhere(self) -> bool:
        """Whether every nsqlookupd of a plain cluster answered that it does not know the topic."""
        plain = self.view.plain
        return plain is not None and not self.view.exists and set(self.lookupds) <= set(plain.answers)

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
        """Wait for the end of a round that begins after this call, even if it gets no answer, or of the watch.

        A round takes at most about twice ``lookup_timeout``.

        If this is cancelled, the round continues for other callers.
        """
        target = self._begun + 1
        self.refresh_soon()
        while self._ended < target and not self._is_over:
            await self._round_ended.wait()

    def listen(self, callback: Listener) -> None:
        """Call ``callback`` with each changed view, but not with the current one."""
        self._listener = callback

    def end(self) -> None:
        """Stop looking up."""
        self._is_over = True
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
                await wait_until_set(self._sooner, wait)
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
        return self._is_wanted or self._is_awaited or self.view.unsettled

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
        is_changed = self.view != old
        is_calm = not is_changed and self.error is None and self.view.complete
        self._streak = 0 if is_periodic or is_changed else self._streak + 1
        self._calm_rounds = self._calm_rounds + 1 if is_calm and is_periodic else 0
        self._end_round()

    async def _look_up(self) -> None:
        result = await self._engine.source.look_up(self.topic, self._client.access)
        old, self.error = self.view, result.error
        if result.answers:
            self.view = merge_round(self.topic, old, result.answers)
        if self.view != old:
            self._use(self.view)
            self._report(old, self.view)

    def _end_round(self) -> None:
        """Keep since when each trouble has lasted, count the round, and wake those that wait for its end."""
        now, view, before = self._loop.time(), self.view, self.leaderless_since
        self._ended = self._begun
        self.failing_since = None if self.error is None else (self.failing_since or now)
        is_absent = not view.partition_num or (view.is_plain and not view.leaders)
        self.absent_since = (self.absent_since or now) if is_absent else None
        # An nsqd that leaves a plain cluster may have left for good.
        led = range(0 if view.is_plain else view.partition_num)
        self.leaderless_since = {number: before.get(number, now) for number in led if number not in view.leaders}
        if self._engine.source.urls:  # else the nodes are fixed, and no server was asked
            counts = self._client.counts
            counts.lookups += 1
            counts.lookup_failures += self.error is not None
            counts.lookup_seconds += now - self._begun_at
        self._round_ended.set()
        self._round_ended.clear()

    def _use(self, view: TopicView) -> None:
        servers = self._engine.servers
        if self.new_partitions is None and not view.is_plain and servers is not None:
            self.new_partitions = NewPartitions(self.topic, servers, self.observer, channel=self._client.channel)
        if self.new_partitions is not None and not view.exists:
            self.new_partitions.forget()
        self._listener(view)

    def _report(self, old: TopicView, view: TopicView) -> None:
        log_changes(old, view)
        topic, channel = self.topic, self._client.channel
        for partition, (before, after) in changed_leaders(old, view).items():
            self._client.counts.leader_changes += before is not None
            left, found = (None if node is None else node.address for node in (before, after))
            self.observer.event(
                LeaderChanged(topic=topic, channel=channel, partition=partition, before=left, after=found)
            )
        first, second = old.partition_num, view.partition_num
        if first and second and first != second and not view.is_plain:
            self.observer.event(Repartitioned(topic=topic, channel=channel, before=first, after=second))
