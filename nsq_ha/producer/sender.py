"""Write the publishes of one partition's lane, and process their answers.

``policy.lane`` decides which publish is next, retried or in doubt;
``producer.link`` opens and closes the connection to the leader.

The invariant: the lane's order of unanswered publishes is the order in which
they were written to the current connection; those on the previous connection, if
there is one, are kept separately.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from nsq_ha.engine.fixed import explained
from nsq_ha.engine.shared import Share
from nsq_ha.errors import ConnectionLostError, NsqError, RemoteProtocolError, ResponseTimeoutError, ServerError
from nsq_ha.observe import PartitionReports
from nsq_ha.policy.lane import Lane
from nsq_ha.policy.liveness import STALLED_AFTER, Answering, stalled_at, state_at
from nsq_ha.policy.permission import RENEWABLE, renews
from nsq_ha.policy.sender_life import Act
from nsq_ha.producer.limits import PartitionBuffer
from nsq_ha.producer.link import Link
from nsq_ha.producer.outcomes import OutageLog, Outcomes
from nsq_ha.producer.requests import encode_run
from nsq_ha.producer.stall import RetryPause, StallDetector
from nsq_ha.protocol.exchange import refuses_publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.engine.shared import SharedConnections
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.connections import ConnectionLimit
    from nsq_ha.producer.limits import PendingPublishes, Request
    from nsq_ha.producer.outcomes import PublishCounts

log: logging.Logger = logging.getLogger("nsq_ha.producer")

PROBE_INTERVAL: Final = 1.0
"""Seconds between two single publishes that probe whether a partition in trouble answers again."""
_REFRESHED_EVERY: Final = 1.0
"""Seconds between two lookups because of a leader that does not answer."""
_WRITE_CHUNK: Final = 64


class Sender:
    """Publishes to one partition. Run :meth:`run` as a task; it ends only when cancelled.

    Args:
        watch: The lookups of the topic.
        partition: The partition.
        config: The producer's options.
        connections: The producer's limit of connections.
        shared: The producer's shared connections.
        on_trouble: Called when publishes without a key should move to another partition.
        pending: Holds the pending publishes.

    Attributes:
        lane: The queued and unanswered publishes.
        buffer: Their bytes, and the publishes that wait for room.
        link: The connection to the leader.
        partition: The partition.
        trouble: Why publishing to the partition fails. None if it works.
        counts: Counts of the partition's publishes.
        last_used: Time of the last write, in the loop's time.
        is_silent: Whether the connection was silent for so long that nothing more is written to it.
    """

    def __init__(
        self,
        watch: TopicWatch,
        partition: int,
        config: ProducerConfig,
        *,
        connections: ConnectionLimit,
        shared: SharedConnections,
        on_trouble: Callable[[Sender], None],
        pending: PendingPublishes,
    ) -> None:
        self.lane: Lane[Request] = Lane()
        self.buffer: PartitionBuffer = PartitionBuffer(
            pending, submit=self.submit, give_up=self._give_up, expire=self._expire
        )
        self.partition = partition
        self.trouble: NsqError | None = None
        self.last_used: float = 0.0
        self.is_silent: bool = False
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._watch = watch
        self._config = config
        self._reports = PartitionReports(watch.observer, watch.topic, None, partition)
        self._on_trouble = on_trouble
        self._outcomes = Outcomes(self.lane, watch.topic, partition, pending, self.buffer)
        self.counts: PublishCounts = self._outcomes.counts
        self._was_connected = False
        self._log = OutageLog(watch.topic, partition, self._reports)
        self._retry_pause = RetryPause(config.backoff, self.kick)
        self._stall = StallDetector(self._stalled_at, self._stalled)
        self._pump_is_due = False
        self._answered_at = 0.0
        self._refresh_at = 0.0
        self._probe_at = 0.0
        self.link: Link = Link(
            watch,
            partition,
            config,
            lane=self.lane,
            retry_pause=self._retry_pause,
            user=self,
            reports=self._reports,
            connections=connections,
            shared=shared,
        )

    async def run(self) -> None:
        """Keep the lane moving until cancelled."""
        await self.link.run()

    @property
    def load(self) -> int:
        """Number of queued and unanswered publishes."""
        return self.lane.waiting + self.lane.unanswered

    @property
    def is_busy(self) -> bool:
        """Whether a publish is queued, unanswered or waiting for space."""
        return self.load > 0 or bool(self.buffer.waiting) or self.buffer.held_bytes > 0

    @property
    def trouble_since(self) -> float | None:
        """When the failures began, in the loop's time. None if there are none."""
        return self._log.since

    def view_changed(self, view: TopicView) -> None:
        """Follow the leader that a new view names."""
        leader = view.leaders.get(self.partition)
        if leader is not None:
            # Also if it is the same one: it may have been missing in the views because it accepted no writes.
            self._retry_pause.end()
            self.link.leads(leader)

    # ------------------------------------------------------------ writing

    def submit(self, request: Request) -> None:
        """Queue a publish and write it in this iteration of the event loop if possible."""
        self.lane.submit(request)
        if self._pump_is_due:
            return
        if self.link.connection is not None and not self.lane.unanswered:
            self.pump()  # nothing is unanswered: waiting for more publishes would only be a delay
        else:
            self.kick()

    def kick(self) -> None:
        """Write soon; connect if there is no connection."""
        if self.link.connection is None:
            self.link.work()
        elif self.link.life.may_write and not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump_when_due)

    def _pump_when_due(self) -> None:
        self._pump_is_due = False
        self.pump()

    def pump(self) -> None:
        """Write what may be written now."""
        link, lane = self.link, self.lane
        connection = link.connection
        if connection is None or not lane.waiting or not link.life.may_write or self._retry_pause.is_on:
            return
        if self.is_silent:
            return
        # After a refusal, a single publish probes first.
        window = 1 if self._retry_pause.refusals else self._config.window
        try:
            topic, word, now = self._watch.topic, link.leader.word(), self._clock()
            while lane.waiting and connection.takes_more:
                requests = lane.take(now, min(window, lane.unanswered + _WRITE_CHUNK))
                if not requests:
                    break
                self.last_used = now
                connection.write_publishes(encode_run(topic, word, requests), len(requests))
        except Exception as error:  # noqa: BLE001 - publishes taken but not written would never be answered
            link.survive(error)
            return
        if not self._stall.is_watching and lane.unanswered:
            self._stall.watch()

    # ------------------------------------------------------------ answers

    def stored(self, count: int, *, apart: bool = False) -> None:
        """Take ``count`` answers that are all ``OK``, the usual case.

        Args:
            count: How many.
            apart: Whether they came over the previous connection.
        """
        connection = self.link.old.answering if apart else self.link.connection
        if connection is None:
            return
        self._answered_at, self.is_silent = self._clock(), False
        is_due, self._pump_is_due = self._pump_is_due, True  # the callers' next publishes leave in one write, below
        try:
            self._recovered(self._outcomes.all_stored(count, apart=apart))
        except RemoteProtocolError as error:
            connection.abort(error)
            return
        finally:
            self._outcomes.resume()
            self._pump_is_due = is_due
        self._after_answers(count, apart=apart)

    def answers(self, answers: list[bytes | ServerError], *, apart: bool = False) -> None:
        """Take other answers, one by one."""
        connection = self.link.old.answering if apart else self.link.connection
        if connection is None:
            return
        self._answered_at, self.is_silent = self._clock(), False
        for answer in answers:
            if connection is not (self.link.old.answering if apart else self.link.connection):
                break  # closed because of an answer before this one
            if isinstance(answer, ServerError):
                self._refused(answer, apart=apart)
                continue
            try:
                self._recovered(self._outcomes.stored(answer, apart=apart))
            except RemoteProtocolError as error:
                connection.abort(error)
                break
        self._after_answers(len(answers), apart=apart)

    def _after_answers(self, count: int, *, apart: bool) -> None:
        """Write waiting publishes, after ``count`` answers."""
        lane = self.lane
        if apart and not lane.unanswered_apart:
            self.link.old.answered()
            self.link.news()
        if self.link.life.act is Act.SETTLE:
            self.link.news()
        elif lane.waiting:
            self.pump()
        elif count > 1 or lane.unanswered:
            # Run after the woken callers, in the same iteration of the event loop, so that their next publishes leave
            # in one write.
            self.kick()

    def _recovered(self, request: Request) -> None:
        """End the trouble: ``request`` was stored."""
        self._retry_pause.refusals = 0
        self.link.life.answered()
        if self._log.is_on:
            self._log.recovered(self._answered_at)
        if self.trouble is not None and self._answered_at - request.sent_at < STALLED_AFTER:
            self.trouble = None

    def _refused(self, error: ServerError, *, apart: bool) -> None:
        self.link.refused(error)
        failures = self.link.life.failures
        renewing = renews(error.code, has_secret=self._config.auth_secret is not None, failures=failures)
        again = (error.retriable or renewing) and self._config.on_unreachable == "retry"
        request = self.lane.refused(self._clock(), retry=again, apart=apart)
        self.counts.retries += again and not request.given_up
        is_understood = refuses_publish(error)
        if not is_understood:
            request.maybe_stored = True
        if not again and not request.is_ghost:
            self._outcomes.fail(request, error)
        if error.retriable:
            self._retry_pause.begin()
            self.in_trouble(error)
        elif is_understood and error.code not in RENEWABLE:
            self.link.life.answered()  # the message is at fault, and nsqd may close the connection because of it
        if request.closes_when_refused:
            # The server reads the rest of the batch as commands: the next answers belong to no publish.
            self._close(RemoteProtocolError("closed the connection after a refused MPUB_EXT"), apart=apart)
        elif error.code in RENEWABLE:
            # nsqd closes the connection, too, but publishes written before that would be in doubt.
            self._close(ConnectionLostError(f"closed the connection to renew its permissions: {error}"), apart=apart)
        elif not is_understood:
            # Answers have no number, so it is unknown which publish the next one belongs to.
            self._close(
                RemoteProtocolError(f"closed the connection after an error that answers no publish: {error}"),
                apart=apart,
            )

    # ------------------------------------------------------------ trouble

    def may_probe(self) -> bool:
        """Return whether a single publish may probe this partition, which is in trouble. True counts as a probe."""
        now = self._clock()
        if self.load or now < self._probe_at:
            return False
        self._probe_at = now + PROBE_INTERVAL
        return True

    def take_movable(self) -> list[Request]:
        """Remove and return publishes that may move: not written, or written to a stalled leader."""
        now, limit = self._clock(), self._stalled_at()
        diverted = self.lane.divert(now - STALLED_AFTER) if limit is not None and limit <= now else []
        return [*diverted, *self.lane.withdraw()]

    def in_trouble(self, error: NsqError) -> None:
        """Record a failure, look up the leader if it may have moved, and move or fail publishes that need not wait."""
        before, is_stale = self.trouble, error.stale_leader
        if isinstance(error, ConnectionLostError) and isinstance(before, ServerError) and before.retriable:
            error = before  # nsqd closed the connection because of it
        elif self._config.nsqd:
            error = explained(error, self._watch.topic)
        self.trouble = error
        self._log.failed(self._clock(), error)
        if is_stale:
            self._watch.refresh_soon()
        if self._config.on_unreachable == "fail" or not error.retriable:
            self._outcomes.fail_unwritten(error)
        else:
            self._on_trouble(self)

    def _stalled_at(self) -> float | None:
        oldest = self.lane.oldest
        return None if oldest is None else stalled_at(oldest.sent_at, self._heard_at(), oldest.size)

    def _heard_at(self) -> float:
        """Return when the leader last answered: over a shared connection, anybody's publish."""
        connection = self.link.connection
        return max(self._answered_at, connection.answered_at) if isinstance(connection, Share) else self._answered_at

    def _stalled(self) -> None:
        oldest, connection, now = self.lane.oldest, self.link.connection, self._clock()
        if oldest is None or connection is None:
            return
        state = state_at(now, oldest.sent_at, self._heard_at(), oldest.size)
        waited = now - max(oldest.sent_at, self._heard_at())
        reason = ResponseTimeoutError(
            f"{connection.node.address} has answered no publish for {waited:.1f} s: closing its connection"
        )
        if state is Answering.OVERDUE:
            log.warning("%s: %s", self.link.name, reason)
            self._outcomes.fail_unanswered(reason)
            self.link.lost(reason)
            self._retry_pause.begin()  # a single publish tests whether the leader answers
            return
        # The leader may be frozen, or wait for a frozen follower; only lookups and missing heartbeats can tell.
        # Publishes bound to this partition stay unanswered: all sent to the same live leader again, they would be
        # stored twice.
        self.trouble = ResponseTimeoutError(f"{self._leader_name()} has not answered for {STALLED_AFTER} s or more")
        self._log.failed(now, self.trouble)
        if now >= self._refresh_at:
            self._refresh_at = now + _REFRESHED_EVERY
            self._watch.refresh_soon()
        if self._config.on_unreachable == "retry":
            self._on_trouble(self)
        if state is Answering.DOUBTED:
            self._doubt(reason)

    def _doubt(self, reason: NsqError) -> None:
        """Ask over another connection whether the leader answers, or just leave this one if nobody waits."""
        self.is_silent = True
        if not self.lane.is_awaited:
            self.link.abandon(reason)
            self._retry_pause.begin()
        elif self._config.on_unreachable == "retry":
            self.link.ask()

    def question(self) -> tuple[Request, bytes | list[bytes]] | None:
        """Return an unanswered publish and its bytes, to ask a silent leader with. None if nobody waits for one."""
        request = self.lane.ask_again()
        if request is None:
            return None
        self.counts.retries += 1
        return request, encode_run(self._watch.topic, self.link.leader.word(), [request])

    def answered(self, request: Request, answer: bytes | ServerError) -> bool:
        """Take the answer to a question; return whether the leader stores publishes again."""
        if isinstance(answer, ServerError):
            return not answer.retriable
        try:
            self._outcomes.stored_elsewhere(request, answer)
        except RemoteProtocolError as error:
            log.debug("%s: %s", self.link.name, error)
            return False
        return True

    # ------------------------------------------------------------ the connection's changes

    def connected(self, nsqd: str) -> None:
        """Record the address of the connected nsqd."""
        self._outcomes.connected(nsqd)
        self.counts.reconnects += self._was_connected
        self._was_connected = True
        if not self._retry_pause.refusals:  # else the next answer ends the trouble
            self.trouble = None

    def left(self, reason: NsqError) -> None:
        """Take back the unanswered publishes: the connection is closed."""
        self._retry_pause.end()
        self._retry_pause.refusals = 0
        self._stall.stop()
        self.is_silent = False
        self._take_back(reason, apart=False)

    def old_lost(self, reason: NsqError) -> None:
        """Take back the unanswered publishes on the previous connection, which is lost."""
        self._take_back(reason, apart=True)
        self._retry_pause.begin()  # a single publish tests whether the leader answers, before all are written again
        self.in_trouble(reason)
        self.link.news()

    def _take_back(self, reason: NsqError, *, apart: bool) -> None:
        for request in self.lane.lost(apart=apart):
            if request.given_up:
                continue
            if self._config.on_unreachable == "fail":
                self._outcomes.give_up(request, reason)  # do not send it to another leader
            else:
                self.counts.retries += 1

    def _close(self, reason: NsqError, *, apart: bool) -> None:
        """Close the connection, or the previous one."""
        if not apart:
            self.link.lost(reason)
            return
        if self.link.old.answering is not None:
            self.link.old.answering.abort(reason)
        self.link.old.forget(reason)
        self.old_lost(reason)

    # ------------------------------------------------------------ ends

    def fail_all(self, error: NsqError) -> None:
        """Fail all queued and unanswered publishes; unanswered ones may be stored."""
        self._outcomes.fail_all(error)

    def _give_up(self, request: Request) -> None:
        """Record that the caller of a queued publish has stopped waiting."""
        self.lane.give_up(request)
        self.kick()

    def _expire(self, request: Request) -> None:
        """Fail a publish whose time limit has passed."""
        self.counts.timed_out += request.count
        if request.waits_for_room:
            trouble = "" if self.trouble is None else f" ({self.trouble})"
            full = f"{self.link.name}: {self.buffer.full_reason(request.size)}{trouble}"
            self._outcomes.leave_buffer(request, ResponseTimeoutError(full))
            return
        self._outcomes.give_up(
            request, self.trouble or ResponseTimeoutError(f"{self._leader_name()} did not answer in time")
        )
        self.kick()

    def _leader_name(self) -> str:
        node = self.link.life.node
        return "the leader" if node is None else f"the leader {node.address}"
