"""A producer's calls, cancelled at each of their suspension points."""

import asyncio
from functools import partial

import pytest

from nsq_ha import ClosedError, Producer, PublishError
from nsq_ha.message import Receipt
from tests.support.cancellation import closes_again, closes_twice_at_once, every_suspension
from tests.support.inside import machine_of
from tests.support.nsqd import LIMIT, Holding
from tests.support.stage import TOPIC, Stage


async def closes(producer: Producer) -> None:
    """Check that closing ends, as often as it is asked for, and that nothing is published afterwards."""
    await closes_again(producer.aclose)
    with pytest.raises(ClosedError):
        await producer.publish(TOPIC, b"late")


async def test_entering(stage: Stage) -> None:
    for cut in every_suspension():
        producer = stage.producer()
        entered = await cut(producer.__aenter__())
        assert cut.cancelled or entered is producer
        await closes(producer)


async def test_closing_when_idle(stage: Stage) -> None:
    for cut in every_suspension():
        producer = await stage.producer().__aenter__()
        await producer.publish(TOPIC, b"x", key="k")
        await cut(producer.aclose())
        await closes(producer)


async def test_closing_with_a_publish_under_way(stage: Stage) -> None:
    for cut in every_suspension():
        holding = Holding()
        stage.nsqd.script = holding
        producer = await stage.producer(close_timeout=1.0).__aenter__()
        publish = asyncio.create_task(producer.publish(TOPIC, b"x", key="k"))
        await stage.nsqd.until(partial(holding.has, 1))
        await cut(producer.aclose())
        await closes(producer)
        with pytest.raises(PublishError) as caught:
            await publish
        assert caught.value.maybe_stored


async def test_closing_twice_at_once(stage: Stage) -> None:
    for cut in every_suspension():
        producer = await stage.producer().__aenter__()
        await producer.publish(TOPIC, b"x", key="k")
        await closes_twice_at_once(cut, producer.aclose)
        await closes(producer)


@pytest.mark.real_time
async def test_leaving_the_block_within_a_time_limit_and_closing_again(stage: Stage) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.aclose(), 0.0001)


@pytest.mark.parametrize("is_known", [True, False], ids=["known topic", "new topic"])
async def test_publishing(stage: Stage, is_known: bool) -> None:
    for cut in every_suspension():
        async with stage.producer() as producer:
            if is_known:
                await producer.publish(TOPIC, b"before", key="k")
            outcome = await cut(producer.publish(TOPIC, b"x", key="k"))
            assert cut.cancelled or isinstance(outcome, Receipt)
            receipt = await asyncio.wait_for(producer.publish(TOPIC, b"after", key="k"), LIMIT)
            assert receipt.attempts == 1
            assert (await producer.publish_many(TOPIC, [b"many"]))[0] == receipt
            assert producer.stats().pending_bytes == 0
            assert not list(machine_of(producer).all_pending())


async def test_waiting_until_it_is_ready(stage: Stage) -> None:
    for cut in every_suspension():
        async with stage.producer() as producer:
            await cut(producer.wait_ready(TOPIC, timeout=LIMIT))
            await producer.wait_ready(TOPIC, timeout=LIMIT)
            assert (await producer.publish(TOPIC, b"x")).attempts == 1


async def test_publishing_many(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsq_ha.producer.batch.BATCH_COUNT", 500)
    monkeypatch.setattr("nsq_ha.producer.batch.TURN", 0.0)  # it pauses wherever it may
    messages = [b"x" * 1000] * 1200
    for cut in every_suspension():
        async with stage.producer() as producer:
            outcome = await cut(producer.publish_many(TOPIC, messages))
            assert cut.cancelled or (isinstance(outcome, list) and len(outcome) == len(messages))
            receipt = await asyncio.wait_for(producer.publish(TOPIC, b"after"), LIMIT)
            assert receipt.attempts == 1
            assert producer.stats().pending_bytes == 0
