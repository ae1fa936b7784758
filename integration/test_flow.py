"""How many messages are out at once, pausing, and what closing leaves."""

import asyncio

import pytest

from integration.reading import Consumers, bodies, eventually, is_multiset, next_of, read
from nsq_ha import ClosedError, OutgoingMessage, Producer
from tests.support.waiting import turn

AT_ONCE = 20.0
"""Seconds for what takes a moment, on a busy machine too; the limits that must not be used up are longer."""


async def in_flight(consume: Consumers, topic: str) -> int:
    """Return how many messages the servers count as in flight on the channel."""
    return sum(stats.in_flight for stats in (await consume.stats(topic)).values())


def spread(mark: bytes, count: int, partitions: int) -> list[OutgoingMessage]:
    """Return messages that are spread evenly."""
    return [OutgoingMessage(mark + b"%d" % number, partition=number % partitions) for number in range(count)]


@pytest.fixture(autouse=True)
def quick_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let partitions take turns sooner, where there are more of them than may be in flight."""
    monkeypatch.setattr("nsq_ha.policy.ready.LONGEST_CHOSEN", 0.3)


@pytest.mark.few("partitioned-1", "partitioned-7")
@pytest.mark.parametrize("most", [1, 2, 7, 30])
async def test_exactly_max_in_flight_messages_are_out(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes, most: int
) -> None:
    async with consume(ordinary, max_in_flight=most) as consumer:
        await producer.publish_many(ordinary, spread(mark, 80, 2))
        held = await read(consumer, mark, most, finish=False)
        taking = asyncio.create_task(next_of(consumer, mark))
        # The servers never count more, and no further message is handed out while none is answered.
        for _ in range(10):
            assert await in_flight(consume, ordinary) <= most
        assert not taking.done()
        held.pop().finish()
        held.append(await taking)
        assert await in_flight(consume, ordinary) <= most
        for message in held:
            message.finish()
        rest = await read(consumer, mark, 80 - 1 - most)
    assert len({message.body for message in (*held, *rest)}) == 79


@pytest.fixture(params=["ordinary", "ordered"])
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of each kind."""
    name: str = request.getfixturevalue(request.param)
    return name


@pytest.mark.few("partitioned-ordinary", "plain-ordered")
@pytest.mark.plain
async def test_a_consumer_may_start_paused(producer: Producer, consume: Consumers, topic: str, mark: bytes) -> None:
    async with consume(topic, max_in_flight=0) as consumer:
        await producer.publish_many(topic, spread(mark, 8, 2))
        taking = asyncio.create_task(read(consumer, mark, 8))
        for _ in range(5):
            assert await in_flight(consume, topic) == 0
        assert not taking.done()
        consumer.set_max_in_flight(20)
        messages = await taking
    async with consume(topic, max_in_flight=0) as consumer:
        await producer.publish(topic, mark + b"last", partition=0)
        handled: list[bytes] = []
        running = asyncio.create_task(consumer.run(lambda message: handled.append(message.body)))
        for _ in range(5):
            assert await in_flight(consume, topic) == 0
        consumer.set_max_in_flight(20)
        await eventually(lambda: mark + b"last" in handled)
        await consumer.aclose()
        await running
    assert is_multiset(bodies(messages, mark), [b"%d" % number for number in range(8)])


@pytest.mark.plain
async def test_fewer_in_flight_than_partitions_serves_them_all(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    async with consume(ordered, max_in_flight=1) as consumer:
        await producer.publish_many(ordered, spread(mark, 8, 4))
        messages = await read(consumer, mark, 8)
    assert is_multiset(bodies(messages, mark), [b"%d" % number for number in range(8)])


async def test_what_is_unanswered_at_the_close_comes_back(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    loop = asyncio.get_running_loop()
    async with consume(ordinary, close_timeout=0.5) as consumer:
        await producer.publish_many(ordinary, spread(mark, 20, 2))
        handed_out = await read(consumer, mark, 6, finish=False)
        for message in handed_out[:2]:
            message.finish()
        began = loop.time()
        await consumer.aclose()
        assert loop.time() - began < AT_ONCE
        # Too late: its connection has gone.
        handed_out[2].finish()
    done = bodies(handed_out[:2], mark)
    async with consume(ordinary) as consumer:
        rest = await read(consumer, mark, 18)
    assert is_multiset([*done, *bodies(rest, mark)], [b"%d" % number for number in range(20)])


async def test_ordered_messages_come_back_in_order_after_a_close(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    async with consume(ordered, close_timeout=0.3) as consumer:
        await producer.publish_many(ordered, [OutgoingMessage(mark + b"%d" % n, key="k") for n in range(6)])
        first = await read(consumer, mark, 2)
        await next_of(consumer, mark)
    async with consume(ordered) as consumer:
        rest = await read(consumer, mark, 4)
    assert bodies([*first, *rest], mark) == [b"%d" % number for number in range(6)]
    # A close is no failure: no attempt is counted.
    assert {message.attempts for message in rest} == {1}


@pytest.mark.plain
async def test_closing_is_quick_when_nothing_is_out(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    loop = asyncio.get_running_loop()
    async with consume(ordered, close_timeout=2 * AT_ONCE) as consumer:
        await producer.publish(ordered, mark, key="k")
        await read(consumer, mark, 1)
        began = loop.time()
        await consumer.aclose()
        await consumer.aclose()
        assert loop.time() - began < AT_ONCE
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)


async def test_closing_does_not_wait_for_a_delayed_requeue(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    loop = asyncio.get_running_loop()
    async with consume(ordered, close_timeout=2 * AT_ONCE) as consumer:
        await producer.publish(ordered, mark, key="k")
        (await next_of(consumer, mark)).requeue(60.0)
        began = loop.time()
        await consumer.aclose()
        assert loop.time() - began < AT_ONCE
    async with consume(ordered) as consumer:
        await read(consumer, mark, 1)


@pytest.mark.plain
async def test_iterating_ends_at_the_close(producer: Producer, consume: Consumers, ordinary: str, mark: bytes) -> None:
    seen: list[bytes] = []
    closing: list[asyncio.Task[None]] = []
    async with consume(ordinary) as consumer:
        for number in range(5):
            await producer.publish(ordinary, mark + b"%d" % number)
        async for message in consumer:
            message.finish()
            if message.body.startswith(mark):
                seen.append(message.body)
            if len(seen) == 5:
                closing.append(asyncio.create_task(consumer.aclose()))
    await asyncio.gather(*closing)
    assert len(seen) == 5


@pytest.mark.plain
async def test_a_cancelled_wait_loses_no_message(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary) as consumer:
        for _ in range(20):
            waiting = asyncio.create_task(next_of(consumer, mark))
            await turn()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await producer.publish_many(ordinary, spread(mark, 10, 2))
        assert is_multiset(bodies(await read(consumer, mark, 10), mark), [b"%d" % n for n in range(10)])


@pytest.mark.plain
async def test_a_consumer_is_used_once(consume: Consumers, ordinary: str) -> None:
    consumer = consume(ordinary)
    with pytest.raises(ClosedError):
        await anext(consumer)
    async with consumer:
        with pytest.raises(ClosedError):
            await consumer.__aenter__()
    with pytest.raises(ClosedError):
        await consumer.__aenter__()
