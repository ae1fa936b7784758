"""All decisions of a producer. No I/O, no clock, no chance.

Inputs are method calls with the time. Outputs are four attributes that the owner drains after each input:

* ``dirty``: lanes that may be written; call :meth:`ProducerMachine.take` for each.
* ``finished``: requests that have ended.
* ``actions``: what else to do, see ``producer.actions``.
* ``wake_at``: when to call :meth:`ProducerMachine.tick`.

It is one object in three parts, each of which knows those before it: ``producer.lanes`` says where a publish goes and
when it ends, ``producer.connections`` when a connection is opened and left, and what follows if no answer comes. This
module writes, takes answers, and follows the lookups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from nsq_ha.errors import ConnectionLostError, NsqError, RemoteProtocolError, ServerError
from nsq_ha.message import Receipt
from nsq_ha.policy.growth import PartitionCount
from nsq_ha.policy.liveness import PROMPT_REFUSAL, STALLED_AFTER
from nsq_ha.policy.lookup_pace import partition_delay
from nsq_ha.policy.permission import RENEWABLE, renews
from nsq_ha.policy.timing import FIRST_WARNING
from nsq_ha.policy.topology import TopicView, unanswered
from nsq_ha.producer.actions import CloseConnection, ForgetTopic, KeysMove, Report
from nsq_ha.producer.connections import Connections
from nsq_ha.producer.reasons import unknown
from nsq_ha.producer.state import ConnectionStep, Lane, ProducerConn, ProducerTopic, PublishRequest
from nsq_ha.protocol.frames import OK
from nsq_ha.protocol.refusals import FINAL, refuses_publish

_CHUNK: Final = 64
"""Most publishes of one write."""

_LARGE: Final = 64 * 1024
"""Bytes of a publish after which a write ends, so that a full socket has cut the last one of it."""

UNKNOWN_TOPIC_PATIENCE: Final = 3.0
"""Seconds for which an unseen topic of a partitioned cluster may be unknown to all nsqlookupds before a publish fails:
a second nsqlookupd learns of a new topic up to 3 s late. A plain nsqlookupd knows only the nsqds that have registered
since it started, so there a publish waits until its own limit."""


class ProducerMachine(Connections):
    """The machine of one producer."""

    # ------------------------------------------------------------ topics, and lookups

    def topic(self, name: str, now: float) -> ProducerTopic:
        """Return a topic that is published to from now on; :meth:`viewed` says what is known of it."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = ProducerTopic(name, now, unanswered(name))
            self.wake(now + UNKNOWN_TOPIC_PATIENCE)
        return topic

    def viewed(self, topic: ProducerTopic, view: TopicView, now: float) -> None:
        """Take the newest view of a topic."""
        topic.view, topic.names_partitions = view, view.partition_num > 0
        self._count(topic, view, now)
        for lane in topic.lanes.values():
            if lane.number not in view.leaders:
                lane.node = None  # missing is not gone: its connection stays in use
        for number, node in view.leaders.items():
            if number < view.partition_num:
                self.lead(topic.lane(number), node, now)
        self._route(topic)
        self.wake(now)
        if self._retries:
            for lane in list(topic.lanes.values()):
                if lane.trouble is not None:
                    self.move(lane, now)
        self.admit(topic, now)
        self.look_up(topic)

    def _count(self, topic: ProducerTopic, view: TopicView, now: float) -> None:
        """Take the number of partitions in a view."""
        if view.meta is None:
            if not view.exists:  # a topic that is created again is a new one: nothing in it can be out of order
                topic.count = PartitionCount()
            return
        topic.was_known = True
        delay = partition_delay(self._config.lookup_interval) if view.meta.is_partitioned else 0.0
        topic.count.found(view.meta.partition_num, now, delay)
        if not topic.count.used:
            topic.count.take(now)

    def _route(self, topic: ProducerTopic) -> None:
        """Find the partitions that publishes without a key may go to."""
        view = topic.view
        if view.meta is None:
            topic.routes = []
        else:
            # Connections to nsqds of a plain cluster stay in use when no nsqlookupd lists one.
            open_to = view.publishable or (view.known if view.is_plain else {})
            topic.routes = [topic.lane(number) for number in sorted(open_to) if number < topic.count.used]
            by_load = self._config.strategy == "least_loaded"
            topic.by_load = by_load or (not view.meta.is_partitioned and len(topic.routes) > 1)
        self.choose_path(topic)

    def prepare(self, topic: ProducerTopic, now: float) -> list[Lane]:
        """Connect to the leaders of all partitions, though nothing is published; none if they are not known yet.

        The owner calls :meth:`prepared` when its caller waits no more.
        """
        view = topic.view
        if not topic.names_partitions:
            return []
        # The nsqds of a plain cluster may have left for good.
        is_partitioned = view.meta is None or view.meta.is_partitioned
        lanes = [topic.lane(number) for number in (range(view.partition_num) if is_partitioned else view.publishable)]
        for lane in lanes:
            lane.callers += 1
            self.connect(lane, now)
        return lanes

    def prepared(self, lanes: Sequence[Lane], now: float) -> None:
        """Take that a caller of :meth:`prepare` waits no more."""
        for lane in lanes:
            lane.callers -= 1
        self.wake(now)

    # ------------------------------------------------------------ writing

    def take(self, lane: Lane, now: float) -> list[PublishRequest]:
        """Return the requests of a lane to write now to its connection, in this order; the owner writes them."""
        conn, ready = lane.conn, lane.ready
        if conn is None or not ready or now < lane.paused_until:
            return []
        sent = conn.sent
        # After a refusal, a single publish probes first.
        room = (1 if lane.refusals else self._config.window) - len(sent)
        if room <= 0 or conn.is_doubted or conn.is_full or conn.is_draining:
            conn.starved[lane] = None
            return []
        if not sent:
            conn.since = now
            self.wake_at = min(self.wake_at, now + STALLED_AFTER)
        taken = []
        for request in ready:
            request.conn, request.sent_at = conn, now
            request.attempts += 1
            taken.append(request)
            if len(taken) == room or len(taken) == _CHUNK or request.size >= _LARGE:
                break
        for request in taken:
            del ready[request]
        sent += taken
        conn.last_used = lane.last_used = now
        return taken

    def full(self, conn: ProducerConn, *, is_cut: bool) -> None:
        """Take that the socket has no space; perhaps the last write was not sent to its end."""
        conn.is_full = True
        conn.cut = conn.sent[-1] if is_cut and conn.sent else None
        conn.starved.update(dict.fromkeys(lane for lane in conn.lanes if lane.ready))

    def writable(self, conn: ProducerConn) -> None:
        """Take that the socket has space again."""
        conn.is_full, conn.cut = False, None
        self._feed(conn)

    def _feed(self, conn: ProducerConn) -> None:
        self.dirty.update(conn.starved)
        conn.starved.clear()

    # ------------------------------------------------------------ answers

    def stored(self, conn: ProducerConn, count: int, now: float) -> None:
        """Take ``count`` answers that are all ``OK``, the usual case."""
        sent, finished = conn.sent, self.finished
        for _ in range(count):
            request = sent.popleft()
            if request.conn is conn and request.is_plain and request.attempts == 1 and not request.is_over:
                lane: Lane = request.lane  # type: ignore[assignment]  # it was written
                request.receipts = lane.plain_receipts if request.count == 1 else lane.plain_receipts * request.count
                request.is_over, request.conn = True, None
                del self.pending[request.limit][request]
                lane.counts.published += request.count
                finished.append(request)
                if request.keys:
                    if any(map(lane.keys.get, request.keys)):  # others wait for one
                        self.release(lane, request)
                    else:
                        for key in request.keys:
                            del lane.keys[key]
                if lane.is_troubled:
                    self._recovered(lane, request.sent_at, now)
            else:
                self._answered(conn, request, OK, now)
                if conn.step is not ConnectionStep.OPEN:
                    return
        conn.since, conn.is_read = now, True
        if conn.starved or conn.nsqd.failures or conn.is_doubted or conn.is_draining or conn.leaving or conn.asks:
            self._after_answers(conn, now, works=True)

    def answered(self, conn: ProducerConn, answers: Sequence[bytes | ServerError], now: float) -> None:
        """Take other answers."""
        for answer in answers:
            if conn.step is not ConnectionStep.OPEN:
                return
            conn.is_read = not (isinstance(answer, ServerError) and answer.code in FINAL)
            conn.since = now
            self._answered(conn, conn.sent.popleft(), answer, now)
        if conn.step is ConnectionStep.OPEN:
            last = answers[-1]
            self._after_answers(conn, now, works=not (isinstance(last, ServerError) and last.retriable))

    def _after_answers(self, conn: ProducerConn, now: float, *, works: bool) -> None:
        if conn.asks is not None:
            self.answered_elsewhere(conn, conn.asks, works=works, now=now)
            return
        if works:
            conn.nsqd.failures = 0
        conn.is_doubted, conn.grace_until = False, math.inf
        self._feed(conn)
        if conn.leaving:
            self.settle(conn, now)
        if conn.is_draining:
            self.wake(now)

    def _answered(self, conn: ProducerConn, request: PublishRequest, answer: bytes | ServerError, now: float) -> None:
        orphaned = conn.orphans.pop(request, None)
        lane: Lane = request.lane if orphaned is None else orphaned  # type: ignore[assignment]  # as above
        if isinstance(answer, ServerError):
            if orphaned is None:
                self._refused(conn, lane, request, answer, now)
            return
        try:
            receipts = request.decode(answer, lane.number, conn.node.address)
        except RemoteProtocolError as error:
            request.maybe_stored = True
            if orphaned is None:
                request.conn = None
                self._let_go(lane, request, error)
            self.drop(conn, error, now)
            return
        if request.receipts is None:  # else another nsqd has acknowledged it, too
            request.receipts = receipts
            lane.counts.published += request.count
        elsewhere = request.conn
        if orphaned is None:
            request.conn = None
        elif elsewhere is not None and request.lane is not None and not request.is_over:
            elsewhere.orphan(request, request.lane)  # it is not written again
        if orphaned is None or not request.is_over:
            self._let_go(lane, request, None, receipts)
        if orphaned is None and lane.is_troubled:
            self._recovered(lane, request.sent_at, now)

    def _let_go(
        self, lane: Lane, request: PublishRequest, error: NsqError | None, receipts: list[Receipt] | None = None
    ) -> None:
        """End a request that was answered, or release its keys if its caller is gone."""
        if request.is_over:
            self.release(lane, request)
        else:
            self.end(request, error, receipts)

    def _recovered(self, lane: Lane, sent_at: float, now: float) -> None:
        """End the trouble of a lane: a publish was stored."""
        lane.refusals, lane.paused_until = 0, -math.inf
        if lane.outage.began_at is not None:
            self.actions.append(Report("recovered", lane, conn=lane.conn, outage=lane.outage.recovered(now)))
        if now - sent_at < STALLED_AFTER:
            lane.trouble, lane.is_troubled = None, False
            if (nsqd := self.nsqd_of(lane)) is not None:
                nsqd.is_suspect = False
        if lane.ready:
            self.dirty[lane] = None

    def _refused(self, conn: ProducerConn, lane: Lane, request: PublishRequest, error: ServerError, now: float) -> None:
        self.actions.append(Report("refused", lane, error, conn))
        code, is_understood = error.code, refuses_publish(error)
        request.conn = None
        if not is_understood or (now - request.sent_at > PROMPT_REFUSAL and code not in FINAL):
            request.maybe_stored = True
        renewing = renews(code, has_secret=self._config.auth_secret is not None, failures=conn.nsqd.failures)
        if self._retries and (error.retriable or renewing) and not request.is_over:
            lane.counts.retries += 1
            lane.again((request,))
        else:
            self._let_go(lane, request, error)
        if error.retriable:
            self.pause(lane, now)
            self.trouble(lane, error, now)
        if request.closes_when_refused:
            # The server reads the rest of the batch as commands: the next answers belong to no publish.
            self.drop(conn, RemoteProtocolError("closed the connection after a refused MPUB_EXT"), now)
        elif code in RENEWABLE:
            # nsqd closes the connection, too, but publishes written before that would be in doubt.
            text = f"closed the connection to renew its permissions: {error}"
            self.drop(conn, ConnectionLostError(text), now)
        elif not is_understood:
            # Answers have no number, so it is unknown which publish the next one belongs to.
            text = f"closed the connection after an error that answers no publish: {error}"
            self.drop(conn, RemoteProtocolError(text), now)

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Do what is due, and say in ``wake_at`` when to look again."""
        self.wake_at: float = math.inf
        self.expire(now)
        for conn in list(self.conns):
            self.watch(conn, now)
        for topic in list(self.topics.values()):
            self._tend(topic, now)

    def _tend(self, topic: ProducerTopic, now: float) -> None:
        """Look after what waits in a topic."""
        if topic.count.is_pending:
            before = topic.count.used
            change = topic.count.take(now)
            if change is not None and not topic.view.is_plain:
                self.actions.append(KeysMove(topic, *change))
            if topic.count.used != before:
                self._route(topic)
            self.wake(topic.count.due_at)
        if topic.is_unknown:
            self._fail_unknown(topic, now)
        for lane in list(topic.lanes.values()):
            if not lane.is_needed:
                continue
            if lane.conn is None:
                self.connect(lane, now)
            elif lane.paused_until > now:
                self.wake(lane.paused_until)
            else:
                self.dirty[lane] = None
        self.look_up(topic)
        self._forget_unused(topic, now)

    def _forget_unused(self, topic: ProducerTopic, now: float) -> None:
        """Forget a topic that nobody has published to for long."""
        # Of an unknown one health() tells for some time.
        idle = self._config.idle_timeout if topic.was_known else 2 * FIRST_WARNING
        unused_at = idle + max(topic.used_at, max((lane.last_used for lane in topic.lanes.values()), default=-math.inf))
        if now < unused_at:
            self.wake(unused_at)
        elif topic.is_busy:
            self.wake(now + idle)
        else:
            self._forget_topic(topic, now)

    def _fail_unknown(self, topic: ProducerTopic, now: float) -> None:
        """Fail what has waited for a topic that no nsqlookupd knows."""
        for request in list(topic.waiting):
            gives_up_at = request.deadline - request.limit + UNKNOWN_TOPIC_PATIENCE
            if now < gives_up_at:
                self.wake(gives_up_at)
                break
            self.end(request, unknown(topic))

    def _forget_topic(self, topic: ProducerTopic, now: float) -> None:
        del self.topics[topic.name]
        self.past.add(topic.unsent)
        for lane in topic.lanes.values():
            self.past.add(lane.counts)
            self.leave(lane, ConnectionLostError("closed the idle connection"), now)
        for address, nsqd in list(self.nsqds.items()):
            if nsqd.shared is None and not nsqd.unshared and now >= nsqd.limit.next_at:
                del self.nsqds[address]
        self.actions.append(ForgetTopic(topic))

    # ------------------------------------------------------------ the end

    def close(self, error: NsqError) -> None:
        """Fail all that is pending, and close all connections."""
        for request in list(self.all_pending()):
            self.end(request, error)
        for conn in list(self.conns):
            conn.step = ConnectionStep.CLOSED
            self.actions.append(CloseConnection(conn, error))
            self.actions.extend(Report("disconnected", lane, error, conn) for lane in conn.lanes if lane.conn is conn)
        self.conns.clear()
        self.dirty.clear()
