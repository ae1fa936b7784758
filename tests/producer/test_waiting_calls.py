"""What waits is renewed by what the producer learns, not only by the next call; and closing waits for all of it."""

import asyncio

import pytest

from nsq_ha import Producer
from nsq_ha.errors import ClosedError, PublishError
from nsq_ha.message import Receipt
from tests.engine.lookups.loopback import hang
from tests.support.nsqd import LIMIT
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import dawdle, eventually

# ------------------------------------------------------------ what appears later


@pytest.mark.parametrize("is_gone", [True, False], ids=["the old one is gone", "the old one is still listed"])
async def test_one_waiting_publish_moves_to_an_nsqd_that_appears(stage: Stage, *, is_gone: bool) -> None:
    """It waited for its whole limit: only the next publish looked at the new nsqd."""
    loop = asyncio.get_running_loop()
    stage.list_plain(stage.nsqds[0])
    async with stage.producer(lookup_interval=1.0) as producer:
        await producer.publish(TOPIC, b"x")
        await stage.nsqds[0].stop()
        began = loop.time()
        waiting = asyncio.create_task(producer.publish(TOPIC, b"y", timeout=30.0))
        await dawdle(0.5)
        stage.list_plain(*stage.nsqds[is_gone:2])
        receipt = await waiting
        assert receipt.nsqd == stage.nsqds[1].node.address
        assert loop.time() - began < 5.0


async def test_one_waiting_publish_moves_though_nobody_listed_an_nsqd_for_a_while(stage: Stage) -> None:
    stage.list_plain(stage.nsqds[0])
    async with stage.producer(lookup_interval=1.0) as producer:
        await producer.publish(TOPIC, b"x")
        await stage.nsqds[0].stop()
        stage.list_plain()
        waiting = asyncio.create_task(producer.publish(TOPIC, b"y", timeout=30.0))
        await dawdle(10.0)
        stage.list_plain(stage.nsqds[1])
        assert (await asyncio.wait_for(waiting, 5.0)).nsqd == stage.nsqds[1].node.address


async def test_one_waiting_publish_moves_to_a_partition_that_was_added(stage: Stage) -> None:
    """The topic grows while its only partition has no leader."""
    loop = asyncio.get_running_loop()
    async with stage.producer(lookup_interval=1.0) as producer:
        await producer.publish(TOPIC, b"x")
        await stage.nsqds[0].stop()
        began = loop.time()
        waiting = asyncio.create_task(producer.publish(TOPIC, b"y", timeout=60.0))
        await dawdle(0.5)
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
        assert (await waiting).partition == 1
        assert loop.time() - began < 30.0


# ------------------------------------------------------------ what closing waits for


def calls(producer: Producer, count: int) -> "list[asyncio.Task[Receipt]]":
    return [asyncio.create_task(producer.publish(TOPIC, b"%d" % n)) for n in range(count)]


async def test_closing_waits_for_publishes_that_wait_for_the_first_lookup(stage: Stage) -> None:
    """1,000 of 1,000 failed: the producer is closed."""
    behave, stage.lookupd.behave = stage.lookupd.behave, hang
    async with stage.producer() as producer:
        tasks = calls(producer, 1000)
        small = asyncio.create_task(producer.publish_many(TOPIC, [b"a", b"b"]))
        large = asyncio.create_task(producer.publish_many(TOPIC, [b"c"] * 20_000))
        await eventually(lambda: producer.stats().queued == 1002)
        stage.lookupd.behave = behave
    outcomes = [*await asyncio.gather(*tasks), *await small, *await large]
    assert {type(outcome) for outcome in outcomes} == {Receipt}


async def test_those_that_get_no_lookup_fail_when_the_close_ends(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    stage.lookupd.behave = hang
    async with stage.producer(close_timeout=1.0) as producer:
        tasks = calls(producer, 100)
        small = asyncio.create_task(producer.publish_many(TOPIC, [b"a", b"b"]))
        large = asyncio.create_task(producer.publish_many(TOPIC, [b"c"] * 20_000))
        await eventually(lambda: producer.stats().queued == 102)
        began = loop.time()
    assert 1.0 <= loop.time() - began < 1.5
    async with asyncio.timeout(LIMIT):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        many = [*await asyncio.gather(small, large, return_exceptions=True)]
    for outcome in [*outcomes, *many]:
        error = outcome[0] if isinstance(outcome, list) else outcome
        assert isinstance(error, PublishError)
        assert not error.maybe_stored
        assert isinstance(error.__cause__, ClosedError)
    assert loop.time() - began < 2.0


async def test_nothing_new_is_taken_while_it_closes(stage: Stage) -> None:
    behave, stage.lookupd.behave = stage.lookupd.behave, hang
    async with stage.producer() as producer:
        (task,) = calls(producer, 1)
        await eventually(lambda: producer.stats().queued == 1)
        closing = asyncio.create_task(producer.aclose())
        await dawdle(0.1)
        with pytest.raises(ClosedError):
            await producer.publish(TOPIC, b"late")
        stage.lookupd.behave = behave
        await closing
    assert isinstance(await task, Receipt)
