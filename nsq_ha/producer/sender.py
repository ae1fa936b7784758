"""One partition's lane, running over one connection at a time.

This module opens, closes and reopens the connection to the partition's leader.
``policy.lane`` decides which publish is next, retried or in doubt; ``discovery``
finds the leader.

The invariant: the lane's order of unanswered publishes is the order in which
they were written to the connection in use; those of the previous connection, if
there is one (``producer.connections``), are set apart.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import (
    ConnectError,
    ConnectionLostError,
    NsqError,
    RemoteProtocolError,
    ResponseTimeoutError,
    ServerError,
)
from nsq_ha.policy.answering import STALLED_AFTER, Answering, stalled_at, state_at
from nsq_ha.policy.backoff import delay_after
from nsq_ha.policy.lane import Lane
from nsq_ha.policy.tls_renewal import Act
from nsq_ha.producer.connections import Leader, OldConnections
from nsq_ha.producer.outcomes import OutageLog, Outcomes
from nsq_ha.producer.pending import PartitionBuffer
from nsq_ha.producer.requests import encode_run
from nsq_ha.producer.stall import RetryPause, StallDetector
from nsq_ha.protocol import refuses_publish
from nsq_ha.transport.connection import Callbacks, Connection
from nsq_ha.transport.opening import open_while
from nsq_ha.transport.pausing import is_foreign, pause
from nsq_ha.unexpected import report_unexpected

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.config import ProducerConfig
    from nsq_ha.discovery.watcher import TopicWatch
    from nsq_ha.policy.tls_renewal import Lifetime
    from nsq_ha.policy.topology import Node, TopicView
    from nsq_ha.producer.pending import PendingPublishes
    from nsq_ha.producer.requests import Request

log = logging.getLogger("nsq_ha.producer")

MOVE_GRACE: Final = 0.2
"""Seconds that the old leader has to answer what it was sent, once the look-up names another one."""
PROBE_INTERVAL: Final = 1.0
"""Seconds between two single publishes that try whether a partition in trouble answers again."""
_WRITE_CHUNK: Final = 64


class Sender:
    """Publishes to one partition. Run :meth:`run` as a task; it ends only when cancelled."""

    def __init__(
        self,
        watch: TopicWatch,
        partition: int,
        config: ProducerConfig,
        *,
        may_connect: Callable[[bool], bool],
        on_trouble: Callable[[Sender], None],
        pending: PendingPublishes,
    ) -> None:
        """Create it for one partition of the watched topic.

        Args:
            watch: Knows the leader.
            partition: The partition.
            config: Limits and back-off.
            may_connect: Returns whether one more connection may be opened; with True it makes room for it.
            on_trouble: Called when publishes without key should move to another partition.
            pending: The producer's pending publishes.
        """
        self.lane: Lane[Request] = Lane()
        self.buffer = PartitionBuffer(pending, submit=self.submit, give_up=self._give_up, expire=self._expire)
        self.partition = partition
        self.trouble: NsqError | None = None
        self.last_used = 0.0
        self.pump_is_due = False
        self._watch = watch
        self._config = config
        self._may_connect = may_connect
        self._on_trouble = on_trouble
        self._outcomes = Outcomes(self.lane, watch.topic, partition, pending, self.buffer)
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._connection: Connection | None = None
        self._leader = Leader(watch, partition)
        self._opening: Node | None = None
        self._work = asyncio.Event()
        self._wake = asyncio.Event()
        self._progress = False
        self._log = OutageLog(watch.topic, partition)
        self._current: object = None
        self._used_since = 0.0
        self._lost: NsqError | None = None
        self._retry_pause = RetryPause(config.backoff, self._kick)
        self._stall = StallDetector(self._stalled_at, self._stalled)
        self._answered_at = 0.0
        self._probe_at = 0.0
        self._leaving = False
        self._idle_asked = False
        self._old = OldConnections(
            self.lane,
            stored=self._were_stored_apart,
            answers=self._answers_apart,
            refusals=self._refusals_came,
            lost=self._apart_lost,
        )

    @property
    def is_connected(self) -> bool:
        """True while a connection to the leader is open."""
        return self._connection is not None

    @property
    def connections(self) -> int:
        """Number of open connections, replaced ones included."""
        return (self._connection is not None) + len(self._old)

    @property
    def load(self) -> int:
        """Publishes that wait here or are unanswered."""
        return self.lane.waiting + self.lane.unanswered

    @property
    def is_busy(self) -> bool:
        """Whether any publish is queued, waits for space, or is unanswered."""
        return self.load > 0 or bool(self.buffer.waiting) or self.buffer.held_bytes > 0

    def may_probe(self) -> bool:
        """Tell whether a single publish may try this partition, which is in trouble; True counts as that try."""
        now = self._clock()
        if self.load or now < self._probe_at:
            return False
        self._probe_at = now + PROBE_INTERVAL
        return True

    def take_movable(self) -> list[Request]:
        """Take out what may go to another partition: not written, or written to a leader that does not answer."""
        now, stalled_at = self._clock(), self._stalled_at()
        diverted = self.lane.divert(now - STALLED_AFTER) if stalled_at is not None and stalled_at <= now else []
        return [*diverted, *self.lane.withdraw()]

    def submit(self, entry: Request) -> None:
        """Queue a publish; it is written in this turn of the loop where that is possible."""
        self.lane.submit(entry)
        if not self.pump_is_due:
            self.write_soon()

    def write_soon(self) -> None:
        """Write what waits; at once where nothing is under way: a turn of the loop would only be a delay there."""
        if self._connection is not None and not self.lane.unanswered:
            self._pump()
        else:
            self._kick()

    def _give_up(self, request: Request) -> None:
        """Note that the caller does not wait any more."""
        self.lane.give_up(request)
        self._kick()

    def close_idle(self) -> bool:
        """Close the connection if nothing waits or is unanswered; tell whether it does."""
        if self._connection is None or self.load:
            return False
        self._idle_asked = True
        self._wake.set()
        return True

    def view_changed(self, view: TopicView) -> None:
        """Take note of another leader."""
        leader = view.leaders.get(self.partition)
        if leader is None:
            return
        # Also when it is the same: it may have been left out because it took no writes.
        self._retry_pause.end()
        current = self._connection.node if self._connection is not None else self._opening
        if leader != current:
            self._wake.set()

    async def run(self) -> None:
        """Keep the lane moving until cancelled; whatever the outside does is met here."""
        failures = 0
        try:
            while True:
                self._progress = False
                try:
                    in_trouble = await self._work_once()
                except (Exception, asyncio.CancelledError) as error:
                    if not is_foreign(error):
                        raise
                    in_trouble = True
                    self._survive(error)
                    self._wake.clear()  # no news may end this pause: what fails at once must not fail in a loop
                failures = 0 if self._progress else failures
                if in_trouble:
                    failures += 1
                    await self._pause(failures)
        finally:
            # Abort everything before the first wait: another cancellation may skip the waits.
            connection_left, reason = self._connection, ConnectionLostError("the producer was closed")
            self._leave(reason)
            self._old.drop(reason)
            if connection_left is not None:
                await connection_left.ended()
            await self._old.ended()

    async def _work_once(self) -> bool:
        """Wait for publishes, connect and write them until the connection must be closed; report failures."""
        self._work.clear()
        if not self.lane.waiting:
            await self._work.wait()
        try:
            connection = await self._open()
        except NsqError as error:
            self._note(error)
            return True
        return await self._serve(connection)

    def _survive(self, error: BaseException) -> None:
        """Report an unexpected error and close the connection; unanswered publishes are in doubt."""
        where = f"{self._watch.topic}-{self.partition}"
        report_unexpected(log, where, error)
        reason = ConnectionLostError(f"unexpected error while publishing: {error!r}")
        try:
            self._connection_lost(reason)
            self._note(reason)
        except Exception as again:  # noqa: BLE001 - whatever is broken: the next attempt may work
            report_unexpected(log, f"{where}, leaving its connection", again)

    async def _pause(self, failures: int) -> None:
        """Wait before the next try; a change of the leader ends the wait."""
        with self._watch.wanted():
            await pause(self._wake, delay_after(self._config.backoff, failures, random.random))

    async def _open(self) -> Connection:
        node = self._leader.node()
        if not self._may_connect(True):
            raise ConnectError(f"max_connections={self._config.max_connections} are open and none is idle: raise it")
        self._opening, self._lost = node, None
        self._current = token = object()
        try:
            return await open_while(
                self._config,
                node,
                self._callbacks(token),
                news=self._wake,
                is_wanted=lambda: not self._leader.differs(node),
            )
        except NsqError:
            if self._leader.differs(node):
                self._wake.set()  # the news that ended the attempt ends the pause after it, too
            raise
        finally:
            self._opening = None

    def _callbacks(self, token: object) -> Callbacks:
        def lost(reason: NsqError) -> None:
            # The end of a connection that was left comes while the next one is being made: it is not that one's.
            if token is self._current:
                self._connection_lost(reason)

        return Callbacks(lost, answers=self._answers, refusals=self._refusals_came, stored=self._were_stored)

    async def _serve(self, connection: Connection) -> bool:
        """Publish over ``connection`` until it is to be left; tell whether it ended in trouble."""
        if self._lost is not None:
            self._note(self._lost)
            return True
        self._leaving, self._idle_asked = False, False
        self._outcomes.connected(connection.node.address)
        self.trouble = None
        self._use(connection)
        while True:
            idle = self.last_used + self._config.idle_timeout - self._clock()
            await pause(self._wake, max(self._old.check_in(connection, idle), 0.01))
            if self._lost is not None:
                self._note(self._lost)
                return True
            if self._leader.differs(connection.node):
                log.info("leader of %s-%d moved from %s", self._watch.topic, self.partition, connection.node.address)
                await self._settle(self._clock() + MOVE_GRACE)
                self._leave(ConnectionLostError(f"left {connection.node.address}: another node leads now"))
                return False
            if not self.load and (self._idle_asked or self._clock() - self.last_used >= self._config.idle_timeout):
                self._leave(ConnectionLostError("closed after being idle"))
                return False
            act = self._old.act(connection, is_used=bool(self.load) or self.last_used >= self._used_since)
            if act is not Act.USE:
                following = await self._renew(connection, act)
                if following is None:
                    return bool(self.lane.waiting)
                connection = following
            if not self._leaving:
                self._pump()

    def _use(self, connection: Connection) -> None:
        """Write to ``connection`` from now on."""
        self._connection, self._used_since = connection, self._clock()
        connection.on_resume(self._kick)
        self._pump()

    async def _renew(self, connection: Connection, act: Act) -> Connection | None:
        """Do what is due with a connection that nsqd can write to for a limited time only.

        Returns:
            The connection in use now, or None.
        """
        lifetime = connection.lifetime
        if lifetime is None:
            return connection
        if act is Act.REPLACE:
            if self.lane.unanswered_apart:
                return connection  # its end comes first, and wakes this task
            if self._may_connect(False):
                return await self._replace(connection, lifetime)
        if act is not Act.CLOSE:
            await self._settle(lifetime.stale_at)
        is_in_doubt = self.lane.unanswered or self._retry_pause.refusals
        self._leave(ConnectionLostError(f"{connection.node.address} can no longer write to this connection"))
        if is_in_doubt:
            self._retry_pause.begin()  # one publish tests whether it answers, before all are written again
        return None

    async def _replace(self, old: Connection, lifetime: Lifetime) -> Connection:
        """Switch to another connection to the same nsqd, while answers still arrive over the old one."""
        token = object()
        try:
            connection = await open_while(
                self._config,
                old.node,
                self._callbacks(token),
                news=self._wake,
                is_wanted=lambda: self._connection is old and not self._leader.differs(old.node),
            )
        except NsqError as error:
            log.debug("%s-%d: the connection could not be replaced yet: %s", self._watch.topic, self.partition, error)
            await pause(self._wake, delay_after(self._config.backoff, 1, random.random))
            return old
        finally:
            self._wake.set()  # the attempt may have consumed news that its caller waits for
        if self._connection is not old or not connection.is_open:
            connection.abort(ConnectionLostError("no longer needed"))
            await connection.ended()
            return old
        self._old.retire(old, lifetime)
        self._current = token
        log.debug("%s-%d: opened another connection to %s", self._watch.topic, self.partition, old.node.address)
        self._use(connection)
        return connection

    async def _settle(self, deadline: float) -> None:
        """Write nothing more, and wait until the given time for outstanding answers."""
        self._leaving = True
        while self.lane.unanswered and self._lost is None and (left := deadline - self._clock()) > 0:
            await pause(self._wake, left)

    def _leave(self, reason: NsqError) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._retry_pause.end()
        self._retry_pause.refusals = 0
        self._stall.stop()
        self._current = None
        connection.abort(reason)
        self._old.forget(reason)
        for entry in self.lane.lost():
            if self._config.on_unreachable == "fail" and not entry.given_up:
                self._outcomes.give_up(entry, reason)  # its caller is told: another leader must not get it

    def _kick(self) -> None:
        if self._connection is None:
            self._work.set()
        elif not (self.pump_is_due or self._leaving):
            self.pump_is_due = True
            self._loop.call_soon(self._pump_when_due)

    def _pump_when_due(self) -> None:
        self.pump_is_due = False
        self._pump()

    def _pump(self) -> None:
        """Write what may be written now."""
        connection, lane = self._connection, self.lane
        if connection is None or not lane.waiting or self._leaving or self._retry_pause.is_on:
            return
        # After a refusal one publish probes the way for all.
        window = 1 if self._retry_pause.refusals else self._config.window
        try:
            topic, word, now = self._watch.topic, self._leader.word(), self._clock()
            while lane.waiting and connection.takes_more:
                entries = lane.take(now, min(window, lane.unanswered + _WRITE_CHUNK))
                if not entries:
                    break
                self.last_used = now
                connection.write_publishes(encode_run(topic, word, entries), len(entries))
        except Exception as error:  # noqa: BLE001 - publishes taken and not written would never be answered
            self._survive(error)
            return
        if not self._stall.is_watching and lane.unanswered:
            self._stall.watch()

    def _stalled_at(self) -> float | None:
        oldest = self.lane.oldest
        return None if oldest is None else stalled_at(oldest.sent_at, self._answered_at, oldest.size)

    def _stalled(self) -> None:
        if self._leave_when_overdue():
            return
        # It may be frozen, or wait for a follower that is; only the look-up and missing heartbeats tell. What is bound
        # to this partition stays unanswered: sent again to the same live leader it would be stored twice.
        self.trouble = ResponseTimeoutError(f"the leader has not answered for {STALLED_AFTER} s or more")
        self._log.failed(self._clock(), self.trouble)
        self._watch.refresh_soon()
        if self._config.on_unreachable == "retry":
            self._on_trouble(self)

    def _leave_when_overdue(self) -> bool:
        """Close the connection to a leader that has not answered for too long; return whether it was closed."""
        oldest, connection = self.lane.oldest, self._connection
        if oldest is None or connection is None:
            return False
        now = self._clock()
        if state_at(now, oldest.sent_at, self._answered_at, oldest.size) is not Answering.OVERDUE:
            return False
        waited = now - max(oldest.sent_at, self._answered_at)
        reason = ResponseTimeoutError(
            f"{connection.node.address} has answered no publish for {waited:.1f} s: closing its connection"
        )
        log.warning("%s-%d: %s", self._watch.topic, self.partition, reason)
        self._outcomes.fail_unanswered(reason)
        self._connection_lost(reason)
        return True

    def _were_stored(self, count: int) -> None:
        """Take a read that is nothing but ``OK``: so it is while nothing is wrong."""
        connection = self._connection
        if connection is None:
            return
        self._answered_at = self._clock()
        try:
            self._went_well(self._outcomes.all_stored(count))
        except RemoteProtocolError as error:
            connection.abort(error)
            return
        self._go_on(count)

    def _answers(self, answers: list[bytes | ServerError]) -> None:
        if self._connection is None:
            return
        self._answered_at = self._clock()
        self._answers_one_by_one(answers, self._connection)
        self._go_on(len(answers))

    def _were_stored_apart(self, count: int) -> None:
        """Handle ``OK`` answers from the previous connection."""
        if (connection := self._old.answering) is None:
            return
        self._answered_at = self._clock()
        try:
            self._went_well(self._outcomes.all_stored(count, apart=True))
        except RemoteProtocolError as error:
            connection.abort(error)
            return
        self._were_answered_apart(count)

    def _answers_apart(self, answers: list[bytes | ServerError]) -> None:
        """Handle other answers from the previous connection."""
        if (connection := self._old.answering) is None:
            return
        self._answered_at = self._clock()
        self._answers_one_by_one(answers, connection, apart=True)
        self._were_answered_apart(len(answers))

    def _were_answered_apart(self, count: int) -> None:
        if not self.lane.unanswered_apart:
            self._old.answered()
            self._wake.set()
        self._go_on(count)

    def _apart_lost(self, reason: NsqError) -> None:
        """Mark unanswered publishes of the previous connection as in doubt."""
        for entry in self.lane.lost(apart=True):
            if self._config.on_unreachable == "fail" and not entry.given_up:
                self._outcomes.give_up(entry, reason)
        self._retry_pause.begin()  # as in _renew
        self._note(reason)
        self._wake.set()

    def _go_on(self, count: int) -> None:
        """Write what waits, after ``count`` answers."""
        lane = self.lane
        if self._leaving:
            self._wake.set()
        elif lane.waiting and not lane.unanswered:
            self._pump()
        elif count > 1 or lane.waiting or lane.unanswered:
            # Behind those who were woken, in the same turn of the loop: what they publish next leaves in one write.
            self._kick()

    def _answers_one_by_one(
        self, answers: list[bytes | ServerError], connection: Connection, *, apart: bool = False
    ) -> None:
        for answer in answers:
            if connection is not (self._old.answering if apart else self._connection):
                return  # left in the middle of them
            if isinstance(answer, ServerError):
                self._refused(answer, apart=apart)
                continue
            try:
                self._went_well(self._outcomes.stored(answer, apart=apart))
            except RemoteProtocolError as error:
                connection.abort(error)
                return

    def _went_well(self, entry: Request) -> None:
        self._retry_pause.refusals = 0
        self._progress = True
        if self._log.is_on:
            self._log.recovered(self._answered_at)
        if self.trouble is not None and self._answered_at - entry.sent_at < STALLED_AFTER:
            self.trouble = None

    def _refused(self, error: ServerError, *, apart: bool = False) -> None:
        again = error.retriable and self._config.on_unreachable == "retry"
        entry = self.lane.refused(self._clock(), retry=again, apart=apart)
        is_understood = refuses_publish(error)
        if not is_understood:
            entry.maybe_stored = True
        if not again and not entry.is_ghost:
            self._outcomes.fail(entry, error)
        if error.retriable:
            self._retry_pause.begin()
            self._note(error)
        if entry.closes_when_refused:
            # The server reads the rest of the batch as commands: what it answers from now on belongs to nobody.
            self._end_of(RemoteProtocolError("closed after a refused MPUB_EXT"), apart=apart)
        elif not is_understood:
            # Answers carry no number, so nobody knows which publish the next one belongs to.
            reason = RemoteProtocolError(f"closed after an error that answers no publish: {error}")
            self._end_of(reason, apart=apart)

    def _note(self, error: NsqError) -> None:
        """Remember the trouble, look up, and let go of what may go elsewhere or must fail."""
        self.trouble = error
        self._log.failed(self._clock(), error)
        self._watch.refresh_soon()
        if self._config.on_unreachable == "fail" or not error.retriable:
            self._outcomes.fail_unwritten(error)
        else:
            self._on_trouble(self)

    def fail_all(self, error: NsqError) -> None:
        """Fail everything that is queued or unanswered here; what is unanswered may be stored."""
        self._outcomes.fail_all(error)

    def _expire(self, request: Request) -> None:
        """End one at its time limit."""
        if request.waits_for_room:
            trouble = "" if self.trouble is None else f" ({self.trouble})"
            full = f"{self._watch.topic}-{self.partition}: {self.buffer.full_reason(request.size)}{trouble}"
            self._outcomes.leave_buffer(request, ResponseTimeoutError(full))
            return
        self._outcomes.give_up(request, self.trouble or ResponseTimeoutError("the leader did not answer in time"))
        self._kick()

    def _refusals_came(self, refusals: list[ServerError]) -> None:
        """An error that answers nothing stands before a close; the close is reported next."""
        for refusal in refusals:
            log.debug("%s-%d: %s", self._watch.topic, self.partition, refusal)

    def _end_of(self, reason: NsqError, *, apart: bool) -> None:
        """Close the connection, or the previous one."""
        if not apart:
            self._connection_lost(reason)
            return
        if self._old.answering is not None:
            self._old.answering.abort(reason)
        self._old.forget(reason)
        self._apart_lost(reason)

    def _connection_lost(self, reason: NsqError) -> None:
        self._lost = reason
        self._leave(reason)
        self._wake.set()
