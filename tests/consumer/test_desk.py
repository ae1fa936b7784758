"""The queue's rules part by part: how many messages are asked for, which are handed out, and what is watched."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nsq_ha import ConsumerConfig
from nsq_ha.consumer.clock import LONGEST_RUN, TICK, Heartbeats, LoopClock, cpu_times
from nsq_ha.consumer.delivery import source_of
from nsq_ha.consumer.ledger import IN_TIME, Ledger
from nsq_ha.consumer.pace import ConsumerPace, Flow
from nsq_ha.consumer.queue import MessageQueue
from nsq_ha.errors import ConfigError
from nsq_ha.message import Message
from nsq_ha.policy.ready import FEW, LOOK_INTERVAL, Seen
from nsq_ha.policy.timing import FEW_LINES
from tests.consumer.parts import Source
from tests.support.nsqd import message_id
from tests.support.waiting import block, dawdle, eventually, turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def now() -> float:
    return asyncio.get_running_loop().time()


class FakeFlow:
    """Notes the limits."""

    def __init__(self) -> None:
        self.max_in_flight = 1000
        self.in_flight = 0
        self.limits: list[int | None] = []
        self.is_gathering = False

    def gathers(self) -> bool:
        return self.is_gathering

    def limit_to(self, count: int | None) -> None:
        self.limits.append(count)

    is_raise_due = False

    def share(self) -> None: ...


class FakeClock:
    """An event loop that was blocked for as long as a test says."""

    def __init__(self) -> None:
        self.blocked = 0.0
        self.arrived_at: float | None = None
        self.suspect: str | None = None
        self.turns: list[float] = []  # when something arrived without a block

    def blocked_for(self, _: float) -> float:
        return self.blocked

    def arrival(self, at: float) -> float:
        if self.arrived_at is not None:
            return self.arrived_at
        self.turns.append(at)
        return at


class Case:
    """A queue with its neighbours."""

    def __init__(self) -> None:
        config = ConsumerConfig(lookupd=("http://a:1",), handler_backoff=None)
        self.queue, self.flow, self.clock = MessageQueue(), FakeFlow(), FakeClock()
        self.inbox = self.queue.messages
        self.subscriptions: dict[int, Any] = {}
        self.pace = ConsumerPace("orders/ch", config, self.queue, self.subscriptions, lambda: None)
        self.pace.flow = self.flow  # type: ignore[assignment]
        giving_up: Any = SimpleNamespace(gives_up=self.gives_up, has=lambda _: False)
        clock: Any = self.clock
        self.ledger = Ledger("orders/ch", config, self.queue, self.pace, giving_up, clock)
        self.given_up: list[Message] = []
        self.pace.review()

    def gives_up(self, message: Message) -> bool:
        self.given_up.append(message)
        return False

    def source(self, msg_timeout: float = 8.0) -> Source:
        """Return a connection."""
        return Source(self.ledger, msg_timeout=msg_timeout)

    def arrive(self, count: int = 1, source: Source | None = None) -> list[Message]:
        """Put messages into the queue."""
        used = source or self.source()
        messages = [Message(message_id(n + 2), b"x", 1, n, used) for n in range(count)]
        self.ledger.arrived(messages)
        return messages

    def take(self) -> tuple[Message, float]:
        """Take the next message as an iterator does."""
        message = self.inbox.popleft()
        return message, self.queue.next_arrived_at()

    def hand_out(self) -> Message:
        """Hand out the next message."""
        message, arrived_at = self.take()
        if self.pace.is_careful:
            self.ledger.handed_out(message, arrived_at)
        return message

    @contextlib.contextmanager
    def used_by(self, handlers: int, message: Message | None = None) -> Iterator[None]:
        """Run handlers while the block runs, one of them over ``message``."""
        task: Any = "task"
        if message is not None:
            self.ledger.handled[task] = message
        self.pace.used_by(handlers)
        yield
        self.ledger.handled.clear()
        self.pace.used_by(-handlers)

    def take_back(self, message: Message) -> bool:
        """Take back a message that was handed out; return whether it is in the queue again."""
        before = len(self.inbox)
        self.ledger.take_back(message, "of a test")
        return len(self.inbox) > before


def joined(case: Case, *timeouts: float, dead: float | None = None) -> None:
    alive = [SimpleNamespace(delivery=SimpleNamespace(msg_timeout=each, is_alive=True)) for each in timeouts]
    others = [SimpleNamespace(delivery=None)]
    if dead is not None:
        others.append(SimpleNamespace(delivery=SimpleNamespace(msg_timeout=dead, is_alive=False)))
    case.subscriptions.clear()
    case.subscriptions.update(enumerate([*alive, *others]))
    case.pace.joined()


# ---------------------------------------------------------------- how many are asked for


async def test_before_anything_was_handled_a_few_may_wait() -> None:
    case = Case()
    assert (case.flow.limits, case.queue.fine_below, case.pace.msg_timeout) == ([10], 0, 60.0)
    joined(case, *([5.0] * 20), 3.0, dead=1.0)
    assert (case.flow.limits[-1], case.pace.msg_timeout) == (22, 3.0)
    joined(case)
    assert (case.flow.limits[-1], case.pace.msg_timeout) == (10, 60.0)
    case.flow.in_flight = 7
    case.arrive(2)
    case.pace.freed()
    assert case.flow.limits[-1] == 15  # five are in the hands of the application
    case.flow.in_flight, case.flow.is_gathering = 3, True
    case.pace.freed()
    assert case.flow.limits[-1] == 15  # with many partitions the next review is a little later


async def test_handlers_that_run_count_as_messages_in_hand() -> None:
    case = Case()
    with case.used_by(4):
        assert case.flow.limits[-1] == 14
        case.flow.in_flight = 9
        case.pace.freed()
        assert case.flow.limits[-1] == 14  # an answer changes nothing where handlers are counted
        case.pace.review()
        assert case.flow.limits[-1] == 19
        case.pace.handled(1, 1.0)
        assert case.flow.limits[-1] == 9 + 4 * 30
    case.flow.in_flight = 0
    case.pace.review()
    assert case.flow.limits[-1] == 30
    case.pace.handled(1, 1000.0)
    assert case.flow.limits[-1] == 1  # whoever iterates wants the next one


async def test_quick_handling_removes_the_limit_and_the_checks() -> None:
    case = Case()
    case.pace.handled(1000, 0.5)  # a full queue takes half a second
    assert (case.flow.limits[-1], case.queue.fine_below) == (None, 2)
    case.flow.limits.clear()
    case.pace.freed()
    assert case.flow.limits == []
    case.pace.handled(1, 5.0)
    assert case.queue.fine_below == 0
    assert case.flow.limits[-1] is not None


async def test_an_iteration_is_measured_between_arrivals() -> None:
    case = Case()
    case.arrive(4)
    for _ in range(3):
        case.hand_out()
        await dawdle(1.0)
    case.arrive(1)  # two were done in three seconds: the third is being handled
    assert case.pace.speed.seconds == pytest.approx(1.5, abs=0.01)
    assert case.flow.limits[-1] == 19  # those that begin within half a minute


async def test_an_iteration_is_measured_when_it_wants_more_than_there_is() -> None:
    case = Case()
    case.arrive(2)
    for _ in range(2):
        case.hand_out()
        await dawdle(1.0)
    case.pace.emptied()
    assert case.pace.speed.seconds == pytest.approx(1.0, abs=0.01)
    await dawdle(50.0)  # waiting for messages is not handling them
    case.pace.emptied()
    case.arrive(1)
    case.hand_out()
    await dawdle(1.0)
    case.pace.emptied()
    assert case.pace.speed.seconds == pytest.approx(1.0, abs=0.01)


async def test_an_iteration_is_measured_now_and_then_while_nothing_arrives() -> None:
    case = Case()
    case.arrive(40)
    for number in range(17):
        case.hand_out()
        assert (case.pace.speed.seconds is None) == (number < 15), number
        await dawdle(0.5)
    assert case.pace.speed.seconds == pytest.approx(0.5, abs=0.01)


async def test_quick_iteration_is_measured_over_more_than_a_moment() -> None:
    case = Case()
    case.pace.handled(1000, 0.1)
    before = case.pace.speed.seconds
    case.arrive(4)
    for pause, is_measured in ((0.005, False), (0.01, True)):
        case.take()
        await dawdle(pause)
        case.arrive(1)
        assert (case.pace.speed.seconds != before) == is_measured


async def test_handlers_are_not_measured_by_their_queue() -> None:
    case = Case()
    with case.used_by(1):
        case.arrive(20)
        for _ in range(20):
            case.hand_out()
            await dawdle(0.1)
        case.arrive(1)
        case.pace.emptied()
        assert case.pace.speed.seconds is None


async def test_a_loss_ends_a_measurement() -> None:
    case = Case()
    case.arrive(3)
    case.hand_out()
    await dawdle(1.0)
    source_of(case.inbox[0]).is_alive = False
    case.ledger.left()
    assert not case.inbox
    case.pace.emptied()
    assert case.pace.speed.seconds is None


async def test_arrivals_after_a_block_are_as_old_as_the_block() -> None:
    case = Case()
    assert not case.ledger.arrived([Message(message_id(2), b"x", 1, 0, case.source())])
    assert case.clock.turns == [pytest.approx(now(), abs=0.01)]
    case.clock.blocked, case.clock.arrived_at = 2.0, now() - 2.0
    assert case.ledger.arrived([Message(message_id(3), b"x", 1, 0, case.source())])
    assert len(case.clock.turns) == 1


# ---------------------------------------------------------------- which are handed out


WAITED = (
    "orders/ch: a message waited behind slow ones for longer than msg_timeout=8 s, so nsqd delivers it again: raise"
    " concurrency= or msg_timeout= (up to nsqd's --max-msg-timeout), or lower max_in_flight="
)
LONG = (
    "orders/ch: handling a message takes longer than msg_timeout=8 s, so nsqd delivers it again. Raise msg_timeout= (up"
    " to nsqd's --max-msg-timeout), or touch() the message from time to time"
)


@pytest.mark.parametrize(("waits", "is_wanted"), [(8.0 * IN_TIME - 0.1, True), (8.0 * IN_TIME + 0.1, False)])
async def test_a_message_whose_time_has_passed_is_dropped(
    caplog: pytest.LogCaptureFixture, waits: float, *, is_wanted: bool
) -> None:
    case = Case()
    source = case.source()
    case.arrive(2, source)
    await dawdle(waits)
    assert [case.ledger.is_wanted(*case.take()) for _ in range(2)] == [is_wanted] * 2
    assert source.answers == ([] if is_wanted else [(0, "dropped")] * 2)
    assert caplog.messages == ([] if is_wanted else [WAITED])


async def test_a_message_of_a_lost_connection_is_not_wanted() -> None:
    case = Case()
    source = case.source()
    case.arrive(1, source)
    source.is_alive = False
    assert not case.ledger.is_wanted(*case.take())
    assert source.answers == []


async def test_a_message_that_was_put_back_keeps_its_age() -> None:
    case = Case()
    case.arrive(2)
    began = now()
    await dawdle(1.0)
    message, arrived_at = case.take()
    assert arrived_at == pytest.approx(began, abs=0.01)
    case.queue.put_back(message, arrived_at)
    assert case.inbox[0] is message
    assert case.take() == (message, arrived_at)


async def test_a_message_that_is_taken_back_counts_as_a_quarter_of_its_timeout_old() -> None:
    for timeout, age in ((2.0, 0.5), (60.0, 1.0)):
        case = Case()
        (message,) = case.arrive(1, case.source(timeout))
        case.take()
        assert case.take_back(message)
        assert now() - case.take()[1] == pytest.approx(age, abs=0.01)


async def test_a_watched_message_that_is_taken_back_keeps_its_deadline() -> None:
    case = Case()
    case.arrive(1)
    began = now()
    message = case.hand_out()
    assert message.watch is not None
    await dawdle(3.0)
    assert case.take_back(message)
    again, arrived_at = case.take()
    assert (message.answered, again.answered, again.watch) == (True, False, None)
    assert arrived_at == pytest.approx(began, abs=0.01)
    case.ledger.handed_out(again, now())
    assert again.watch is not None
    again.watch.deadline += 100.0  # a touch may move it far
    assert case.take_back(again)
    third, arrived_at = case.take()
    assert arrived_at == pytest.approx(now(), abs=0.01)
    case.ledger.handed_out(third, now())
    assert third.watch is not None
    third.watch.copies.append(Message(message.id, b"x", 2, 0, case.source()))
    assert not case.take_back(third)
    assert not case.inbox


async def test_a_message_that_is_being_handled_is_not_handed_out_again(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    source = case.source()
    (original,) = case.arrive(1, source)
    with case.used_by(1, original):
        for copy_source, warned in ((case.source(), []), (source, [LONG])):
            copy = Message(original.id, b"x", 2, 0, copy_source)
            assert not case.ledger.is_wanted(copy, now())
            assert original.watch is not None
            assert original.watch.copies
            assert caplog.messages == warned
        elsewhere = case.source()
        elsewhere.partition += 1
        assert case.ledger.is_wanted(Message(original.id, b"x", 2, 0, elsewhere), now())
        other = Message(message_id(99), b"x", 1, 0, source)
        assert case.ledger.is_wanted(other, now())
    assert case.ledger.is_wanted(Message(original.id, b"x", 2, 0, source), now())


async def test_copies_from_lost_connections_are_not_kept() -> None:
    """A handler may run for hours, and each connection that is lost meanwhile brings its message once more."""
    case = Case()
    (original,) = case.arrive(1)
    with case.used_by(1, original):
        for _ in range(3):
            source = case.source()
            assert not case.ledger.is_wanted(Message(original.id, b"x", 2, 0, source), now())
            assert original.watch is not None
            assert [copy.source for copy in original.watch.copies] == [source]
            source.is_alive = False


async def test_what_was_finished_late_is_finished_again_unhandled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    case = Case()
    source = case.source()
    (message,) = case.arrive(1, source)
    case.hand_out()
    await dawdle(9.0)
    message.finish()
    assert caplog.messages == [LONG]
    copy = Message(message.id, b"x", 2, 0, source)
    other = Message(message.id, b"x", 2, 5, source)
    assert case.ledger.is_wanted(other, now())  # another message: it was published at another time
    assert not case.ledger.is_wanted(copy, now())
    assert source.answers == [(2, "finish")] * 2
    assert caplog.messages[1:] == [
        f"{copy!r} was handled before, but its FIN was without effect: finishing this copy unhandled"
    ]


async def test_few_of_those_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    case = Case()
    source = case.source()
    messages = case.arrive(FEW_LINES + 5, source)  # more would show that handling is quick
    for _ in messages:
        case.hand_out()
    await dawdle(9.0)
    for message in messages:
        message.finish()
    for message in messages:
        assert not case.ledger.is_wanted(Message(message.id, b"x", 2, message.timestamp_ns, source), now())
    assert sum("finishing this copy unhandled" in line for line in caplog.messages) == FEW_LINES


@pytest.mark.parametrize("why", ["late", "lost", "blocked", "in time"])
async def test_copies_in_the_queue_are_answered_with_a_message_whose_fin_may_be_late(why: str) -> None:
    case = Case()
    source = case.source()
    (message,) = case.arrive(1, source)
    case.hand_out()
    (copy, other) = (Message(message.id, b"x", 2, 0, case.source()), Message(message_id(50), b"x", 1, 0, case.source()))
    case.ledger.arrived([copy, other])
    if why == "late":
        await dawdle(9.0)
    source.is_alive = why != "lost"
    case.clock.blocked = 3.0 if why == "blocked" else 0.0
    message.finish()
    assert list(case.inbox) == ([copy, other] if why == "in time" else [other])
    assert copy.answered == (why != "in time")
    assert bool(case.ledger._finished) == (why != "in time")
    case.pace.handled(1000, 0.01)
    assert (case.queue.fine_below, case.queue.suspects) == (2, set() if why == "in time" else {message.id})


@pytest.mark.parametrize(("taken_after", "works", "warned"), [(0.0, 9.0, [LONG]), (7.0, 2.0, []), (0.0, 7.0, [])])
async def test_long_work_is_warned_about_once_and_waiting_is_not_work(
    caplog: pytest.LogCaptureFixture, taken_after: float, works: float, warned: list[str]
) -> None:
    case = Case()
    messages = case.arrive(2)
    await dawdle(taken_after)
    for _ in range(2):
        case.hand_out()
    await dawdle(works)
    messages[0].requeue(2.0)
    messages[1].finish()
    assert case.given_up == [messages[0]]
    assert caplog.messages == warned


async def test_a_handler_that_took_long_is_suspected_and_its_message_watched() -> None:
    case = Case()
    first, second = case.arrive(2)
    began = now()
    await dawdle(1.0)
    case.ledger.took_long(first, began, "handle")
    assert case.clock.suspect is None
    assert first.watch is not None
    assert (first.watch.taken_at, first.watch.deadline) == (began, began + IN_TIME * 8.0)
    case.clock.blocked = 1.0
    second.answered = True
    case.ledger.took_long(second, began, "handle")
    assert case.clock.suspect == "handle"
    assert second.watch is None


# ---------------------------------------------------------------- the clock


async def test_a_block_is_reported_with_its_length_and_its_suspect() -> None:
    seen: list[tuple[float, str | None]] = []
    clock = LoopClock(lambda seconds, suspect, _: seen.append((round(seconds, 1), suspect)))
    block(50.0)
    clock.start()
    began = now()
    assert clock.blocked_for(began + 2 * TICK) == 0.0
    assert clock.blocked_for(began + 2 * TICK + 0.1) == pytest.approx(TICK + 0.1)
    assert clock.arrival(began + 2 * TICK) == began + 2 * TICK
    assert clock.arrival(began + 2 * TICK + 0.1) == pytest.approx(began)
    clock.suspect = "handle"
    block(3.0)
    await dawdle(0.1)
    assert seen == [(2.5, "handle")]
    assert clock.suspect is None
    block(3.0)
    await dawdle(3.0)
    assert seen[1:] == [(pytest.approx(2.5, abs=0.2), None)]
    clock.stop()
    block(3.0)
    await dawdle(0.1)
    assert len(seen) == 2


@pytest.mark.parametrize(("hogs", "pause"), [(LONGEST_RUN, 0.0), (LONGEST_RUN + 0.01, 0.0), (1.0, 0.0), (1.1, 0.02)])
async def test_the_loop_turns_after_a_hog_and_rests_after_a_long_one(hogs: float, pause: float) -> None:
    clock = LoopClock(lambda *_: None)
    ran: list[int] = []

    async def others() -> None:
        for number in range(10):
            ran.append(number)
            await turn()

    other = asyncio.create_task(others())
    clock.arrival(now())
    block(hogs)
    began = now()
    await clock.let_others_run()
    assert now() - began == pytest.approx(pause, abs=0.01)
    assert (len(ran) >= 3) == (hogs > LONGEST_RUN)
    ran_before = len(ran)
    await clock.let_others_run()
    assert len(ran) == ran_before
    await other


@pytest.mark.parametrize(
    ("suspect", "who", "advice"),
    [
        (
            "handle",
            "the handler handle blocked the event loop",
            "Make the handler a plain function (def), or run blocking code with asyncio.to_thread",
        ),
        (
            None,
            "the event loop was blocked",
            "Run blocking code, as in the body of a loop over messages, with asyncio.to_thread",
        ),
    ],
)
async def test_the_first_block_that_matters_is_a_warning(
    caplog: pytest.LogCaptureFixture, suspect: str | None, who: str, advice: str
) -> None:
    caplog.set_level(logging.INFO)
    heartbeats = Heartbeats("orders/ch", 2.0)
    heartbeats.blocked(2.0, suspect)
    assert caplog.messages == []
    heartbeats.blocked(8.0, suspect)
    heartbeats.blocked(8.0, suspect)
    heartbeats.blocked(12.0, suspect)
    heartbeats.refused()
    heartbeats.refused()
    assert caplog.messages == [
        (
            f"orders/ch: {who} for 8.0 s. No heartbeat is answered during that time, and nsqd closes a connection after"
            f" 2 or 3 heartbeat intervals (2 s each). {advice}. New connections ask for heartbeats every 6.0 s"
        ),
        f"orders/ch: {who} for 12.0 s: new connections ask for heartbeats every 9.0 s",
        "orders/ch: nsqd refused a heartbeat interval of 9.0 s; asking for 2 s again",
    ]
    assert heartbeats.interval == 2.0


@pytest.mark.parametrize(
    ("before", "after", "waited"),
    [
        ((1.0, 1.0), (1.1, 3.0), 2.0),
        ((1.0, 1.0), (1.1, 1.1), pytest.approx(0.1)),
        ((1.0, 1.0), (1.1, 9.0), pytest.approx(2.5, abs=0.1)),  # no longer than the block
        ((1.0, 1.0), (2.5, 3.0), 0.0),  # code of its own took most of the time
        ((1.0, math.nan), (1.1, math.nan), pytest.approx(math.nan, nan_ok=True)),
    ],
)
async def test_a_block_is_reported_with_the_time_without_a_cpu(
    monkeypatch: pytest.MonkeyPatch, before: tuple[float, float], after: tuple[float, float], waited: object
) -> None:
    times = [before, after]
    monkeypatch.setattr("nsq_ha.consumer.clock.cpu_times", lambda: times.pop(0) if len(times) > 1 else times[0])
    seen: list[float] = []
    clock = LoopClock(lambda seconds, suspect, waited: seen.append(waited))
    clock.start()
    block(3.0)
    await dawdle(0.1)
    clock.stop()
    assert seen == [waited]


def test_a_system_that_does_not_count_the_time_without_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    monkeypatch.setattr("nsq_ha.consumer.clock._SCHEDSTAT", path)
    assert math.isnan(cpu_times()[1])
    for text in ("0 0 0\n", "odd"):
        path.write_text(text)
        assert math.isnan(cpu_times()[1])
    path.write_text("2000000000 1500000000 7\n")
    assert cpu_times()[1] == 1.5


async def test_a_machine_that_is_too_busy_is_not_taken_for_code_that_blocks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    heartbeats = Heartbeats("orders/ch", 2.0)
    heartbeats.blocked(8.0, "handle", 7.5)
    heartbeats.blocked(8.0, "handle", 0.5)
    heartbeats.blocked(12.0, "handle", 11.0)
    assert heartbeats.interval == 9.0
    assert caplog.messages == [
        (
            "orders/ch: the event loop had to wait 7.5 of 8.0 s for a CPU. No heartbeat is answered during that time,"
            " and nsqd closes a connection after 2 or 3 heartbeat intervals (2 s each). Give the process more CPU: the"
            " machine is too busy, or the container's limit too low. New connections ask for heartbeats every 6.0 s"
        ),
        (
            "orders/ch: the handler handle blocked the event loop for 8.0 s. No heartbeat is answered during that time,"
            " and nsqd closes a connection after 2 or 3 heartbeat intervals (2 s each). Make the handler a plain"
            " function (def), or run blocking code with asyncio.to_thread. New connections ask for heartbeats every"
            " 6.0 s"
        ),
        (
            "orders/ch: the event loop had to wait 11.0 of 12.0 s for a CPU: new connections ask for heartbeats every"
            " 9.0 s"
        ),
    ]


async def test_a_block_on_a_system_that_does_not_tell_names_both_causes(caplog: pytest.LogCaptureFixture) -> None:
    heartbeats = Heartbeats("orders/ch", 2.0)
    heartbeats.blocked(8.0, None, math.nan)
    assert "with asyncio.to_thread. If no code blocks it, the machine is too busy. New" in caplog.text


# ---------------------------------------------------------------- RDY


class Partition:
    """A subscription of which a test says what it delivers."""

    def __init__(self, max_ready: int = 100) -> None:
        self.max_ready = max_ready
        self.ready = self.in_flight = self.replaced_in_flight = self.peaks = 0
        self.delivered = 0
        self.sent: list[int] = []

    @property
    def seen(self) -> Seen:
        return Seen(self.ready, self.in_flight, self.in_flight, self.delivered)

    def set_ready(self, count: int) -> None:
        if count != self.ready:
            self.ready = count
            self.sent.append(count)

    def reset_peak(self) -> None:
        self.peaks += 1


def flow_of(
    most: int, *partitions: Partition, max_bytes: int = 2**40, on_gathered: Callable[[], None] = lambda: None
) -> Flow:
    subscriptions: Any = dict(enumerate(partitions))
    config: Any = SimpleNamespace(max_in_flight=most, max_in_flight_bytes=max_bytes)
    backoff: Any = SimpleNamespace(wants_test=None)
    return Flow(config, subscriptions, backoff, on_gathered)


def rdy(*partitions: Partition) -> list[int]:
    return [partition.ready for partition in partitions]


@pytest.mark.parametrize("count", [-1, 1_000_001, True, 1.5, "3", None])
async def test_a_wrong_limit_is_refused(count: object) -> None:
    with pytest.raises(ConfigError) as caught:
        flow_of(10).set(count)  # type: ignore[arg-type]
    assert str(caught.value) == f"max_in_flight must be a whole number, 0..1000000, not {count!r}"


async def test_the_limit_is_shared_lowered_and_raised_as_messages_are_answered() -> None:
    one, two = Partition(), Partition()
    flow = flow_of(10, one, two)
    flow.share()
    assert rdy(one, two) == [5, 5]
    one.in_flight = 5
    flow.set(4)
    assert (flow.max_in_flight, rdy(one, two)) == (4, [2, 0])
    assert flow.in_flight == 5
    one.in_flight = 2
    if flow.is_raise_due:
        flow.freed()
    await turn(2)
    assert rdy(one, two) == [2, 2]
    flow.set(0)
    assert rdy(one, two) == [0, 0]
    flow.set(6)
    one.in_flight = 0
    if flow.is_raise_due:
        flow.freed()
    await turn(2)
    assert rdy(one, two) == [3, 3]
    flow.stop()
    flow.set(100)
    assert rdy(one, two) == [3, 3]


async def test_many_partitions_are_shared_once_for_many_changes() -> None:
    many = [Partition() for _ in range(FEW + 1)]
    shared: list[int] = []

    def share() -> None:
        shared.append(1)
        flow.share()

    flow = flow_of(2 * len(many), *many, on_gathered=share)
    assert all(flow.gathers() for _ in many)
    assert rdy(*many) == [0] * len(many)
    await eventually(lambda: shared)
    assert (len(shared), rdy(*many)) == (1, [2] * len(many))
    for partition in many:
        partition.in_flight = 2
    flow.set(len(many))
    for partition in many:
        partition.in_flight = 1
        if flow.is_raise_due:
            flow.freed()
    await eventually(lambda: len(shared) == 2)
    assert rdy(*many) == [1] * len(many)
    assert flow.gathers()
    flow.stop()
    assert flow.gathers()
    assert len(shared) == 2
    assert not flow_of(2, *many[:FEW]).gathers()


async def test_messages_of_replaced_connections_count() -> None:
    one = Partition()
    flow = flow_of(10, one)
    one.replaced_in_flight = 4
    flow.share()
    assert (flow.in_flight, rdy(one)) == (4, [6])


async def test_a_limit_by_speed_is_sent_only_if_it_matters() -> None:
    one = Partition()
    flow = flow_of(100, one)
    flow.share()
    for count, ready in ((76, 100), (75, 75), (90, 75), (94, 94), (None, 100), (1, 1), (0, 0), (None, 100)):
        flow.limit_to(count)
        assert rdy(one) == [ready], count


async def test_a_small_raise_is_sent_if_nothing_would_arrive_without_it() -> None:
    one = Partition()
    flow = flow_of(100, one)
    flow.limit_to(20)
    flow.share()
    one.in_flight = 19
    flow.limit_to(21)
    assert rdy(one) == [20]
    one.in_flight = 20
    flow.limit_to(22)
    assert rdy(one) == [22]


async def test_large_bodies_lower_the_limit_and_small_ones_raise_it_again() -> None:
    one = Partition()
    flow = flow_of(100, one, max_bytes=100_000)
    flow.share()
    assert rdy(one) == [1]  # a body may have a megabyte until one was seen
    flow.seen(2000)
    assert rdy(one) == [50]
    flow.seen(2001)
    assert rdy(one) == [49]
    before = len(one.sent)
    for _ in range(100):
        flow.seen(500)
    assert rdy(one) == [100]
    assert len(one.sent) - before < 6  # not for each byte
    flow.seen(5000)
    assert rdy(one) == [20]


async def test_backlogs_are_looked_at_while_there_are_several_partitions() -> None:
    one, two = Partition(), Partition()
    flow = flow_of(20, one, two)
    flow.share()
    assert rdy(one, two) == [10, 10]
    one.in_flight, one.delivered = 10, 100  # full: it can use more
    await dawdle(LOOK_INTERVAL + 0.01)
    assert (one.peaks, two.peaks) == (1, 1)
    if flow.is_raise_due:
        flow.freed()
    one.in_flight = 5
    await dawdle(3 * LOOK_INTERVAL)
    assert one.peaks >= 3
    assert sum(rdy(one, two)) <= 20
    assert rdy(one, two)[0] > 10
    flow.stop()
    peaks = one.peaks
    await dawdle(3 * LOOK_INTERVAL)
    assert one.peaks == peaks


async def test_partitions_that_deliver_nothing_are_not_looked_at() -> None:
    """The looks of 500 idle consumers took a tenth of a core."""
    one, two = Partition(), Partition()
    flow = flow_of(20, one, two)
    flow.share()
    one.in_flight, one.delivered = 0, 100
    await dawdle(20 * LOOK_INTERVAL)
    peaks = one.peaks
    await dawdle(20 * LOOK_INTERVAL)
    assert one.peaks == peaks
    one.delivered += 100  # messages arrive again
    flow.seen(1)
    await dawdle(2 * LOOK_INTERVAL)
    assert one.peaks > peaks
    flow.stop()
    flow.seen(1)
    await dawdle(2 * LOOK_INTERVAL)
    assert one.peaks <= peaks + 2


async def test_one_partition_is_not_looked_at() -> None:
    one = Partition()
    flow_of(20, one).share()
    await dawdle(5 * LOOK_INTERVAL)
    assert one.peaks == 0


async def test_more_partitions_than_messages_take_turns() -> None:
    parts = [Partition() for _ in range(3)]
    flow = flow_of(2, *parts, Partition(0))
    flow.share()
    assert sorted(rdy(*parts)) == [0, 1, 1]
    had: set[int] = set()
    for _ in range(20):
        await dawdle(LOOK_INTERVAL)
        had |= {number for number, part in enumerate(parts) if part.ready}
        assert sum(rdy(*parts)) <= 2
    assert had == {0, 1, 2}
    flow.stop()
