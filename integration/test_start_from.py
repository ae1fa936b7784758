"""Where a channel starts to read."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import LIMIT, Consumers, bodies, eventually, next_of, read, without_repeats
from nsq_ha import OutgoingMessage, Producer, Receipt, StartFrom
from tests.support.inside import connection_of, partitions_of

PARTITIONS = 2
COUNT = 12
"""Messages in each partition."""


class History:
    """A topic of 2 partitions whose whole contents are known.

    Attributes:
        topic: Its name.
        receipts: By partition, in order; the body of the n-th, counted from 0, is ``<partition>:<n>``.
        second: Unix time from which on the messages with these numbers were published:
        turn: By partition, the first of them.
        is_ordered: What the topic is.
    """

    def __init__(self, topic: str, receipts: dict[int, list[Receipt]], second: int, turn: dict[int, int]) -> None:
        self.topic = topic
        self.receipts = receipts
        self.turn = turn
        self.second = second
        self.is_ordered = False

    def bodies(self, partition: int, first: int) -> list[bytes]:
        return [b"%d:%d" % (partition, number) for number in range(first, COUNT)]


async def write_history(cluster: ClusterUnderTest, topic: str) -> History:
    async with Producer(lookupd=cluster.lookupd, trace=True) as producer:

        async def batch(numbers: Sequence[int]) -> None:
            for partition in range(PARTITIONS):
                results = await producer.publish_many(
                    topic, [OutgoingMessage(b"%d:%d" % (partition, n), partition=partition) for n in numbers]
                )
                for result in results:
                    assert isinstance(result, Receipt)
                    receipts[partition].append(result)

        receipts: dict[int, list[Receipt]] = {partition: [] for partition in range(PARTITIONS)}
        await batch(range(7))
        second = int(time.time()) + 1
        await eventually(lambda: time.time() >= second)
        await batch(range(7, COUNT))
    return History(topic, receipts, second, dict.fromkeys(range(PARTITIONS), 7))


@pytest.fixture(scope="module", params=["ordinary", "ordered"])
def history(cluster: ClusterUnderTest, request: pytest.FixtureRequest) -> History:
    is_ordered = request.param == "ordered"
    # Flushed at once: a message that nsqd flushes later may come first, out of turn.
    topic = cluster.create_topic(PARTITIONS, 2, ordered=is_ordered, sync_every=1)
    history = asyncio.run(write_history(cluster, topic))
    history.is_ordered = is_ordered
    return history


async def read_from(
    consume: Consumers, history: History, start: StartFrom | dict[int, StartFrom], wanted: dict[int, int]
) -> None:
    """Read from ``start`` and want each partition from the given message on, to its end."""
    expected = {partition: history.bodies(partition, first) for partition, first in wanted.items()}
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    async with consume(history.topic, start_from=start) as consumer:
        # A channel that just became ordered may bring its first message twice.
        while sum(len(set(own)) for own in found.values()) < sum(map(len, expected.values())):
            message = await next_of(consumer, b"")
            found[message.partition].append(message.body)
            message.finish()
    for partition, wanted_bodies in expected.items():
        own = without_repeats(found[partition])
        assert (own if history.is_ordered else sorted(own, key=_number)) == wanted_bodies


def _number(body: bytes) -> int:
    return int(body.partition(b":")[2])


async def test_from_the_beginning(consume: Consumers, history: History) -> None:
    await read_from(consume, history, StartFrom.beginning(), {0: 0, 1: 0})


async def test_from_an_offset(consume: Consumers, history: History) -> None:
    offsets = {partition: receipts[4 + partition].offset or 0 for partition, receipts in history.receipts.items()}
    start = {partition: StartFrom.offset(offset) for partition, offset in offsets.items()}
    await read_from(consume, history, start, {0: 4, 1: 5})


async def test_an_offset_inside_a_message_means_the_next_one(consume: Consumers, history: History) -> None:
    start = {p: StartFrom.offset((receipts[4].offset or 0) + 1) for p, receipts in history.receipts.items()}
    await read_from(consume, history, start, {0: 5, 1: 5})


async def test_from_a_number(consume: Consumers, history: History) -> None:
    await read_from(consume, history, StartFrom.count(6), {0: 5, 1: 5})


@pytest.mark.parametrize("number", [0, 1])
async def test_numbers_are_counted_from_1_and_0_means_the_same(
    consume: Consumers, history: History, number: int
) -> None:
    await read_from(consume, history, StartFrom.count(number), {0: 0, 1: 0})


@pytest.mark.parametrize("start", [StartFrom.count(10**9), StartFrom.offset(10**12)], ids=["count", "offset"])
async def test_a_position_behind_the_newest_message_means_the_end(
    consume: Consumers, history: History, start: StartFrom
) -> None:
    async with consume(history.topic, start_from=StartFrom.beginning(), max_in_flight=2):
        pass
    found: list[bytes] = []

    async def is_at_the_end() -> bool:
        stats = await consume.stats(history.topic)
        return len(stats) == PARTITIONS and all(each.depth == each.in_flight == 0 for each in stats.values())

    async with consume(history.topic, start_from=start) as consumer:
        running = asyncio.create_task(consumer.run(lambda message: found.append(message.body)))
        await eventually(is_at_the_end)
        await consumer.aclose()
        await running
    assert len(set(found)) <= 2 * PARTITIONS  # what the server had queued for delivery before


async def test_from_a_time(consume: Consumers, history: History) -> None:
    await read_from(consume, history, StartFrom.timestamp(history.second), history.turn)


async def test_a_start_for_one_partition_leaves_the_others_where_they_stand(
    consume: Consumers, history: History
) -> None:
    async with consume(history.topic, start_from=StartFrom.end()):
        pass
    async with consume(history.topic, start_from={1: StartFrom.count(COUNT - 1)}) as consumer:
        message = await next_of(consumer, b"")
        message.finish()
    assert message.body == b"1:%d" % (COUNT - 2)


async def test_the_start_counts_once_not_after_a_lost_connection(consume: Consumers, history: History) -> None:
    async with consume(history.topic, start_from=StartFrom.count(COUNT - 3), partitions=[0]) as consumer:
        first = await read(consumer, b"", 2)
        connection = connection_of(partitions_of(consumer)[0])
        assert connection is not None
        await connection.aclose(LIMIT)
        numbers = [_number(message.body) for message in first]
        while len(set(numbers)) < 4:
            message = await next_of(consumer, b"")
            numbers.append(_number(message.body))
            message.finish()
    assert min(numbers) == COUNT - 4
    # What was finished does not come again, but for the first message of a channel that just became ordered.
    assert len(numbers) <= 6


@pytest.fixture(params=["ordinary", "ordered"])
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.getfixturevalue(request.param)
    return name


async def test_from_the_end(producer: Producer, consume: Consumers, mark: bytes, topic: str) -> None:
    async with consume(topic):
        pass
    for number in range(5):
        await producer.publish(topic, mark + b"unread %d" % number, partition=0)

    async def are_flushed() -> bool:
        return (await consume.stats(topic))[0].depth == 5

    await eventually(are_flushed)  # the end is the end of what is flushed
    found: list[bytes] = []
    async with consume(topic, start_from=StartFrom.end()) as consumer:
        for partition in range(2):
            await producer.publish(topic, mark + b"new %d" % partition, partition=partition)
        while not {b"new 0", b"new 1"} <= set(found):
            found += bodies(await read(consumer, mark, 1), mark)
    # What the server has queued for delivery already may come first.
    assert set(found) <= {b"unread 0", b"new 0", b"new 1"}


async def test_a_start_gives_everything_and_on_an_ordered_topic_nothing_twice(
    consume: Consumers, history: History
) -> None:
    wanted = sorted(history.bodies(0, 0) + history.bodies(1, 0))
    found: list[bytes] = []
    async with consume(history.topic, start_from=StartFrom.beginning()) as consumer:
        while set(found) != set(wanted):
            found += [message.body for message in await read(consumer, b"", 1)]
    # On an ordinary topic a message that the server had queued before the start was set may come twice.
    assert sorted(found if history.is_ordered else set(found)) == wanted


async def test_a_start_moves_the_channel_for_those_that_read_it_too(
    producer: Producer, consume: Consumers, mark: bytes, ordinary: str
) -> None:
    async with consume(ordinary, partitions=[0]) as reading:
        for number in range(5):
            await producer.publish(ordinary, mark + b"%d" % number, partition=0)
        await read(reading, mark, 5)

        async def are_finished() -> bool:
            return (await consume.stats(ordinary))[0].depth == 0

        await eventually(are_finished)
        async with consume(ordinary, partitions=[0], start_from=StartFrom.beginning(), max_in_flight=1):
            # It holds at most one message, unanswered; the others come again to the first consumer.
            again = await read(reading, mark, 4)
    assert len({message.body for message in again}) == 4
