"""Single cases of the consumer's machine alone, which random schedules meet rarely."""

from __future__ import annotations

from nsq_ha.consumer.answers import HasFailed
from nsq_ha.consumer.inflight import Recipient, WriteFinish, WriteRequeue
from nsq_ha.message import Message
from tests.consumer.test_connections import ONE, Driven


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


def test_what_was_interrupted_has_failed_if_no_close_follows() -> None:
    driven = reading()
    arrive(driven, message_of(driven))
    driven.machine.interrupted(take(driven), driven.now)
    driven.machine.tick(driven.now + 0.3, is_awaited=False)
    assert len(driven.took(HasFailed)) == 1


def test_what_arrives_over_a_connection_that_is_about_to_end_goes_back() -> None:
    driven = reading()
    conn = driven.used()
    driven.machine.reject(conn)
    conn.commands.clear()
    arrive(driven, message_of(driven))
    assert conn.commands == [WriteRequeue(message_of(driven).id, 0.0)]
    assert not driven.machine.queue


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
