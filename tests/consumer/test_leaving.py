"""Leaving the block with a message in hand, and answers that come after the end."""

import asyncio
import logging

import pytest

from nsq_ha import Consumer, Message
from nsq_ha.errors import LocalProtocolError
from nsq_ha.protocol import Close, Finish, Requeue
from tests.support.nsqd import LIMIT, Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import eventually, turn

LONG = 6 * LIMIT
"""A ``close_timeout`` longer than any test, so that waiting for it shows."""


async def deliver(stage: Stage, count: int) -> Peer:
    peer = await stage.nsqd.subscriber()
    for number in range(count):
        peer.message(b"%d" % number, message_id(number + 2))
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
    assert callable(read)
    stage.lead({0: stage.nsqd}, ordered=ordered)

    async def work() -> None:
        async with stage.consumer(close_timeout=LONG) as consumer:
            await read(consumer)

    async with asyncio.timeout(LIMIT):
        working = asyncio.create_task(work())
        peer = await deliver(stage, 2)
        with pytest.raises(ZeroDivisionError):
            await working
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    # RDY 0 comes before the requeue, or the server would deliver it here again.
    assert answers(peer) == [Finish(message_id(2)), Close(), Requeue(message_id(3), 0)]


async def test_an_interrupt_gives_it_back_too(stage: Stage) -> None:
    """asyncio turns Ctrl-C into a cancellation of the main task."""
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
    assert answers(peer) == [Close(), Requeue(message_id(2), 0)]


async def test_what_another_task_works_on_is_waited_for(stage: Stage) -> None:
    """The leaving task was waiting for the next message, so it holds none."""
    taken: list[Message] = []

    async def work() -> None:
        async with stage.consumer(close_timeout=LONG) as consumer:
            async for message in consumer:
                taken.append(message)  # noqa: PERF401 - to be cancelled between two messages

    async with asyncio.timeout(LIMIT):
        working = asyncio.create_task(work())
        peer = await deliver(stage, 2)
        await eventually(lambda: len(taken) == 2)
        await turn(3)
        working.cancel()
        await stage.nsqd.until(lambda: peer.of(Close))
        assert not working.done()
        for message in taken:
            message.finish()
        with pytest.raises(asyncio.CancelledError):
            await working
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    assert answers(peer) == [Close(), Finish(message_id(2)), Finish(message_id(3))]


async def test_a_message_that_was_given_back_cannot_be_finished_any_more(stage: Stage) -> None:
    held: list[Message] = []

    async def work() -> None:
        async with asyncio.timeout(LIMIT), stage.consumer(close_timeout=LONG) as consumer:
            await deliver(stage, 1)
            held.append(await anext(consumer))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    with pytest.raises(LocalProtocolError):
        held[0].finish()


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


async def test_a_finish_after_the_end_is_warned_about_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """It used to return silently, although the message was redelivered."""
    async with stage.consumer(close_timeout=0.1) as consumer:
        await deliver(stage, 3)
        late = [await anext(consumer) for _ in range(3)]
    caplog.clear()
    late[0].requeue(0)  # redelivered, as requested
    assert ours(caplog) == []
    late[1].finish()
    late[2].finish()
    (record,) = ours(caplog)
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("orders/ch: a message was finished after the consumer closed")


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
