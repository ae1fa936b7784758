"""A partition in trouble takes no room from the others."""

import asyncio

import pytest

from nsq_ha import OutgoingMessage, Producer
from nsq_ha.errors import ClosedError, ConnectionLostError, PublishError
from nsq_ha.protocol import Pub
from tests.support.inside import topics_of
from tests.support.nsqd import LIMIT, Holding
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually

MOST = 1_000_000
BODY = b"x" * 20_000


def fill(producer: Producer, topic: str = TOPIC) -> "list[asyncio.Task[object]]":
    """Publish twice what the producer may hold to partition 0."""
    count = 2 * MOST // len(BODY)
    return [asyncio.create_task(producer.publish(topic, BODY, key=2 * n)) for n in range(count)]


async def abandoned(tasks: "list[asyncio.Task[object]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def until_full(producer: Producer) -> None:
    """Wait until partition 0 holds its part, and the rest stands in line."""
    await eventually(lambda: TOPIC in topics_of(producer) and 0 in topics_of(producer)[TOPIC].senders)
    buffer = topics_of(producer)[TOPIC].senders[0].buffer
    await eventually(lambda: len(buffer.waiting) * len(BODY) == 2 * MOST - MOST / 2)


def held(producer: Producer, partition: int) -> int:
    return topics_of(producer)[TOPIC].senders[partition].buffer.held_bytes


@pytest.mark.parametrize("topic", [TOPIC, "another"])
async def test_publishes_to_a_healthy_leader_go_on(stage: Stage, holding: Holding, topic: str) -> None:
    async with stage.producer(sharding="modulo", max_pending_bytes=MOST) as producer:
        tasks = fill(producer)
        await stage.nsqds[0].until(lambda: len(holding.held) * len(BODY) == MOST / 2)
        for number in range(10):
            receipt = await producer.publish(topic, BODY, key=2 * number + 1, timeout=LIMIT)
            assert (receipt.partition, receipt.attempts) == (1, 1)
        batch = [OutgoingMessage(BODY, key=2 * n + 1) for n in range(100)]
        outcomes = await producer.publish_many(topic, batch, timeout=LIMIT)
        assert not any(isinstance(outcome, PublishError) for outcome in outcomes)
        # What may go anywhere does not wait for the partition in trouble either.
        assert {(await producer.publish(topic, BODY, timeout=LIMIT)).partition for _ in range(10)} == {1}
        assert held(producer, 0) == MOST / 2
        await abandoned(tasks)


async def test_without_a_leader_too(stage: Stage) -> None:
    stage.lead({1: stage.nsqds[1]}, 2)
    async with stage.producer(sharding="modulo", max_pending_bytes=MOST) as producer:
        tasks = fill(producer)
        await until_full(producer)
        assert (await producer.publish(TOPIC, BODY, partition=1, timeout=LIMIT)).attempts == 1
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
        await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
        assert held(producer, 0) == 0


async def test_the_error_names_the_partition_and_the_option(stage: Stage, holding: Holding) -> None:
    async with stage.producer(sharding="modulo", max_pending_bytes=MOST) as producer:
        tasks = fill(producer)
        await until_full(producer)
        with pytest.raises(
            PublishError, match=f"{TOPIC}-0: timed out waiting for buffer space: .* max_pending_bytes={MOST}"
        ) as caught:
            await producer.publish(TOPIC, BODY, partition=0, timeout=0.2)
        assert (caught.value.topic, caught.value.partition) == (TOPIC, 0)
        assert (caught.value.attempts, caught.value.maybe_stored) == (0, False)
        await abandoned(tasks)


async def test_what_waits_in_line_is_published_in_order(stage: Stage, holding: Holding) -> None:
    async with stage.producer(sharding="modulo", max_pending_bytes=MOST, window=5) as producer:
        batch = [OutgoingMessage(b"%04d" % n + BODY, key=2 * (n % 7)) for n in range(20)]
        tasks = fill(producer)
        await eventually(lambda: len(holding.held) == 5)
        late = [asyncio.create_task(producer.publish_many(TOPIC, batch[n : n + 5])) for n in range(0, 20, 5)]
        last = asyncio.create_task(producer.publish(TOPIC, b"last", key=0))
        stage.nsqds[0].script = None
        holding.release(5)
        await asyncio.wait_for(asyncio.gather(*tasks, *late, last), LIMIT)
        assert (await last).attempts == 1
        assert isinstance(stage.nsqds[0].commands[-1], Pub)
        assert held(producer, 0) == 0
    bodies = [body[:4] for command in stage.nsqds[0].commands for body in getattr(command, "bodies", ())]
    assert bodies == [b"%04d" % n for n in range(20)]


async def test_what_may_go_anywhere_leaves_the_line_of_a_partition_in_trouble(stage: Stage, holding: Holding) -> None:
    stage.nsqds[1].script = other = Holding()
    async with stage.producer(sharding="modulo", max_pending_bytes=MOST) as producer:
        tasks = [asyncio.create_task(producer.publish(TOPIC, BODY)) for _ in range(2 * MOST // len(BODY))]
        await eventually(lambda: holding.held and other.held)
        stage.nsqds[1].script = None
        other.release(len(other.held))
        receipts = await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
        assert {receipt.partition for receipt in receipts} == {1}
        assert {held(producer, 0), held(producer, 1)} == {0}


async def test_closing_ends_what_waits_in_line(stage: Stage, holding: Holding) -> None:
    async with stage.producer(sharding="modulo", max_pending_bytes=MOST, close_timeout=0.3) as producer:
        tasks = fill(producer)
        await until_full(producer)
        await eventually(lambda: holding.held)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, PublishError)]
    assert len(errors) == len(tasks)
    assert {type(error.__cause__) for error in errors} == {ClosedError}
    assert {error.maybe_stored for error in errors} == {True, False}


async def test_set_to_fail_what_waits_in_line_fails(stage: Stage, holding: Holding) -> None:
    async with stage.producer(sharding="modulo", max_pending_bytes=MOST, on_unreachable="fail") as producer:
        tasks = fill(producer)
        await until_full(producer)
        await eventually(lambda: holding.held)
        stage.nsqds[0].peers[0].abort()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LIMIT)
        errors = [outcome for outcome in outcomes if isinstance(outcome, PublishError)]
        assert len(errors) == len(tasks)
        assert {type(error.__cause__) for error in errors} == {ConnectionLostError}
