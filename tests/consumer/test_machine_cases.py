"""Single cases of the consumer's machine alone, which random schedules meet rarely."""

import pytest

from nsq_ha import Backoff
from nsq_ha.consumer import choice
from nsq_ha.consumer.answers import HasFailed, Said
from nsq_ha.consumer.inflight import Recipient, WriteFinish, WriteRequeue
from nsq_ha.consumer.machine import FinishedCopy
from nsq_ha.message import Message, State
from nsq_ha.policy.redelivery import MOST_UNSETTLED
from nsq_ha.policy.tls_renewal import Lifetime
from tests.consumer.test_connections import LOST, ONE, Driven


def message_of(driven: Driven, number: int = 1, timestamp: int = 1) -> Message:
    return Message(number.to_bytes(8, "big") + bytes(8), b"x", 1, timestamp, driven.used().source)


def reading(**options: object) -> Driven:
    driven = Driven(max_in_flight=4, **options)
    driven.view({0: ONE})
    driven.subscribe()
    return driven


def arrive(driven: Driven, *messages: Message) -> None:
    driven.machine.arrived(driven.used(), list(messages), driven.now, driven.now)


def take(driven: Driven, taker: Recipient | None = None) -> Message:
    message = driven.machine.take(taker or Recipient(), driven.now)
    assert message is not None
    return message


def test_the_requeue_of_an_interrupted_message_spares_another_one_with_its_id() -> None:
    """A topic that was created again gives its ids again."""
    driven = reading()
    arrive(driven, message_of(driven))
    driven.machine.interrupted(take(driven), driven.now)
    other = message_of(driven, timestamp=2)
    arrive(driven, other)
    assert take(driven) is other
    driven.machine.tick(driven.now + 0.3, is_awaited=False)
    assert driven.took(HasFailed) == []
    assert driven.used().messages == {other.id: other}


def test_the_requeue_of_an_interrupted_message_is_that_of_its_copy() -> None:
    driven = reading()
    arrive(driven, message_of(driven))
    driven.machine.interrupted(take(driven), driven.now)
    arrive(driven, message_of(driven))
    assert driven.machine.take(Recipient(), driven.now) is None
    driven.machine.tick(driven.now + 0.3, is_awaited=False)
    assert len(driven.took(HasFailed)) == 1


def test_a_message_that_is_taken_back_is_not_handed_out_if_it_was_finished_meanwhile() -> None:
    driven = reading()
    arrive(driven, message_of(driven))
    first = take(driven)
    driven.now = first.deadline + 0.1
    arrive(driven, message_of(driven))
    again = take(driven)
    first.answered = True
    driven.machine.finish_orphan(first, driven.now)
    driven.machine.take_back(again, "its handler was cancelled", driven.now)
    assert driven.machine.take(Recipient(), driven.now) is None
    assert len(driven.took(FinishedCopy)) == 1
    assert driven.used().partition.counts.fields(len(driven.used().messages))["finished"] == 1


def test_what_arrives_over_a_connection_that_is_about_to_end_goes_back() -> None:
    driven = reading()
    conn = driven.used()
    driven.machine.cut_off(conn, driven.now)
    conn.commands.clear()
    arrive(driven, message_of(driven))
    assert conn.commands == [WriteRequeue(message_of(driven).id, 0.0)]
    assert not driven.machine.queue


@pytest.mark.parametrize(
    ("ordered", "read", "handed_out"),
    [
        # The reader goes on after the first message, and never back to it.
        (True, [1, 1, 2, 3], [1, 2, 3]),
        # After a start position, what was requeued comes between, too.
        (False, [2, 1, 2, 3, 4], [2, 1, 3, 4]),
    ],
)
def test_copies_of_the_first_message_in_one_read(*, ordered: bool, read: list[int], handed_out: list[int]) -> None:
    driven = Driven(ordered=ordered, max_in_flight=5)
    driven.view({0: ONE})
    driven.subscribe().may_repeat = True
    arrive(driven, *(message_of(driven, number) for number in read))
    assert [message.id[7] for message in driven.machine.queue] == handed_out


def test_the_answer_to_another_message_is_none_to_the_first() -> None:
    driven = Driven(max_in_flight=5)
    driven.view({0: ONE})
    conn = driven.subscribe()
    conn.may_repeat = True
    arrive(driven, message_of(driven, 2), message_of(driven, 1))
    first, second = take(driven), take(driven)
    driven.machine.requeue(second, 0.0, driven.now)
    assert conn.may_repeat
    driven.machine.requeue(first, 0.0, driven.now)
    assert not conn.may_repeat


def test_the_first_message_of_an_ordered_channel_may_come_twice() -> None:
    driven = Driven(ordered=True)
    driven.view({0: ONE})
    conn = driven.subscribe()
    arrive(driven, message_of(driven))
    first = take(driven)
    arrive(driven, message_of(driven))
    assert not driven.machine.queue
    first.answered = True
    driven.machine.finish(conn, first)
    driven.machine.written(conn, driven.now)
    arrive(driven, message_of(driven))
    assert WriteFinish(first.id) in conn.commands
    arrive(driven, message_of(driven, 2))
    assert not conn.may_repeat


# ------------------------------------------------------------ what is answered late


def redelivered(driven: Driven) -> tuple[Message, Message]:
    """Return a message that a task has for too long, and the delivery that waits after it."""
    arrive(driven, message_of(driven))
    late = take(driven)
    driven.now += 4.5
    again = message_of(driven)
    arrive(driven, again)
    assert late.state is State.ORPHANED
    return late, again


def test_a_late_fin_finishes_the_delivery_that_waits() -> None:
    driven = reading()
    late, again = redelivered(driven)
    late.answered = True
    driven.machine.finish_orphan(late, driven.now)
    driven.machine.settle(driven.now)
    assert again.answered
    assert driven.machine.take(Recipient(), driven.now) is None
    assert driven.machine.written(driven.used(), driven.now) == [again.id]


def test_an_answered_message_at_the_head_is_not_told_of_as_unread() -> None:
    driven = reading()
    late, _ = redelivered(driven)
    late.answered = True
    driven.machine.finish_orphan(late, driven.now)
    driven.now += 4.5
    arrive(driven, message_of(driven, 2))
    assert not any("no task takes" in each.text for each in driven.took(Said))


def test_a_message_that_waits_for_too_long_is_not_handed_out() -> None:
    driven = reading()
    arrive(driven, message_of(driven))
    driven.now += 4.5
    arrive(driven, message_of(driven))
    driven.machine.settle(driven.now)
    assert take(driven) is driven.used().messages[message_of(driven).id]
    assert driven.machine.take(Recipient(), driven.now) is None
    driven.now += 4.5
    arrive(driven, message_of(driven, 2))
    driven.now += 4.5
    arrive(driven, message_of(driven, 3))
    assert any("no task takes them" in each.text for each in driven.took(Said))


def test_a_copy_of_a_finished_message_does_not_hide_one_that_a_handler_has() -> None:
    driven = reading()
    handlers = Recipient(is_handler=True)
    arrive(driven, message_of(driven, 1), message_of(driven, 2))
    finished, held = take(driven, handlers), take(driven, handlers)
    finished.answered = True
    driven.machine.finish(driven.used(), finished)
    driven.subscriptions.lost(driven.used(), LOST, driven.now)
    driven.after(1.0)
    driven.subscribe()
    arrive(driven, message_of(driven, 1), message_of(driven, 2))
    assert len(driven.took(FinishedCopy)) == 1
    assert driven.used().messages == {held.id: held}
    assert driven.machine.take(handlers, driven.now) is None


def test_a_refused_fin_is_of_no_effect_and_the_message_is_finished_unhandled() -> None:
    driven = reading()
    conn = driven.used()
    arrive(driven, message_of(driven))
    message = take(driven)
    message.answered = True
    driven.machine.finish(conn, message)
    driven.machine.written(conn, driven.now)
    driven.machine.fin_refused(conn, message.id, driven.now)
    driven.machine.fin_refused(conn, b"unknown", driven.now)
    arrive(driven, message_of(driven))
    assert len(driven.took(FinishedCopy)) == 1


# ------------------------------------------------------------ touching, and the end


@pytest.mark.parametrize("used", [0.0, 1.0, 3.7])
@pytest.mark.parametrize("delay", [0.01, 1.0, 5.0, 100.0])
@pytest.mark.parametrize("late", [0.0, 0.5])
def test_nsqd_never_times_out_what_waits_for_its_requeue(used: float, delay: float, late: float) -> None:
    """TOUCH restarts the timeout, up to a bound from the delivery."""
    driven = Driven(ordered=True)
    driven.view({0: ONE})
    conn = driven.subscribe()
    arrive(driven, message_of(driven))
    message, arrived_at = take(driven), driven.now
    ends_at = arrived_at + conn.msg_timeout
    driven.now += used
    conn.commands.clear()
    assert driven.machine.requeue(message, delay, driven.now)
    while not any(isinstance(command, WriteRequeue) for command in conn.commands):
        assert driven.now < ends_at
        if conn.commands:
            ends_at = min(driven.now + conn.msg_timeout, arrived_at + conn.max_msg_timeout)
            conn.commands.clear()
        driven.now = min(due_at for _, due_at in driven.machine.deferred.values()) + late
        driven.machine.tick(driven.now, is_awaited=False)
    assert driven.now < ends_at
    assert driven.now >= min(arrived_at + used + delay, arrived_at + conn.max_msg_timeout - conn.msg_timeout / 2)


def test_a_close_soon_after_an_interruption_was_a_shutdown() -> None:
    driven = reading()
    arrive(driven, message_of(driven), message_of(driven, 2))
    driven.machine.interrupted(take(driven), driven.now)
    other = take(driven)
    driven.machine.close(driven.now)
    driven.machine.return_left(driven.now)
    driven.machine.take_back(other, "its handler was cancelled", driven.now)
    driven.machine.take_back(other, "answered already", driven.now)
    assert driven.machine.unanswered == []
    assert driven.took(HasFailed) == []


def test_a_requeue_that_waits_is_left_to_the_end_of_its_connection() -> None:
    driven = reading(ordered=True)
    conn = driven.used()
    arrive(driven, message_of(driven))
    assert driven.machine.requeue(take(driven), 3.0, driven.now)
    conn.commands.clear()
    driven.machine.close(driven.now)
    driven.machine.cut_off(conn, driven.now)
    assert conn.commands == []
    assert len(driven.machine.deferred) == 1


def test_a_close_leaves_what_was_lost_to_nsqd() -> None:
    driven = reading(max_attempts=5)
    arrive(driven, message_of(driven))
    message = take(driven)
    driven.subscriptions.lost(driven.used(), LOST, driven.now)
    driven.machine.close(driven.now)
    driven.machine.interrupted(message, driven.now)
    assert (driven.part.counts.returned, driven.machine.unanswered) == (1, [])


def test_a_failed_task_returns_what_it_has_and_a_plain_nsqd_gets_all_back() -> None:
    driven = Driven(max_in_flight=4)
    driven.view({0: ONE}, plain=True)
    conn = driven.subscribe()
    arrive(driven, message_of(driven), message_of(driven, 2), message_of(driven, 3))
    gone = Recipient()
    take(driven, gone)
    take(driven)
    gone.is_over = gone.has_failed = True
    driven.machine.close(driven.now)
    assert conn.kept == (3, 3)
    driven.machine.return_left(driven.now)
    assert len(conn.messages) == 2
    driven.machine.cut_off(conn, driven.now)
    driven.machine.cut_off(conn, driven.now)
    assert conn.kept == (0, 0)
    assert not conn.messages


# ------------------------------------------------------------ how much is asked for


def test_a_rate_below_one_in_a_message_timeout_asks_just_before_the_turn() -> None:
    driven = reading(max_rate=0.05)
    flow = driven.machine.flow
    taken = 0
    while driven.now < 160.0:
        driven.machine.tick(driven.now, is_awaited=True)
        driven.machine.settle(driven.now)
        if driven.used().ready and not driven.used().messages:
            arrive(driven, message_of(driven, 1 + taken))
        message = driven.machine.take(Recipient(), driven.now)
        if message is not None:
            taken += 1
            message.answered = True
            driven.machine.finish(driven.used(), message)
            driven.machine.written(driven.used(), driven.now)
        driven.now += 0.5
    assert 1 <= taken <= 4
    assert flow.limited_seconds > 0.0


def test_a_test_after_failures_waits_for_what_a_replaced_connection_still_holds() -> None:
    driven = reading(handler_backoff=Backoff(1.0, 1.0, jitter=0.0))
    first = driven.used()
    arrive(driven, message_of(driven), message_of(driven, 2))
    driven.machine.was_requeued(failed := take(driven), None, driven.now)
    driven.machine.requeue(failed, None, driven.now)
    held = take(driven)
    arrive(driven, message_of(driven, 3))
    driven.machine.was_requeued(failed := take(driven), None, driven.now)
    driven.machine.requeue(failed, None, driven.now)
    driven.machine.set_max_in_flight(1, driven.now)
    first.lifetime = Lifetime(driven.now - 3.0, 5.0, 0.0)
    driven.subscriptions.tick(driven.now)
    second = driven.subscribe()
    driven.subscriptions.stopped(first, driven.now)
    driven.now += 1.5
    driven.machine.tick(driven.now, is_awaited=True)
    driven.machine.flow.share(driven.now)
    assert driven.machine.pause.wants_test
    assert second.ready == 0
    held.answered = True
    driven.machine.finish(first, held)
    driven.machine.written(first, driven.now)
    driven.machine.settle(driven.now)
    driven.machine.tick(driven.now, is_awaited=True)
    assert second.ready == 1


def test_a_low_rate_asks_at_the_turn_also_if_no_task_waits() -> None:
    driven = reading(max_rate=0.05)
    flow = driven.machine.flow
    flow.share(driven.now)
    for _ in range(2):
        driven.now = flow.wake_at
        flow.tick(driven.now, is_awaited=False)
    assert flow.limited_seconds == 0.0


def test_the_messages_of_many_partitions_are_counted_once_in_a_moment() -> None:
    driven = Driven(max_in_flight=100)
    driven.view(dict.fromkeys(range(300), ONE), 300)
    driven.subscribe()
    flow = driven.machine.flow
    arrive(driven, message_of(driven))
    assert flow.counted(driven.now) == 1
    arrive(driven, message_of(driven, 2))
    assert flow.counted(driven.now) == 1
    assert flow.counted(driven.now + 1.0) == 2


def test_the_pace_of_tasks_is_not_that_of_handlers_that_begin_after_them() -> None:
    driven = reading()
    flow = driven.machine.flow
    arrive(driven, message_of(driven))
    take(driven)
    flow.used_by(1, driven.now)
    flow.emptied(driven.now + 3.0)
    assert flow.speed.seconds is None


def test_nothing_is_asked_for_after_the_end() -> None:
    driven = reading()
    driven.machine.flow.share(driven.now)
    assert not driven.machine.flow.is_full
    driven.machine.close(driven.now)
    ready = driven.used().ready
    driven.machine.set_max_in_flight(100, driven.now)
    assert driven.used().ready == ready


def test_which_partitions_must_be_subscribed() -> None:
    driven = reading()
    assert choice.needed(driven.config, driven.subscriptions.view) == {0}
    driven = Driven()
    assert choice.needed(driven.config, driven.subscriptions.view) == set()
    driven.view({0: ONE}, plain=True, last_known={1: ONE})
    assert choice.needed(driven.config, driven.subscriptions.view) == {0}
    assert choice.wanted(driven.config, driven.subscriptions.view) == {0, 1}
    driven.view({}, plain=True)
    assert driven.took("abort")[0].reason.args == ("no longer needed",)


def test_a_second_delivery_in_the_queue_takes_the_place_of_the_first() -> None:
    driven = reading()
    arrive(driven, message_of(driven))
    again = message_of(driven)
    arrive(driven, again)
    assert take(driven) is again
    assert driven.machine.take(Recipient(), driven.now) is None


def test_a_handler_that_takes_too_long_is_warned_about_when_its_message_comes_again() -> None:
    driven = reading()
    arrive(driven, message_of(driven))
    take(driven, Recipient(is_handler=True))
    driven.now += 4.5
    arrive(driven, message_of(driven))
    assert any("takes longer than msg_timeout" in each.text for each in driven.took(Said))
    assert not driven.machine.queue


def test_a_fin_of_an_ordered_channel_whose_message_comes_again_was_without_effect() -> None:
    driven = reading(ordered=True)
    conn = driven.used()
    conn.no_repeat()
    arrive(driven, message_of(driven))
    message = take(driven)
    message.answered = True
    driven.machine.finish(conn, message)
    driven.machine.written(conn, driven.now)
    driven.now += 4.5
    arrive(driven, message_of(driven))
    assert len(driven.took(FinishedCopy)) == 1


def test_of_thousand_fins_a_refusal_names_one_of_the_latest() -> None:
    driven = reading()
    conn, known = driven.used(), driven.machine.finished_before.known
    for number in range(MOST_UNSETTLED + 1):
        arrive(driven, message_of(driven, number))
        driven.machine.finish(conn, take(driven))
        driven.machine.written(conn, driven.now)
    driven.machine.fin_refused(conn, bytes(16), driven.now)
    assert not known
    driven.machine.fin_refused(conn, message_of(driven, MOST_UNSETTLED).id, driven.now)
    assert len(known) == 1


def test_of_three_deliveries_the_first_is_finished_and_the_second_is_not_in_flight_any_more() -> None:
    driven = reading()
    arrive(driven, message_of(driven))
    first = take(driven)
    driven.now += 5.0
    arrive(driven, message_of(driven))
    second = take(driven)
    first.answered = True
    driven.machine.finish_orphan(first, driven.now)
    driven.now += 5.0
    arrive(driven, message_of(driven))
    assert len(driven.took(FinishedCopy)) == 1
    assert second.state is State.ORPHANED
    assert driven.used().partition.counts.timed_out == 2


def test_a_message_that_cannot_wait_for_the_end_of_a_pause_goes_back_when_it_arrives() -> None:
    driven = reading(handler_backoff=Backoff(60.0, 60.0, jitter=0.0))
    conn = driven.used()
    for number in (1, 2):
        arrive(driven, message_of(driven, number))
        driven.machine.was_requeued(failed := take(driven), None, driven.now)
        driven.machine.requeue(failed, None, driven.now)
    conn.commands.clear()
    late = message_of(driven, 3)
    driven.machine.arrived(conn, [late], driven.now - 3.9, driven.now)
    driven.machine.settle(driven.now)
    assert [each.message for each in conn.commands if isinstance(each, WriteRequeue)] == [late]
    assert not driven.machine.queue


def test_the_bodies_that_are_held_and_those_that_were_compressed() -> None:
    driven = reading()
    arrive(driven, message_of(driven), message_of(driven, 2))
    take(driven)
    assert (driven.machine.held_bytes(), driven.machine.expanded_bytes()) == (2, 0)
    take(driven).compressed = b"gzip", b""
    assert (driven.machine.held_bytes(), driven.machine.expanded_bytes()) == (2, 1)
