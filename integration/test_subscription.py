"""Which partitions are read, in which mode, from where, and by whom."""

import asyncio

import pytest

from integration.reading import Consumers, bodies, eventually, is_multiset, next_of, numbers_by_key, read
from nsq_ha import Consumer, Message, Producer, ServerError


async def test_auto_reads_an_ordered_topic_in_order(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    async with consume(ordered, ordered="auto") as consumer:
        for number in range(10):
            await producer.publish(ordered, mark + b"%d" % number, key="k")
        first = await next_of(consumer, mark)
        stats = (await consume.stats(ordered))[first.partition]
        # One in flight, whatever RDY says.
        assert stats.in_flight == 1
        assert 1 <= stats.depth <= 10  # a server may count fewer: those that it has not flushed
        first.finish()
        rest = await read(consumer, mark, 9)
    assert bodies([first, *rest], mark) == [b"%d" % number for number in range(10)]
    assert [message.offset for message in rest] == sorted(message.offset or 0 for message in rest)


@pytest.mark.plain
async def test_auto_reads_an_ordinary_topic_many_at_once(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary, ordered="auto") as consumer:
        await producer.publish_many(ordinary, [mark + b"%d" % number for number in range(30)])
        messages = await read(consumer, mark, 30, finish=False)
        for message in messages:
            message.finish()
    assert is_multiset(bodies(messages, mark), [b"%d" % number for number in range(30)])


async def test_ordered_by_choice_on_an_ordinary_topic(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary, ordered=True) as consumer:
        for number in range(5):
            await producer.publish(ordinary, mark + b"%d" % number, partition=0)
        first = await next_of(consumer, mark)
        assert (await consume.stats(ordinary))[0].in_flight == 1
        first.finish()
        rest = await read(consumer, mark, 4)
    assert bodies([first, *rest], mark) == [b"%d" % number for number in range(5)]


async def test_an_ordered_topic_cannot_be_read_otherwise(consume: Consumers, ordered: str) -> None:
    with pytest.raises(ServerError) as caught:
        async with consume(ordered, ordered=False):
            pass
    assert caught.value.code == "E_SUB_ORDER_IS_MUST"


async def test_some_partitions(producer: Producer, consume: Consumers, ordered: str, mark: bytes) -> None:
    async with consume(ordered, partitions=[3, 1]) as some, consume(ordered, partitions=(0,)) as another:
        for partition in range(4):
            await producer.publish(ordered, mark + b"%d" % partition, partition=partition)
        assert sorted(bodies(await read(some, mark, 2), mark)) == [b"1", b"3"]
        assert bodies(await read(another, mark, 1), mark) == [b"0"]
        await producer.publish(ordered, mark + b"last", partition=1)
        assert bodies(await read(some, mark, 1), mark) == [b"last"]


async def test_a_new_channel_starts_at_the_end(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    async with consume(ordered) as first:
        for number in range(5):
            await producer.publish(ordered, mark + b"old %d" % number, key="k")
        # What was delivered is on disk, so it lies before the place where a new channel starts.
        await read(first, mark, 5)
        async with consume(ordered, channel=consume.channel + "_late") as late:
            await producer.publish(ordered, mark + b"new", key="k")
            assert bodies(await read(late, mark, 1), mark) == [b"new"]
        assert bodies(await read(first, mark, 1), mark) == [b"new"]


async def test_a_channel_remembers_where_it_stood(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    async with consume(ordered) as consumer:
        for number in range(6):
            await producer.publish(ordered, mark + b"%d" % number, key="k")
        await read(consumer, mark, 3)
    await producer.publish(ordered, mark + b"6", key="k")
    async with consume(ordered) as consumer:
        messages = await read(consumer, mark, 4)
    assert bodies(messages, mark) == [b"3", b"4", b"5", b"6"]


async def test_two_consumers_share_an_ordered_channel(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    seen: list[Message] = []

    async def follow(consumer: Consumer) -> None:
        async for message in consumer:
            if message.body.startswith(mark):
                seen.append(message)
            message.finish()

    async with consume(ordered) as one, consume(ordered) as other:
        followers = [asyncio.create_task(follow(consumer)) for consumer in (one, other)]
        await asyncio.gather(
            *(producer.publish(ordered, mark + b"%d:%d" % (key, n), key=key) for n in range(25) for key in range(8))
        )
        await eventually(lambda: len(set(bodies(seen, mark))) == 200)
        await asyncio.gather(one.aclose(), other.aclose())
        await asyncio.gather(*followers)
    assert numbers_by_key(seen, mark) == {b"%d" % key: list(range(25)) for key in range(8)}


@pytest.mark.plain
async def test_two_consumers_share_an_ordinary_channel(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    counts = [0, 0]

    async def follow(position: int, consumer: Consumer) -> None:
        async for message in consumer:
            counts[position] += message.body.startswith(mark)
            message.finish()

    async with consume(ordinary, max_in_flight=2) as one, consume(ordinary, max_in_flight=2) as other:
        followers = [asyncio.create_task(follow(*pair)) for pair in enumerate((one, other))]
        await producer.publish_many(ordinary, [mark + b"%d" % number for number in range(200)])
        await eventually(lambda: sum(counts) >= 200)
        await asyncio.gather(one.aclose(), other.aclose())
        await asyncio.gather(*followers)
    assert sum(counts) == 200
    assert min(counts) > 0


@pytest.mark.plain
async def test_two_channels_get_everything_each(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary) as one, consume(ordinary, channel=consume.channel + "_b") as other:
        await producer.publish_many(ordinary, [mark + b"%d" % number for number in range(20)])
        both = [bodies(await read(consumer, mark, 20), mark) for consumer in (one, other)]
    assert is_multiset(both[0], both[1])


async def test_a_sample_is_taken_and_the_rest_is_confirmed(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    seen = 0

    async def follow(consumer: Consumer) -> None:
        nonlocal seen
        async for message in consumer:
            seen += message.body.startswith(mark)
            message.finish()

    async with consume(ordinary, sample_rate=30) as consumer:
        follower = asyncio.create_task(follow(consumer))
        await producer.publish_many(ordinary, [mark + b"%d" % number for number in range(600)])

        async def is_empty() -> bool:
            stats = await consume.stats(ordinary)
            return len(stats) == 2 and all(entry.depth == entry.in_flight == 0 for entry in stats.values())

        await eventually(is_empty)
        await consumer.aclose()
        await follower
    # 180 expected; eight standard deviations off would be a fault.
    assert 90 < seen < 270


async def test_an_ordered_topic_cannot_be_sampled(consume: Consumers, ordered: str) -> None:
    with pytest.raises(ServerError) as caught:
        async with consume(ordered, sample_rate=50):
            pass
    assert caught.value.code == "E_INVALID"
