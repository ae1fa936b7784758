"""Moves bytes, time and results between callers, connections and the machine; decides nothing.

The invariants: a caller whose publish has ended is resumed before the next bytes are read; what all resumed callers
publish leaves in one write; the sockets are read before anything counts as late; and nothing that is raised in here
ends the producer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nsq_ha.base.resuming import detached, resume
from nsq_ha.base.tasks import Tasks
from nsq_ha.base.unexpected import report_unexpected
from nsq_ha.engine import observe
from nsq_ha.engine.connect_limiter import ConnectLimiter, ended
from nsq_ha.engine.connection import Callbacks, Connection
from nsq_ha.engine.lookups import Lookups
from nsq_ha.engine.loops import Alarm
from nsq_ha.errors import ClosedError, ConnectionLostError, NsqError
from nsq_ha.producer.actions import (
    Action,
    CheckChannels,
    CloseConnection,
    ForgetTopic,
    KeysMove,
    LookUp,
    OpenConnection,
    Report,
)
from nsq_ha.producer.machine import UNKNOWN_TOPIC_PATIENCE, ProducerMachine
from nsq_ha.producer.reasons import unknown
from nsq_ha.producer.reports import repartitioned, report
from nsq_ha.producer.requests import encode_run
from nsq_ha.producer.state import FIRST_PROBE, ConnectionStep, Lane, ProducerConn, ProducerTopic, PublishRequest
from nsq_ha.protocol.encoding import GATHERED_BYTES, encode_pub

if TYPE_CHECKING:
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.message import Receipt
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import TopicView

log: logging.Logger = logging.getLogger("nsq_ha.producer")


class ProducerShell:
    """The loop's side of one producer.

    Args:
        config: The producer's options.
        lookups: The producer's.
        observer: The producer's.

    Attributes:
        machine: The machine.
        loop: The producer's event loop.
        clock: The loop's.
        new_future: Creates the ticket of a publish.
        watches: The lookups of the topics in use.
        is_held: Whether callers are being resumed: what they publish is written after that.
        is_due: Whether :meth:`drain` is going to be called.
        is_closed: Whether nothing more ends.
    """

    def __init__(self, config: ProducerConfig, lookups: Lookups, observer: observe.Observer) -> None:
        self.machine: ProducerMachine = ProducerMachine(config, random.random)
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.clock: Callable[[], float] = self.loop.time
        self.new_future: Callable[[], asyncio.Future[Any]] = self.loop.create_future
        self.watches: dict[str, TopicWatch] = {}
        self.is_held: bool = False
        self.is_due: bool = False
        self.is_closed: bool = False
        self._config = config
        self._lookups = lookups
        self._limiter = ConnectLimiter()
        self._acts: dict[type[Action], Callable[..., object]] = {
            CheckChannels: self._check,
            CloseConnection: self._close,
            ForgetTopic: self._forget,
            LookUp: self._look_up,
            OpenConnection: self._open,
            KeysMove: repartitioned,
            Report: lambda *facts: report(observer, Report(*facts)),
        }
        self._tasks = Tasks(log)
        self._changed = asyncio.Event()
        self._alarm = Alarm(self._tick)

    # ------------------------------------------------------------ callers

    def use(self, name: str) -> ProducerTopic:
        """Return a topic; look it up from now on.

        Raises:
            ConfigError: The name is not valid.
            ClosedError: The lookups have ended.
        """
        topic = self.machine.topics.get(name) if type(name) is str else None
        if topic is None:
            watch = self.watches[name] = self._lookups.watch(name)
            topic = self.machine.topic(name, self.clock())
            watch.listen(partial(self._viewed, topic))
            if watch.view.is_answered:
                self._viewed(topic, watch.view)
        return topic

    def publish(self, request: PublishRequest) -> asyncio.Future[Any]:
        """Give a request to the machine; return its ticket, which :meth:`let_go` gives back."""
        request.ticket = ticket = self.new_future()
        if self.machine.publish(request, self.clock()):
            if not self.is_held:
                self.drain()
        elif not self.is_due:
            self.drain_soon()
        return ticket

    def let_go(self, request: PublishRequest) -> None:
        """Take that a caller has stopped waiting, for any reason."""
        ticket = request.ticket
        if not ticket.cancel() and not ticket.cancelled():
            ticket.exception()  # mark it as retrieved: the caller may be gone
        if not request.is_over:
            self.machine.cancel(request, self.clock())
            self.drain()

    async def ready(self, names: Sequence[str]) -> None:
        """Connect to the leaders of all partitions of these topics, and wait until this is done.

        Raises:
            TopicNotFoundError: No nsqlookupd of a partitioned cluster knows a topic.
            ClosedError: The producer was closed.
        """
        machine, began = self.machine, self.clock()
        topics = [self.use(name) for name in names]
        lanes: dict[ProducerTopic, list[Lane]] = {}
        for topic in topics:
            topic.callers += 1
        try:
            while not self.is_closed:
                self._changed.clear()
                machine.wake(began + UNKNOWN_TOPIC_PATIENCE)
                late = self.clock() - began >= UNKNOWN_TOPIC_PATIENCE
                for topic in topics:
                    if topic not in lanes and (found := machine.prepare(topic, self.clock())):
                        lanes[topic] = found
                    elif late and topic.is_unknown:
                        raise unknown(topic)
                    machine.look_up(topic)
                self.drain()
                if len(lanes) == len(topics) and all(lane.conn for each in lanes.values() for lane in each):
                    return
                await self._changed.wait()
            raise ClosedError("the producer was closed")
        finally:
            for topic in topics:
                topic.callers -= 1
                topic.used_at = self.clock()
                machine.prepared(lanes.get(topic, ()), self.clock())
            self.drain()

    # ------------------------------------------------------------ what the machine wants

    def drain_soon(self) -> None:
        """Call :meth:`drain` in this turn of the loop."""
        self.is_due = True
        self.loop.call_soon(self.drain)

    def drain(self) -> None:
        """Do all that the machine asks for."""
        machine = self.machine
        self.is_due = False
        while machine.dirty:
            now = self.clock()
            dirty, machine.dirty = machine.dirty, {}
            for lane in dirty:
                if lane.ready:
                    self._write(lane, now)
        if machine.finished or machine.actions:
            self._do()
        if machine.wake_at < self._alarm.at and not self.is_closed:  # else it would keep a closed producer in memory
            self._alarm.set(machine.wake_at)

    def _do(self) -> None:
        """Give callers their outcomes, and do what else there is."""
        machine = self.machine
        finished, machine.finished = machine.finished, []
        for request in finished:
            _settle(request)
        while machine.actions:
            action = machine.actions.pop(0)
            self._acts[type(action)](*action)
        self._changed.set()
        self.drain()

    def _write(self, lane: Lane, now: float) -> None:
        machine = self.machine
        while requests := machine.take(lane, now):
            conn: Any = lane.conn
            handle = conn.handle
            try:
                first, topic, number = requests[0], lane.topic.name, lane.number_on_wire
                if len(requests) == 1 and first.is_plain and first.body and first.size < GATHERED_BYTES:
                    data: bytes | list[bytes] = encode_pub(topic, number, first.body)
                else:
                    data = encode_run(topic, number, requests)
                has_space = handle.write_publishes(data, len(requests))
            except Exception as error:  # noqa: BLE001 - what was taken but not written would never be answered
                report_unexpected(log, conn.node.address, error)
                machine.drop(conn, ConnectionLostError(f"unexpected error while publishing: {error!r}"), now)
                return
            if not has_space:
                machine.full(conn, is_cut=sys.platform != "win32")
            if not lane.ready:
                return

    def _open(self, conn: ProducerConn) -> None:
        conn.handle = self._tasks.start(self._connect(conn), "nsq_ha producer connects")

    @staticmethod
    def _close(conn: ProducerConn, reason: NsqError) -> None:
        if isinstance(conn.handle, Connection):
            conn.handle.abort(reason)
        elif conn.handle is not None:
            conn.handle.cancel()

    def _forget(self, topic: ProducerTopic) -> None:
        if self.watches.pop(topic.name, None) is not None:
            self._lookups.unwatch(topic.name)

    def _look_up(self, topic: ProducerTopic, how: str) -> None:
        watch = self.watches.get(topic.name)
        if watch is None:
            return
        if how == "soon":
            watch.refresh_soon()
        elif how == "if old":
            watch.refresh_if_old()
        else:
            watch.look_up_often(is_wanted=how == "often")

    def _check(self, lane: Lane, conn: ProducerConn) -> None:
        watch = self.watches.get(lane.topic.name)
        new_partitions = None if watch is None else watch.new_partitions
        check = None if new_partitions is None else new_partitions.check(lane.number, conn.node, lane.topic.view)
        if new_partitions is None or check is None:
            self.machine.checked(lane, conn, None, self.clock())
            return

        async def passed() -> None:
            self._tell(self.machine.checked, lane, conn, await new_partitions.passed(check))

        self._tasks.start(passed(), "nsq_ha producer checks channels")

    # ------------------------------------------------------------ connections

    async def _connect(self, conn: ProducerConn) -> None:
        """Open a connection, in its turn."""
        machine = self.machine
        callbacks = Callbacks(
            partial(self._lost, conn),
            answers=partial(self._tell, machine.answered, conn),
            stored=partial(self._stored, conn),
            resumed=partial(self._resumed, conn),
        )
        failure: NsqError | None = ConnectionLostError("unexpected error while connecting")
        try:
            opening = partial(Connection.open, self._config, conn.node, callbacks)
            handle = await self._limiter.open(conn.node, conn.nsqd.limit, opening)
            if conn.step is ConnectionStep.CLOSED:
                handle.abort(ConnectionLostError("no longer needed"))
                return
            conn.handle, conn.lifetime = handle, handle.lifetime
            for request in machine.opened(conn, self.clock()):
                lane: Any = request.lane
                handle.write_publishes(encode_run(request.topic, lane.number_on_wire, [request]), 1)
            failure = None
        except NsqError as error:
            failure = error
        finally:
            if failure is not None:
                machine.drop(conn, failure, self.clock())
            self.drain()

    def _tell(self, machine: Callable[..., object], *facts: object) -> None:
        """Give the machine an input, and do what follows."""
        machine(*facts, self.clock())
        self.drain()

    def _stored(self, conn: ProducerConn, count: int) -> None:
        """Take answers that are all ``OK``; resume the callers, so that their next publishes leave in one write."""
        machine, loop = self.machine, self.loop
        machine.stored(conn, count, loop.time())
        finished, machine.finished = machine.finished, []
        may_resume = asyncio.current_task(loop) is None  # tasks cannot nest
        waiting = []
        for request in finished:
            ticket = request.ticket
            if may_resume and request.error is None and request.is_plain and not ticket.done():
                if (one := detached(ticket)) is not None:
                    waiting.append(one)
                ticket.set_result(request.receipts)
            else:
                _settle(request)
        self.is_held = True
        try:
            for one in waiting:
                resume(one)
        finally:
            self.is_held = False
        if machine.dirty or machine.actions or machine.finished or machine.wake_at < self._alarm.at:
            self.drain()

    def _lost(self, conn: ProducerConn, error: NsqError) -> None:
        if isinstance(conn.handle, Connection):
            ended(conn.handle, conn.nsqd.limit)
        self._tell(self.machine.closed, conn, error)

    def _resumed(self, conn: ProducerConn) -> None:
        self.machine.writable(conn)
        self.drain()

    # ------------------------------------------------------------ lookups and time

    def _viewed(self, topic: ProducerTopic, _: TopicView) -> None:
        self.machine.wake(self.clock() + FIRST_PROBE)  # an error ends this call, and a tick tries again
        self._ask_lookups(topic)
        self.drain()

    def _ask_lookups(self, topic: ProducerTopic) -> None:
        watch = self.watches.get(topic.name)
        if watch is not None:
            topic.lookup_error, topic.lookupds = watch.error, watch.lookupds
            if watch.view.is_answered and watch.view is not topic.view:
                self.machine.viewed(topic, watch.view, self.clock())

    def _tick(self, now: float) -> None:
        try:
            for topic in list(self.machine.topics.values()):
                if topic.waiting:
                    self._ask_lookups(topic)
            self.machine.tick(now)
        except Exception as error:  # noqa: BLE001 - a later one may work
            report_unexpected(log, "the producer's clock", error)
            self.machine.wake(now + FIRST_PROBE)
        self._changed.set()
        self.drain()

    # ------------------------------------------------------------ the end

    async def aclose(self, error: ClosedError) -> None:
        """Fail all that is pending, close all connections, and wait for their end. May be called again."""
        handles = [conn.handle for conn in self.machine.conns if isinstance(conn.handle, Connection)]
        self.machine.close(error)
        self.is_closed = True
        self.drain()
        self._alarm.cancel()
        self._changed.set()
        await self._tasks.close()
        for handle in handles:
            await handle.ended()


def _settle(request: PublishRequest) -> None:
    """Give the caller its outcome."""
    ticket: asyncio.Future[list[Receipt]] = request.ticket
    if request.error is None:
        if observe.watched.is_any and not request.is_plain and request.receipts:
            observe.published(request.topic, request.receipts, request.began_ns)
        if not ticket.done():
            ticket.set_result(request.receipts or [])
    elif not ticket.done():
        ticket.set_exception(request.error)
