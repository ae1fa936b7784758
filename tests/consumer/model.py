"""A model of servers, handlers and tasks around a consumer's machine: random schedules, and what must hold in all."""

import math
import random
from types import SimpleNamespace
from typing import Any, Final

from nsq_ha.consumer.answers import CLOSED, HasFailed
from nsq_ha.consumer.inflight import (
    ReadPartition,
    Recipient,
    Stage,
    Subscription,
    WriteFinish,
    WriteReady,
    WriteRequeue,
    WriteTouch,
)
from nsq_ha.consumer.machine import ConsumerMachine, FinishedCopy, Flooded
from nsq_ha.consumer.subscriptions import ConnectionAction, LookUps, PartitionEvent, Unreadable
from nsq_ha.errors import ConnectError, ConnectionLostError, NsqError, ServerError
from nsq_ha.message import Message, State
from nsq_ha.options.config import ConsumerConfig
from nsq_ha.policy.tls_renewal import Lifetime
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.protocol.identify import Identity

TIMEOUT: Final = 4.0
NODES: Final = tuple(Node("n", number, 0) for number in range(1, 4))
REFUSALS: Final = (ConnectError("refused"), ConnectionLostError("lost"), ServerError("E_SUB_FAILED"))


class Server:
    """One partition: its log, what is in flight where, and what is finished.

    Attributes:
        finished: Numbers of the messages whose FIN had an effect.
        waiting: Numbers and attempts of those that are to be delivered.
        in_flight: By number: the connection, when it was sent, attempts.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.finished: set[int] = set()
        self.waiting: list[tuple[int, int]] = []
        self.in_flight: dict[int, tuple[Subscription, float, int]] = {}
        self.last = 0
        self.under_way: list[tuple[Subscription, int]] = []  # FINs that have not arrived

    def id_of(self, number: int) -> bytes:
        return (self.number << 50 | number).to_bytes(8, "big") + bytes(8)


class World:
    """A consumer's machine between servers, handlers and tasks, driven by chance.

    Attributes:
        leaders: The nsqd that leads each partition, or None.
        attempts: Connections that are being opened or subscribed.
        stopping: Connections over which CLS was sent and not answered.
        asked: The RDY that each server knows.
        coming: RDY that was written and has not arrived.
        paused: Partitions that must not be connected to before a time, unless another node leads.
        looked_up: Whether the topic is looked up often.
        now: The time.
        handling: What handlers and tasks have, and who.
        handled: Numbers of messages that were finished by the application.
        failed: Numbers of those that it requeued.
        late: Messages that were handed out and timed out.
    """

    def __init__(
        self,
        seed: int,
        *,
        ordered: bool = False,
        plain: bool = False,
        tls: bool = False,
        more: tuple[str, ...] = (),
        size: int = 10,
        **options: Any,  # noqa: ANN401
    ) -> None:
        self.chance = random.Random(seed)
        self.now = 100.0
        self.config = ConsumerConfig(lookupd=("http://a:1",), **{"max_in_flight": 4, **options})
        self.machine = ConsumerMachine(self.config, self.chance.random, self.now)
        self.ordered, self.plain, self.tls, self.size = ordered, plain, tls, size
        self.steps = self.STEPS + more
        self.servers = [Server(number) for number in range(2)]
        self.leaders: list[Node | None] = [NODES[0], NODES[1]]
        self.attempts: dict[Subscription, None] = {}
        self.stopping: dict[Subscription, None] = {}
        self.asked: dict[Subscription, int] = {}
        self.coming: dict[Subscription, int] = {}
        self.paused: dict[int, float] = {}
        self.looked_up = self.is_faultless = False
        self.lost_by_machine, self.machine.lost = self.machine.lost, self.lost  # type: ignore[method-assign]
        self.handlers = Recipient(is_handler=True)
        self.tasks = [Recipient(), Recipient()]
        self.handling: list[tuple[Message, Recipient]] = []
        self.handled: set[tuple[int, int]] = set()
        self.failed: set[tuple[int, int]] = set()
        self.late: set[Message] = set()
        self.allowed = 0
        self.requeued, self.returned = [0, 0], [0, 0]
        self.left_to_end = False
        self.is_run = self.chance.random() < 0.6
        if self.is_run:
            self.machine.is_run = True
            self.machine.flow.used_by(3, self.now)
        self.view()
        self.drain()
        self.subscribe_all()

    @property
    def parts(self) -> list[ReadPartition]:
        return list(self.machine.partitions.values())

    # ------------------------------------------------------------ the owner's part

    def drain(self) -> None:
        machine = self.machine
        while True:
            conns = tuple(machine.dirty)
            machine.dirty.clear()
            for conn in conns:
                self.write(conn)
            machine.settle(self.now)
            if not machine.dirty:
                break
        machine.wakes = False
        actions = machine.actions[:]
        machine.actions.clear()
        for action in actions:
            if isinstance(action, HasFailed):
                if not action.message.answered:
                    action.message.answered = True
                    self.failed.add(self.number_of(action.message))
                    machine.was_requeued(action.message, None, self.now)
                    machine.requeue(action.message, None, self.now)
            elif isinstance(action, FinishedCopy):
                number = self.number_of(action.message)
                assert number in self.handled, "finished unhandled, and nobody has handled it"
            elif isinstance(action, Flooded):
                self.lose(action.conn)
            else:
                self.act(action)
        if actions:
            self.drain()
        self.check()

    def act(self, action: object) -> None:
        """Do what the machine wants with connections."""
        if isinstance(action, LookUps):
            assert self.looked_up is not action.are_frequent
            self.looked_up = action.are_frequent
        elif isinstance(action, PartitionEvent):
            if action.what == "failed" and action.partition is not None:
                self.paused[action.partition.number] = action.partition.retry_at
        elif isinstance(action, ConnectionAction):
            self.act_on(action.what, action.conn)
        else:
            assert not isinstance(action, Unreadable)

    def act_on(self, what: str, conn: Subscription) -> None:
        part = conn.partition
        assert what != "leave"
        if what == "open":
            assert conn is part.opening, "an attempt that nobody waits for"
            assert conn.replaces is not None or self.now >= self.paused.get(part.number, 0.0), "tried without a pause"
            assert self.leaders[part.number] in {None, conn.node}
            self.attempts[conn] = None
        elif what == "stop":
            assert conn not in self.stopping, "two CLS"
            self.stopping[conn] = None
        elif what == "keep alive":
            assert conn.stage is not Stage.IN_USE
        else:
            assert conn.stage is Stage.CLOSED
            assert not conn.messages
            self.attempts.pop(conn, None)
            self.gone(conn)

    def write(self, conn: Subscription) -> None:
        server = self.servers[conn.partition.number]
        commands, conn.commands = conn.commands, []
        assert conn.is_open, "written to what is lost"
        for command in commands:
            if isinstance(command, WriteReady):
                assert conn.is_reading
                assert 0 <= command.number <= conn.max_ready
                self.check_raise(conn, command.number)
                self.coming[conn] = command.number
                if self.chance.random() < 0.2:
                    self.ready_arrives(conn)
            else:
                self.ready_arrives(conn)
                self.answer(conn, server, command)
        if conn.finished:
            self.finish(conn, server)
        if conn.stage is Stage.DRAINING:
            self.machine.subscriptions.answered(conn, self.now)

    def ready_arrives(self, conn: Subscription) -> None:
        if conn in self.coming:
            self.asked[conn] = self.coming.pop(conn)

    def check_raise(self, conn: Subscription, number: int) -> None:
        """Check that a raise counts what is in flight over all connections; of earlier grants more may still come."""
        if number <= max(self.coming.get(conn, self.asked.get(conn, 0)), len(conn.messages)):
            return
        in_flight = sum(max(each.ready, len(each.messages)) for each in self.machine.conns)
        assert in_flight <= self.machine.flow.max_in_flight, "a raise to more than max_in_flight"

    def answer(self, conn: Subscription, server: Server, command: WriteRequeue | WriteTouch | WriteFinish) -> None:
        if isinstance(command, WriteRequeue) and (message := command.message) is not None:
            self.requeued[server.number] += 1
            assert message.id == command.message_id
            assert message.returned or self.number_of(message) in self.failed, "returned without a reason"
        number = int.from_bytes(command.message_id[:8], "big") & 0xFFFF
        held = server.in_flight.get(number)
        if held is None or held[0] is not conn:
            return  # refused
        if isinstance(command, WriteTouch):
            server.in_flight[number] = conn, self.now, held[2]
        elif isinstance(command, WriteRequeue):
            del server.in_flight[number]
            server.waiting.append((number, held[2] + 1))
        else:
            del server.in_flight[number]

    def finish(self, conn: Subscription, server: Server) -> None:
        for message_id in self.machine.written(conn, self.now):
            number = int.from_bytes(message_id[:8], "big") & 0xFFFF
            assert (server.number, number) in self.handled, "FIN for what nobody has handled"
            server.under_way.append((conn, number))
        if self.chance.random() < 0.5:
            self.fins_arrive(server)

    def fins_arrive(self, server: Server) -> None:
        under_way, server.under_way = server.under_way, []
        for conn, number in under_way:
            self.ready_arrives(conn)
            held = server.in_flight.get(number)
            if held is not None and held[0] is conn:
                del server.in_flight[number]
                server.finished.add(number)
            elif number not in server.finished:
                self.machine.fin_refused(conn, server.id_of(number), self.now)

    @staticmethod
    def number_of(message: Message) -> tuple[int, int]:
        return message.partition, int.from_bytes(message.id[:8], "big") & 0xFFFF

    def check(self) -> None:
        machine, most = self.machine, self.machine.flow.max_in_flight
        held = [message for message, _ in self.handling]
        self.late |= {message for message in held if self.now > message.deadline}  # nsqd may deliver as much again
        alive = [m for m in held if m.state in {State.HANDED_OUT, State.GIVING_UP} and m not in self.late]
        self.allowed = max(most, min(self.allowed, len(alive)))  # what was lowered counts when it is answered
        assert len(alive) <= self.allowed, "more with the application than max_in_flight"
        by_handlers = [self.number_of(m) for m, taker in self.handling if taker.is_handler]
        assert len(by_handlers) == len(set(by_handlers)), "two handlers have one message"
        queued = list(machine.queue)
        assert all(m.state is State.QUEUED for m in queued), "what is not to be handed out is in the queue"
        assert len({id(m) for m in queued}) == len(queued)
        for conn in machine.conns:
            for message_id, message in conn.messages.items():
                assert message.id == message_id
                assert message.source.conn is conn  # type: ignore[attr-defined]
                assert message.state not in {State.FINISHED, State.ORPHANED}
                if message.state is State.QUEUED:
                    assert any(m is message for m in machine.queue), "queued, and in no queue"
            assert conn.ready == 0 or conn.is_reading
        for message in queued:
            conn = message.source.conn  # type: ignore[attr-defined]
            assert conn.messages.get(message.id) is message, "in the queue, and not in flight"
        for message in held:
            conn = message.source.conn  # type: ignore[attr-defined]
            if message.state is not State.ORPHANED and not message.answered:
                assert conn.messages.get(message.id) is message, "with the application, and not in flight"
        for part in self.parts:
            for orphan, _ in part.orphans.values():
                assert any(orphan is message for message in held), "kept for nobody"
        granted = sum(conn.ready for conn in machine.conns if conn.is_reading)
        assert machine.is_closing or granted <= max(most, machine.flow.in_flight), "more is asked for"
        for part in self.parts:
            assert part.counts.requeued == self.requeued[part.number]
            assert self.left_to_end or part.counts.returned == self.returned[part.number]
            counts = part.counts.fields(part.in_flight)
            assert all(count >= 0 for count in counts.values()), counts

        self.check_connections()

    def check_times(self) -> None:
        """Check that nothing is due before the machine wakes, and that its attributes are what their names say."""
        machine = self.machine
        due = {machine.pause.wake_at, machine.flow.wake_at, machine.touch_at, machine.subscriptions.wake_at}
        due |= {due_at for _, due_at in machine.deferred.values()}
        due |= {each.alive_at for part in self.parts for each in part.replaced}
        for part in self.parts:
            if (conn := part.conn) is None or machine.is_closing:
                continue
            if conn.lifetime is not None and not part.is_moved_from(conn):
                due.add(conn.lifetime.next_phase_at(self.now) or math.inf)
            if part.outage.began_at is not None:
                due.add(part.settled_at)
        assert machine.wake_at <= min(due), "something is due before"
        for thing in (machine, machine.flow, machine.pause, machine.subscriptions, *machine.conns, *self.parts):
            for name, value in vars(thing).items():
                if name.lstrip("_").startswith(("is_", "has_", "may_")):
                    assert isinstance(value, bool), name
                elif name.endswith(("_at", "level", "count", "failures", "lives")):
                    assert name in {"began_at", "subscribed_at"} or isinstance(value, int | float), name

    def check_connections(self) -> None:
        for part in self.parts:
            conn, opening = part.conn, part.opening
            assert conn is None or conn.stage is Stage.IN_USE
            assert {each.stage for each in part.replaced} <= {Stage.DRAINING}
            asked = [each for each in part.conns if each.ready]
            assert len(asked) <= 1, "messages are asked for over two connections"
            if self.machine.is_closing:
                assert opening is None
                continue
            if opening is not None:
                assert opening.stage in {Stage.OPENING, Stage.SUBSCRIBING, Stage.SUBSCRIBED}
                assert self.leaders[part.number] in {None, opening.node}, "another node leads"
                assert opening.replaces in {None, conn}
                assert opening.stage is Stage.OPENING or opening.replaces is conn, "still read from a former leader"
            is_read = conn is not None and self.leaders[part.number] in {None, conn.node}
            if not is_read and opening is None:
                assert self.machine.wake_at <= max(part.retry_at, self.now), "nobody will connect"
                assert not part.failures or self.looked_up, "nobody looks for another leader"

    # ------------------------------------------------------------ the servers

    def view(self) -> None:
        leaders = {number: node for number, node in enumerate(self.leaders) if node is not None}
        meta = TopicMeta(2, ordered=self.ordered, is_partitioned=not self.plain)
        known = dict(enumerate(NODES[:2]))
        for number, before in enumerate(self.machine.partitions.values()):
            if number in leaders and before.led is not None and before.led[0] != leaders[number]:
                self.paused.pop(number, None)
            if before.led is None:
                self.paused.pop(number, None)
        view = TopicView("t", meta, leaders, complete=len(leaders) == 2, exists=True, last_known=known)
        self.machine.subscriptions.viewed(view, self.now)

    def open(self, conn: Subscription) -> None:
        """Let an attempt succeed, as far as its next step."""
        machine = self.machine
        if conn.stage is Stage.OPENING:
            if self.tls:
                conn.lifetime = Lifetime(self.now, 5.0, 0.25 * self.chance.random())
            assert machine.subscriptions.opened(conn, self.now)
            return
        conn.opened(Identity(msg_timeout=round(TIMEOUT * 1000), max_msg_timeout=20_000))
        conn.source = SimpleNamespace(
            conn=conn, topic="t", channel="c", partition=conn.partition.number, nsqd="n:1", msg_timeout=TIMEOUT
        )
        del self.attempts[conn]
        machine.subscriptions.subscribed(conn, self.now)

    def subscribe_all(self) -> None:
        while self.attempts:
            self.open(next(iter(self.attempts)))
            self.drain()

    def lost(self, conn: Subscription, now: float) -> None:
        """Count what a lost connection returns."""
        if conn.is_open:
            self.returned[conn.partition.number] += len(conn.messages)
        self.lost_by_machine(conn, now)

    def gone(self, conn: Subscription) -> None:
        """End a connection for its server: the partitioned one delivers its messages again at once."""
        server = self.servers[conn.partition.number]
        for known in (self.stopping, self.asked, self.coming):
            known.pop(conn, None)
        server.under_way = [each for each in server.under_way if each[0] is not conn]
        for number, (of, _, attempts) in list(server.in_flight.items()):
            if of is conn:
                del server.in_flight[number]
                server.waiting.append((number, attempts))

    def lose(self, conn: Subscription, error: NsqError = REFUSALS[1]) -> None:
        """End a connection, or an attempt."""
        if conn.stage is Stage.CLOSED:
            return
        if self.attempts.pop(conn, conn) is None:
            self.machine.subscriptions.failed(conn, error, self.now)
        else:
            self.machine.subscriptions.lost(conn, error, self.now)
        self.gone(conn)

    def step_connects(self) -> None:
        if self.attempts:
            self.open(self.chance.choice(list(self.attempts)))

    def step_is_refused(self) -> None:
        if self.attempts:
            self.lose(self.chance.choice(list(self.attempts)), self.chance.choice(REFUSALS))

    def step_loses(self) -> None:
        conns = [*self.machine.conns, *(part.opening for part in self.parts if part.opening is not None)]
        if conns:
            self.lose(self.chance.choice(conns))

    def step_stops(self) -> None:
        if self.stopping:
            conn = self.chance.choice(list(self.stopping))
            del self.stopping[conn]
            self.machine.subscriptions.stopped(conn, self.now)

    def step_moves(self) -> None:
        """Let another node lead, or nobody."""
        if not self.machine.is_closing and not self.plain:
            self.leaders[self.chance.randrange(2)] = self.chance.choice((*NODES, None))
            self.view()

    def step_publishes(self) -> None:
        server = self.chance.choice(self.servers)
        server.last += 1
        server.waiting.append((server.last, 1))

    def step_delivers(self) -> None:
        server = self.chance.choice(self.servers)
        conn = self.parts[server.number].conn
        if conn is None or (conn.is_stopping and conn not in self.stopping):
            return
        mine = sum(of is conn for of, _, _ in server.in_flight.values())
        self.deliver(server, conn, min(self.chance.randint(1, 3), max(self.asked.get(conn, 0) - mine, 0)))

    def deliver(self, server: Server, conn: Subscription, most: int) -> None:
        count = min(most, len(server.waiting))
        messages = []
        for _ in range(count):
            number, attempts = server.waiting.pop(0)
            server.in_flight[number] = conn, self.now, attempts
            messages.append(Message(server.id_of(number), b"x" * self.size, attempts, number, conn.source))
        if messages:
            self.machine.arrived(conn, list(messages), self.now, self.now)
            numbers = {self.number_of(message) for message in messages}
            for message, taker in self.handling:
                if taker.is_handler and not message.answered and self.number_of(message) in numbers:
                    assert message.deadline > self.now, "nsqd has delivered again what a handler has: it is in time"

    def expire(self) -> None:
        """Let the servers take back what has timed out."""
        for server in self.servers:
            for number, (_, sent_at, attempts) in list(server.in_flight.items()):
                if self.now - sent_at > TIMEOUT:
                    del server.in_flight[number]
                    server.waiting.append((number, attempts + 1))

    def step_time(self) -> None:
        for server in self.servers:
            self.fins_arrive(server)
        for conn in tuple(self.coming):
            self.ready_arrives(conn)
        end = self.now + self.chance.choice((0.01, 0.1, 0.3, 1.0, 2.5))
        for _ in range(1000):
            wake_at = self.machine.wake_at
            if wake_at > end:
                break
            self.now = max(self.now, wake_at)
            self.expire()
            self.machine.tick(self.now, is_awaited=True)
            self.drain()
            self.check_times()
        else:
            raise AssertionError(f"it ticks without end: {self.now} {self.machine.wake_at}")
        self.now = end
        self.expire()

    # ------------------------------------------------------------ the application

    def step_takes(self) -> None:
        if self.is_run and sum(taker.is_handler for _, taker in self.handling) >= 3:
            return
        taker = self.handlers if self.is_run else self.chance.choice(self.tasks)
        if taker.is_over:
            return
        message = self.machine.take(taker, self.now)
        if message is None:
            if not self.machine.queue:
                self.machine.flow.emptied(self.now)
            return
        assert message.state is State.HANDED_OUT
        assert self.now <= message.deadline, "handed out after its time"
        assert message.source.conn.is_open, "handed out without a connection"  # type: ignore[attr-defined]
        assert not self.machine.is_closing
        number = self.number_of(message)
        assert number not in self.handled, f"{number} is handed out again though it was finished"
        self.handling.append((message, taker))

    def one(self) -> tuple[Message, Recipient] | None:
        if not self.handling:
            return None
        return self.handling.pop(self.chance.randrange(len(self.handling)))

    def step_finishes(self) -> None:
        if (found := self.one()) is None or found[0].answered:
            return
        message = found[0]
        message.answered = True
        self.handled.add(self.number_of(message))
        if message.state is State.ORPHANED:
            self.machine.finish_orphan(message, self.now)
        else:
            self.machine.finish(message.source.conn, message)  # type: ignore[attr-defined]

    def step_fails(self) -> None:
        if (found := self.one()) is None or found[0].answered:
            return
        message, delay = found[0], self.chance.choice((None, None, 0.0, 0.5))
        message.answered = True
        self.failed.add(self.number_of(message))
        self.machine.was_requeued(message, delay, self.now)
        was_in_flight = message.state is not State.ORPHANED
        assert self.machine.requeue(message, delay, self.now) in {True, was_in_flight}

    def step_gives_up(self) -> None:
        if (found := self.one()) is None or found[0].answered:
            return
        message = found[0]
        self.machine.begin_give_up(message, self.now)
        assert self.machine.is_given_up(message) or message.state is State.ORPHANED
        self.handling.append(found)

    def step_is_cancelled(self) -> None:
        if (found := self.one()) is None:
            return
        if self.chance.random() < 0.5 or found[0].answered:
            self.machine.take_back(found[0], "its handler was cancelled", self.now)
        else:
            self.machine.interrupted(found[0], self.now)

    def step_hands_on(self) -> None:
        """Let a handler take long, or a task that hands messages on take no more for now."""
        flow = self.machine.flow
        if self.is_run:
            flow.handled(1, self.chance.choice((0.001, 1.0, 3.0)), self.now)
        else:
            flow.hold(self.now, is_held=self.chance.random() < 0.3)

    def step_ignores_ready(self) -> None:
        """Let a server deliver more than was asked for."""
        server = self.chance.choice(self.servers)
        conn = self.parts[server.number].conn
        if self.chance.random() < 0.2 and conn is not None and not conn.is_stopping and not self.ordered:
            server.last += 8
            server.waiting += [(number, 1) for number in range(server.last - 7, server.last + 1)]
            self.deliver(server, conn, 8)

    def step_touches(self) -> None:
        if self.handling and not (message := self.chance.choice(self.handling)[0]).answered:
            assert self.machine.touch(message, self.now) in {True, message.state is not State.ORPHANED}

    def step_pauses(self) -> None:
        self.machine.set_max_in_flight(self.chance.choice((1, 2, 4, 8)), self.now)

    def step_rates(self) -> None:
        if self.config.max_rate is not None:
            self.machine.limit_rate(self.chance.choice((None, 2.0, 50.0)), self.now)

    def step_leaves(self) -> None:
        """Let a task end, with what it has."""
        if not self.is_run and self.chance.random() < 0.1:
            gone = self.chance.choice(self.tasks)
            gone.is_over, gone.has_failed = True, self.chance.random() < 0.5
            for message, taker in self.handling:
                if taker is gone and self.machine.is_given_up(message):
                    self.machine.take_back(message, "giving it up was cancelled", self.now)
            self.handling = [(m, t) for m, t in self.handling if t is not gone]
            self.tasks = [t if t is not gone else Recipient() for t in self.tasks]

    STEPS: Final = (
        *(("publishes",) * 4),
        *(("delivers",) * 5),
        *(("takes",) * 5),
        *(("finishes",) * 4),
        *(("time",) * 3),
        "fails",
        "gives_up",
        "is_cancelled",
        "touches",
        "loses",
        "is_refused",
        *(("connects",) * 4),
        *(("stops",) * 2),
        "moves",
        "pauses",
        "rates",
        "leaves",
        "hands_on",
        "ignores_ready",
    )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            getattr(self, f"step_{self.chance.choice(self.steps)}")()
            self.drain()

    def close(self) -> None:
        """Close as the shell does, and check that nothing is left with the consumer."""
        self.left_to_end = True
        machine = self.machine
        machine.close(self.now)
        self.drain()
        assert machine.take(self.handlers, self.now) is None
        waits = bool(machine.handed_out() or machine.in_state(State.GIVING_UP))
        machine.return_left(self.now, waits=waits)
        for message in machine.in_state(State.QUEUED):
            machine.hand_back(message, self.now, waits=waits)
        self.drain()
        while self.handling:
            self.chance.choice((self.step_finishes, self.step_is_cancelled))()
            self.drain()
            machine.return_left(self.now)
            self.drain()
        left_over = {m.returned or m.state for c in machine.conns for m in c.messages.values() if not m.answered}
        assert left_over <= {CLOSED, State.HANDED_OUT, State.GIVING_UP}, left_over
        for conn in machine.conns:
            machine.cut_off(conn, self.now)
        self.drain()
        while self.stopping:
            self.step_stops()
            self.drain()
        assert machine.subscriptions.are_stopped
        assert not self.attempts
        assert not self.looked_up
        for conn in machine.conns:
            machine.subscriptions.end(conn, REFUSALS[1], self.now)
        self.drain()
        assert not machine.conns
        assert not [m for m in machine.queue if m.state is State.QUEUED]

    def works_off(self) -> None:
        """Stop all faults: everything must be finished in the end."""
        for message, _ in self.handling[:]:
            if message.answered:
                self.handling = [(m, t) for m, t in self.handling if m is not message]
        self.machine.set_max_in_flight(4, self.now)
        self.machine.flow.hold(self.now, is_held=False)
        self.leaders = [NODES[0], NODES[1]]
        self.view()
        for _ in range(3000):
            if all(len(server.finished) == server.last for server in self.servers):
                return
            self.drain()
            self.subscribe_all()
            self.step_stops()
            for name in ("delivers", "takes", "finishes", "delivers", "takes", "finishes", "time"):
                getattr(self, f"step_{name}")()
                self.drain()
        raise AssertionError(f"not all is finished: {[(s.finished, s.waiting, s.in_flight) for s in self.servers]}")
