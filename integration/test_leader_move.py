"""A leader moves, or its node comes and goes, in the middle of publishing and consuming."""

import asyncio
from collections.abc import Callable

import pytest

from integration.cluster import ClusterUnderTest, replace_leader
from integration.reading import LIMIT, Consumers, eventually, numbers_by_key
from nsq_ha import Consumer, Message, Producer, Receipt
from tests.support.waiting import dawdle

# A real cluster refuses to move leaders for minutes after any node came or went.
pytestmark = pytest.mark.timeout(900)

KEYS = [b"key-%d" % number for number in range(10)]


class Traffic:
    """Publishes and consumes until stopped; keys in order, each publish awaited before the key's next one."""

    def __init__(self, producer: Producer, consumer: Consumer, topic: str, mark: bytes) -> None:
        self.receipts: list[Receipt] = []
        self.messages: list[Message] = []
        self._producer = producer
        self._consumer = consumer
        self._topic = topic
        self._mark = mark
        self._stop = asyncio.Event()
        self._sent = dict.fromkeys(KEYS, 0)

    async def publish(self, key: bytes) -> None:
        while not self._stop.is_set():
            # An ordered channel is read one message at a time: never be far ahead of it.
            await eventually(lambda: len(self.receipts) - len(self.messages) < 100 or self._stop.is_set(), 2 * LIMIT)
            number = self._sent[key]
            self.receipts.append(await self._producer.publish(self._topic, self._mark + key + b":%d" % number, key=key))
            self._sent[key] += 1
            await dawdle(0.02)

    async def consume(self) -> None:
        async for message in self._consumer:
            if message.body.startswith(self._mark):
                self.messages.append(message)
            message.finish()

    async def around(self, fault: Callable[[], object]) -> None:
        """Run ``fault`` in a thread while messages flow, and end when all that was published has arrived."""
        consuming = asyncio.create_task(self.consume())
        async with asyncio.TaskGroup() as group:
            for key in KEYS:
                group.create_task(self.publish(key))
            await eventually(lambda: len(self.messages) > 100)
            await asyncio.to_thread(fault)
            after = len(self.receipts)
            await eventually(lambda: len(self.receipts) > after + 100)
            self._stop.set()
        wanted = {key: list(range(count)) for key, count in self._sent.items()}
        try:
            await eventually(lambda: len({m.body for m in self.messages}) >= sum(self._sent.values()))
        finally:
            found = numbers_by_key(self.messages, self._mark)
            lost = {key: sorted(set(numbers) - set(found.get(key, []))) for key, numbers in wanted.items()}
            assert not any(lost.values()), lost
        await self._consumer.aclose()
        await consuming
        self.found = found
        self.wanted = wanted


@pytest.fixture
def moved_topic(cluster: ClusterUnderTest, is_ordered: bool) -> str:
    """A topic whose leaders no other test needs."""
    return cluster.create_topic(2, 3, ordered=is_ordered)


@pytest.mark.parametrize("is_ordered", [True, False], ids=["ordered", "ordinary"])
async def test_a_leader_moves(
    cluster: ClusterUnderTest, consume: Consumers, mark: bytes, moved_topic: str, is_ordered: bool
) -> None:
    async with Producer(lookupd=cluster.lookupd) as producer, consume(moved_topic) as consumer:
        traffic = Traffic(producer, consumer, moved_topic, mark)
        await traffic.around(lambda: cluster.move_leader(moved_topic, 0))
        if is_ordered:
            assert traffic.found == traffic.wanted
        nodes = {receipt.nsqd for receipt in traffic.receipts if receipt.partition == 0}
        assert len(nodes) == 2
        assert {message.nsqd for message in traffic.messages if message.partition == 0} == nodes


@pytest.mark.faults
@pytest.mark.parametrize("is_ordered", [True, False], ids=["ordered", "ordinary"])
async def test_a_leaders_node_is_killed_and_comes_back(
    cluster: ClusterUnderTest, consume: Consumers, mark: bytes, moved_topic: str, is_ordered: bool
) -> None:
    # A real cluster needs 22 s for another leader, and for a while after the node's return it refuses publishes again.
    async with (
        Producer(lookupd=cluster.lookupd, publish_timeout=4 * LIMIT) as producer,
        consume(moved_topic) as consumer,
    ):
        traffic = Traffic(producer, consumer, moved_topic, mark)
        former = await asyncio.to_thread(cluster.leader, moved_topic, 1)
        async with asyncio.timeout(10 * LIMIT):
            await traffic.around(lambda: replace_leader(cluster, moved_topic, 1))
        nodes = {receipt.nsqd for receipt in traffic.receipts if receipt.partition == 1}
        assert len(nodes) == 2
        assert former in nodes
        if is_ordered:
            assert traffic.found == traffic.wanted
