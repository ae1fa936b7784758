"""What only a plain cluster has: no order, topics that publishing creates, and nodes that nobody replaces."""

import asyncio
import uuid
from typing import Any

import httpx
import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import Consumers, bodies, eventually, next_letter, next_of, read
from nsq_ha import Backoff, Consumer, LookupClient, Message, Producer, PublishError
from nsq_ha.admin import AdminClient
from nsq_ha.dead_letters import replay
from tests.support import programs
from tests.support.waiting import dawdle
from tests.support.web import NO_CERTIFICATES

pytestmark = pytest.mark.only_plain

QUICK = Backoff(initial=0.02, maximum=0.05)


async def test_publishing_creates_a_topic(cluster: ClusterUnderTest, channel: str, mark: bytes) -> None:
    topic = f"ct_{uuid.uuid4().hex[:12]}#ephemeral"
    async with Producer(lookupd=cluster.lookupd) as producer:
        receipt = await producer.publish(topic, mark)
        async with Consumer(topic, f"{channel}#ephemeral", lookupd=cluster.lookupd) as consumer:
            message = await next_of(consumer, mark)
            message.finish()
    assert (message.nsqd, message.attempts) == (receipt.nsqd, 1)


async def test_messages_go_to_all_nsqds_and_come_from_all(
    cluster: ClusterUnderTest, producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary) as consumer:
        receipts = await asyncio.gather(*(producer.publish(ordinary, mark + b"%d" % n) for n in range(40)))
        messages = await read(consumer, mark, 40)
    assert sorted(bodies(messages, mark)) == sorted(b"%d" % n for n in range(40))
    nsqds = {receipt.nsqd for receipt in receipts}
    assert len(nsqds) == cluster.nodes
    assert {message.nsqd for message in messages} == nsqds


async def test_equal_ids_of_two_nsqds_are_two_messages(consume: Consumers, ordinary: str, mark: bytes) -> None:
    """Those of one host have one node id by default: what they get in one millisecond has equal ids."""
    handled: dict[bytes, tuple[str, int]] = {}

    async def handle(message: Message) -> None:
        if message.body.startswith(mark):
            await dawdle(0.05)  # with so many that wait, each message is checked
            handled[message.body] = (message.nsqd, message.internal_id)

    async def fill(nsqd: str) -> None:
        async with Producer(nsqd=nsqd) as one:
            for number in range(20):
                await one.publish_many(ordinary, [mark + f"{nsqd} {number} {n}".encode() for n in range(20)])

    async with consume(ordinary, max_in_flight=200, msg_timeout=2.0) as consumer:
        nsqds = {leader for each in consumer.stats().partitions if (leader := each.leader) is not None}
        running = asyncio.create_task(consumer.run(handle, concurrency=20))
        await asyncio.gather(*map(fill, nsqds))
        await eventually(lambda: len(handled) == 400 * len(nsqds))
        await consumer.aclose()
        await running
    ids = {internal_id for _, internal_id in handled.values()}
    assert len(set(handled.values())) == len(handled)
    if len({internal_id >> 12 & 1023 for internal_id in ids}) == 1:
        assert len(ids) < len(handled)


async def in_flight(cluster: ClusterUnderTest, topic: str, channel: str) -> int:
    """Return how many messages of a channel are out, as the nsqds say."""
    async with LookupClient(cluster.lookupd[0]) as lookup, httpx.AsyncClient(verify=NO_CERTIFICATES) as http:
        total = 0
        for node in (await lookup.lookup(topic)).nodes or ():
            answer = await http.get(f"http://{node.host}:{node.http_port}/stats?format=json&topic={topic}")
            channels = answer.json()["topics"][0]["channels"]
            total += sum(entry["in_flight_count"] for entry in channels if entry["channel_name"] == channel)
    return total


async def test_no_more_than_max_in_flight_are_out(
    cluster: ClusterUnderTest, producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary, max_in_flight=5) as consumer:
        await producer.publish_many(ordinary, [mark + b"%d" % n for n in range(30)])
        held = [await next_of(consumer, mark) for _ in range(2)]

        assert 2 <= await in_flight(cluster, ordinary, consume.channel) <= 5
        for message in held:
            message.finish()
        rest = await read(consumer, mark, 28)
    assert len({*bodies(held, mark), *bodies(rest, mark)}) == 30


LEFT_OPEN = """
import asyncio, sys
from nsq_ha import Consumer

async def main():
    for _ in range(2):
        consumer = Consumer(sys.argv[1], sys.argv[2], lookupd=sys.argv[3].split(","), max_in_flight=18)
        await consumer.__aenter__()
        for _ in range(3):
            await anext(consumer)

asyncio.run(main())
"""


async def test_consumers_that_nobody_closes_leave_nothing_in_flight(
    cluster: ClusterUnderTest, producer: Producer, ordinary: str, channel: str, mark: bytes
) -> None:
    async with Consumer(ordinary, channel, lookupd=cluster.lookupd):
        pass  # makes the channel
    for _ in range(5):
        await producer.publish_many(ordinary, [mark + b"%d" % n for n in range(50)])
        ended = await asyncio.to_thread(
            programs.run, programs.ORDINARY, LEFT_OPEN, ordinary, channel, ",".join(cluster.lookupd)
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        assert await in_flight(cluster, ordinary, channel) == 0


@pytest.mark.parametrize("policy", ["dead_letter", "republish"])
async def test_a_message_is_given_up(
    cluster: ClusterUnderTest, consume: Consumers, ordinary: str, single: str, mark: bytes, *, policy: str
) -> None:
    options: dict[str, Any] = {"on_give_up": policy, "max_attempts": 2, "requeue_backoff": QUICK}
    if policy == "dead_letter":
        options |= {"dead_letter_topic": single, "max_attempts": 1}
    async with (
        Producer(lookupd=cluster.lookupd) as producer,
        consume(ordinary, producer=producer, **options) as consumer,
        consume(single) as dead,
    ):
        await producer.publish(ordinary, mark + b"bad")
        for _ in range(options["max_attempts"]):
            (await next_of(consumer, mark)).requeue(0.0)
        if policy == "dead_letter":
            letter, message = await next_letter(dead, mark)
            assert (letter.body, letter.format) == (mark + b"bad", "envelope")
            assert (letter.provenance.topic, letter.provenance.partition) == (ordinary, None)
            await replay(producer, letter)
        message = await next_of(consumer, mark)
        message.finish()
    assert bodies([message], mark) == [b"bad"]
    assert message.attempts == 1


class Load:
    """Publishes and consumes until it is over.

    Attributes:
        stored: The nsqd of each body that was stored.
        received: The bodies that arrived.
        over: Set to stop publishing.
    """

    def __init__(self, topic: str, mark: bytes) -> None:
        self.stored: dict[bytes, str] = {}
        self.received: set[bytes] = set()
        self.over = asyncio.Event()
        self._topic = topic
        self._mark = mark

    async def publish(self, producer: Producer) -> None:
        number = 0
        while not self.over.is_set():
            body = self._mark + b"%d" % number
            number += 1
            try:
                self.stored[body] = (await producer.publish(self._topic, body)).nsqd
            except PublishError:
                continue
            await dawdle(0.002)

    async def receive(self, consumer: Consumer) -> None:
        async for message in consumer:
            self.received.add(bytes(message.body))
            message.finish()

    def nsqds_since(self, number: int) -> set[str]:
        return set(list(self.stored.values())[number:])

    async def store_more(self, count: int) -> int:
        """Wait for so many publishes; return how many there were before."""
        before = len(self.stored)
        await eventually(lambda: len(self.stored) > before + count)
        return before

    def lost(self) -> list[str]:
        """The nsqds of what was stored and has not arrived."""
        return [nsqd for body, nsqd in self.stored.items() if body not in self.received]


@pytest.mark.faults
@pytest.mark.timeout(900)
async def test_a_node_is_killed_and_restarted(
    cluster: ClusterUnderTest, producer: Producer, consume: Consumers, mark: bytes
) -> None:
    """All that a surviving node holds arrives, and all that the restarted one stores afterwards."""
    topic = cluster.create_topic()
    async with LookupClient(cluster.lookupd[0]) as lookup:
        victim, other = (node.address for node in (await lookup.lookup(topic)).nodes or ())
    load = Load(topic, mark)
    async with consume(topic, lookup_interval=1.0) as consumer:
        publishing = asyncio.create_task(load.publish(producer))
        receiving = asyncio.create_task(load.receive(consumer))
        await load.store_more(100)
        await asyncio.to_thread(cluster.kill_node, victim)
        await load.store_more(50)
        calm = await load.store_more(100)
        assert load.nsqds_since(calm) == {other}
        await asyncio.to_thread(cluster.start_node, victim)
        await eventually(lambda: victim in load.nsqds_since(calm), 60)
        again = await load.store_more(100)
        load.over.set()
        await publishing
        # The killed nsqd loses what it had in memory, and nothing else.
        await eventually(lambda: set(load.lost()) <= {victim})
        late = list(load.stored)[again:]
        await eventually(lambda: load.received.issuperset(late))
        await consumer.aclose()
        await receiving


async def test_where_a_consumer_is_can_be_seen(
    cluster: ClusterUnderTest, producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary, topology_region="eu", topology_zone="eu-a") as consumer:
        await producer.publish(ordinary, mark)
        (await next_of(consumer, mark)).finish()
        async with AdminClient(lookupd=cluster.lookupd) as admin:
            nodes = (await admin.stats(ordinary, channel=consumer.channel, clients=True)).nodes
    parts = [part for node in nodes for part in node.partitions]
    clients = [client for part in parts for channel in part.channels for client in channel.connections]
    assert {(client.topology_region, client.topology_zone) for client in clients} == {("eu", "eu-a")}
