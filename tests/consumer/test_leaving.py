"""Leaving the block with a message in hand, and answers that come after the end."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest

from nsq_ha import Consumer, Message
from nsq_ha.errors import LocalProtocolError
from nsq_ha.protocol import Close, Finish, Requeue
from tests.support.nsqd import LIMIT, Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import eventually

LONG = 6 * LIMIT
"""A ``close_timeout`` longer than any test, so that waiting for it shows."""


async def deliver(stage: Stage, count: int) -> Peer:
    peer = await stage.nsqd.subscriber()
    for number in range(count):
        peer.message(b"%d" % number, message_id(number + 2))
    return peer


async def read_and_leave(
    stage: Stage, read: object, count: int, ends: AbstractContextManager[object] | None = None
) -> Peer:
    """Deliver messages to ``read``, and wait until it has left the block, as ``ends`` wants it."""
    assert callable(read)

    async def work() -> None:
        async with stage.consumer(close_timeout=LONG) as consumer:
            await read(consumer)

    async with asyncio.timeout(LIMIT):
        working = asyncio.create_task(work())
        peer = await deliver(stage, count)
        with ends or nullcontext():
            await working
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    return peer


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "nsq_ha.consumer"]


def answers(peer: Peer) -> list[object]:
    return [command for command in peer.commands if isinstance(command, Close | Requeue | Finish)]


async def fail(consumer: Consumer) -> None:
    async for message in consumer:
        if message.body == b"1":
            raise ZeroDivisionError
        message.finish()


async def fail_by_next(consumer: Consumer) -> None:
    while True:
        message = await anext(consumer)
        if message.body == b"1":
            raise ZeroDivisionError
        message.finish()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("read", [fail, fail_by_next])
async def test_an_exception_gives_back_the_message_that_it_was_raised_at(
    stage: Stage, read: object, *, ordered: bool
) -> None:
    """It used to take the whole ``close_timeout``."""
    stage.lead({0: stage.nsqd}, ordered=ordered)
    peer = await read_and_leave(stage, read, 2, pytest.raises(ZeroDivisionError))
    # RDY 0 comes before the requeue, or the server would deliver it here again.
    assert answers(peer) == [Finish(message_id(2)), Close(), Requeue(message_id(3), 0)]


async def test_an_interrupt_gives_it_back_without_an_attempt(stage: Stage) -> None:
    """asyncio turns Ctrl-C into a cancellation of the main task. It used to count as a failure."""
    held = asyncio.Event()

    async def work() -> None:
        async with stage.consumer(close_timeout=LONG) as consumer:
            async for _ in consumer:
                held.set()
                await asyncio.Event().wait()

    async with asyncio.timeout(LIMIT):
        working = asyncio.create_task(work())
        peer = await deliver(stage, 1)
        await held.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    assert answers(peer) == [Close()]


async def collect(consumer: Consumer) -> None:
    """Leave by an exception with three messages in hand, of which one is answered."""
    messages = [await anext(consumer) for _ in range(4)]
    messages[1].finish()
    raise ZeroDivisionError


async def collect_until_cancelled(consumer: Consumer) -> None:
    messages: list[Message] = []
    async for message in consumer:
        messages.append(message)
        if len(messages) == 4:
            messages[1].finish()
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)


async def test_all_messages_that_the_leaving_task_collected_are_requeued(stage: Stage) -> None:
    """Only the last one used to be; the others took the whole ``close_timeout``."""
    peer = await read_and_leave(stage, collect, 4, pytest.raises(ZeroDivisionError))
    requeued = [Requeue(message_id(number), 0) for number in (2, 4, 5)]
    assert answers(peer) == [Finish(message_id(3)), Close(), *requeued]


async def test_all_that_a_cancelled_task_collected_are_given_back_without_an_attempt(stage: Stage) -> None:
    peer = await read_and_leave(stage, collect_until_cancelled, 4, pytest.raises(asyncio.CancelledError))
    assert answers(peer) == [Finish(message_id(3)), Close()]


async def stop_by_break(consumer: Consumer) -> None:
    async for message in consumer:
        if message.body == b"1":
            break
        message.finish()


async def stop_by_return(consumer: Consumer) -> None:
    async for message in consumer:
        if message.body == b"1":
            return
        message.finish()


async def stop_by_closing(consumer: Consumer) -> None:
    """Close in the middle of a message; the loop ends then."""
    async for message in consumer:
        if message.body == b"1":
            await consumer.aclose()
        else:
            message.finish()


async def stop_within_a_time_limit(consumer: Consumer) -> None:
    """On Python 3.11 ``wait_for`` runs a coroutine in a task of its own."""
    while (message := await asyncio.wait_for(anext(consumer), LIMIT)).body != b"1":
        message.finish()


@pytest.mark.parametrize("read", [stop_by_break, stop_by_return, stop_by_closing, stop_within_a_time_limit])
async def test_leaving_without_an_exception_gives_back_the_message_in_hand(stage: Stage, read: object) -> None:
    """It used to take the whole ``close_timeout``."""
    peer = await read_and_leave(stage, read, 2)
    # The end of the connection gives it back, and counts no attempt: closing is no failure.
    assert answers(peer) == [Finish(message_id(2)), Close()]


@pytest.mark.parametrize("limit", [None, 3])
async def test_messages_in_hand_are_requeued_if_the_close_waits_for_another_task(
    stage: Stage, limit: int | None
) -> None:
    """Other consumers do not have to wait with it. With ``max_attempts`` they do: a requeue would count."""
    async with asyncio.timeout(LIMIT):
        consumer = await stage.consumer(close_timeout=LONG, max_attempts=limit).__aenter__()
        taken, may_answer = asyncio.Event(), asyncio.Event()

        async def take() -> None:
            message = await anext(consumer)
            taken.set()
            await may_answer.wait()
            message.finish()

        async def leave() -> None:
            await anext(consumer)
            await consumer.aclose()

        taking = asyncio.create_task(take())
        peer = await deliver(stage, 1)
        await taken.wait()
        peer.message(b"1", message_id(3))
        leaving = asyncio.create_task(leave())
        await stage.nsqd.until(lambda: peer.of(Requeue if limit is None else Close))
        assert not leaving.done()
        may_answer.set()
        await leaving
        await taking
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    requeued = [Requeue(message_id(3), 0)] if limit is None else []
    assert answers(peer) == [Close(), *requeued, Finish(message_id(2))]


async def test_messages_of_a_task_that_has_ended_are_requeued(stage: Stage) -> None:
    """Nobody is left to answer them."""

    async def take(consumer: Consumer) -> Message:
        return await anext(consumer)

    async def work() -> None:
        async with stage.consumer(close_timeout=LONG) as consumer:
            await asyncio.create_task(take(consumer))

    async with asyncio.timeout(LIMIT):
        working = asyncio.create_task(work())
        peer = await deliver(stage, 1)
        await working
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    assert peer.of(Finish) == []


@pytest.mark.parametrize("limit", [None, 3])
async def test_messages_of_another_task_are_given_back_when_it_ends(stage: Stage, limit: int | None) -> None:
    """While it runs, it may answer."""
    async with asyncio.timeout(LIMIT):
        consumer = await stage.consumer(close_timeout=LONG, max_attempts=limit).__aenter__()
        may_end, taken = asyncio.Event(), asyncio.Event()

        async def take() -> None:
            await anext(consumer)
            message = await anext(consumer)
            taken.set()
            await may_end.wait()
            message.finish()

        taking = asyncio.create_task(take())
        peer = await deliver(stage, 3)
        await taken.wait()
        closing = asyncio.create_task(consumer.aclose())
        await stage.nsqd.until(lambda: peer.of(Requeue))  # of the third: the close waits now
        assert not closing.done()
        may_end.set()
        await closing
        await taking
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    requeued = [Requeue(message_id(2), 0)] if limit is None else []
    assert answers(peer) == [Close(), Requeue(message_id(4), 0), Finish(message_id(3)), *requeued]


async def test_another_tasks_exception_gives_back_nothing_of_this_one(stage: Stage) -> None:
    """Only the leaving task certainly sends no more answers."""

    async def take(consumer: Consumer, holds: asyncio.Event, may_answer: asyncio.Event) -> None:
        async for message in consumer:
            holds.set()
            await may_answer.wait()
            message.finish()

    holds, may_answer = asyncio.Event(), asyncio.Event()
    others: list[asyncio.Task[None]] = []

    async def leave() -> None:
        async with stage.consumer(close_timeout=LONG) as consumer:
            others.append(asyncio.create_task(take(consumer, holds, may_answer)))
            await holds.wait()
            raise ZeroDivisionError

    async with asyncio.timeout(LIMIT):
        leaving = asyncio.create_task(leave())
        peer = await deliver(stage, 1)
        await stage.nsqd.until(lambda: peer.of(Close))
        assert not leaving.done()
        may_answer.set()
        with pytest.raises(ZeroDivisionError):
            await leaving
        await asyncio.gather(*others)
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    assert answers(peer) == [Close(), Finish(message_id(2))]


ANSWERS: dict[str, Callable[[Message], None]] = {
    "finish": lambda message: message.finish(),
    "requeue": lambda message: message.requeue(5.0),
    "touch": lambda message: message.touch(),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_each_answer_after_the_end_is_warned_about(
    stage: Stage, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Requeue and touch used to be silent, and finish from the second one on."""
    held, may_end = asyncio.Event(), asyncio.Event()
    messages: list[Message] = []

    async def take(consumer: Consumer) -> None:
        messages.extend([await anext(consumer) for _ in range(2)])
        held.set()
        await may_end.wait()

    async with stage.consumer(close_timeout=0.1) as consumer:
        taking = asyncio.create_task(take(consumer))
        await deliver(stage, 2)
        await held.wait()
    caplog.clear()
    for message in messages:
        ANSWERS[answer](message)
    assert [record.getMessage() for record in ours(caplog)] == [
        f"{message!r}: {answer}() has no effect: the consumer has closed, and nsqd delivers the message again. Answer"
        " messages before the consumer closes, or raise close_timeout"
        for message in messages
    ]
    may_end.set()
    await taking


@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_to_a_message_that_the_close_gave_back_says_so(
    stage: Stage, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It used to be said that the message was answered already."""
    async with stage.consumer(close_timeout=LONG) as consumer:
        await deliver(stage, 1)
        message = await anext(consumer)
    assert message.answered
    caplog.clear()
    ANSWERS[answer](message)
    (record,) = ours(caplog)
    assert record.getMessage() == (
        f"{message!r}: {answer}() has no effect: the message was given back because the consumer was closed before it"
        " was answered, and nsqd delivers the message again"
    )


async def test_a_block_around_a_message_that_closes_the_consumer_says_that_it_comes_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(LIMIT), stage.consumer(close_timeout=LONG) as consumer:
        peer = await deliver(stage, 1)
        async for message in consumer:
            async with message:
                await consumer.aclose()
    assert "finish() has no effect" in caplog.text
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    assert answers(peer) == [Close()]


async def test_a_handler_that_was_cancelled_and_answers_is_warned_about(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread of a plain handler goes on."""
    messages: list[Message] = []

    async def handle(message: Message) -> None:
        messages.append(message)
        await asyncio.Event().wait()

    async with stage.consumer(close_timeout=LONG) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        peer = await deliver(stage, 1)
        await eventually(lambda: messages)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        messages[0].finish()
    assert "finish() has no effect: the message was given back because its handler was cancelled" in caplog.text
    assert peer.of(Finish) == []


async def test_a_second_answer_is_refused(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        await deliver(stage, 1)
        message = await anext(consumer)
        message.finish()
        for name, answer in ANSWERS.items():
            with pytest.raises(LocalProtocolError, match=rf"{name}\(\) of <Message .* finished or requeued before"):
                answer(message)


@pytest.mark.real_time  # the loop that goes is another one, with its own clock
async def test_a_thread_that_finishes_after_the_loop_has_gone_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    def run() -> Message:
        async def main() -> Message:
            async with Stage(1) as stage, stage.consumer(close_timeout=0.1) as consumer:
                await deliver(stage, 1)
                return await anext(consumer)

        return asyncio.run(main())

    message = await asyncio.to_thread(run)
    caplog.clear()
    message.finish()
    assert [record.levelno for record in ours(caplog)] == [logging.WARNING]
