"""Look up one topic periodically, and quickly on demand, for all clients of an engine that watch it.

This module decides when to look up. It knows neither the nsqlookupds (``servers``) nor the rules of a view
(``policy.topology``). Each client has a ``TopicWatch``; those of one topic and purpose share their
:class:`TopicLookups`, which the engine owns.

A topic is looked up periodically, as ``policy.lookup_pace`` says; on demand at once, and then as ``policy.timing`` says
while a caller waits for news.

Source: server failures 3.6, 4.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from nsq_ha.base.unexpected import report_unexpected
from nsq_ha.engine.lookup_log import log_changes
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.engine.servers import Servers
from nsq_ha.engine.siblings import Siblings
from nsq_ha.engine.waiting import is_foreign
from nsq_ha.errors import ClosedError, DiscoveryError, LookupUnavailableError
from nsq_ha.events import LeaderChanged, Repartitioned
from nsq_ha.policy.lookup_pace import interval_after
from nsq_ha.policy.plain_topology import PlainTopic, merge_round
from nsq_ha.policy.timing import gap_after
from nsq_ha.policy.topology import TopicView, changed_leaders

if TYPE_CHECKING:
    from nsq_ha.engine.fixed import FixedNodes
    from nsq_ha.engine.lookupd import Access

_PAUSED: Final = 1.5
"""Seconds without lookups after which those on demand are frequent again."""

_log = logging.getLogger("nsq_ha.discovery")


Listener = Callable[[TopicView], None]
"""Called in the loop with each view that differs from the previous one."""


class LookupCounts(msgspec.Struct):
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ProducerStats` with the same names."""

    lookups: int = 0
    lookup_failures: int = 0
    lookup_seconds: float = 0.0
    leader_changes: int = 0


class Shared(Protocol):
    """What the lookups of all topics share: the engine."""

    source: Servers | FixedNodes
    lookup_interval: float
    in_flight: asyncio.Semaphore

    @property
    def has_many_topics(self) -> bool:
        """Whether to ask a plain nsqlookupd for all nsqds and their topics instead of for each topic."""

    def slot(self, access: Access) -> float:
        """Return when the next periodic lookup of all topics may begin; the time belongs to the caller."""

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task."""


class TopicLookups:
    """Repeated lookups of one topic, for publishing or for consuming.

    Args:
        topic: The topic.
        access: ``w`` for publishing, ``r`` for consuming: nsqlookupds answer these differently.
        engine: What the lookups of all topics share.

    Attributes:
        source: Answers: the known nsqlookupds, or fixed nodes.
        watches: Those of the clients. Each gets the outcomes of the rounds that begin after it was added.
        view: The latest view of the topic. None until the first answer.
        plain: What is remembered of it if its cluster is a plain one.
        begun: Number of rounds that have begun.
        ended: Number of rounds that have ended.
        error: The error of the last round. None if it got an answer.
        failing_since: When the first of the last rounds without an answer ended, in the loop's time. None if the last
            one got an answer.
        absent_since: Since when no answer has named a partition, or an nsqd of a plain cluster. None if one did.
        leaderless_since: Since when partitions have had no leader; not of a plain cluster.
    """

    def __init__(self, topic: str, access: Access, engine: Shared) -> None:
        self.topic: str = topic
        self.source: Servers | FixedNodes = engine.source
        self.watches: list[TopicWatch] = []
        self.view: TopicView | None = None
        self.plain: PlainTopic = PlainTopic()
        self.begun: int = 0
        self.ended: int = 0
        self.error: DiscoveryError | None = None
        self.failing_since: float | None = None
        self.absent_since: float | None = None
        self.leaderless_since: dict[int, float] = {}
        self._access: Access = access
        self._engine = engine
        self._shortest = engine.lookup_interval
        self._loop = asyncio.get_running_loop()
        self._begun_at = float("-inf")
        self._chance = random.random()  # noqa: S311 - the same for all plans of a round: a timer must not draw again
        self._calm_rounds = 0
        self._streak = 0  # rounds on demand without news
        self._has_newcomer = self._is_wanted = False
        self._waiting = 0
        self._slot: float | None = None  # of the next periodic round
        self._round: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle | None = None

    def add(self, watch: TopicWatch) -> None:
        """Look up at once for a client that knows nothing of the topic yet.

        What others have found before may be older than what the client relies on: that a channel exists on all nsqds.
        """
        self.watches.append(watch)
        self._has_newcomer = True
        self._loop.call_soon(self._plan)

    def refresh_soon(self) -> None:
        """Look up as soon as the pace allows; all requests until then share one round.

        A running round does not count, since it may have begun before the trouble.
        """
        self._is_wanted = True
        self._plan()

    def refresh_if_old(self) -> None:
        """Look up soon if the last round began more than ``lookup_interval`` ago: its view is about to be used."""
        if self._loop.time() - self._begun_at > self._shortest:
            self.refresh_soon()

    @contextlib.contextmanager
    def wanted(self) -> Iterator[None]:
        """Look up often while the block runs, since its code waits for a change."""
        self._waiting += 1
        self._plan()
        try:
            yield
        finally:
            self._waiting -= 1

    def end(self) -> None:
        """Stop looking up."""
        for each in (self._round, self._timer):
            if each is not None:
                each.cancel()

    def _plan(self) -> None:
        """Begin a round if it is due; otherwise set a timer.

        Called whenever a round may be due sooner. Waiters may leave meanwhile, so the timer, too, ends in here.
        """
        if self._round is not None or not self.watches:
            return
        if self._timer is not None:
            self._timer.cancel()
        now, is_periodic = self._loop.time(), not self._is_demanded
        if is_periodic:
            due = self._begun_at + interval_after(self._calm_rounds, self._shortest, self._chance)
            if due <= now:
                self._slot = due = self._engine.slot(self._access) if self._slot is None else self._slot
        else:
            if now - self._begun_at > _PAUSED:
                self._streak = 0
            due = now if self._has_newcomer else self._begun_at + gap_after(self._streak, lambda: self._chance)
        if due <= now:
            self._round = self._engine.start(self._run(is_periodic=is_periodic), f"lookup of {self.topic}")
        else:
            self._timer = self._loop.call_at(due, self._plan)

    @property
    def _is_demanded(self) -> bool:
        is_unsettled = self.view is not None and self.view.unsettled
        return self._has_newcomer or self._is_wanted or self._waiting > 0 or is_unsettled

    async def _run(self, *, is_periodic: bool) -> None:
        try:
            async with self._engine.in_flight:
                self._has_newcomer = self._is_wanted = False
                if is_periodic:
                    self._slot = None  # it is used
                self.begun += 1
                self._begun_at = self._loop.time()
                await self._look_up(is_periodic=is_periodic)
        except BaseException as error:
            if not is_foreign(error):
                raise
            report_unexpected(_log, f"lookup of {self.topic}", error)
            self.error = LookupUnavailableError(f"the lookup failed with an unexpected error: {error!r}")
            self._streak, self._calm_rounds = self._streak + 1, 0
            self._end_round()
        finally:
            self._round = None
        self._chance = random.random()  # noqa: S311 - spreads load
        self._loop.call_soon(self._plan)  # not at once: waiters whose condition is met leave first

    async def _look_up(self, *, is_periodic: bool) -> None:
        age = (self._shortest if is_periodic else 0.0) if self._engine.has_many_topics else None
        result = await self.source.look_up(self.topic, self._access, max_age=age)
        old, failed = self.view, self.error is not None
        if result.answers:
            self.view, self.plain = merge_round(self.topic, old, self.plain, result.answers)
        self.error = result.error
        if result.error is not None and not failed:
            # INFO, since each failing nsqlookupd was already reported, and others may know the topic.
            text = "topic %s: %s; using the leaders known so far"
            _log.info(text, self.topic, result.error, extra={"topic": self.topic})
        elif result.error is None and failed:
            _log.info("topic %s: the lookup works again", self.topic, extra={"topic": self.topic})
        is_changed = self.view is not None and self.view != old
        is_calm = not is_changed and result.error is None and self.view is not None and self.view.complete
        self._streak = 0 if is_periodic or is_changed else self._streak + 1
        self._calm_rounds = self._calm_rounds + 1 if is_calm and is_periodic else 0
        if is_changed and self.view is not None:
            log_changes(old, self.view)
        self._end_round()

    def _end_round(self) -> None:
        """Keep since when each trouble has lasted, and report the round to the clients."""
        now, view, before = self._loop.time(), self.view, self.leaderless_since
        self.ended = self.begun
        self.failing_since = None if self.error is None else (self.failing_since or now)
        is_absent = view is None or not view.partition_num or (view.is_plain and not view.leaders)
        self.absent_since = (self.absent_since or now) if is_absent else None
        # An nsqd that leaves a plain cluster may have left for good.
        led = range(0 if view is None or is_absent or view.is_plain else view.partition_num)
        self.leaderless_since = {
            number: before.get(number, now) for number in led if view is not None and number not in view.leaders
        }
        for watch in tuple(self.watches):
            if watch.is_informed:
                watch.round_ended(now - self._begun_at)


class TopicWatch:
    """What one client knows of a topic: the outcomes of the rounds that began after it was created.

    Create it with :meth:`Lookups.watch`.

    Args:
        lookups: Of the topic.
        observer: The client's.
        counts: The client's.
        channel: The consumer's channel, for events. None for a producer.

    Attributes:
        topic: The topic.
        observer: The client's; the parts that follow the watch report through it.
        siblings: Gives new partitions the channels of the others. None for a plain cluster, and before the first view.
    """

    def __init__(
        self, lookups: TopicLookups, observer: Observer = SILENT, *, counts: LookupCounts, channel: str | None = None
    ) -> None:
        self.topic: str = lookups.topic
        self.observer: Observer = observer
        self.siblings: Siblings | None = None
        self._lookups = lookups
        self._first_round = lookups.begun + 1
        self._counts = counts
        self._channel = channel
        self._reported: TopicView | None = None
        self._listeners: list[Listener] = []
        self._ended = asyncio.Event()
        self._closed: ClosedError | None = None
        lookups.add(self)

    @property
    def is_informed(self) -> bool:
        """Whether a round that counts for this client has ended."""
        return self._lookups.ended >= self._first_round

    @property
    def view(self) -> TopicView | None:
        """The latest view of the topic. None until the first answer."""
        return self._lookups.view if self.is_informed else None

    @property
    def error(self) -> DiscoveryError | None:
        """The error of the last round. None if it got an answer."""
        return self._lookups.error if self.is_informed else None

    @property
    def failing_since(self) -> float | None:
        """Since when rounds have got no answer, in the loop's time. None if the last one got one."""
        return self._lookups.failing_since if self.is_informed else None

    @property
    def absent_since(self) -> float | None:
        """Since when no answer has named a partition, or an nsqd of a plain cluster. None if one did."""
        return self._lookups.absent_since if self.is_informed else None

    @property
    def leaderless_since(self) -> Mapping[int, float]:
        """Since when partitions have had no leader; not of a plain cluster."""
        return self._lookups.leaderless_since if self.is_informed else {}

    def name_of(self, partition: int) -> str:
        """Return how texts name a partition: ``orders-3``, or only the topic if the cluster has no partitions."""
        return f"{self.topic}-{partition}" if self.view is None else self.view.name_of(partition)

    @property
    def lookupds(self) -> tuple[str, ...]:
        """Base URLs of all nsqlookupds in use."""
        return self._lookups.source.urls

    @property
    def is_nowhere(self) -> bool:
        """Whether every nsqlookupd of a plain cluster answered that it does not know the topic."""
        view = self.view
        is_absent = view is not None and view.is_plain and not view.exists
        return is_absent and set(self.lookupds) <= set(self._lookups.plain.answers)

    def refresh_soon(self) -> None:
        """Look up as soon as the pace allows; all requests until then share one round.

        A running round does not count, since it may have begun before the trouble.
        """
        self._lookups.refresh_soon()

    def refresh_if_old(self) -> None:
        """Look up soon if the last round began more than ``lookup_interval`` ago: its view is about to be used."""
        self._lookups.refresh_if_old()

    def wanted(self) -> contextlib.AbstractContextManager[None]:
        """Look up often while the block runs, since its code waits for a change."""
        return self._lookups.wanted()

    async def next_round(self) -> None:
        """Wait for the end of a round that begins after this call, even if it gets no answer.

        A round takes at most about twice ``lookup_timeout``.

        Raises:
            ClosedError: The client was closed.

        If this is cancelled, the round continues for other callers.
        """
        target = self._lookups.begun + 1
        self.refresh_soon()
        while self._lookups.ended < target:
            await self._next_end()

    async def wait_until(self, predicate: Callable[[TopicView], bool]) -> TopicView:
        """Look up until ``predicate`` is true for the view, and return the view.

        There is no time limit.

        Raises:
            ClosedError: The client was closed.
        """
        with self.wanted():
            while (view := self.view) is None or not predicate(view):
                await self._next_end()
            return view

    def add_listener(self, callback: Listener) -> None:
        """Call ``callback`` with each changed view, but not with the current one."""
        self._listeners.append(callback)

    def round_ended(self, took: float) -> None:
        """Report the outcome of a round, which took so many seconds. The lookups call this."""
        source, old, view = self._lookups.source, self._reported, self.view
        if source.urls:  # else the nodes are fixed, and no server was asked
            self._counts.lookups += 1
            self._counts.lookup_failures += self.error is not None
            self._counts.lookup_seconds += took
        self._ended.set()
        if view is None:
            return
        if self.siblings is None and not view.is_plain and isinstance(source, Servers):
            self.siblings = Siblings(self.topic, source, self.observer, channel=self._channel)
        if self.siblings is not None and not view.exists:
            self.siblings.forget()
        if view != old:
            self._reported = view  # each view is reported once
            self._report(old, view)
            for listener in tuple(self._listeners):
                try:
                    listener(view)
                except Exception as error:  # noqa: BLE001 - an error in one listener must not stop the lookups
                    report_unexpected(_log, f"a listener for topic {self.topic}", error)

    def end(self, cause: ClosedError) -> None:
        """Leave the lookups, and fail all waiters with ``cause``."""
        self._closed = cause
        self._lookups.watches.remove(self)
        self._ended.set()
        if self.siblings is not None:
            self.siblings.cancel()

    async def _next_end(self) -> None:
        if self._closed is None:
            self._ended.clear()
            await self._ended.wait()
        if self._closed is not None:
            raise again(self._closed)

    def _report(self, old: TopicView | None, view: TopicView) -> None:
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
