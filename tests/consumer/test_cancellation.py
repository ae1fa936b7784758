"""A consumer's calls, cancelled at each of their suspension points."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import anyio
import pytest

from nsq_ha import Batch, ClosedError, Consumer, Message, Producer
from nsq_ha.protocol import Finish, Requeue
from tests.support.cancellation import ENDS_SOON, closes_again, closes_twice_at_once, every_suspension
from tests.support.nsqd import LIMIT, Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import turn


async def closes(consumer: Consumer) -> None:
    """Check that closing ends, as often as it is asked for, and that nothing is handed out afterwards."""
    await closes_again(consumer.aclose)
    with pytest.raises((ClosedError, StopAsyncIteration)):
        await anext(consumer)


async def entered(stage: Stage, messages: int = 0) -> tuple[Consumer, Peer]:
    consumer = await stage.consumer(close_timeout=1.0).__aenter__()
    peer = stage.nsqd.peers[-1]
    await stage.nsqd.until(lambda: peer.ready)
    for number in range(messages):
        peer.message(b"%d" % number, message_id(number + 2))
    return consumer, peer


async def test_entering(stage: Stage) -> None:
    for cut in every_suspension():
        consumer = stage.consumer()
        outcome = await cut(consumer.__aenter__())
        assert cut.cancelled or outcome is consumer
        if outcome is consumer:
            await closes(consumer)
        # One that was not entered leaves nothing that somebody has to close.
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
        await closes(consumer)


async def test_closing_when_idle(stage: Stage) -> None:
    for cut in every_suspension():
        consumer, _ = await entered(stage)
        await cut(consumer.aclose())
        await closes(consumer)


async def test_closing_with_a_message_unanswered(stage: Stage) -> None:
    for cut in every_suspension():
        consumer, _ = await entered(stage, 2)
        await anext(consumer)
        await cut(consumer.aclose(), limit=2 * ENDS_SOON)
        await closes(consumer)


async def test_closing_twice_at_once(stage: Stage) -> None:
    for cut in every_suspension():
        consumer, _ = await entered(stage)
        await closes_twice_at_once(cut, consumer.aclose)
        await closes(consumer)


async def test_closing_within_a_time_limit_and_then_by_leaving_the_block(stage: Stage) -> None:
    async with asyncio.timeout(LIMIT), stage.consumer() as consumer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.aclose(), 0.0001)


async def test_waiting_for_the_next_message_loses_none(stage: Stage) -> None:
    for cut in every_suspension():
        consumer, peer = await entered(stage, 1)
        outcome = await cut(_next(consumer))
        if cut.cancelled:
            (await asyncio.wait_for(anext(consumer), LIMIT)).finish()
        else:
            assert isinstance(outcome, Message)
            outcome.finish()
        await stage.nsqd.until(partial(peer.of, Finish))
        await closes(consumer)


async def _next(consumer: Consumer) -> Message:
    return await anext(consumer)


async def test_waiting_for_a_batch_loses_none(stage: Stage) -> None:
    for cut in every_suspension():
        consumer, peer = await entered(stage, 3)
        batches = consumer.batches(3, 0.5)
        outcome = await cut(_next_of(batches))
        if cut.cancelled:
            for _ in range(3):
                (await asyncio.wait_for(anext(consumer), LIMIT)).finish()
        else:
            assert isinstance(outcome, Batch)
            outcome.finish()
        await stage.nsqd.until(partial(_has_finished, peer, 3))
        await closes(consumer)


def _has_finished(peer: Peer, count: int) -> bool:
    return len(peer.of(Finish)) == count


async def _next_of(batches: AsyncIterator[Batch]) -> Batch:
    return await anext(batches)


async def test_waiting_until_it_is_ready(stage: Stage) -> None:
    for cut in every_suspension():
        consumer = await stage.consumer(close_timeout=1.0).__aenter__()
        await cut(consumer.wait_ready(timeout=LIMIT))
        await consumer.wait_ready(timeout=LIMIT)
        await closes(consumer)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_running_a_handler(stage: Stage, concurrency: int) -> None:
    """Each message is answered once: finished, or requeued at the end."""

    async def handle(message: Message) -> None:
        await turn()

    for cut in every_suspension():
        consumer, peer = await entered(stage, 4)
        running = asyncio.create_task(cut(consumer.run(handle, concurrency=concurrency)))
        while len(peer.of(Finish, Requeue)) < 4 and not running.done():
            await turn()
        await closes(consumer)
        await running
        answered = [command.message_id for command in peer.of(Finish, Requeue)]  # type: ignore[attr-defined]
        assert len(answered) == len(set(answered))


@pytest.mark.parametrize("kind", ["consumer", "producer"])
async def test_a_block_that_anyio_cancels_again_and_again_has_closed_its_connections(stage: Stage, kind: str) -> None:
    with anyio.move_on_after(1.0):
        async with stage.consumer() if kind == "consumer" else stage.producer() as client:
            if isinstance(client, Producer):
                await client.publish("orders", b"x")
            await asyncio.Event().wait()
    assert client.health().reason == "closed"
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
