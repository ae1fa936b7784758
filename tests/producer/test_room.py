"""A partition in trouble takes nothing from the others, however much waits for it."""

import asyncio

import pytest

from nsq_ha import OutgoingMessage, Producer, ProducerConfig
from nsq_ha.errors import ConfigError, PublishError
from nsq_ha.protocol import Pub
from tests.support.nsqd import LIMIT, Holding
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually

BODY = b"x" * 20_000
MANY = 100


def fill(producer: Producer, topic: str = TOPIC) -> "list[asyncio.Task[object]]":
    """Publish to partition 0."""
    return [asyncio.create_task(producer.publish(topic, BODY, key=2 * n)) for n in range(MANY)]


async def abandoned(tasks: "list[asyncio.Task[object]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def test_the_number_of_calls_is_the_only_limit() -> None:
    """The option bounded nothing: 200 calls of 1 MiB held 200 MiB with a limit of 1 MiB."""
    with pytest.raises(ConfigError, match="max_pending_bytes"):
        Producer(lookupd="127.0.0.1:4161", max_pending_bytes=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="max_pending_bytes"):
        ProducerConfig(lookupd=("127.0.0.1:4161",), max_pending_bytes=1)  # type: ignore[call-arg]


async def test_many_large_publishes_to_a_silent_leader_end_by_their_limits(stage: Stage, holding: Holding) -> None:
    loop, body = asyncio.get_running_loop(), b"x" * 2**20
    async with stage.producer(sharding="modulo", max_message_bytes=2**21) as producer:
        began = loop.time()
        calls = [producer.publish(TOPIC, body, key=2 * n, timeout=2.0 + n % 3) for n in range(200)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert 4.0 <= loop.time() - began < 5.0
        assert {type(outcome) for outcome in outcomes} == {PublishError}
        assert producer.stats().pending_bytes == 0
        assert (await producer.publish(TOPIC, body, key=1, timeout=LIMIT)).partition == 1


@pytest.mark.parametrize("topic", [TOPIC, "another"])
async def test_publishes_to_a_healthy_leader_go_on(stage: Stage, holding: Holding, topic: str) -> None:
    async with stage.producer(sharding="modulo") as producer:
        tasks = fill(producer, topic)
        await stage.nsqds[0].until(lambda: len(holding.held) == MANY)
        for number in range(10):
            receipt = await producer.publish(topic, BODY, key=2 * number + 1, timeout=LIMIT)
            assert (receipt.partition, receipt.attempts) == (1, 1)
        batch = [OutgoingMessage(BODY, key=2 * n + 1) for n in range(MANY)]
        outcomes = await producer.publish_many(topic, batch, timeout=LIMIT)
        assert not any(isinstance(outcome, PublishError) for outcome in outcomes)
        await abandoned(tasks)


async def test_without_a_leader_too(stage: Stage) -> None:
    stage.lead({1: stage.nsqds[1]}, 2)
    async with stage.producer(sharding="modulo") as producer:
        tasks = fill(producer)
        await eventually(lambda: producer.stats().pending_bytes == MANY * len(BODY))
        assert (await producer.publish(TOPIC, BODY, partition=1, timeout=LIMIT)).attempts == 1
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
        await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
        assert producer.stats().pending_bytes == 0


async def test_what_waits_is_published_in_order(stage: Stage, holding: Holding) -> None:
    async with stage.producer(sharding="modulo", window=5) as producer:
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
    bodies = [body[:4] for command in stage.nsqds[0].commands for body in getattr(command, "bodies", ())]
    assert bodies == [b"%04d" % n for n in range(20)]
