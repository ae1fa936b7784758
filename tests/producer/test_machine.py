"""The producer's machine against a model of servers, by random schedules: nothing is lost, out of order or untrue."""

import math
import os
import random
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsq_ha import ProducerConfig
from nsq_ha.errors import (
    ConnectError,
    ConnectionLostError,
    NoLeaderError,
    PublishError,
    RemoteProtocolError,
    server_error,
)
from nsq_ha.message import Receipt
from nsq_ha.policy.liveness import DOUBTED_AFTER, OVERDUE_AFTER, STALLED_AFTER, stalled_at
from nsq_ha.policy.tls_renewal import Lifetime
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.producer.actions import Action, CheckChannels, CloseConnection, OpenConnection
from nsq_ha.producer.connections import LONGEST_PAUSE
from nsq_ha.producer.machine import ProducerMachine
from nsq_ha.producer.state import ConnectionStep, Gate, Lane, ProducerConn, PublishRequest
from nsq_ha.protocol.refusals import FINAL

LIMITS = (0.4, 3.0, 30.0)
CODES = (
    b"E_FAILED_ON_NOT_LEADER",
    b"E_FAILED_ON_NOT_WRITABLE",
    b"E_PUB_FAILED x",
    b"E_BAD_TOPIC x",
    b"E_BAD_MESSAGE x",
    b"E_UNAUTHORIZED x",
    b"E_STRANGE",
)


class Pub(PublishRequest, eq=False, kw_only=True):
    number: int

    def decode(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
        if answer != b"OK":
            raise RemoteProtocolError("not OK")
        return [Receipt(self.topic, partition, nsqd, self.attempts)]


class Model(RuleBasedStateMachine):
    """Servers, callers and time; what was stored is compared with what callers were told."""

    is_plain = False
    retries = True
    unshared = 1
    has_lifetime = False

    @initialize(seed=st.integers(0, 9), quick=st.sampled_from([True, True, False]))
    def begin(self, seed: int, quick: bool) -> None:
        self.quick = quick
        self.now, self.number, self.partitions = 100.0, 0, 2
        config = ProducerConfig(
            window=2,
            idle_timeout=60.0,
            on_unreachable="retry" if self.retries else "fail",
            connections_per_nsqd=self.unshared,
            lookup_interval=0.5,
            auth_secret="s",
        )
        self.machine = ProducerMachine(config, random.Random(seed).random)
        self.nodes = [Node("h", 1 + n, 0, is_plain=self.is_plain) for n in range(3)]
        self.leaders = dict(enumerate(self.nodes))
        self.topics = ("t", "u")
        self.opening: list[ProducerConn] = []
        self.checks: list[CheckChannels] = []
        self.queue: dict[
            ProducerConn, list[list[Any]]
        ] = {}  # what each server has not answered: request, is stored, when written
        self.stored: dict[int, int] = {}
        self.heard: dict[ProducerConn, float] = {}
        self.order: dict[object, list[int]] = {}
        self.requests: dict[int, Pub] = {}
        self.outcome: dict[int, Exception | None] = {}
        self.errors: list[PublishError] = []
        self.cancelled: set[int] = set()
        self.never: set[int] = set()  # must not be stored any more
        self.gates: list[Gate] = []
        self.look_up(missing=False)

    # ------------------------------------------------------------ the owner

    def drain(self) -> None:
        machine = self.machine
        while machine.dirty or machine.actions or machine.finished:
            dirty, machine.dirty = machine.dirty, {}
            for lane in dirty:
                while requests := machine.take(lane, self.now):
                    assert lane.conn is not None
                    assert lane.is_checked
                    assert self.silence(lane.conn) < DOUBTED_AFTER + 0.3, "it is written to a silent leader"
                    assert self.writes(lane.conn), "no answer can come"
                    self.queue[lane.conn] += [[request, False, self.now] for request in requests]
            actions, machine.actions = machine.actions, []
            for action in actions:
                self.act(action)
            while self.quick and self.checks:
                self.machine.checked(*self.checks.pop(), None, self.now)
            while self.quick and self.opening and not machine.dirty:
                self.connect(self.opening.pop())
            finished, machine.finished = machine.finished, []
            for request in finished:
                self.errors += [request.error] if isinstance(request.error, PublishError) else []
                if isinstance(request, Pub):
                    self.ended(request)
                elif request.error is None:
                    assert isinstance(request, Gate)
                    self.gates.append(request)

    def act(self, action: Action) -> None:
        if isinstance(action, OpenConnection):
            self.opening.append(action.conn)
        elif isinstance(action, CheckChannels):
            self.checks.append(action)
        elif isinstance(action, CloseConnection):
            if action.conn in self.opening:
                self.opening.remove(action.conn)
            self.queue.pop(action.conn, None)

    def ended(self, request: Pub) -> None:
        number = request.number
        assert number not in self.outcome, "it ended twice"
        assert number not in self.cancelled
        self.outcome[number] = request.error
        if request.error is None:
            assert self.stored.get(number), "a receipt for what is not stored"
            assert self.now <= request.deadline + 1e-6
        else:
            assert isinstance(request.error, PublishError), request.error
            if not request.error.maybe_stored:
                self.never.add(number)

    def store(self, entry: list[Any]) -> None:
        request, was, _ = entry
        if was:
            return
        entry[1] = True
        number = request.number
        assert number not in self.never, "it was said never to be stored"
        self.stored[number] = self.stored.get(number, 0) + 1
        if request.keys and self.stored[number] == 1:
            seen = self.order.setdefault((request.lane, request.keys), [])
            assert not seen or seen[-1] < number, f"{number} after {seen[-1]}"
            seen.append(number)

    # ------------------------------------------------------------ the callers

    @rule(
        key=st.sampled_from([None, None, "a", "b", "c", "d"]),
        limit=st.sampled_from(LIMITS),
        topic=st.integers(0, 1),
        many=st.integers(1, 4),
    )
    def publish(self, key: str | None, limit: float, topic: int, many: int) -> None:
        key = None if self.is_plain else key
        self.use()
        for _ in range(many):
            self.number += 1
            name = self.topics[topic]
            keys = () if key is None else (key,)
            request = Pub(topic=name, size=9, limit=limit, key=key, keys=keys, number=self.number)
            self.requests[self.number] = request
            self.machine.publish(request, self.now)
        self.drain()

    @rule(topic=st.integers(0, 1), limit=st.sampled_from(LIMITS))
    def batch(self, topic: int, limit: float) -> None:
        self.use()
        self.machine.publish(Gate(topic=self.topics[topic], size=0, limit=limit), self.now)
        self.drain()

    @precondition(lambda self: self.gates)
    @rule(parts=st.integers(0, 2))
    def batch_goes(self, parts: int) -> None:
        gate = self.gates.pop(0)
        for _ in range(parts):
            self.number += 1
            request = Pub(
                topic=gate.topic, size=9, limit=3.0, keys=("a", "z"), partition=0, number=self.number, is_part=True
            )
            if self.is_plain:
                request.keys, request.partition = (), None
            self.requests[self.number] = request
            self.machine.publish(request, self.now)
        self.machine.leave_gate(gate, self.now)
        self.drain()

    def use(self) -> None:
        """Look topics up that were forgotten."""
        if len(self.machine.topics) < len(self.topics):
            self.look_up(missing=False)

    @rule(which=st.integers(0, 1000))
    def cancel(self, which: int) -> None:
        alive = [n for n in self.requests if n not in self.outcome and n not in self.cancelled]
        if alive:
            request = self.requests[alive[which % len(alive)]]
            self.cancelled.add(request.number)
            self.machine.cancel(request, self.now)
            if not request.maybe_stored:
                assert not self.stored.get(request.number)
                self.never.add(request.number)
            self.drain()

    # ------------------------------------------------------------ the servers

    @precondition(lambda self: self.checks)
    @rule(works=st.booleans())
    def check(self, works: bool) -> None:
        lane, conn = self.checks.pop(0)
        self.machine.checked(lane, conn, None if works else NoLeaderError("it does not lead yet"), self.now)
        self.drain()

    @precondition(lambda self: self.opening)
    @rule(which=st.integers(0, 9), works=st.booleans())
    def opens(self, which: int, works: bool) -> None:
        conn = self.opening.pop(which % len(self.opening))
        if works:
            self.connect(conn)
        else:
            self.machine.closed(conn, ConnectError("refused"), self.now)
        self.drain()

    def connect(self, conn: ProducerConn) -> None:
        if self.has_lifetime:
            conn.lifetime = Lifetime(self.now, 5.0, 0.0)
        self.queue[conn] = [[request, False, self.now] for request in self.machine.opened(conn, self.now)]
        if conn.step is not ConnectionStep.OPEN:
            self.queue.pop(conn, None)

    def asked(self, which: int) -> ProducerConn | None:
        conns = [conn for conn in self.queue if self.queue[conn] and self.writes(conn)]
        return conns[which % len(conns)] if conns else None

    def silence(self, conn: ProducerConn) -> float:
        """Return for how long a server has left unanswered what it has."""
        queue = self.queue.get(conn)
        return self.now - max(queue[0][2], self.heard.get(conn, -math.inf)) if queue else 0.0

    def writes(self, conn: ProducerConn) -> bool:
        return conn.lifetime is None or self.now < conn.lifetime.stale_at

    @rule(which=st.integers(0, 9), count=st.integers(1, 5))
    def oks(self, which: int, count: int) -> None:
        if (conn := self.asked(which)) is None:
            return
        some, self.queue[conn] = self.queue[conn][:count], self.queue[conn][count:]
        for entry in some:
            self.store(entry)
        self.heard[conn] = self.now
        self.machine.stored(conn, len(some), self.now)
        self.drain()

    @rule(which=st.integers(0, 9), code=st.sampled_from(CODES), count=st.integers(1, 3), late=st.booleans())
    def refuses(self, which: int, code: bytes, count: int, late: bool) -> None:
        if late:
            self.pass_time(1.1)
        if (conn := self.asked(which)) is None:
            return
        for _ in range(count):
            if not self.queue.get(conn):
                break
            entry = self.queue[conn].pop(0)
            self.heard[conn] = self.now
            error = server_error(code)
            if error.code == "E_STRANGE" or (late and self.now - entry[2] > 1.0 and error.retriable):
                self.store(entry)
            elif entry[1]:  # what was stored is not refused promptly
                self.machine.stored(conn, 1, self.now)
                self.drain()
                continue
            self.machine.answered(conn, [error], self.now)
            self.drain()
            if error.code in FINAL and conn in self.queue:  # nsqd reads nothing more, and closes
                del self.queue[conn]
                self.machine.closed(conn, ConnectionLostError("closed by the peer"), self.now)
                self.drain()

    @rule(which=st.integers(0, 9), count=st.integers(0, 5))
    def stores_and_dies(self, which: int, count: int) -> None:
        conns = list(self.queue)
        if not conns:
            return
        conn = conns[which % len(conns)]
        for entry in self.queue.pop(conn)[:count]:
            self.store(entry)
        self.machine.closed(conn, ConnectionLostError("lost"), self.now)
        self.drain()

    @rule(which=st.integers(0, 9))
    def stores_and_is_silent(self, which: int) -> None:
        if (conn := self.asked(which)) is not None:
            self.store(self.queue[conn][0])

    @rule(which=st.integers(0, 9))
    def fills(self, which: int) -> None:
        conns = [conn for conn in self.queue if conn.step is ConnectionStep.OPEN]
        if conns:
            conn = conns[which % len(conns)]
            if conn.is_full:
                self.machine.writable(conn)
            else:
                self.machine.full(conn, is_cut=False)
            self.drain()

    @rule(partition=st.integers(0, 2), node=st.integers(0, 2))
    def moves(self, partition: int, node: int) -> None:
        if not self.is_plain:
            self.leaders[partition] = self.nodes[node]
        self.look_up(missing=False)

    @rule(missing=st.booleans())
    def look_up(self, missing: bool) -> None:
        leaders = {n: self.leaders[n] for n in range(self.partitions) if n or not missing}
        meta = TopicMeta(partition_num=self.partitions, is_partitioned=not self.is_plain)
        for name in self.topics:
            view = TopicView(name, meta, leaders, complete=not missing, exists=True, is_plain=self.is_plain)
            self.machine.viewed(self.machine.topic(name, self.now), view, self.now)
        self.drain()

    @rule()
    def grows(self) -> None:
        self.partitions = 3
        self.look_up(missing=False)

    @rule(seconds=st.sampled_from([0.01, 0.3, 0.8, 1.2, 2.5, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(1000):
            if self.machine.wake_at > end:
                break
            self.now = max(self.now, self.machine.wake_at)
            before = self.machine.wake_at
            self.machine.tick(self.now)
            self.drain()
            if self.machine.wake_at <= before:
                self.now += 0.001
        else:
            raise AssertionError(f"the machine ticks without end: {self.now} {self.machine.wake_at}")
        self.now = max(end, self.now)

    # ------------------------------------------------------------ what must hold

    def open_requests(self) -> list[Pub]:
        return [r for n, r in self.requests.items() if n not in self.outcome and n not in self.cancelled]

    @invariant()
    def holds(self) -> None:
        machine, pending = self.machine, self.open_requests()
        assert {request for request in machine.all_pending() if not isinstance(request, Gate)} == set(pending)
        for request in pending:
            assert request.deadline >= self.now - 0.01, "it should have ended"
            assert machine.wake_at <= request.deadline
        held: dict[object, PublishRequest] = {}
        for conn, queue in self.queue.items():
            assert [entry[0] for entry in queue] == list(conn.sent), "the order of answers"
            assert self.silence(conn) < OVERDUE_AFTER + 0.5, "its connection should be closed"
            for each in conn.own():
                for key in each.keys:
                    name = (each.topic, each.lane, key)
                    assert held.setdefault(name, each) is each, "two unanswered of one key"
        if machine.wake_at > self.now + 0.001:
            self.all_is_written()

        self.nothing_is_due_before()

    def nothing_is_due_before(self) -> None:
        machine, now = self.machine, self.now
        due = [math.inf]
        for conn in machine.conns:
            due += [*conn.leaving.values(), conn.grace_until if conn.sent else math.inf]
            if conn.step is ConnectionStep.OPENING:
                is_watched = self.retries and conn.asks is None and conn.replaces is None
                due.append(conn.since + STALLED_AFTER if is_watched else math.inf)
            elif conn.sent:
                begins = stalled_at(conn.since, conn.sent[0].size)
                due.append(begins if now < begins else now + LONGEST_PAUSE)
            if conn.step is ConnectionStep.OPEN and conn.lifetime is not None:
                due.append(conn.lifetime.next_phase_at(now) or math.inf)
        for lane in self.lanes():
            nsqd = machine.nsqd_of(lane)
            if lane.is_needed and lane.conn is None and lane.opening is None:
                due.append(max(lane.retry_at, -math.inf if nsqd is None else nsqd.retry_at))
            elif lane.ready and lane.paused_until > now:
                due.append(lane.paused_until)
        assert machine.wake_at <= max(min(due), now) + 1e-6, "something is due before"

    def all_is_written(self) -> None:
        for lane in self.lanes():
            conn = lane.conn
            if conn is None or not lane.ready:
                continue
            is_barred = conn.is_doubted or conn.is_full or conn.is_draining or self.now < lane.paused_until
            assert is_barred or len(conn.sent) >= (1 if lane.refusals else 2), "it could be written"
            assert self.now < lane.paused_until or lane in conn.starved, "nothing would wake it"

    def lanes(self) -> list[Lane]:
        return [lane for topic in self.machine.topics.values() for lane in topic.lanes.values()]

    def teardown(self) -> None:
        if not hasattr(self, "machine"):
            return
        self.quick = False
        for _ in range(600):
            if not any(self.machine.all_pending()) and not self.is_busy():
                break
            self.all_is_well()
        assert not self.open_requests()
        assert not any(topic.waiting for topic in self.machine.topics.values())
        assert not any(lane.keys or lane.ready for lane in self.lanes())
        self.all_is_counted()
        self.machine.close(ConnectionLostError("closed"))
        self.drain()
        assert not self.queue

    def all_is_counted(self) -> None:
        counts = [self.machine.past, *(lane.counts for lane in self.lanes())]
        counts += [topic.unsent for topic in self.machine.topics.values()]
        assert sum(each.failed for each in counts) == len(self.errors)
        assert sum(each.uncertain for each in counts) == sum(error.maybe_stored for error in self.errors)
        stored = [request for request in self.requests.values() if request.receipts is not None]
        assert sum(each.published for each in counts) == len(stored)

    def all_is_well(self) -> None:
        """Let everything end, with a receipt if its time allows it."""
        self.look_up(missing=False)
        while self.checks:
            self.check(works=True)
        while self.opening:
            self.opens(0, works=True)
        while self.gates:
            self.batch_goes(0)
        for conn in self.queue:
            if conn.is_full:
                self.machine.writable(conn)
        self.drain()
        while self.asked(0) is not None:
            self.oks(0, 5)
        self.pass_time(0.05)

    def is_busy(self) -> bool:
        return bool(self.gates) or any(conn.sent for conn in self.queue) or any(lane.keys for lane in self.lanes())


class Plain(Model):
    is_plain = True


class Shared(Model):
    unshared = 0


class Failing(Model):
    retries = False


class Renewed(Model):
    has_lifetime = True


class RenewedShared(Model):
    has_lifetime = True
    unshared = 0


EXAMPLES = int(os.environ.get("EXAMPLES", "25"))
COMMON: dict[str, Any] = {
    "max_examples": EXAMPLES,
    "stateful_step_count": 60,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "database": None,
}
if "EXAMPLES" in os.environ:
    COMMON["phases"] = [Phase.generate]

TestPartitioned = Model.TestCase
TestPlain = Plain.TestCase
TestShared = Shared.TestCase
TestFailing = Failing.TestCase
TestRenewed = Renewed.TestCase
TestRenewedShared = RenewedShared.TestCase
for _each in (TestPartitioned, TestPlain, TestShared, TestFailing, TestRenewed, TestRenewedShared):
    _each.settings = settings(**COMMON)
