"""What the consumer's machine does in some stories: every action and command with its time, and the counts at the end.

A moment (|) is in seconds since the beginning; connections (#) and messages have numbers; ``=`` is the last text.
"""

from typing import Any

from nsq_ha import Backoff
from nsq_ha.consumer.inflight import ReadPartition, Recipient, Subscription
from nsq_ha.consumer.subscriptions import ConnectionAction
from nsq_ha.errors import ConnectError, ServerError, TlsRequiredError
from nsq_ha.message import Message, State
from nsq_ha.policy.connect_limit import SETTLED
from nsq_ha.policy.tls_renewal import Lifetime
from nsq_ha.policy.topology import Node
from tests.consumer import test_connections
from tests.consumer.test_connections import LOST, ONE, TWO
from tests.story import Story


class Driven(test_connections.Driven, Story):
    """It tells what happens. ``has`` are the messages that ``taker`` got and has not answered, by number."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - of ConsumerConfig
        Story.__init__(self)
        super().__init__(**{"max_in_flight": 4, **options})
        self.conns: list[Subscription] = []
        self.has: dict[int, Message] = {}
        self.taker = Recipient(is_handler=True)
        self.accepts = True
        self.lifetime: float | None = None

    def leads(self, *nodes: Node | None, **view: Any) -> None:  # noqa: ANN401 - of view()
        self.view({n: node for n, node in enumerate(nodes) if node is not None}, len(nodes), **view)
        self.serve()

    def serve(self) -> None:
        """Do what the machine asks for."""
        machine = self.machine
        while True:
            dirty = tuple(machine.dirty)
            machine.dirty.clear()
            for conn in dirty:
                commands, conn.commands = conn.commands, []
                for command in commands:
                    self.tell(f"#{self.conns.index(conn)}", self.kind(command), *command)
                if conn.finished:
                    self.tell(f"#{self.conns.index(conn)}", "FIN", *machine.written(conn, self.now))
            machine.settle(self.now)
            if machine.wakes:
                self.tell("wake")
            machine.wakes = False
            actions = machine.actions[:]
            machine.actions.clear()
            for action in actions:
                if isinstance(action, ConnectionAction) and action.what == "open":
                    self.conns.append(action.conn)
                self.tell(self.kind(action), *action)
                if isinstance(action, ConnectionAction) and action.what == "open" and self.accepts:
                    self.accept(action.conn)
            if not (actions or machine.dirty):
                break

    def accept(self, conn: Subscription) -> None:
        self.subscribe(None if self.lifetime is None else Lifetime(self.now, self.lifetime, 0.0), conn)

    def word(self, thing: object) -> str:
        if isinstance(thing, Subscription):
            return f"#{self.conns.index(thing)}"
        if isinstance(thing, bytes):
            return str(int.from_bytes(thing[:8], "big"))
        if isinstance(thing, Message):
            return f"({thing.id[7]}{' ' + thing.returned if thing.returned else ''})"
        if isinstance(thing, ReadPartition):
            return f"p{thing.number}"
        return super().word(thing)

    def arrive(self, *numbers: int, conn: Subscription | None = None, size: int = 1) -> None:
        conn = conn or self.used()
        messages = [Message(n.to_bytes(8, "big") + bytes(8), bytes(size), 1, 1, conn.source) for n in numbers]
        self.machine.arrived(conn, messages, self.now, self.now)
        self.serve()

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            message = self.machine.take(self.taker, self.now)
            self.tell("take", message or "none")
            if message is not None:
                self.has[message.id[7]] = message
        self.serve()

    def finish(self, *numbers: int) -> None:
        for message in [self.has.pop(number) for number in numbers]:
            message.answered = True
            if message.state is State.ORPHANED:
                self.machine.finish_orphan(message, self.now)
            else:
                self.machine.finish(message.source.conn, message)  # type: ignore[attr-defined]
        self.serve()

    def requeue(self, number: int, delay: float | None = None) -> None:
        message = self.has.pop(number)
        message.answered = True
        self.machine.was_requeued(message, delay, self.now)
        self.machine.requeue(message, delay, self.now)
        self.serve()

    def after(self, seconds: float, *, is_awaited: bool = False) -> None:
        end = self.now + seconds
        while self.machine.wake_at <= end:
            self.now = max(self.now, self.machine.wake_at)
            self.machine.tick(self.now, is_awaited=is_awaited)
            self.serve()
        self.now = end

    def facts(self) -> list[str]:
        machine, flow = self.machine, self.machine.flow
        facts = [f"next {machine.wake_at - 100.0:.2f}"]
        for part in machine.partitions.values():
            counts = part.counts.fields(part.in_flight) | {"failures": part.failures}
            facts += [f", p{part.number}", *(f"{name}={count}" for name, count in counts.items() if count)]
            facts += [f"trouble: {part.trouble}"] if part.trouble else ()
        facts += [f", queue={len(machine.queue)} remembered={len(machine.finished_before.known)}"]
        return [*facts, f"taken={flow.taken} calls={flow.handler_calls} limited={flow.limited_seconds:.3g}"]


def reading(*nodes: Node, **options: Any) -> Driven:  # noqa: ANN401 - of ConsumerConfig
    driven = Driven(**options)
    driven.leads(*nodes or (ONE,))
    driven.events.clear()
    return driven


def test_a_topic_that_does_not_exist_is_looked_for_and_found() -> None:
    driven = Driven()
    driven.leads(exists=False)
    driven.after(6.0)
    driven.leads(ONE, TWO)
    driven.after(1.0)
    driven.told("""
        | 0.00: lookups True | 5.00: absent after 5.00 s and 1 | 6.00: open #0, open #1, found after 6.00 s and 1,
        lookups False, subscribed p0 one:1 #0, subscribed p1 two:2 #1, #0 ready 2, #1 ready 2 | next 15.00, p0, p1,
        queue=0 remembered=0 taken=0 calls=0 limited=0
    """)


def test_what_fails_is_tried_again_and_told_of_until_it_lasts() -> None:
    driven = Driven()
    driven.accepts = False
    driven.leads(ONE)
    for error in (ConnectError("refused"), ServerError("E_SUB_FAILED"), LOST) * 3:
        driven.subscriptions.failed(driven.conns[-1], error, driven.now)
        driven.serve()
        driven.after(5.0 if error is LOST else 1.7)
    driven.accept(driven.conns[-1])
    driven.serve()
    driven.subscriptions.lost(driven.used(), LOST, driven.now)
    driven.accepts = True
    driven.after(SETTLED + 6.0)
    driven.told("""
        | 0.00: open #0, failed p0 one:1 'refused', lookups True | 0.10: open #1 | 1.70: refused p0 one:1
        'E_SUB_FAILED', failed p0 one:1 = | 1.90: open #2 | 3.40: failed p0 one:1 'lost' | 3.80: open #3 | 8.40: failed
        p0 one:1 'refused' after 8.40 s and 4 | 9.20: open #4 | 10.10: refused p0 one:1 'E_SUB_FAILED', failed p0 one:1
        = | 11.70: open #5 | 11.80: failed p0 one:1 'lost' | 15.00: open #6 | 16.80: failed p0 one:1 'refused' | 21.80:
        open #7 | 25.20: subscribed p0 one:1 #7, lookups False, #7 ready 4 | 29.20: disconnected p0 one:1 'lost', failed
        p0 one:1 = after 25.20 s and 8, lookups True, open #8, subscribed p0 one:1 #8, lookups False, #8 ready 4 |
        33.20: settled p0 one:1 after 29.20 s and 8 | next inf, p0 reconnects=1 failures=1, queue=0 remembered=0 taken=0
        calls=0 limited=0
    """)


def test_a_partition_moves_and_comes_back() -> None:
    driven = reading(ONE)
    driven.accepts = False
    driven.leads(TWO)
    driven.subscriptions.failed(driven.conns[-1], LOST, driven.now)
    driven.serve()
    driven.leads(None)
    driven.subscriptions.lost(driven.used(), LOST, driven.now)
    driven.after(0.5)
    driven.leads(TWO)
    driven.leads(ONE)
    driven.accept(driven.conns[-1])
    driven.serve()
    driven.leads(TWO)
    driven.subscriptions.lost(driven.used(), LOST, driven.now)
    driven.serve()
    driven.told("""
        | 0.00: moved p0 #0, open #1, failed p0 two:2 'lost', lookups True, lookups False | 0.10: disconnected p0 one:1
        =, failed p0 one:1 =, lookups True | 0.20: failed p0 'orders-0 has no leader now' | 0.50: open #2, abort #2 'no
        longer needed', open #3, subscribed p0 one:1 #3, lookups False, #3 ready 4, moved p0 #3, open #4, lookups True,
        disconnected p0 one:1 'lost', failed p0 one:1 = | next 0.60, p0 reconnects=1 failures=1 trouble: lost, queue=0
        remembered=0 taken=0 calls=0 limited=0
    """)


def test_a_connection_of_limited_life_is_replaced_and_kept_for_its_answers() -> None:
    driven = Driven()
    driven.lifetime = 5.0
    driven.leads(ONE)
    driven.arrive(1, 2)
    driven.take(2)
    driven.finish(1)
    driven.after(3.1)
    driven.subscriptions.stopped(driven.conns[0], driven.now)
    driven.serve()
    driven.arrive(2, 3)
    driven.after(0.4)
    driven.finish(2)
    driven.subscriptions.answered(driven.conns[0], driven.now)
    driven.serve()
    driven.told("""
        | 0.00: open #0, subscribed p0 one:1 #0, #0 ready 4, take (1), take (2), #0 FIN 1 | 3.00: open #1, stop #0 |
        3.10: keep alive #0, replaced p0 one:1 #1, #1 ready 3 | 3.50: #1 FIN 2, #1 ready 4, close #0 | next 4.00, p0
        delivered=4 timed_out=1 finished_unhandled=1 finished=2 in_flight=1, queue=1 remembered=1 taken=2 calls=0
        limited=0
    """)


def test_one_that_cannot_be_replaced_is_left_when_nsqd_can_write_no_more() -> None:
    driven = Driven()
    driven.lifetime = 5.0
    driven.leads(ONE)
    driven.arrive(1)
    driven.take()
    driven.after(2.9)
    driven.accepts = False
    driven.after(0.2)
    driven.subscriptions.failed(driven.conns[-1], ConnectError("refused"), driven.now)
    driven.after(3.0)
    driven.told("""
        | 0.00: open #0, subscribed p0 one:1 #0, #0 ready 4, take (1) | 3.00: open #1 | 4.00: said False partition 0:
        the connection could not be replaced yet: refused, stop #0 | 4.75: disconnected p0 one:1 'closed the connection
        to one:1: nsqd can no longer write to this connection', keep alive #0, failed p0 one:1 =, lookups True | 4.85:
        open #2 | 5.75: keep alive #0 | next 6.75, p0 delivered=1 in_flight=1 failures=1 trouble: closed the connection
        to one:1: nsqd can no longer write to this connection, queue=0 remembered=0 taken=1 calls=0 limited=0
    """)
    driven.after(60.0)
    driven.told("""
        | 9.75: close #0 | next inf, p0 delivered=1 returned=1 failures=1 trouble: closed the connection to one:1: nsqd
        can no longer write to this connection, queue=0 remembered=0 taken=1 calls=0 limited=0
    """)


def test_a_partition_that_is_gone_and_one_that_is_refused_for_good() -> None:
    driven = Driven()
    driven.leads(ONE, TWO)
    driven.arrive(1, 2)
    driven.view({1: TWO}, 2, plain=True)
    driven.serve()
    driven.subscriptions.end(driven.conns[0], LOST, driven.now)
    driven.accepts = False
    driven.subscriptions.lost(driven.conns[1], LOST, driven.now)
    driven.serve()
    driven.after(0.3)
    driven.subscriptions.failed(driven.conns[-1], TlsRequiredError("", "give tls="), driven.now)
    driven.serve()
    driven.told("""
        | 0.00: open #0, open #1, subscribed p0 one:1 #0, subscribed p1 two:2 #1, #0 ready 2, #1 ready 2, gone p0, leave
        #0, abort #0 'lost', disconnected p0 one:1 =, disconnected p1 two:2 =, failed p1 two:2 =, lookups True | 0.20:
        open #2 | 0.30: refused p1 two:2 'give tls=', final p1 two:2 =, unreadable =, lookups False | next inf, p1
        failures=2 trouble: lost, queue=0 remembered=0 taken=0 calls=0 limited=0
    """)


def test_partitions_take_turns_and_get_what_they_use() -> None:
    driven = reading(ONE, TWO, max_in_flight=6)
    driven.after(0.1)
    for number in range(1, 9):
        driven.arrive(number, conn=driven.conns[0])
        driven.after(0.1)
    driven.take(5)
    driven.finish(1, 2, 3, 4, 5)
    driven.after(1.0)
    driven.machine.set_max_in_flight(2, driven.now)
    driven.after(1.0)
    driven.machine.flow.hold(driven.now, is_held=True)
    driven.after(1.0)
    driven.machine.flow.hold(driven.now, is_held=False)
    driven.machine.set_max_in_flight(1, driven.now)
    driven.after(6.0)
    driven.told("""
        | 0.50: #1 ready 1, #0 ready 5 | 0.75: #1 ready 0, wake | 0.90: take (1), take (2), take (3), take (4), take
        (5), #0 FIN 1 2 3 4 5, #0 ready 2 | 1.00: wake | 2.00: #0 ready 1, wake | 3.00: #0 ready 0, wake | 4.00: #0
        ready 1, wake | 9.00: #0 ready 0, wake | next 10.00, p0 delivered=8 finished=5 in_flight=3, p1, queue=3
        remembered=0 taken=5 calls=0 limited=0
    """)


def test_what_is_worked_on_is_touched_as_long_as_nsqd_keeps_it() -> None:
    driven = reading(auto_touch=True)
    driven.arrive(1, 2)
    driven.take()
    driven.after(3.0)
    driven.take()
    driven.finish(2)
    driven.after(18.0)
    driven.told("""
        | 0.00: take (1) | 2.00: #0 touch 1 (1) | 3.00: take (2), #0 touch 2 (2), #0 ready 3, #0 FIN 2, #0 ready 2 |
        4.00: #0 touch 1 (1) | 20.00: said True handling <Message orders-0 id=0x1 trace_id=0 attempts=1 1 bytes> takes
        longer than 20 s, for which nsqd keeps a touched message at most (-max-msg-timeout): it delivers the message
        again. Split the work, or finish the message before it | next 22.00, p0 delivered=2 finished=1 in_flight=1,
        queue=0 remembered=0 taken=2 calls=0 limited=0
    """)


def test_a_requeue_of_an_ordered_channel_waits_here() -> None:
    driven = reading(ordered=True, requeue_backoff=Backoff(3.0, 3.0, jitter=0.0))
    driven.arrive(1)
    driven.take()
    driven.after(0.5)
    driven.requeue(1)
    driven.after(5.0)
    driven.arrive(2)
    driven.take()
    driven.machine.interrupted(driven.has[2], driven.now)
    driven.after(1.0)
    driven.told("""
        | 0.00: take (1) | 0.50: #0 touch 1 (1), wake, paused 0 0 0 1 | 1.50: #0 requeue 1 0 (1) | 5.50: take (2) | next
        inf, p0 delivered=2 requeued=1 in_flight=1, queue=0 remembered=0 taken=2 calls=0 limited=0
    """)


def test_failures_pause_and_a_success_ends_the_pause() -> None:
    driven = reading(ONE, TWO, ONE, handler_backoff=Backoff(1.0, 8.0, 2.0, 0.0))
    driven.arrive(1, 2, 3, 4)
    for number in (1, 2):
        driven.take()
        driven.requeue(number)
    driven.take()
    driven.after(1.2)
    driven.take(2)
    driven.requeue(3)
    driven.after(4.0)
    driven.arrive(5)
    driven.take()
    driven.requeue(5, 2.0)
    driven.after(2.1)
    driven.arrive(6)
    driven.take()
    driven.finish(6)
    driven.told("""
        | 0.00: take (1), #1 ready 0, #2 ready 0, #0 requeue 1 10 (1), wake, paused 0 0 0 1, #1 ready 1, take (2), #0
        ready 0, #0 requeue 2 10 (2), #1 ready 0, wake, paused paused 1 1 0 2, take none | 1.00: wake, paused testing 0
        1 1 2 | 1.20: take (3), take none, #0 requeue 3 10 (3), wake, paused paused 2 2 1.2 3, #0 requeue 4 0 (4
        handlers fail and the consumer pauses) 0 | 3.20: #0 ready 1, wake, paused testing 0 2 3.2 3 | 3.45: wake | 3.50:
        #0 ready 0, #1 ready 1 | 3.70: wake | 3.95: #1 ready 0, #2 ready 1, wake | 4.25: #2 ready 0, #0 ready 1 | 4.45:
        wake | 4.70: #0 ready 0, #1 ready 1, wake | 5.00: #1 ready 0, #2 ready 1 | 5.20: wake, take (5), #2 ready 0, #0
        requeue 5 2 (5) 2, wake, paused paused 2 2 5.2 3 | 7.20: #0 ready 1, wake, paused testing 0 2 7.2 3 | 7.30: take
        (6), #0 ready 0, #0 FIN 6, wake, paused ended 0 0 7.3 3, #0 ready 1, #0 ready 0, #1 ready 1 | next 7.50, p0
        delivered=6 requeued=5 finished=1, p1, p2, queue=0 remembered=0 taken=5 calls=0 limited=0
    """)


def test_a_rate_hands_out_messages_in_turns() -> None:
    driven = reading(max_rate=2.0)
    driven.arrive(1, 2, 3, 4)
    driven.take(3)
    driven.after(0.6, is_awaited=True)
    driven.take()
    driven.finish(1)
    driven.machine.limit_rate(0.1, driven.now)
    driven.serve()
    driven.arrive(5)
    driven.take()
    driven.after(9.0, is_awaited=True)
    driven.machine.limit_rate(None, driven.now)
    driven.after(0.1)
    driven.told("""
        | 0.00: take (1), take (2), take none | 0.50: wake | 0.60: take (3), #0 FIN 1, #0 ready 0, #0 requeue 4 0 (4
        max_rate was lowered) 0, wake, take none | 6.60: #0 ready 3 | 8.60: wake | next inf, p0 delivered=5 requeued=1
        finished=1 in_flight=3, queue=1 remembered=0 taken=3 calls=0 limited=14.5
    """)


def test_what_a_lost_connection_delivered_is_answered_on_the_next_one() -> None:
    driven = reading()
    driven.arrive(1, 2, 3)
    driven.take(2)
    driven.finish(1)
    driven.subscriptions.lost(driven.used(), LOST, driven.now)
    driven.serve()
    driven.after(0.2)
    driven.arrive(1, 2, 3)
    driven.finish(2)
    driven.take()
    driven.after(4.5)
    driven.arrive(3)
    driven.finish(3)
    driven.told("""
        | 0.00: take (1), take (2), #0 FIN 1, disconnected p0 one:1 'lost', failed p0 one:1 =, lookups True | 0.20: open
        #1, subscribed p0 one:1 #1, lookups False, #1 ready 4, #1 FIN 1, finishedcopy (1), #1 FIN 2, take (3) | 4.20:
        settled p0 one:1 | 4.70: said True handling a message takes longer than msg_timeout=4 s, so nsqd delivers it
        again. Raise msg_timeout= (up to nsqd's --max-msg-timeout), or touch() the message from time to time, #1 FIN 3 |
        next inf, p0 delivered=7 timed_out=1 returned=2 finished_unhandled=2 reconnects=1 finished=4 failures=1, queue=0
        remembered=0 taken=3 calls=0 limited=0
    """)


def test_a_flood_and_warnings_are_in_words() -> None:
    driven = reading()
    driven.arrive(*range(1, 21))
    driven.arrive(21)
    driven.after(4.5)
    driven.arrive(22)
    driven.after(4.5)
    driven.machine.flow.used_by(1, driven.now)
    driven.take()
    driven.told("""
        | 0.00: flooded #0 'one:1 ignores RDY: 21 messages are in flight, RDY is 4 and was 4 at most', wake | 4.50: said
        True 21 messages waited for longer than msg_timeout=4 s, since no task takes them: nsqd delivers them again and
        again, and counts each time as an attempt. Iterate, call run() or close the consumer | 4.75: wake | 9.00: take
        none, said True a message waited behind slow ones for longer than msg_timeout=4 s, so nsqd delivers it again:
        raise concurrency= or msg_timeout= (up to nsqd's --max-msg-timeout), or lower max_in_flight= | next inf, p0
        delivered=22 timed_out=22, queue=0 remembered=0 taken=0 calls=0 limited=0
    """)


def test_large_bodies_lower_what_is_asked_for() -> None:
    driven = reading(max_in_flight=8, max_in_flight_bytes=1_000_000)
    driven.machine.flow.used_by(8, driven.now)
    for number, size in enumerate((10, 600_000, 300_000, *[100_000] * 6, *[10] * 8)):
        driven.arrive(number, size=size)
        driven.take()
        driven.finish(number)
    driven.told("""
        | 0.00: #0 ready 8, take (0), #0 FIN 0, #0 ready 1, take (1), #0 FIN 1, take (2), #0 FIN 2, take (3), #0 FIN 3,
        #0 ready 2, take (4), #0 FIN 4, take (5), #0 FIN 5, take (6), #0 FIN 6, take (7), #0 FIN 7, #0 ready 3, take
        (8), #0 FIN 8, take (9), #0 FIN 9, #0 ready 4, take (10), #0 FIN 10, take (11), #0 FIN 11, #0 ready 5, take
        (12), #0 FIN 12, take (13), #0 FIN 13, #0 ready 7, take (14), #0 FIN 14, #0 ready 8, take (15), #0 FIN 15, take
        (16), #0 FIN 16 | next inf, p0 delivered=17 finished=17, queue=0 remembered=0 taken=17 calls=0 limited=0
    """)


def test_what_is_exactly_in_time_counts() -> None:
    driven = reading(auto_touch=1.0, max_in_flight=6)
    driven.taker = Recipient()
    driven.arrive(1, 2, 3, 4)
    driven.take(3)
    driven.now = driven.has[1].deadline
    driven.take()
    driven.machine.take_back(driven.has[1], "its handler was cancelled", driven.now)
    driven.finish(2)
    driven.machine.touch(driven.has[3], driven.now)
    driven.serve()
    driven.now += 0.001
    driven.machine.take_back(driven.has[4], "its handler was cancelled", driven.now)
    driven.take()
    driven.finish(3)
    driven.told("""
        | 0.00: take (1), take (2), take (3) | 3.80: take (4), #0 touch 4 (4), #0 FIN 2, wake, #0 ready 3, #0 touch 3
        (3) | 3.80: take (4), #0 touch 4 (4), wake, #0 FIN 3, #0 ready 2 | next 0.50, p0 delivered=4 finished=2
        in_flight=2, queue=1 remembered=0 taken=3 calls=0 limited=0
    """)


def test_a_failure_of_a_task_and_a_late_requeue_return_messages_for_a_reason() -> None:
    driven = reading()
    driven.taker = Recipient()
    driven.arrive(1, 2)
    driven.take(2)
    driven.after(4.5)
    driven.arrive(2, 3)
    driven.requeue(2)
    driven.take()
    driven.taker.is_over = driven.taker.has_failed = True
    driven.machine.return_left(driven.now)
    driven.serve()
    driven.told("""
        | 0.00: take (1), take (2) | 4.50: #0 requeue 2 10 (2), wake, said True handling a message takes longer than
        msg_timeout=4 s, so nsqd delivers it again. Raise msg_timeout= (up to nsqd's --max-msg-timeout), or touch() the
        message from time to time, paused 0 0 0 1, take (3), #0 ready 3, #0 requeue 1 0 (1 the consumer was closed
        before it was answered) 0, #0 requeue 3 0 (3 the consumer was closed before it was answered) 0, #0 ready 1 |
        next inf, p0 delivered=4 requeued=3 timed_out=1, queue=0 remembered=0 taken=3 calls=0 limited=0
    """)


def test_a_test_that_is_taken_back_is_handed_out_again() -> None:
    driven = reading(handler_backoff=Backoff(1.0, 1.0, jitter=0.0))
    driven.arrive(1, 2, 3)
    for number in (1, 2):
        driven.take()
        driven.requeue(number)
    driven.after(1.0)
    driven.take()
    driven.machine.take_back(driven.has[3], "its handler was cancelled", driven.now)
    driven.take()
    assert driven.has[3].state is State.HANDED_OUT
