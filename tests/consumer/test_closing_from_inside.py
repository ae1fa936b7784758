"""A handler that closes its own consumer: the stop begins, and nothing waits for itself."""

import asyncio

import pytest

from nsq_ha import Message
from nsq_ha.consumer.giving_up import EXTRA_DELIVERIES
from nsq_ha.protocol import Close, Finish, Requeue
from tests.support.nsqd import LIMIT, Peer, message_id
from tests.support.stage import Stage

LONG = 6 * LIMIT
"""A ``close_timeout`` longer than any test, so that waiting for it shows."""


async def deliver(stage: Stage, count: int, attempts: int = 1) -> Peer:
    peer = await stage.nsqd.subscriber()
    for number in range(count):
        peer.message(b"%d" % number, message_id(number + 2), attempts=attempts)
    return peer


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_its_message_is_finished_no_other_is_handed_out_and_the_run_ends(stage: Stage, concurrency: int) -> None:
    handled: list[bytes] = []

    async with asyncio.timeout(LIMIT), stage.consumer(close_timeout=LONG) as consumer:

        async def handle(message: Message) -> None:
            handled.append(message.body)
            if len(handled) == concurrency:
                await consumer.aclose()

        running = asyncio.create_task(consumer.run(handle, concurrency=concurrency))
        peer = await deliver(stage, concurrency + 2)
        await running
    assert len(handled) == concurrency
    await stage.nsqd.until(lambda: len(peer.of(Finish)) == concurrency)
    assert peer.of(Close)
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)


async def test_the_others_are_waited_for(stage: Stage) -> None:
    released, closing = asyncio.Event(), asyncio.Event()

    async def leave() -> None:
        async with stage.consumer(close_timeout=LONG) as consumer:

            async def handle(message: Message) -> None:
                if message.body == b"0":
                    await released.wait()
                else:
                    await consumer.aclose()
                    closing.set()

            await consumer.run(handle, concurrency=2)

    async with asyncio.timeout(LIMIT):
        leaving = asyncio.create_task(leave())
        peer = await deliver(stage, 2)
        await closing.wait()
        await stage.nsqd.until(lambda: peer.of(Close) and len(peer.of(Finish)) == 1)
        assert not leaving.done()
        released.set()
        await leaving
    assert len(peer.of(Finish)) == 2
    assert peer.of(Requeue) == []


async def test_one_that_asks_again_or_while_another_closes_does_not_wait_either(stage: Stage) -> None:
    async with asyncio.timeout(LIMIT), stage.consumer(close_timeout=LONG) as consumer:
        begun = asyncio.Event()

        async def handle(message: Message) -> None:
            begun.set()
            await closing_began.wait()
            await consumer.aclose()
            await consumer.aclose()

        closing_began = asyncio.Event()
        running = asyncio.create_task(consumer.run(handle))
        peer = await deliver(stage, 1)
        await begun.wait()
        closing = asyncio.create_task(consumer.aclose())
        await stage.nsqd.until(lambda: peer.of(Close))
        closing_began.set()
        await asyncio.gather(closing, running)
    assert len(peer.of(Finish)) == 1


async def test_one_that_fails_afterwards_requeues_its_message(stage: Stage) -> None:
    async with asyncio.timeout(LIMIT), stage.consumer(close_timeout=LONG) as consumer:

        async def handle(message: Message) -> None:
            await consumer.aclose()
            raise ValueError

        running = asyncio.create_task(consumer.run(handle))
        peer = await deliver(stage, 1)
        await running
    await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 1)


@pytest.mark.parametrize("iterates", [True, False])
async def test_a_way_to_give_up_may_close_as_well(stage: Stage, *, iterates: bool) -> None:
    async def give_up(message: Message) -> None:
        await consumer.aclose()

    async def handle(message: Message) -> None:
        raise AssertionError("it is given up")

    async with asyncio.timeout(LIMIT):
        async with stage.consumer(close_timeout=LONG, max_attempts=1, on_give_up=give_up) as consumer:
            peer = await deliver(stage, 1, attempts=2 + EXTRA_DELIVERIES)
            if iterates:
                assert [message async for message in consumer] == []
            else:
                await consumer.run(handle)
        assert len(peer.of(Finish)) == 1


async def test_leaving_that_is_cancelled_waits_for_no_handler(stage: Stage) -> None:
    asked = asyncio.Event()
    consumer = stage.consumer(close_timeout=LONG)

    async def handle(message: Message) -> None:
        await consumer.aclose()
        asked.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(LIMIT):
        await consumer.__aenter__()
        running = asyncio.create_task(consumer.run(handle))
        await deliver(stage, 1)
        await asked.wait()
        leaving = asyncio.create_task(consumer.aclose())
        await stage.nsqd.until(lambda: stage.nsqd.peers[0].of(Close))
        assert not leaving.done()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await running  # closed without waiting for answers, it cancels the handler
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
