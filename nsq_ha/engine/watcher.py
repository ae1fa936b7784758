"""Watch topics: look them up periodically and quickly on demand, shared by all callers.

This module decides when to look up, and reports changes. It knows neither the
nsqlookupds (``servers``) nor the rules of a view (``policy.topology``).

A topic is looked up periodically, as ``policy.lookup_pace`` says; on demand at once,
and then as ``policy.timing`` says while a caller waits for news.

Source: server failures 3.6, 4.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from nsq_ha.checks import check_topic
from nsq_ha.engine.counts import LookupCounts
from nsq_ha.engine.fixed import FixedNodes
from nsq_ha.errors import ClosedError, ConfigError, DiscoveryError, LookupUnavailableError
from nsq_ha.events import LeaderChanged, Repartitioned
from nsq_ha.observe import SILENT
from nsq_ha.policy.lookup_pace import LookupBudget, LookupPace, LookupsInFlight, Urgency, longest_interval
from nsq_ha.policy.plain_topology import PlainTopic, merge_round
from nsq_ha.policy.timing import gap_after
from nsq_ha.policy.topology import Node, TopicChange, TopicMeta, TopicView, difference
from nsq_ha.unexpected import log_traceback, report_unexpected

if TYPE_CHECKING:
    from nsq_ha.config import ClientConfig
    from nsq_ha.engine.engine import Engine
    from nsq_ha.engine.lookupd import Access
    from nsq_ha.engine.servers import Servers, Silence
    from nsq_ha.engine.siblings import Siblings
    from nsq_ha.observe import Observer
    from nsq_ha.policy.lookup_pace import Turn

_CALM: Final = 1.5
_CLOSE_LIMIT: Final = 1.0
"""Seconds that closing may take even if ``close_timeout`` is shorter; less could leave sockets open."""

_CLOSE_TURNS: Final = 64
"""Minimum turns of the event loop for closing. It needs 7 to 16 and waits for no server, so only a busy loop can delay
it."""

_log = logging.getLogger("nsq_ha.discovery")

Listener = Callable[[TopicView], None]
"""Called in the loop with each view that differs from the previous one."""


class TopicWatch:
    """Repeated lookups of one topic; create it with :meth:`Directory.watch`.

    Attributes:
        topic: The topic.
        observer: The client's; the parts that follow the watch report through it.
        view: The latest view of the topic. None until the first answer.
        rounds: Number of rounds that have ended.
        error: The error of the last round. None if it got an answer.
        failing_since: When the first of the last rounds without an answer ended, in the loop's time. None if the last
            one got an answer.
        absent_since: Since when no answer has named a partition, or an nsqd of a plain cluster. None if one did.
        leaderless_since: Since when partitions have had no leader; not of a plain cluster.
        siblings: Gives new partitions the channels of the others. None without nsqlookupds.
    """

    def __init__(
        self,
        topic: str,
        access: Access,
        servers: Servers | FixedNodes,
        config: ClientConfig,
        observer: Observer = SILENT,
        *,
        budget: LookupBudget | None = None,
        counts: LookupCounts | None = None,
        channel: str | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self.topic = topic
        self.siblings: Siblings | None = siblings
        self._channel = channel
        self.observer = observer
        self._counts = LookupCounts() if counts is None else counts
        self.view: TopicView | None = None
        self._plain = PlainTopic()
        self.rounds: int = 0
        self.error: DiscoveryError | None = None
        self.failing_since: float | None = None
        self.absent_since: float | None = None
        self.leaderless_since: dict[int, float] = {}
        self._access: Access = access
        self._servers = servers
        self._config = config
        shortest = config.lookup_interval
        longest = longest_interval(shortest, config.max_lookup_interval)
        self._pace = LookupPace(shortest, longest, config.lookup_jitter)
        self._budget = LookupBudget(shortest) if budget is None else budget
        self._listeners: list[Listener] = []
        self._begun = 0
        self._begun_at = float("-inf")
        self._streak = 0
        self._wanted = False
        self._waiting = 0
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._closed: ClosedError | None = None

    @property
    def lookupds(self) -> tuple[str, ...]:
        """Base URLs of all nsqlookupds in use."""
        return self._servers.urls

    @property
    def is_nowhere(self) -> bool:
        """Whether every nsqlookupd of a plain cluster answered that it does not know the topic."""
        view = self.view
        return view is not None and view.is_plain and not view.exists and set(self.lookupds) <= set(self._plain.answers)

    def refresh_soon(self) -> None:
        """Look up as soon as the pace allows; all requests until then share one round.

        A running round does not count, since it may have begun before the trouble.
        """
        self._pace.disturbed()
        self._wanted = True
        self._wake.set()

    def refresh_if_old(self) -> None:
        """Look up soon if the last round began more than ``lookup_interval`` ago, since its view is about to be used.

        This is no sign of trouble, so the interval of the periodic lookups stays.
        """
        if asyncio.get_running_loop().time() - self._begun_at > self._config.lookup_interval:
            self._wanted = True
            self._wake.set()

    async def next_round(self) -> None:
        """Wait for the end of a round that begins after this call, even if it gets no answer.

        A round takes at most about twice ``lookup_timeout``.

        Raises:
            ClosedError: The client was closed.

        If this is cancelled, the round continues for other callers.
        """
        target = self._begun + 1
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

    @contextlib.contextmanager
    def wanted(self) -> Iterator[None]:
        """Look up often while the block runs, since its code waits for a change."""
        self._pace.disturbed()
        self._waiting += 1
        self._wake.set()
        try:
            yield
        finally:
            self._waiting -= 1

    def add_listener(self, callback: Listener) -> None:
        """Call ``callback`` with each changed view, but not with the current one."""
        self._listeners.append(callback)

    def remove_listener(self, callback: Listener) -> None:
        """Stop calling ``callback``; an unknown one is ignored."""
        if callback in self._listeners:
            self._listeners.remove(callback)

    async def run(self) -> None:
        """Keep looking up until cancelled. The directory's task runs this."""
        try:
            while True:
                turn = await self._until_due()
                self._wanted = False
                self._begun += 1
                self._begun_at = asyncio.get_running_loop().time()
                try:
                    await self._round(demanded=turn.urgency is not Urgency.PERIODIC)
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and _is_asked_to_end():
                        raise
                    self._survive(error)
                finally:
                    self._budget.among.leave(turn)
                # Let waiters whose condition is met leave first: the pace depends on those that still wait.
                await asyncio.sleep(0)
        finally:
            if self.siblings is not None:
                await self.siblings.aclose()

    def end(self, cause: ClosedError) -> None:
        """Fail all waiters with ``cause``."""
        self._closed = cause
        self._ended.set()

    async def _next_end(self) -> None:
        if self._closed is None:
            await self._ended.wait()
        if self._closed is not None:
            raise _again(self._closed)

    async def _until_due(self) -> Turn:
        """Wait until the next round is due and the budget allows it; return its place among those in flight."""
        loop = asyncio.get_running_loop()
        chance = random.random()  # noqa: S311 - spreads load; one draw per round: a wakeup must not draw again
        slot: float | None = None  # of a periodic round
        turn: Turn | None = None
        try:
            while True:
                now = loop.time()
                urgency = self._urgency()
                demanded = urgency is not Urgency.PERIODIC
                if demanded and now - self._begun_at > _CALM:
                    self._streak = 0
                if turn is not None and turn.urgency is not urgency:
                    self._budget.among.leave(turn)
                    turn = None
                if slot is not None and demanded:
                    self._budget.give_back(slot)
                    slot = None
                gap = gap_after(self._streak, lambda: chance) if demanded else self._pace.gap(chance)
                due = self._begun_at + gap
                if now >= due and not demanded:
                    slot = due = self._budget.reserve(now) if slot is None else slot
                if now >= due:
                    turn = turn or self._budget.among.join(urgency, self._wake.set)
                    if turn.has_begun:
                        begun, turn, slot = turn, None, None  # they are used
                        return begun
                    due = math.inf
                self._wake.clear()
                # Waiters may have left meanwhile, so the due time is computed again after each wait.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due if due < math.inf else None):
                        await self._wake.wait()
        finally:
            if slot is not None:
                self._budget.give_back(slot)
            if turn is not None:
                self._budget.among.leave(turn)

    def _urgency(self) -> Urgency:
        if not (self._wanted or self._waiting > 0 or (self.view is not None and self.view.unsettled)):
            return Urgency.PERIODIC
        return Urgency.FIRST if self.view is None else Urgency.DEMANDED

    async def _round(self, *, demanded: bool) -> None:
        age = 0.0 if demanded else self._config.lookup_interval
        result = await self._servers.look_up(self.topic, self._access, max_age=age)
        if self.lookupds:  # else the nodes are fixed, and no server was asked
            took = asyncio.get_running_loop().time() - self._begun_at
            self._counts.round(took, has_failed=result.error is not None)
        old = self.view
        if result.answers:
            self.view, self._plain = merge_round(self.topic, old, self._plain, result.answers)
        if self.siblings is not None and self.view is not None and not self.view.exists:
            self.siblings.forget()
        self._report_error(result.error)
        self.error = result.error
        changed = self.view is not None and self.view != old
        self._streak = self._streak + 1 if demanded and not changed else 0
        is_whole = self.view is not None and self.view.complete
        self._pace.round_ended(is_calm=is_whole and not changed and result.error is None, on_demand=demanded)
        self._end_round()
        if changed and self.view is not None:
            try:
                self._report(old, self.view)
            finally:  # each view is reported to the listeners once
                self._tell(self.view)

    def _end_round(self) -> None:
        self.rounds = self._begun
        self._keep_times()
        ended, self._ended = self._ended, asyncio.Event()
        ended.set()

    def _keep_times(self) -> None:
        """Keep since when each trouble has lasted, after a round."""
        now, view, before = asyncio.get_running_loop().time(), self.view, self.leaderless_since
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

    def _tell(self, view: TopicView) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(view)
            except Exception as error:  # noqa: BLE001
                # An error in one listener must not stop the lookups.
                report_unexpected(_log, f"a listener for topic {self.topic}", error)

    def _report_error(self, error: DiscoveryError | None) -> None:
        if error is not None and self.error is None:
            # INFO, since each failing nsqlookupd was already reported, and others may know the topic.
            _log.info("topic %s: %s; using the leaders known so far", self.topic, error, extra={"topic": self.topic})
        elif error is None and self.error is not None:
            _log.info("topic %s: the lookup works again", self.topic, extra={"topic": self.topic})

    def _report(self, old: TopicView | None, new: TopicView) -> None:
        change = difference(old, new)
        self._counts.leader_changes += len(change.moved) + len(change.lost)
        self._report_events(change)
        if not _log.isEnabledFor(logging.INFO):
            return
        if new.is_plain:
            self._report_nodes(change)
            return
        if len(change.gained) == 1:
            [(partition, node)] = change.gained.items()
            self._say(partition, "is led by %s", node.address)
        elif change.gained:
            _log.info("topic %s: %s", self.topic, _leaders(change.gained), extra={"topic": self.topic})
        for partition, (before, after) in change.moved.items():
            self._say(partition, "is now led by %s, previously by %s", after.address, before.address)
        for partition, node in change.lost.items():
            self._say(partition, "has no leader, previously %s", node.address)
        if change.exists is False:
            _log.info("topic %s does not exist", self.topic, extra={"topic": self.topic})
        first, second = change.meta or (None, None)
        if first is not None and second is not None:
            _log.info("topic %s changed: %s", self.topic, _changes(first, second), extra={"topic": self.topic})

    def _report_events(self, change: TopicChange) -> None:
        topic, channel = self.topic, self._channel

        def report(partition: int, before: Node | None, after: Node | None) -> None:
            old, new = (None if node is None else node.address for node in (before, after))
            self.observer.event(LeaderChanged(topic=topic, channel=channel, partition=partition, before=old, after=new))

        for partition, node in change.gained.items():
            report(partition, None, node)
        for partition, (before, after) in change.moved.items():
            report(partition, before, after)
        for partition, node in change.lost.items():
            report(partition, node, None)
        first, second = change.meta or (None, None)
        if first is None or second is None or not second.is_partitioned:
            return
        if first.partition_num != second.partition_num:
            numbers = first.partition_num, second.partition_num
            self.observer.event(Repartitioned(topic=topic, channel=channel, before=numbers[0], after=numbers[1]))

    def _report_nodes(self, change: TopicChange) -> None:
        for text, nodes in (("is on nsqd %s", change.gained), ("is no longer listed for nsqd %s", change.lost)):
            for node in nodes.values():
                _log.info(
                    "topic %s " + text, self.topic, node.address, extra={"topic": self.topic, "nsqd": node.address}
                )

    def _say(self, partition: int, text: str, *nodes: str) -> None:
        extra = {"topic": self.topic, "partition": partition, "nsqd": nodes[0]}
        _log.info("%s-%d " + text, self.topic, partition, *nodes, extra=extra)


class Directory:
    """Finds the leaders of topics, for one producer or consumer.

    Args:
        config: Options; ``lookupd``, ``nsqd`` and ``lookup_*`` are used.
        access: ``w`` for publishing, ``r`` for consuming.
        observer: The client's.
        channel: The consumer's channel, for events. None for a producer.

    Attributes:
        counts: Counts of all lookups.

    Raises:
        ConfigError: No nsqlookupd is configured.
    """

    def __init__(
        self, config: ClientConfig, *, access: Access, observer: Observer = SILENT, channel: str | None = None
    ) -> None:
        if not config.lookupd and not config.nsqd:
            raise ConfigError("give lookupd=, the address of an nsqlookupd")
        self._config = config
        self.counts: LookupCounts = LookupCounts()
        self._observer = observer
        self._channel = channel
        self._access: Access = access
        self._engine: Engine | None = None
        self._servers: Servers | FixedNodes | None = None
        self._budget = LookupBudget(config.lookup_interval)
        self._siblings: Callable[[str], Siblings] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._watches: dict[str, TopicWatch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed: ClosedError | None = None
        self._closer: asyncio.Task[None] | None = None

    @property
    def lookupds(self) -> tuple[str, ...]:
        """Base URLs of all known nsqlookupds; before the start, the configured ones."""
        return self._config.lookupd if self._servers is None else self._servers.urls

    @property
    def silence(self) -> Silence | None:
        """Set while no nsqlookupd answers, as far as a client without topics knows. None with ``nsqd=``."""
        return None if self._servers is None or isinstance(self._servers, FixedNodes) else self._servers.silence

    async def start(self) -> None:
        """Start the lookups, after comparing the nsqlookupds if there are several. A second call does nothing.

        It waits for no server but for this, and then not long for one that hangs.

        Raises:
            ClosedError: It was closed.
            ConfigError: The nsqlookupds belong to several clusters.
        """
        if self._closed is not None:
            raise _again(self._closed)
        if self._supervisor is not None:
            return
        if self._config.nsqd:
            self._servers = FixedNodes(self._config.nsqd)
            # A lookup sends nothing.
            self._budget = LookupBudget(self._config.lookup_interval, math.inf, among=LookupsInFlight(math.inf))
        else:
            # Imported here: memory that clients with nsqd= need not pay for.
            from nsq_ha.engine.engine import Engine  # noqa: PLC0415
            from nsq_ha.engine.siblings import Siblings  # noqa: PLC0415

            self._engine = Engine.join(self._config, self._observer, self._died)
            self._servers = servers = self._engine.servers
            self._budget = LookupBudget(self._config.lookup_interval, among=self._engine.in_flight)
            self._siblings = lambda topic: Siblings(topic, servers, self._observer, channel=self._channel)
        ready = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise(ready), name="nsq_ha directory")
        await ready.wait()
        await self._servers.started()

    async def aclose(self) -> None:
        """End all watches and close the connections; a second call does nothing.

        This takes at most ``close_timeout``, or one second if that is longer. Callers that wait for a view get
        :class:`ClosedError`.

        If this is cancelled or late, a separate task continues; another call waits for it.
        """
        self._end(ClosedError("the client was closed"))
        if self._closer is None or self._closer.cancelled():
            self._closer = asyncio.create_task(self._close(), name="nsq_ha directory closes")
        limit = max(self._config.close_timeout, _CLOSE_LIMIT)
        await asyncio.wait({self._closer}, timeout=limit)
        for _ in range(_CLOSE_TURNS):
            if self._closer.done():
                return
            await asyncio.sleep(0)
        _log.warning("closing the lookups takes longer than %g s; it continues in the background", limit)

    async def _close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        if self._engine is not None:
            await self._engine.leave(self._died)

    def watch(self, topic: str) -> TopicWatch:
        """Return the watch of ``topic``; the first call starts its lookups.

        Raises:
            ConfigError: The name is not legal.
            ClosedError: It was not started, was closed, or its task died (``__cause__``).
        """
        known = self._watches.get(check_topic(topic))
        if known is not None and self._closed is None:
            return known
        if self._closed is not None or self._group is None or self._servers is None:
            raise (
                ClosedError("the lookups are not running: use the object with 'async with'")
                if self._closed is None
                else _again(self._closed)
            )
        watch = TopicWatch(
            topic,
            self._access,
            self._servers,
            self._config,
            self._observer,
            budget=self._budget,
            counts=self.counts,
            channel=self._channel,
            siblings=None if self._siblings is None else self._siblings(topic),
        )
        self._watches[topic] = watch
        self._servers.topics += 1
        self._tasks[topic] = self._group.create_task(watch.run(), name=f"watch {topic}")
        return watch

    def unwatch(self, topic: str) -> None:
        """Stop the lookups of ``topic``; an unknown one is ignored."""
        watch = self._watches.pop(topic, None)
        if watch is not None:
            self._leave_topics(1)
            watch.end(ClosedError(f"the lookups of topic {topic!r} were stopped"))
            self._tasks.pop(topic).cancel()

    async def _supervise(self, ready: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                ready.set()
                await asyncio.Event().wait()
        except Exception as error:  # noqa: BLE001
            # A watch handles all errors of servers, so this is a bug in this library: fail every caller.
            log_traceback(_log, "the lookups failed", error)
            self._died(error)

    def _died(self, error: Exception) -> None:
        closed = ClosedError("the lookups failed because of an internal error")
        closed.__cause__ = error
        self._end(closed)

    def _leave_topics(self, count: int) -> None:
        if self._servers is not None:
            self._servers.topics -= count

    def _end(self, cause: ClosedError) -> None:
        if self._closed is None:
            self._closed = cause
        for watch in self._watches.values():
            watch.end(cause)
        self._leave_topics(len(self._watches))
        self._watches.clear()
        self._tasks.clear()
        self._group = None


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


def _again(error: ClosedError) -> ClosedError:
    """Return a copy of ``error``, since an error raised to many waiters collects a traceback from each."""
    again = ClosedError(*error.args)
    again.__cause__ = error.__cause__
    return again


def _is_asked_to_end() -> bool:
    """Return whether this task is being cancelled. If not, a CancelledError comes from an awaited future."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _changes(before: TopicMeta, after: TopicMeta) -> str:
    """Return the settings that differ, as ``name old -> new``."""
    pairs = (
        (field.name, getattr(before, field.name), getattr(after, field.name)) for field in dataclasses.fields(after)
    )
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)
