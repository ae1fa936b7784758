"""Write the publishes of one partition's lane, and process their answers.

``policy.lane`` decides which publish is next, retried or in doubt; ``engine.link``
opens, replaces and closes the connection to the leader.

The invariant: the lane's order of unanswered publishes is the order in which they
were written to the connection in use. Before another one replaces it, all of them
are answered or in doubt.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, ClassVar, Final

from nsq_ha.engine.connection import Callbacks, Connection
from nsq_ha.engine.fixed import explained
from nsq_ha.engine.link import Link, Role
from nsq_ha.engine.observe import PartitionReports
from nsq_ha.engine.shared import Connections, Share
from nsq_ha.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    NoLeaderError,
    NsqError,
    RemoteProtocolError,
    ResponseTimeoutError,
    ServerError,
)
from nsq_ha.policy.lane import Lane, Stage
from nsq_ha.policy.link_life import Life, LinkState
from nsq_ha.policy.liveness import ASKED_EVERY, STALLED_AFTER, Answering, stalled_at, state_at
from nsq_ha.policy.permission import RENEWABLE, renews
from nsq_ha.producer.outcomes import OutageLog, Outcomes, PublishCounts
from nsq_ha.producer.requests import encode_run
from nsq_ha.producer.stall import RetryPause, Silence
from nsq_ha.protocol.refusals import FINAL, refuses_publish

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import Node, TopicView
    from nsq_ha.producer.limits import PendingPublish, PendingPublishes

PROBE_INTERVAL: Final = 1.0
"""Seconds between two single publishes that probe whether a partition in trouble answers again."""
_REFRESHED_EVERY: Final = 1.0
"""Seconds between two lookups because of a leader that does not answer."""
_WRITE_CHUNK: Final = 64
_LARGE: Final = 64 * 1024
"""Bytes of a publish from which publishes are written one by one, so that a full socket has cut the last of them."""

_CLOSED: Final = "the producer was closed"

_ASK_GRACE: Final = 0.25
"""Seconds that a silent connection has to answer after all, once the leader has answered over another one."""


class Sender(Role["Connection | Share"]):
    """Publishes to one partition. Run :meth:`run` as a task; it ends only when cancelled.

    Args:
        watch: The lookups of the topic.
        partition: The partition.
        config: The producer's options.
        connections: The producer's connections.
        on_trouble: Called when publishes without a key should move to another partition.
        pending: Holds the pending publishes.

    Attributes:
        lane: The queued and unanswered publishes.
        link: The connection to the leader.
        partition: The partition.
        trouble: Why publishing to the partition fails. None if it works.
        counts: Counts of the partition's publishes.
        last_used: Time of the last write, in the loop's time.
    """

    doing: ClassVar[str] = "publishing"
    client: ClassVar[str] = "producer"
    needs_channels: ClassVar[bool] = True  # what is published before they exist is not delivered to them
    log: ClassVar[logging.Logger] = logging.getLogger("nsq_ha.producer")

    def __init__(
        self,
        watch: TopicWatch,
        partition: int,
        config: ProducerConfig,
        *,
        connections: Connections,
        on_trouble: Callable[[Sender], None],
        pending: PendingPublishes,
    ) -> None:
        self.lane: Lane[PendingPublish] = Lane()
        self.partition = partition
        self.trouble: NsqError | None = None
        self.last_used: float = 0.0
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._watch = watch
        self._config = config
        self._connections = connections
        reports = PartitionReports(watch.observer, watch.topic, None, partition)
        self._on_trouble = on_trouble
        self._outcomes = Outcomes(self.lane, watch.topic, partition, pending, name=watch.name_of(partition))
        self.counts: PublishCounts = self._outcomes.counts
        self._log = OutageLog(watch.topic, _number_for_commands(partition, watch.view), reports)
        self._retry_pause = RetryPause(config.backoff, self.kick)
        self._silence = Silence(self._stalled_at, self._stalled)
        self._pump_is_due = False
        self._probe_at = 0.0
        self._has_large = False  # whether a large publish may wait
        self._cut: PendingPublish | None = None  # the socket was full before its end
        self._used: Connection | None = None  # the connection that unanswered publishes were written to
        self._number: int | None = _number_for_commands(partition, watch.view)
        self._callers = 0  # of connect()
        self._is_trying = False
        self._slow: asyncio.TimerHandle | None = None
        self._connected = asyncio.Event()
        self.link: Link[Connection | Share] = Link(self, watch, partition, config.backoff, life=Life(), reports=reports)

    async def run(self) -> None:
        """Keep the lane moving until cancelled."""
        try:
            await self.link.run()
        finally:
            self._connected.set()

    @property
    def load(self) -> int:
        """Number of queued and unanswered publishes."""
        return self.lane.waiting + self.lane.unanswered

    @property
    def trouble_since(self) -> float | None:
        """When the failures began, in the loop's time. None if there are none."""
        return self._log.since

    def view_changed(self, view: TopicView) -> None:
        """Follow the leader that a new view names."""
        self._number = _number_for_commands(self.partition, view)
        leader = view.leaders.get(self.partition)
        if leader is not None:
            # Also if it is the same one: it may have been missing in the views because it accepted no writes.
            self._retry_pause.end()
            self.link.leads(leader)

    async def connect(self) -> None:
        """Connect though no publish waits, and wait until it is done; failed attempts are repeated.

        Raises:
            ClosedError: The producer was closed.
        """
        self._callers += 1
        self.link.need()
        try:
            await self._connected.wait()
        finally:
            self._callers -= 1
        if self.link.life.state is LinkState.ENDED:
            raise ClosedError(_CLOSED)

    def try_to_connect(self) -> None:
        """Connect once, though no publish waits, to learn whether the leader works again."""
        self._is_trying = True
        self.link.need()

    # ------------------------------------------------------------ writing

    def submit(self, request: PendingPublish) -> None:
        """Queue a publish and write it in this iteration of the event loop if possible."""
        request.holder = self
        self._has_large = self._has_large or request.size >= _LARGE
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
            self.link.need()
        elif self.link.life.may_write and not self._pump_is_due:
            self._pump_is_due = True
            self._loop.call_soon(self._pump_when_due)

    def _pump_when_due(self) -> None:
        self._pump_is_due = False
        self.pump()

    def _resumed(self) -> None:
        self._cut = None
        self.kick()

    def pump(self) -> None:
        """Write what may be written now."""
        link, lane = self.link, self.lane
        connection = link.connection
        if connection is None or not lane.waiting or not link.life.may_write or self._retry_pause.is_on:
            return
        if self._silence.is_doubted:
            return
        # After a refusal, a single publish probes first.
        window = 1 if self._retry_pause.refusals else self._config.window
        try:
            topic, number, now = self._watch.topic, self._number, self._clock()
            while lane.waiting and connection.takes_more:
                requests = lane.take(now, min(window, lane.unanswered + (1 if self._has_large else _WRITE_CHUNK)))
                if not requests:
                    break
                self.last_used = now
                connection.write_publishes(encode_run(topic, number, requests), len(requests))
                if connection.connection.has_cut:
                    self._cut = requests[-1]
            self._has_large = self._has_large and lane.waiting > 0
        except Exception as error:  # noqa: BLE001 - publishes taken but not written would never be answered
            link.survive(error)
            return
        if not self._silence.is_watching and lane.unanswered:
            self._silence.watch()

    # ------------------------------------------------------------ answers

    def _all_stored(self, count: int) -> None:
        """Take ``count`` answers that are all ``OK``, the usual case."""
        connection = self.link.connection
        if connection is None:
            return
        silence = self._silence
        silence.answered_at, silence.is_doubted = self._clock(), False
        is_due, self._pump_is_due = self._pump_is_due, True  # the callers' next publishes leave in one write, below
        try:
            self._recovered(self._outcomes.all_stored(count))
        except RemoteProtocolError as error:
            connection.abort(error)
            return
        finally:
            self._outcomes.resume()
            self._pump_is_due = is_due
        self._after_answers(count)

    def _answers(self, answers: list[bytes | ServerError]) -> None:
        """Take other answers, one by one."""
        connection = self.link.connection
        if connection is None:
            return
        self._silence.answered_at, self._silence.is_doubted = self._clock(), False
        for answer in answers:
            if connection is not self.link.connection:
                break  # closed because of an answer before this one
            if isinstance(answer, ServerError):
                self._refused(answer)
                continue
            try:
                self._recovered(self._outcomes.stored(answer))
            except RemoteProtocolError as error:
                connection.abort(error)
                break
        self._after_answers(len(answers))

    def _after_answers(self, count: int) -> None:
        """Write waiting publishes, after ``count`` answers."""
        link, lane = self.link, self.lane
        if not link.life.may_write:
            link.news.set()  # the end of the connection waits for answers
        elif lane.waiting:
            self.pump()
        elif count > 1 or lane.unanswered:
            # Run after the woken callers, in the same iteration of the event loop, so that their next publishes leave
            # in one write.
            self.kick()

    def _recovered(self, request: PendingPublish) -> None:
        """End the trouble: ``request`` was stored."""
        self._retry_pause.refusals = 0
        if self.link.life.failures:
            self.link.life.answered()
        if self._log.is_on:
            self._log.recovered(self._silence.answered_at, self._outcomes.nsqd)
        if self.trouble is not None and self._silence.answered_at - request.sent_at < STALLED_AFTER:
            self.trouble = None
            self._connections.suspects.works(self._outcomes.nsqd)

    def _refused(self, error: ServerError) -> None:
        self.link.refused(error)
        failures = self.link.life.failures
        renewing = renews(error.code, has_secret=self._config.auth_secret is not None, failures=failures)
        again = (error.retriable or renewing) and self._config.on_unreachable == "retry"
        request = self.lane.refused(self._clock(), retry=again, is_certain=error.code in FINAL)
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
            self.link.lost(RemoteProtocolError("closed the connection after a refused MPUB_EXT"))
        elif error.code in RENEWABLE:
            # nsqd closes the connection, too, but publishes written before that would be in doubt.
            self.link.lost(ConnectionLostError(f"closed the connection to renew its permissions: {error}"))
        elif not is_understood:
            # Answers have no number, so it is unknown which publish the next one belongs to.
            self.link.lost(
                RemoteProtocolError(f"closed the connection after an error that answers no publish: {error}")
            )

    # ------------------------------------------------------------ trouble

    def may_probe(self) -> bool:
        """Return whether a single publish may probe this partition, which is in trouble. True counts as a probe."""
        now = self._clock()
        if self.load or now < self._probe_at:
            return False
        self._probe_at = now + PROBE_INTERVAL
        return True

    def take_movable(self) -> list[PendingPublish]:
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
            self._outcomes.fail_all(error, written=False)
        else:
            self._on_trouble(self)

    def _stalled_at(self) -> float | None:
        oldest = self.lane.oldest
        return None if oldest is None else stalled_at(oldest.sent_at, self._heard_at(), oldest.size)

    def _heard_at(self) -> float:
        """Return when the leader last answered: over a shared connection, anybody's publish."""
        connection = self.link.connection
        return (
            max(self._silence.answered_at, connection.trunk.answered_at)
            if isinstance(connection, Share)
            else self._silence.answered_at
        )

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
            self.log.warning("%s: %s", self.link.name, reason)
            self._outcomes.fail_all(reason, written=True)
            self.link.lost(reason)
            self._retry_pause.begin()  # a single publish tests whether the leader answers
            return
        # The leader may be frozen, or wait for a frozen follower; only lookups and missing heartbeats can tell.
        # Publishes bound to this partition stay unanswered: all sent to the same live leader again, they would be
        # stored twice.
        self.trouble = ResponseTimeoutError(f"{self._leader_name()} has not answered for {STALLED_AFTER} s or more")
        self._log.failed(now, self.trouble)
        if connection.node.is_plain:
            self._connections.suspects.stalled(connection.node.address, now)
        if now >= self._silence.refresh_at:
            self._silence.refresh_at = now + _REFRESHED_EVERY
            self._watch.refresh_soon()
        if self._config.on_unreachable == "retry":
            self._on_trouble(self)
        if state is Answering.DOUBTED:
            self._doubt(reason)

    def _doubt(self, reason: NsqError) -> None:
        """Ask over another connection whether the leader answers, or just leave this one if nobody waits."""
        self._silence.is_doubted = True
        if not self.lane.is_awaited:
            self.link.give_up(reason)
            self._retry_pause.begin()
        elif self._config.on_unreachable == "retry":
            self._silence.is_question_due = True
            self.link.news.set()

    async def looked(self, connection: Connection | Share) -> None:
        """Write what may be written; if the leader is silent, ask it over another connection."""
        self.pump()
        must_ask, self._silence.is_question_due = self._silence.is_question_due, False
        if not must_ask or connection.lifetime is not None:
            return
        asked = connection.trunk if isinstance(connection, Share) else self._silence
        if self._clock() < asked.ask_at:
            return
        asked.ask_at = until = self._clock() + ASKED_EVERY
        try:
            if not await self._is_answered_elsewhere(connection, until):
                return
            until = self._clock() + _ASK_GRACE
            while self._is_asking(connection) and (left := until - self._clock()) > 0:
                await self.link.wait(left)
            if self._is_asking(connection):
                text = f"{connection.node.address} answers over another connection, but not over this one"
                self.log.warning("%s: closing a connection: %s", self.link.name, text)
                self.link.give_up(ResponseTimeoutError(text))
        except NsqError as error:
            self.log.debug("%s: the leader could not be asked: %s", self.link.name, error)
        finally:
            self.link.news.set()  # the waits may have consumed news that the link waits for

    def _is_asking(self, silent: Connection | Share) -> bool:
        """Return whether it is still unknown whether ``silent`` will ever answer."""
        link = self.link
        return link.connection is silent and self._silence.is_doubted and not link.is_moved(silent.node)

    async def _is_answered_elsewhere(self, silent: Connection | Share, until: float) -> bool:
        """Write an unanswered publish over another connection; return whether the leader stores publishes again."""
        answers: list[bytes | ServerError] = []
        link = self.link

        def took(given: list[bytes | ServerError]) -> None:
            answers.extend(given)
            link.news.set()

        other = await self._connections.open_own(
            silent.node,
            Callbacks(lambda _: link.news.set(), answers=took),
            news=link.news,
            is_wanted=lambda: self._is_asking(silent),
        )
        try:
            if not self._is_asking(silent) or (request := self.lane.ask_again()) is None:
                return False
            self.counts.retries += 1
            other.write_publishes(encode_run(self._watch.topic, self._number, [request]), 1)
            while not answers and other.is_open and self._is_asking(silent) and (left := until - self._clock()) > 0:
                await link.wait(left)
        finally:
            other.abort(ConnectionLostError("the question is over"))
            await other.ended()
        if not answers:
            return False
        answer = answers[0]
        if isinstance(answer, ServerError):
            return not answer.retriable
        try:
            self._outcomes.stored_elsewhere(request, answer)
        except RemoteProtocolError as error:
            self.log.debug("%s: %s", link.name, error)
            return False
        return True

    # ------------------------------------------------------------ the link's role

    @property
    def is_needed(self) -> bool:
        """Whether a publish or a caller of :meth:`connect` waits, or whether to try the leader."""
        return bool(self.lane.waiting or self._callers or self._is_trying)

    def leader(self) -> Node:
        """Return the node that accepts publishes."""
        view = self._watch.view
        # Not by view.publishable, which would be made for each of a thousand partitions.
        node = view.leaders.get(self.partition) if view is not None and self.partition < view.partition_num else None
        if node is None:
            if view is not None and view.is_plain and self.partition in view.last_known:
                address = view.last_known[self.partition].address
                raise NoLeaderError(
                    f"no nsqlookupd lists nsqd {address} for topic {self._watch.topic!r} now: it stopped, or has to"
                    " register again"
                )
            cause = "" if view is None else view.cause
            raise NoLeaderError(f"{self.link.name} has no leader that accepts writes now{cause}")
        return node

    async def open(
        self, node: Node, lost: Callable[[NsqError], None], is_wanted: Callable[[], bool]
    ) -> Connection | Share:
        """Open a connection, or join a shared one; if that takes long, move what may be published elsewhere."""
        if self._config.on_unreachable == "retry":
            self._slow = self._loop.call_later(STALLED_AFTER, self._connects_slowly, node)
        try:
            return await self._connections.open(
                node,
                Callbacks(lost, answers=self._answers, stored=self._all_stored),
                replaced=self.link.connection,
                news=self.link.news,
                is_wanted=is_wanted,
            )
        finally:
            if self._slow is not None:
                self._slow.cancel()

    def _connects_slowly(self, node: Node) -> None:
        """Move what may be published elsewhere: nsqd has been silent for too long, or an earlier failure delays it."""
        self._slow = self._loop.call_later(STALLED_AFTER, self._connects_slowly, node)
        if node.is_plain:
            self._connections.suspects.failed(node.address, self._clock())
        if self.load or self.trouble is None:
            text = f"{node.address} could not be connected to for {STALLED_AFTER} s or more"
            self.in_trouble(ConnectError(text))

    def connected(self, connection: Connection | Share, *, again: bool) -> None:
        """Record that the leader is connected."""
        self.log.info("%s: connected over %s", self.link.name, connection.name)
        self._outcomes.connected(connection.node.address)
        self.counts.reconnects += again
        if not self._retry_pause.refusals:  # else the next answer ends the trouble
            self.trouble = None

    def use(self, connection: Connection | Share) -> None:
        """Write to ``connection`` from now on."""
        if self._callers or self._is_trying:
            self.last_used = self._clock()  # or it would be closed at once as unused
        self._is_trying = False
        self._used, self._cut = connection.connection, None
        connection.on_resume(self._resumed)
        self._connected.set()
        self.pump()

    def was_used(self, since: float) -> bool:
        """Return whether publishes wait or are unanswered, or were written since a time of the loop."""
        return self.load > 0 or self.last_used >= since

    def look_in(self) -> float:
        """Return the seconds until the connection may be unused for long."""
        return self.last_used + self._config.idle_timeout - self._clock()

    def is_unused(self) -> bool:
        """Return whether no publish has been queued or unanswered for long."""
        return not self.load and self._clock() - self.last_used >= self._config.idle_timeout

    async def settle(self, connection: Connection | Share, until: float | None) -> None:
        """Wait for the answers to what was written."""
        end, link = math.inf if until is None else until, self.link
        while link.connection is connection and self.lane.unanswered and (left := end - self._clock()) > 0:
            await link.wait(left)

    def retired(self, connection: Connection | Share) -> bool:
        """Take back what the replaced connection has not answered in time; return whether it has answered all."""
        if not self.lane.unanswered:
            return True
        reason = ConnectionLostError(f"{connection.node.address} can no longer write to this connection")
        self._silence.stop()  # the doubt was about this connection
        self._take_back(reason)
        self._retry_pause.begin()  # a single publish tests whether the leader answers, before all are written again
        self.in_trouble(reason)
        return False

    def left(self, reason: NsqError, *, is_expired: bool) -> None:
        """Take back the unanswered publishes: the connection is closed."""
        must_probe = is_expired and bool(self.lane.unanswered or self._retry_pause.refusals)
        self._connected.clear()
        self._retry_pause.end()
        self._retry_pause.refusals = 0
        self._silence.stop()
        self._take_back(reason)
        if must_probe:  # a single publish tests whether nsqd answers, before all are written again
            self._retry_pause.begin()

    def failed(self, error: NsqError, node: Node | None) -> None:
        """Record a failure."""
        self._is_trying = False
        self.in_trouble(error)

    def _take_back(self, reason: NsqError) -> None:
        is_read = self._used is None or not self._used.reads_no_more
        for request in self.lane.lost(is_read=is_read, cut=self._cut):
            self._has_large = self._has_large or request.size >= _LARGE
            if request.given_up:
                continue
            if self._config.on_unreachable == "fail":
                self._outcomes.give_up(request, reason)  # do not send it to another leader
            else:
                self.counts.retries += 1

    # ------------------------------------------------------------ ends

    def fail_all(self, error: NsqError) -> None:
        """Fail all queued and unanswered publishes; unanswered ones may be stored."""
        self._outcomes.fail_all(error)

    def give_up(self, request: PendingPublish) -> None:
        """Record that the caller of a queued publish has stopped waiting."""
        self.lane.give_up(request)
        self.kick()

    def expire(self, request: PendingPublish) -> None:
        """Fail a publish whose time limit has passed."""
        self.counts.timed_out += request.count
        self._outcomes.give_up(request, self.trouble or ResponseTimeoutError(self._late(request)))
        self.kick()

    def _late(self, request: PendingPublish) -> str:
        life = self.link.life
        if request.stage is Stage.SENT:
            return f"{self._leader_name()} did not answer in time"
        if life.target is not None:
            return f"connecting to {life.target.address} was not complete in time"
        if life.node is None:
            return f"there was no connection to {self._leader_name()} in time"
        return f"the publish still waited behind earlier ones to {self._leader_name()}"

    def _leader_name(self) -> str:
        node = self.link.life.node
        name = "nsqd" if self._number is None else "the leader"
        return name if node is None else f"{name} {node.address}"


def _number_for_commands(partition: int, view: TopicView | None) -> int | None:
    """Return the partition for commands. None on servers without partitions: commands leave it out."""
    is_partitioned = view is None or view.meta is None or view.meta.is_partitioned
    return partition if is_partitioned else None
