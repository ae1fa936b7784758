"""The way of an answer, part by part: a delivery, a watched message, and one that was given back."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nsq_ha import ConsumerConfig, tracelog
from nsq_ha.consumer.clock import LoopClock
from nsq_ha.consumer.closing import drain
from nsq_ha.consumer.delivery import CLOSED, Delivery, Returned, give_back, leave_to_end
from nsq_ha.consumer.ledger import Ledger
from nsq_ha.consumer.pace import ConsumerPace
from nsq_ha.consumer.queue import MessageQueue
from nsq_ha.errors import ConnectionLostError
from nsq_ha.message import Message, Watch
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Identity
from nsq_ha.protocol.encoding import encode_req
from tests.consumer.parts import Reports, delivery_for
from tests.support.nsqd import message_id
from tests.support.waiting import dawdle, turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsq_ha.errors import NsqError


class Wire:
    """Stands for a connection: keeps what is written."""

    node = Node("10.0.0.1", 4150, 4151)
    identity = Identity(version="fake", msg_timeout=4_000, max_msg_timeout=20_000)

    def __init__(self) -> None:
        self.now: list[bytes] = []
        self.later: list[bytes] = []
        self.aborted: list[NsqError] = []

    def write_now(self, data: bytes) -> None:
        self.now.append(data)

    def write(self, data: bytes) -> None:
        self.later.append(data)

    def abort(self, reason: NsqError) -> None:
        self.aborted.append(reason)


class Case:
    """A delivery with its connection, and what it reports."""

    def __init__(self, *, is_ordered: bool = False, attach: bool = True) -> None:
        self.wire = Wire()
        self.reports = Reports()
        self.delivery = delivery_for(self.reports, is_ordered=is_ordered)
        if attach:
            self.delivery.attach(self.wire)  # type: ignore[arg-type]
            self.delivery.arrived_at = asyncio.get_running_loop().time()

    def messages(self, count: int, attempts: int = 1) -> list[Message]:
        """Deliver."""
        self.delivery.in_flight += count
        return [Message(message_id(n + 2, 3), b"x", attempts, 7, self.delivery) for n in range(count)]


def fin(*messages: Message) -> bytes:
    return b"".join(b"FIN " + message.id + b"\n" for message in messages)


def req(message: Message, milliseconds: int) -> bytes:
    return b"REQ " + message.id + b" %d\n" % milliseconds


async def test_a_delivery_begins_like_this() -> None:
    delivery = Case(attach=False).delivery
    shown = (delivery.topic, delivery.channel, delivery.partition, delivery.nsqd, delivery.msg_timeout)
    assert shown == ("orders", "ch", 3, "", 60.0)
    assert [delivery.is_alive, delivery.is_arriving, delivery.is_ordered, delivery.may_repeat] == [False] * 4
    figures = (
        delivery.arrived_at,
        delivery.delivered,
        delivery.in_flight,
        delivery.peak,
        delivery.ready,
        delivery.held,
    )
    assert (figures, delivery.touched_at) == ((0,) * 6, 0.0)
    assert Case(is_ordered=True).delivery.may_repeat
    attached = Case().delivery
    assert (attached.is_alive, attached.nsqd, attached.msg_timeout) == (True, "10.0.0.1:4150", 4.0)


async def test_the_only_message_is_finished_at_once_and_others_together() -> None:
    case = Case()
    (alone,) = case.messages(1)
    alone.finish()
    assert (case.wire.now, case.delivery.in_flight, case.reports.freed_times) == ([fin(alone)], 0, 1)
    first, second, third = case.messages(3)
    first.finish()
    third.finish()
    assert (len(case.wire.now), case.delivery.in_flight) == (1, 3)
    await turn()
    assert (case.wire.now[1:], case.delivery.in_flight, case.reports.freed_times) == ([fin(first, third)], 1, 2)
    second.finish()
    assert (case.wire.now[2:], case.reports.freed_times) == ([fin(second)], 3)
    await turn(3)
    case.delivery.flush()
    assert (len(case.wire.now), case.reports.freed_times) == (3, 3)


async def test_what_is_finished_while_messages_arrive_leaves_with_the_flush() -> None:
    case = Case()
    case.delivery.is_arriving = True
    first, second = case.messages(2)
    first.finish()
    second.finish()
    await turn(3)
    assert case.wire.now == []
    case.delivery.flush()
    assert case.wire.now == [fin(first, second)]


@pytest.mark.parametrize(("attempts", "milliseconds"), [(1, 2_000), (2, 6_000), (3, 18_000), (4, 30_000)])
async def test_a_requeue_without_delay_follows_the_backoff_without_chance(attempts: int, milliseconds: int) -> None:
    case = Case()
    (message,) = case.messages(1, attempts)
    message.requeue()
    assert (case.wire.later, case.delivery.in_flight, case.reports.freed_times) == ([req(message, milliseconds)], 0, 1)
    assert case.reports.requeued_messages == [message.id]


async def test_a_requeue_is_not_sent_if_the_message_is_given_up() -> None:
    case = Case()
    case.reports.takes = True
    (message,) = case.messages(1)
    message.requeue(1.5)
    assert (case.wire.later, case.delivery.in_flight, case.reports.freed_times) == ([], 1, 0)
    case.reports.takes = False
    message.answered = False
    message.requeue(1.5)
    assert case.wire.later == [req(message, 1500)]


async def test_an_ordered_requeue_waits_here_and_is_touched_meanwhile() -> None:
    case = Case(is_ordered=True)
    (message,) = case.messages(1)
    message.requeue(9.0)
    assert (case.delivery.held, case.delivery.in_flight) == (1, 1)
    await dawdle(8.9)
    touches = case.wire.later
    assert touches
    assert set(touches) == {b"TOUCH " + message.id + b"\n"}
    assert case.delivery.held == 1
    await dawdle(0.2)
    assert case.wire.later[-1] == req(message, 0)
    assert (case.delivery.held, case.delivery.in_flight, case.reports.freed_times) == (0, 0, 1)


async def test_an_ordered_requeue_without_delay_is_sent_at_once() -> None:
    case = Case(is_ordered=True)
    (message,) = case.messages(1)
    message.requeue(0)
    assert (case.wire.later, case.delivery.held) == ([req(message, 0)], 0)


async def test_the_end_of_a_connection_ends_all_that_waits() -> None:
    case = Case(is_ordered=True)
    held, late = case.messages(2)
    held.requeue(5.0)
    case.delivery.detach()
    assert (case.delivery.in_flight, case.delivery.held, case.delivery.is_alive) == (0, 0, False)
    assert not case.delivery.may_repeat
    await dawdle(10.0)
    assert (case.wire.now, [line for line in case.wire.later if line.startswith(b"REQ")]) == ([], [])
    case.delivery.dropped()
    assert (case.delivery.in_flight, case.reports.freed_times) == (0, 0)
    for answer in (late.touch, late.finish):
        answer()
    late.answered = False
    late.requeue()
    assert case.reports.late_answers == [(late.id, answer) for answer in ("touch", "finish", "requeue")]
    case.delivery.finish_unseen(late.id)
    assert not any(line.startswith(b"FIN") for line in (*case.wire.now, *case.wire.later))


async def test_the_end_of_a_connection_drops_the_fins_of_its_last_turn() -> None:
    case = Case()
    finished, _ = case.messages(2)
    finished.finish()
    case.delivery.detach()
    await turn()
    assert case.wire.now == []


async def test_the_only_message_of_an_ordered_channel_is_finished_at_once() -> None:
    case = Case(is_ordered=True)
    first, second = case.messages(2)
    first.finish()
    assert case.wire.now == [fin(first)]
    second.finish()
    assert (case.wire.now, case.delivery.in_flight) == ([fin(first), fin(second)], 0)


async def test_answers_from_a_thread_go_through_the_loop() -> None:
    case = Case()
    first, second, third = case.messages(3)
    for answer in (first.finish, second.requeue, third.touch):
        await asyncio.to_thread(answer)
    await turn(2)
    assert case.wire.now == [fin(first)]
    assert case.wire.later == [req(second, 2_000), b"TOUCH " + third.id + b"\n"]
    assert case.delivery.touched_at > 0
    assert not await asyncio.to_thread(case.delivery.interrupted, third)
    assert case.reports.interrupted_messages == []


async def test_answers_from_a_thread_are_late_once_the_loop_is_closed() -> None:
    case = Case()
    messages = case.messages(3)
    closed = asyncio.new_event_loop()
    closed.close()
    case.delivery._loop = closed
    for message, answer in zip(messages, ("finish", "requeue", "touch"), strict=True):
        await asyncio.to_thread(getattr(message, answer))
    assert case.reports.late_answers == [
        (message.id, answer) for message, answer in zip(messages, ("finish", "requeue", "touch"), strict=True)
    ]


async def test_a_cancelled_block_is_the_consumers_to_judge() -> None:
    case = Case()
    (message,) = case.messages(1)
    assert not case.delivery.interrupted(message)
    case.reports.takes = True
    assert case.delivery.interrupted(message)
    assert case.reports.interrupted_messages == [message.id] * 2


async def test_a_replaced_delivery_reports_to_another() -> None:
    case, freed = Case(), []
    case.delivery.ready = 5
    case.delivery.retire(lambda: freed.append(1))
    (message,) = case.messages(1)
    case.delivery.dropped()
    assert (case.delivery.ready, case.delivery.in_flight, freed, case.reports.freed_times) == (0, 0, [1], 0)
    reason = ConnectionLostError("no")
    case.delivery.abort(reason)
    assert case.wire.aborted == [reason]
    assert not message.answered


async def test_each_answer_of_a_traced_topic_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[str, bytes]] = []
    monkeypatch.setattr(tracelog, "log_message", lambda event, message: lines.append((event, message.id)))
    monkeypatch.setattr(tracelog.TraceSwitch, "is_on", lambda _, topic: topic == "orders")
    case = Case()
    first, second, third, fourth = case.messages(4)
    first.requeue(0)
    second.finish()
    assert lines == []
    tracelog.switch.enable("orders")
    try:
        third.finish()
        fourth.requeue(0)
        await turn(2)
        (alone,) = case.messages(1)
        alone.finish()
    finally:
        tracelog.switch.disable()
    assert lines == [("finish", third.id), ("requeue", fourth.id), ("finish", alone.id)]


# ---------------------------------------------------------------- a second copy of the first message


def kept(delivery: Delivery, *sent: tuple[int, int]) -> list[int]:
    """Return the numbers that are left of messages with a number and attempts."""
    messages = [Message(message_id(number, 3), b"x", attempts, 7, delivery) for number, attempts in sent]
    return [message.internal_id & 1023 for message in delivery.without_repeat(messages)]


async def test_a_copy_is_the_same_number_with_the_same_attempts() -> None:
    case = Case()
    case.delivery.may_repeat = True
    assert kept(case.delivery, (4, 1), (3, 1), (4, 2)) == [4, 3, 4]
    assert case.delivery.may_repeat
    assert kept(case.delivery, (4, 1), (4, 1), (9, 1)) == [9]
    assert not case.delivery.may_repeat
    assert kept(case.delivery, (9, 1)) == [9]
    assert kept(case.delivery, (9, 1)) == [9]
    assert case.wire.later == []


async def test_a_later_number_ends_the_search() -> None:
    case = Case()
    case.delivery.may_repeat = True
    assert kept(case.delivery, (4, 1), (5, 1)) == [4, 5]
    assert not case.delivery.may_repeat


async def test_on_an_ordered_channel_any_other_message_does() -> None:
    case = Case(is_ordered=True)
    assert kept(case.delivery, (4, 1), (3, 1)) == [4, 3]
    assert not case.delivery.may_repeat


async def test_a_copy_of_a_finished_message_is_finished() -> None:
    case = Case(is_ordered=True)
    (message,) = case.messages(1)
    assert case.delivery.without_repeat([message]) == [message]
    message.finish()
    copy = Message(message.id, b"x", 1, 7, case.delivery)
    assert case.delivery.without_repeat([copy]) == []
    assert case.wire.later == [fin(message)]


async def test_a_copy_of_a_message_that_waits_for_its_requeue_is_not() -> None:
    case = Case(is_ordered=True)
    (message,) = case.messages(1)
    case.delivery.without_repeat([message])
    message.requeue(5.0)
    assert case.delivery.without_repeat([Message(message.id, b"x", 1, 7, case.delivery)]) == []
    assert fin(message) not in case.wire.later


@pytest.mark.real_time
async def test_a_copy_is_not_finished_before_the_loop_learns_how_a_thread_answered_the_message() -> None:
    """FIN would lose a message that the thread requeued: the REQ behind it would have no effect."""
    case = Case(is_ordered=True)
    (message,) = case.messages(1)
    case.delivery.without_repeat([message])
    answering = threading.Thread(target=message.requeue, args=(0,))
    answering.start()
    answering.join()
    assert message.answered
    assert case.delivery.without_repeat([Message(message.id, b"x", 1, 7, case.delivery)]) == []
    await turn(2)
    assert case.wire.later == [encode_req(message.id, 0)]


async def test_after_a_requeue_the_same_number_is_the_redelivery() -> None:
    case = Case(is_ordered=True)
    first, other = case.messages(2)
    case.delivery.without_repeat([first])
    other.requeue(0)
    assert case.delivery.may_repeat
    first.requeue(0)
    assert not case.delivery.may_repeat


# ---------------------------------------------------------------- watched messages


def watch(message: Message, *copies: Message) -> Watch:
    """Watch a message as a consumer does."""
    message.watch = Watch(5.0, 9.0)
    message.watch.copies += copies
    return message.watch


async def test_a_watched_message_is_answered_with_its_copies_from_elsewhere() -> None:
    case, other = Case(), Case()
    original, twin = case.messages(2)
    copy, answered = other.messages(2)
    answered.answered = True
    watched = watch(original, twin, copy, answered)
    original.finish()
    await turn(2)
    assert case.reports.finished_messages == [(original, watched)]
    assert (case.wire.now, other.wire.now) == ([fin(original)], [fin(copy)])
    assert (case.delivery.counts.timed_out, case.delivery.in_flight) == (1, 0)  # the twin has the same id
    assert other.delivery.counts.finished_unhandled == 1
    assert original.watch is None


async def test_a_watched_message_is_requeued_with_its_copies_from_elsewhere() -> None:
    case, other = Case(), Case()
    (original,), (copy,) = case.messages(1), other.messages(1)
    watch(original, copy)
    original.requeue(2.0)
    assert (case.wire.later, other.wire.later) == ([req(original, 2000)], [req(copy, 2000)])
    assert original.watch is None


async def test_copies_wait_until_their_message_is_given_up() -> None:
    case, other = Case(), Case()
    (original,), (copy,) = case.messages(1), other.messages(1)
    watched = watch(original, copy)
    case.reports.takes = True
    original.requeue()
    assert (case.wire.later, other.wire.later, watched.copies) == ([], [], [copy])
    assert case.reports.requeued_messages == [original.id]


async def test_copies_go_back_with_their_message_though_its_connection_is_lost() -> None:
    case, other = Case(), Case()
    failed, cancelled = case.messages(2)
    copies = other.messages(2)
    watch(failed, copies[0])
    watch(cancelled, copies[1])
    case.delivery.detach()
    failed.requeue(2.0)
    give_back(cancelled, "it is a test")
    assert (case.wire.later, other.wire.later) == ([], [req(copies[0], 2000), req(copies[1], 0)])
    assert other.delivery.in_flight == 0
    assert other.reports.given_back_messages == [copies[1].id]


async def test_answers_to_watched_messages_from_a_thread_go_through_the_loop() -> None:
    case = Case()
    first, second, third = case.messages(3)
    for message in (first, second, third):
        watch(message)
    for answer in (first.finish, second.requeue, third.touch):
        await asyncio.to_thread(answer)
    await turn(2)
    assert case.wire.now == [fin(first)]
    assert case.wire.later == [req(second, 2_000), b"TOUCH " + third.id + b"\n"]


async def test_a_touch_in_time_moves_the_deadline() -> None:
    case, now = Case(), asyncio.get_running_loop().time
    (message,) = case.messages(1)
    watched = watch(message)
    message.touch()
    assert watched.deadline == 9.0
    watched.deadline = now() + 1.0
    message.touch()
    assert watched.deadline == pytest.approx(now() + 4.0, abs=0.1)
    assert case.wire.later == [b"TOUCH " + message.id + b"\n"] * 2


# ---------------------------------------------------------------- messages that were given back


async def test_each_answer_to_a_message_that_was_given_back_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    case = Case(is_ordered=True)
    (message,) = case.messages(1)
    source = message.source = Returned(case.delivery, "it is a test")
    assert (source.topic, source.channel, source.partition, source.nsqd) == ("orders", "ch", 3, "10.0.0.1:4150")
    assert source.is_ordered
    assert not Returned(Case().delivery, "it is a test").is_ordered
    assert source.is_alive is False
    for answer in ("touch", "finish", "requeue"):
        message.answered = False
        getattr(message, answer)()
    assert [record.getMessage() for record in caplog.records] == [
        f"{message!r}: {answer}() has no effect: the message was given back because it is a test, and nsqd delivers"
        " the message again"
        for answer in ("touch", "finish", "requeue")
    ]


async def test_a_late_answer_is_a_warning_once_the_consumer_has_closed(caplog: pytest.LogCaptureFixture) -> None:
    ours: list[Message] = []
    config, queue = ConsumerConfig(lookupd=("http://a:1",)), MessageQueue()
    pace = ConsumerPace("orders/ch", config, queue, {}, lambda: None)
    giving_up: Any = SimpleNamespace(has=lambda message: message in ours)
    ledger = Ledger("orders/ch", config, queue, pace, giving_up, LoopClock(lambda *_: None))
    (message,) = Case().messages(1)
    ledger.late(message, "finish")
    assert caplog.messages == []
    ledger.are_lost = True
    ledger.late(message, "finish")
    ours.append(message)
    ledger.late(message, "finish")
    assert caplog.messages == [
        (
            f"{message!r}: finish() has no effect: the consumer has closed, and nsqd delivers the message again. Answer"
            " messages before the consumer closes, or raise close_timeout"
        )
    ]


async def test_a_message_that_is_left_to_the_end_counts_no_more() -> None:
    case = Case()
    first, second, third = case.messages(3)
    watch(second)
    for message in (first, second):
        leave_to_end(message)
        assert message.answered
        assert isinstance(message.source, Returned)
        assert message.source._why == CLOSED
    assert case.delivery.in_flight == 1
    case.delivery.detach()
    leave_to_end(third)
    assert case.delivery.in_flight == 0


class Holders:
    """Tasks that hold messages, as a test says."""

    def __init__(self) -> None:
        self.waits = False
        self.left: list[Message] = []
        self.broken: list[Message] = []

    def may_answer(self) -> bool:
        return self.waits

    def returned(self) -> list[Message]:
        left, self.left = self.left, []
        return left

    def failed(self) -> list[Message]:
        broken, self.broken = self.broken, []
        return broken


class Subscribed:
    """One subscription."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.link = SimpleNamespace(stop=self._stop)
        self.stopped = 0

    @property
    def unanswered(self) -> int:
        return self._case.delivery.in_flight

    async def _stop(self) -> None:
        self.stopped += 1


async def draining(case: Case, holders: Holders, unseen: Iterable[Message], changed: asyncio.Event) -> Any:  # noqa: ANN401
    """Drain; return what was done."""
    one, spared = Subscribed(case), []

    def spare(message: Message) -> None:
        spared.append(message)
        message.answered = True
        case.delivery.in_flight -= 1

    inbox: Any = SimpleNamespace(
        subscriptions={3: one},
        queue=SimpleNamespace(unseen=deque(unseen)),
        ledger=SimpleNamespace(return_at_close=spare, changed=changed),
        returned=holders.returned,
        failed=holders.failed,
        may_answer=holders.may_answer,
    )
    task = asyncio.create_task(drain(inbox))
    await turn(4)
    assert one.stopped == 1
    return task, spared


async def test_without_holders_messages_are_left_to_the_end_of_the_connection() -> None:
    case, holders = Case(), Holders()
    unseen, left, broken = case.messages(3)
    holders.left, holders.broken = [left], [broken]
    task, spared = await draining(case, holders, [unseen], asyncio.Event())
    assert task.done()
    assert (spared, case.wire.later) == ([], [req(broken, 0)])
    assert (unseen.answered, left.answered, case.delivery.in_flight) == (True, True, 0)


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_while_another_task_may_answer_messages_go_back_at_once_unless_ordered(*, is_ordered: bool) -> None:
    case, holders, changed = Case(is_ordered=is_ordered), Holders(), asyncio.Event()
    unseen, left, held, later, broken = case.messages(5)
    holders.left, holders.waits = [left], True
    task, spared = await draining(case, holders, [unseen], changed)
    assert (spared, case.wire.later) == (([], []) if is_ordered else ([left], [req(unseen, 0)]))
    assert (unseen.answered, left.answered) == (True, True)
    assert not task.done()
    holders.left, holders.broken = [later], [broken]
    changed.set()
    await turn(3)
    assert (spared[-1], case.wire.later[-1]) == (later, req(broken, 0))
    assert not task.done()
    held.answered = True
    case.delivery.in_flight = 0
    changed.set()
    await turn(2)
    assert task.done()


async def test_messages_of_which_none_is_held_go_back_with_the_connection() -> None:
    case, holders = Case(), Holders()
    unseen, left = case.messages(2)
    holders.left, holders.waits = [left], True
    task, spared = await draining(case, holders, [unseen], asyncio.Event())
    assert (task.done(), spared, case.wire.later) == (True, [], [])
