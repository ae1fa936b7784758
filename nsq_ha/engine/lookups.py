"""Look up one topic periodically, and quickly on demand, for all clients of an engine that watch it.

This module decides when to look up, and reports what changes. It knows neither the nsqlookupds (``servers``) nor the
rules of a view (``policy.topology``). Each client has a :class:`TopicWatch`; those of one topic and purpose share their
:class:`TopicLookups`, which the engine owns.

A topic is looked up periodically, as ``policy.lookup_pace`` says; on demand at once, and then as ``policy.timing`` says
while a caller waits for news.

Source: server failures 3.6, 4.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nsq_ha.engine.servers import Servers
from nsq_ha.engine.siblings import Siblings
from nsq_ha.engine.waiting import is_foreign
from nsq_ha.errors import ClosedError, DiscoveryError, LookupUnavailableError
from nsq_ha.events import LeaderChanged, Repartitioned
from nsq_ha.observe import SILENT, Observer
from nsq_ha.policy.lookup_pace import LookupPace, LookupsInFlight, PendingLookup, Slots, Urgency, longest_interval
from nsq_ha.policy.plain_topology import PlainTopic, merge_round
from nsq_ha.policy.timing import gap_after
from nsq_ha.policy.topology import Node, TopicChange, TopicMeta, TopicView, difference
from nsq_ha.unexpected import report_unexpected

if TYPE_CHECKING:
    from nsq_ha.engine.fixed import FixedNodes
    from nsq_ha.engine.lookupd import Access
    from nsq_ha.options.config import ClientConfig

_CALM: Final = 1.5

_log = logging.getLogger("nsq_ha.discovery")


Listener = Callable[[TopicView], None]
"""Called in the loop with each view that differs from the previous one."""


class LookupCounts(msgspec.Struct):
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ProducerStats` with the same names."""

    lookups: int = 0
    lookup_failures: int = 0
    lookup_seconds: float = 0.0
    leader_changes: int = 0


class TopicLookups:
    """Repeated lookups of one topic, for publishing or for consuming.

    Args:
        topic: The topic.
        access: ``w`` for publishing, ``r`` for consuming: nsqlookupds answer these differently.
        source: Answers: the known nsqlookupds, or fixed nodes.
        config: Options; ``lookup_*`` are used.
        slots: Times at which periodic rounds may begin.
        in_flight: The lookups in flight.
        start: Starts a task.

    Attributes:
        watches: Those of the clients. Each gets the outcomes of the rounds that begin after it was added.
        view: The latest view of the topic. None until the first answer.
        plain: What is remembered of it if its cluster is a plain one.
        begun: Number of rounds that have begun.
        error: The error of the last round. None if it got an answer.
        failing_since: When the first of the last rounds without an answer ended, in the loop's time. None if the last
            one got an answer.
        absent_since: Since when no answer has named a partition, or an nsqd of a plain cluster. None if one did.
        leaderless_since: Since when partitions have had no leader; not of a plain cluster.
    """

    def __init__(
        self,
        topic: str,
        access: Access,
        source: Servers | FixedNodes,
        config: ClientConfig,
        *,
        slots: Slots,
        in_flight: LookupsInFlight,
        start: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        self.topic: str = topic
        self.access: Access = access
        self.source: Servers | FixedNodes = source
        self.watches: list[TopicWatch] = []
        self.view: TopicView | None = None
        self.plain: PlainTopic = PlainTopic()
        self.begun: int = 0
        self.error: DiscoveryError | None = None
        self.failing_since: float | None = None
        self.absent_since: float | None = None
        self.leaderless_since: dict[int, float] = {}
        self._interval = config.lookup_interval
        longest = longest_interval(self._interval, config.max_lookup_interval)
        self._pace = LookupPace(self._interval, longest, config.lookup_jitter)
        self._slots = slots
        self._in_flight = in_flight
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._begun_at = float("-inf")
        self._chance = _chance()
        self._streak = 0
        self._has_newcomer = False
        self._is_wanted = False
        self._waiting = 0
        self._round: asyncio.Task[None] | None = None
        self._slot: float | None = None  # of a periodic round
        self._pending: PendingLookup | None = None
        self._timer: asyncio.Handle | None = None

    def add(self, watch: TopicWatch) -> None:
        """Look up at once for a client that knows nothing of the topic yet.

        What others have found before may be older than what the client relies on: that a channel exists on all nsqds.
        """
        self.watches.append(watch)
        self._has_newcomer = True
        self._plan_soon()

    def refresh_soon(self) -> None:
        """Look up as soon as the pace allows; all requests until then share one round.

        A running round does not count, since it may have begun before the trouble.
        """
        self._pace.disturbed()
        self._is_wanted = True
        self._plan()

    def refresh_if_old(self) -> None:
        """Look up soon if the last round began more than ``lookup_interval`` ago, since its view is about to be used.

        This is no sign of trouble, so the interval of the periodic lookups stays.
        """
        if self._loop.time() - self._begun_at > self._interval:
            self._is_wanted = True
            self._plan()

    @contextlib.contextmanager
    def wanted(self) -> Iterator[None]:
        """Look up often while the block runs, since its code waits for a change."""
        self._pace.disturbed()
        self._waiting += 1
        self._plan()
        try:
            yield
        finally:
            self._waiting -= 1

    def end(self) -> None:
        """Stop looking up."""
        if self._round is not None:
            self._round.cancel()
        self._stop_timer()
        self._withdraw()

    def _plan(self) -> None:
        """Begin a round if it is due and others leave room; otherwise set a timer.

        Called whenever a round may be due sooner. Waiters may leave meanwhile, so the timer, too, ends in here.
        """
        if self._round is not None or not self.watches:
            return
        self._stop_timer()
        now = self._loop.time()
        urgency = self._urgency()
        is_demanded = urgency is not Urgency.PERIODIC
        if is_demanded and now - self._begun_at > _CALM:
            self._streak = 0
        if (self._pending is not None and self._pending.urgency is not urgency) or (
            self._slot is not None and is_demanded
        ):
            self._withdraw()
        gap = gap_after(self._streak, lambda: self._chance) if is_demanded else self._pace.gap(self._chance)
        due = now if self._has_newcomer else self._begun_at + gap
        if now >= due and not is_demanded:
            self._slot = due = self._slots.reserve(now) if self._slot is None else self._slot
        if now >= due:
            self._pending = self._pending or self._in_flight.join(urgency, self._plan_soon)
            if self._pending.has_begun:
                self._begin(now, is_demanded=is_demanded)
                return
            due = math.inf
        if due < math.inf:
            self._timer = self._loop.call_at(due, self._plan)

    def _plan_soon(self) -> None:
        self._stop_timer()
        self._timer = self._loop.call_soon(self._plan)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _withdraw(self) -> None:
        """Leave the lookups in flight or the queue, and the time of a periodic round, to others."""
        pending, self._pending = self._pending, None
        slot, self._slot = self._slot, None
        if pending is not None:
            self._in_flight.leave(pending)
        if slot is not None:
            self._slots.give_back(slot)

    def _begin(self, now: float, *, is_demanded: bool) -> None:
        self._slot = None  # it is used
        self._has_newcomer = self._is_wanted = False
        self.begun += 1
        self._begun_at = now
        self._round = self._start(self._run(is_demanded=is_demanded), f"lookup of {self.topic}")

    def _urgency(self) -> Urgency:
        if self._has_newcomer:
            return Urgency.FIRST
        if not (self._is_wanted or self._waiting > 0 or (self.view is not None and self.view.unsettled)):
            return Urgency.PERIODIC
        return Urgency.FIRST if self.view is None else Urgency.DEMANDED

    async def _run(self, *, is_demanded: bool) -> None:
        try:
            await self._look_up(is_demanded=is_demanded)
        except BaseException as error:
            if not is_foreign(error):
                raise
            self._survive(error)
        finally:
            self._round = None
            self._withdraw()
        self._chance = _chance()
        self._plan_soon()  # not at once: waiters whose condition is met leave first, and the pace depends on the others

    async def _look_up(self, *, is_demanded: bool) -> None:
        age = 0.0 if is_demanded else self._interval
        result = await self.source.look_up(self.topic, self.access, max_age=age)
        old = self.view
        if result.answers:
            self.view, self.plain = merge_round(self.topic, old, self.plain, result.answers)
        self._log_error(result.error)
        self.error = result.error
        is_changed = self.view is not None and self.view != old
        self._streak = self._streak + 1 if is_demanded and not is_changed else 0
        is_whole = self.view is not None and self.view.complete
        is_calm = is_whole and not is_changed and result.error is None
        self._pace.round_ended(is_calm=is_calm, on_demand=is_demanded)
        if is_changed and self.view is not None and _log.isEnabledFor(logging.INFO):
            _log_changes(old, self.view)
        self._end_round()

    def _end_round(self) -> None:
        self._keep_times()
        took = self._loop.time() - self._begun_at
        for watch in tuple(self.watches):
            if watch.first_round > self.begun:
                continue
            try:
                watch.round_ended(took)
            except Exception as error:  # noqa: BLE001 - the other clients go on
                report_unexpected(_log, f"watch of {self.topic}", error)

    def _keep_times(self) -> None:
        """Keep since when each trouble has lasted, after a round."""
        now, view, before = self._loop.time(), self.view, self.leaderless_since
        self.failing_since = None if self.error is None else (self.failing_since or now)
        partitions: Iterable[int] = ()
        if view is None or not view.partition_num or (view.is_plain and not view.leaders):
            self.absent_since = self.absent_since or now
        else:
            self.absent_since = None
            # An nsqd that leaves a plain cluster may have left for good.
            partitions = () if view.is_plain else range(view.partition_num)
        self.leaderless_since = {
            partition: before.get(partition, now)
            for partition in partitions
            if view is not None and partition not in view.leaders
        }

    def _survive(self, error: BaseException) -> None:
        """Count a round that ended with an unexpected error as one without an answer."""
        report_unexpected(_log, f"lookup of {self.topic}", error)
        self.error = LookupUnavailableError(f"the lookup failed with an unexpected error: {error!r}")
        self._streak += 1
        self._pace.disturbed()
        self._end_round()

    def _log_error(self, error: DiscoveryError | None) -> None:
        if error is not None and self.error is None:
            # INFO, since each failing nsqlookupd was already reported, and others may know the topic.
            _log.info("topic %s: %s; using the leaders known so far", self.topic, error, extra={"topic": self.topic})
        elif error is None and self.error is not None:
            _log.info("topic %s: the lookup works again", self.topic, extra={"topic": self.topic})


class TopicWatch:
    """What one client knows of a topic; create it with :meth:`Lookups.watch`.

    Args:
        lookups: Of the topic.
        observer: The client's.
        counts: The client's.
        channel: The consumer's channel, for events. None for a producer.

    Attributes:
        topic: The topic.
        observer: The client's; the parts that follow the watch report through it.
        view: The latest view of the topic. None until the first answer.
        rounds: Number of the last round that has ended.
        error: The error of that round. None if it got an answer.
        failing_since: When the first of the last rounds without an answer ended, in the loop's time. None if the last
            one got an answer.
        absent_since: Since when no answer has named a partition, or an nsqd of a plain cluster. None if one did.
        leaderless_since: Since when partitions have had no leader; not of a plain cluster.
        siblings: Gives new partitions the channels of the others. None for a plain cluster, and before the first view.
        first_round: Number of the first round that counts for this client.
    """

    def __init__(
        self,
        lookups: TopicLookups,
        observer: Observer = SILENT,
        *,
        counts: LookupCounts,
        channel: str | None = None,
    ) -> None:
        self.topic: str = lookups.topic
        self.observer: Observer = observer
        self.siblings: Siblings | None = None
        self.view: TopicView | None = None
        self.rounds: int = 0
        self.error: DiscoveryError | None = None
        self.failing_since: float | None = None
        self.absent_since: float | None = None
        self.leaderless_since: dict[int, float] = {}
        self._lookups = lookups
        self._counts = counts
        self._channel = channel
        self._listeners: list[Listener] = []
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._closed: ClosedError | None = None
        self.first_round: int = lookups.begun + 1
        lookups.add(self)

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
        return (
            view is not None
            and view.is_plain
            and not view.exists
            and set(self.lookupds) <= set(self._lookups.plain.answers)
        )

    def refresh_soon(self) -> None:
        """Look up as soon as the pace allows; all requests until then share one round.

        A running round does not count, since it may have begun before the trouble.
        """
        self._lookups.refresh_soon()

    def refresh_if_old(self) -> None:
        """Look up soon if the last round began more than ``lookup_interval`` ago, since its view is about to be used.

        This is no sign of trouble, so the interval of the periodic lookups stays.
        """
        self._lookups.refresh_if_old()

    async def next_round(self) -> None:
        """Wait for the end of a round that begins after this call, even if it gets no answer.

        A round takes at most about twice ``lookup_timeout``.

        Raises:
            ClosedError: The client was closed.

        If this is cancelled, the round continues for other callers.
        """
        target = self._lookups.begun + 1
        self.refresh_soon()
        while self.rounds < target:
            await self._next_end()

    async def wait_until(self, predicate: Callable[[TopicView], bool]) -> TopicView:
        """Look up until ``predicate`` is true for the view, and return the view.

        There is no time limit.

        Raises:
            ClosedError: The client was closed.
        """
        with self.wanted():
            while self.view is None or not predicate(self.view):
                await self._next_end()
            return self.view

    def wanted(self) -> contextlib.AbstractContextManager[None]:
        """Look up often while the block runs, since its code waits for a change."""
        return self._lookups.wanted()

    def add_listener(self, callback: Listener) -> None:
        """Call ``callback`` with each changed view, but not with the current one."""
        self._listeners.append(callback)

    def round_ended(self, took: float) -> None:
        """Take over the outcome of a round. The lookups call this.

        Args:
            took: Seconds from its beginning to its end.
        """
        if self.lookupds:  # else the nodes are fixed, and no server was asked
            self._counts.lookups += 1
            self._counts.lookup_failures += self._lookups.error is not None
            self._counts.lookup_seconds += took
        lookups, old = self._lookups, self.view
        self.rounds = lookups.begun
        self.view, self.error = lookups.view, lookups.error
        self.failing_since, self.absent_since = lookups.failing_since, lookups.absent_since
        self.leaderless_since = lookups.leaderless_since
        self._wake()
        if self.view is None:
            return
        source = lookups.source
        if self.siblings is None and not self.view.is_plain and isinstance(source, Servers):
            self.siblings = Siblings(self.topic, source, self.observer, channel=self._channel)
        if self.siblings is not None and not self.view.exists:
            self.siblings.forget()
        if self.view != old:
            try:
                self._report(difference(old, self.view))
            finally:  # each view is reported to the listeners once
                self._tell(self.view)

    def end(self, cause: ClosedError) -> None:
        """Leave the lookups, and fail all waiters with ``cause``."""
        self._closed = cause
        self._lookups.watches.remove(self)
        self._wake()

    async def _next_end(self) -> None:
        if self._closed is None:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting[waiting] = None
            try:
                await waiting
            finally:
                del self._waiting[waiting]
        if self._closed is not None:
            raise again(self._closed)

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def _tell(self, view: TopicView) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(view)
            except Exception as error:  # noqa: BLE001
                # An error in one listener must not stop the lookups.
                report_unexpected(_log, f"a listener for topic {self.topic}", error)

    def _report(self, change: TopicChange) -> None:
        self._counts.leader_changes += len(change.moved) + len(change.lost)
        for partition, node in change.gained.items():
            self._report_leader(partition, None, node)
        for partition, (before, after) in change.moved.items():
            self._report_leader(partition, before, after)
        for partition, node in change.lost.items():
            self._report_leader(partition, node, None)
        first, second = change.meta or (None, None)
        if first is None or second is None or not second.is_partitioned:
            return
        if first.partition_num != second.partition_num:
            self.observer.event(
                Repartitioned(
                    topic=self.topic, channel=self._channel, before=first.partition_num, after=second.partition_num
                )
            )

    def _report_leader(self, partition: int, before: Node | None, after: Node | None) -> None:
        old, new = (None if node is None else node.address for node in (before, after))
        self.observer.event(
            LeaderChanged(topic=self.topic, channel=self._channel, partition=partition, before=old, after=new)
        )


def again(error: ClosedError) -> ClosedError:
    """Return a copy of ``error``, since an error raised to many waiters collects a traceback from each."""
    copy = ClosedError(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def _chance() -> float:
    """Return a random number, the same for all plans of a round: a timer that ends must not draw again."""
    return random.random()  # noqa: S311 - spreads load


_OWN_LINES: Final = 8
"""Partitions of one change that have a line each; more share one, as an nsqlookupd may name 1,024 again and again."""


def _log_changes(old: TopicView | None, new: TopicView) -> None:
    topic, change = new.topic, difference(old, new)
    if new.is_plain:
        _log_nsqds(topic, change)
        return
    _log_leaders(topic, change)
    if change.exists is False:
        _log.info("topic %s does not exist", topic, extra={"topic": topic})
    first, second = change.meta or (None, None)
    if first is not None and second is not None:
        _log.info("topic %s changed: %s", topic, _differences(first, second), extra={"topic": topic})


def _log_nsqds(topic: str, change: TopicChange) -> None:
    for text, nodes in (("is on %s", change.gained), ("is no longer listed for %s", change.lost)):
        if len(nodes) > _OWN_LINES:
            _log.info("topic %s " + text, topic, f"{len(nodes)} nsqds", extra={"topic": topic})
            continue
        for node in nodes.values():
            _log.info("topic %s " + text, topic, f"nsqd {node.address}", extra={"topic": topic, "nsqd": node.address})


def _log_leaders(topic: str, change: TopicChange) -> None:
    if len(change.gained) == 1:
        [(partition, node)] = change.gained.items()
        _log_leader(topic, partition, "is led by %s", node.address)
    elif change.gained:
        _log.info("topic %s: %s", topic, _leaders(change.gained), extra={"topic": topic})
    if len(change.moved) > _OWN_LINES:
        led = _leaders({partition: after for partition, (_, after) in change.moved.items()})
        _log.info("topic %s: %s now, and others before", topic, led, extra={"topic": topic})
    else:
        for partition, (before, after) in change.moved.items():
            _log_leader(topic, partition, "is now led by %s, previously by %s", after.address, before.address)
    if len(change.lost) > _OWN_LINES:
        _log.info("topic %s: no leader of %s any more", topic, numbered(sorted(change.lost)), extra={"topic": topic})
    else:
        for partition, node in change.lost.items():
            _log_leader(topic, partition, "has no leader, previously %s", node.address)


def _log_leader(topic: str, partition: int, text: str, *nodes: str) -> None:
    extra = {"topic": topic, "partition": partition, "nsqd": nodes[0]}
    _log.info("%s-%d " + text, topic, partition, *nodes, extra=extra)


def _leaders(gained: Mapping[int, Node]) -> str:
    """Return the leaders of several partitions as one line: there may be hundreds."""
    partitions: dict[str, list[int]] = {}
    for partition, node in sorted(gained.items()):
        partitions.setdefault(node.address, []).append(partition)
    return "; ".join(f"{address} leads {numbered(numbers)}" for address, numbers in partitions.items())


def numbered(numbers: list[int]) -> str:
    """Return ascending numbers of partitions as text, those in a row as a range."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    texts = (f"{each[0]}-{each[-1]}" if len(each) > 2 else ", ".join(map(str, each)) for each in ranges)
    return f"partition{'s' if len(numbers) > 1 else ''} {', '.join(texts)}"


def _differences(before: TopicMeta, after: TopicMeta) -> str:
    """Return the settings that differ, as ``name old -> new``."""
    pairs = (
        (field.name, getattr(before, field.name), getattr(after, field.name)) for field in dataclasses.fields(after)
    )
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)
