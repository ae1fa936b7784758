"""A plain cluster of more nsqds than ``max_connections``: each topic is published to, and no publish starves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nsq_ha import Producer, PublishError
from nsq_ha.protocol import Pub
from tests.producer.test_connection_limit import open_sockets
from tests.support.nsqd import LIMIT, FakeNsqd, Holding
from tests.support.stage import Stage
from tests.support.waiting import dawdle

TOPICS = [f"topic{number}" for number in range(20)]


@pytest.fixture
async def stage(nothing_is_left: None) -> AsyncIterator[Stage]:
    async with Stage(4) as stage:
        stage.list_plain(candidates=stage.nsqds)
        yield stage


def stored(stage: Stage) -> set[tuple[str, bytes]]:
    return {
        (command.topic, command.body) for nsqd in stage.nsqds for command in nsqd.commands if isinstance(command, Pub)
    }


async def watch(stage: Stage, tasks: list[asyncio.Task[Any]]) -> int:
    """Wait for the tasks; return the largest number of sockets that were open at a time."""
    most = 0
    while not all(task.done() for task in tasks):
        most = max(most, open_sockets(stage))
        await asyncio.wait(tasks, timeout=0.001)
    return most


@pytest.mark.few(2)
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
@pytest.mark.parametrize("attempt", range(2))
async def test_many_topics_at_once(stage: Stage, limit: int, attempt: int) -> None:
    async with stage.producer(max_connections=limit) as producer:
        for text in (b"first", b"second"):
            tasks = [asyncio.create_task(producer.publish(topic, text, timeout=2.0)) for topic in TOPICS]
            assert await watch(stage, tasks) <= limit
            await asyncio.gather(*tasks)
    assert stored(stage) == {(topic, text) for topic in TOPICS for text in (b"first", b"second")}


async def test_a_producer_stays_at_the_nsqd_that_it_is_connected_to(stage: Stage) -> None:
    async with stage.producer(max_connections=1) as producer:
        for _ in range(20):
            await asyncio.gather(*(producer.publish(topic, b"x") for topic in TOPICS[:3]))
        await dawdle(30.0)
        receipts = await asyncio.gather(*(producer.publish(topic, b"x") for topic in TOPICS))
    assert sum(len(nsqd.peers) for nsqd in stage.nsqds) == 1
    assert len({receipt.nsqd for receipt in receipts}) == 1


async def test_a_busy_connection_gives_way_to_a_topic_of_another_nsqd(stage: Stage) -> None:
    """Each topic is at one nsqd only, so that staying at another one is no way out."""
    async with stage.producer(max_connections=1) as producer:
        stage.list_plain(stage.nsqds[0])
        await producer.publish("busy", b"first")
        stage.list_plain(stage.nsqds[1])
        published = 0

        async def keep_busy() -> None:
            nonlocal published
            while True:
                await producer.publish("busy", b"x", timeout=2.0)
                published += 1

        busy = [asyncio.create_task(keep_busy()) for _ in range(3)]
        for _ in range(3):
            before = published
            await asyncio.wait_for(producer.publish("other", b"x", timeout=2.0), LIMIT)
            await dawdle(2.0)
            assert published > before
            assert open_sockets(stage) <= 1
        assert not any(task.done() for task in busy)
        for task in busy:
            task.cancel()
        await asyncio.wait(busy)


async def test_the_true_reason_is_named(stage: Stage) -> None:
    stage.list_plain(stage.nsqds[0])
    stage.nsqds[0].script = holding = Holding()
    async with stage.producer(max_connections=1) as producer:
        first = asyncio.create_task(producer.publish("busy", b"x"))
        await stage.nsqd.until(lambda: holding.held)
        stage.list_plain(stage.nsqds[1])
        address = stage.nsqds[1].node.address
        with pytest.raises(PublishError, match=f"waited for a connection to {address}, .*max_connections=1") as caught:
            await producer.publish("other", b"x", timeout=0.5)
        assert (caught.value.attempts, caught.value.maybe_stored) == (0, False)
        holding.release()
        await first
        await producer.publish("other", b"y")


async def test_a_connection_without_answers_is_left_for_another_nsqd(stage: Stage) -> None:
    """What waits for it is stored elsewhere, though one connection is all there may be."""
    async with stage.producer(max_connections=1) as producer:
        used = (await producer.publish(TOPICS[0], b"first")).nsqd
        (silent,) = (nsqd for nsqd in stage.nsqds if nsqd.node.address == used)
        silent.script = Holding()
        tasks = [asyncio.create_task(producer.publish(topic, b"x", timeout=5.0)) for topic in TOPICS]
        assert await watch(stage, tasks) == 1
        receipts = await asyncio.gather(*tasks)
    assert used not in {receipt.nsqd for receipt in receipts}


@pytest.mark.parametrize("limit", [1, 2])
async def test_a_handshake_without_an_answer_leaves_its_connection_to_another_nsqd(stage: Stage, limit: int) -> None:
    for nsqd in stage.nsqds[:3]:
        nsqd.is_silent = True
    async with stage.producer(max_connections=limit, connect_timeout=60.0) as producer:
        tasks = [asyncio.create_task(producer.publish(topic, b"x", timeout=10.0)) for topic in TOPICS]
        assert await watch(stage, tasks) <= limit
        await asyncio.gather(*tasks)
    assert stored(stage) == {(topic, b"x") for topic in TOPICS}


async def test_what_no_nsqd_was_connected_for_says_so(stage: Stage) -> None:
    for nsqd in stage.nsqds:
        nsqd.is_silent = True
    async with stage.producer(connect_timeout=60.0) as producer:
        with pytest.raises(PublishError, match=r"not sent: connecting to [0-9.:]+ was not complete in time"):
            await producer.publish("orders", b"x", timeout=0.5)


# ---------------------------------------------------------------- an nsqd that is silent


def producer_of(stage: Stage, kind: str, nsqds: list[FakeNsqd], **options: Any) -> Producer:  # noqa: ANN401 - of a producer
    if kind == "nsqd":
        return Producer(nsqd=[nsqd.node.address for nsqd in nsqds], **options)
    stage.list_plain(*nsqds)
    return stage.producer(**options)


async def slow(producer: Producer, topics: list[str], seconds: float) -> int:
    """Publish to the topics in turn for some seconds; return how many publishes took more than a moment."""
    loop, found = asyncio.get_running_loop(), 0
    end = loop.time() + seconds
    while loop.time() < end:
        for topic in topics:
            began = loop.time()
            await producer.publish(topic, b"x", timeout=5.0)
            found += loop.time() - began > 0.1
        await dawdle(0.05)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["nsqd", "lookupd"])
@pytest.mark.parametrize("topics", [1, 5])
async def test_a_silent_nsqd_is_remembered(stage: Stage, kind: str, topics: int) -> None:
    silent, good = stage.nsqds[:2]
    silent.is_silent = True
    async with producer_of(stage, kind, [silent, good]) as producer:
        assert await slow(producer, TOPICS[:topics], 60.0) <= 1
        assert 3 < len(silent.peers) < 8
        silent.is_silent = False
        await slow(producer, TOPICS[:topics], 40.0)
        assert len([command for command in silent.commands if isinstance(command, Pub)]) > 10
