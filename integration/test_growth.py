"""Topics that get more partitions, and consumers of many: no acknowledged message misses a channel.

A channel exists in each partition for itself, and a new one starts at the end. An operator who expands a topic with
another tool creates none on the new partitions, and the consumers find these only later.
"""

import asyncio
import contextlib
import functools
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final

import httpx
import pytest

from integration.cluster import LOOKUPD_VARIABLE, ClusterUnderTest
from integration.reading import LIMIT, eventually
from nsq_ha import ConfigError, Consumer, Producer
from nsq_ha.admin import AdminClient
from nsq_ha.engine import new_partitions
from tests.support.full import FULL
from tests.support.waiting import dawdle
from tests.support.web import NO_CERTIFICATES

GROWN: Final = (4, 8)
STARTERS: Final = 5
"""Producers that start after each expansion, at random moments."""
SPREAD: Final = 2.5
"""Seconds in which they start."""
UNSTABLE: Final = 240.0
"""Seconds for which a real cluster may refuse to expand a topic that is new."""
IS_LONG: Final = FULL or LOOKUPD_VARIABLE in os.environ
MANY: Final = 254 if IS_LONG else 64
"""The most that the real server takes; fewer in the short form."""
BURST: Final = 3000 if IS_LONG else 1000


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for channels for as long as a busy machine takes to create them, and not for a moment only."""
    monkeypatch.setattr(new_partitions, "PATIENCE", LIMIT)


@pytest.mark.timeout(900)  # twice the two minutes for which new partitions of a real cluster may have no leader
async def test_what_is_published_while_a_topic_grows_reaches_every_channel(
    cluster: ClusterUnderTest, channel: str, mark: bytes
) -> None:
    """Without any channel there, 576 of the messages that new producers published were never delivered."""
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    topic = await asyncio.to_thread(cluster.create_topic, 2, 1, multi_part=True)
    acked: dict[bytes, tuple[int, float]] = {}

    async def publish(name: bytes, seconds: float) -> None:
        async with Producer(lookupd=cluster.lookupd) as producer:
            until = time.monotonic() + seconds
            for each in itertools.count():
                body = b"%s%s-%d" % (mark, name, each)
                acked[body] = (await producer.publish(topic, body)).partition, time.monotonic()
                if time.monotonic() > until:
                    return
                await dawdle(0.02)  # the rate

    async def start(name: bytes) -> None:
        await dawdle(chance.uniform(0.0, SPREAD))  # the moment is what is tested
        await publish(name, 1.0)

    async with contextlib.AsyncExitStack() as stack:
        got: dict[str, Counter[bytes]] = {}
        entered: dict[str, float] = {}

        async def enter(name: str) -> None:
            # It finds new partitions late, as with the default of 60 s. A real cluster may take longer to serve them.
            consumer = Consumer(
                topic,
                name,
                lookupd=cluster.lookupd,
                lookup_interval=1.25,  # 15 s while nothing changes
                start_timeout=180.0,
            )
            bodies = got.setdefault(name, Counter())
            await stack.enter_async_context(read(consumer, bodies))
            entered.setdefault(name, time.monotonic())

        for name in ("a", "b", "b"):
            await enter(f"{channel}_{name}")
        running = asyncio.create_task(publish(b"running", 1.0))
        for partitions in GROWN:
            await expand(cluster.lookupd, topic, partitions)
            starting = [asyncio.create_task(start(b"%d.%d" % (partitions, each))) for each in range(STARTERS)]
            await dawdle(chance.uniform(0.0, SPREAD))
            await enter(f"{channel}_new{partitions}")
            await enter(f"{channel}_a")
            await asyncio.gather(*starting)
            for each in itertools.count():  # a real cluster may take two minutes to serve the new partitions
                if {partition for partition, _ in acked.values()} == set(range(partitions)):
                    break
                await publish(b"%d.last.%d" % (partitions, each), 1.0)
        await running
        wanted = {name: {body for body, (_, at) in acked.items() if at > entered[name]} for name in entered}
        with contextlib.suppress(TimeoutError):
            await eventually(lambda: all(wanted[name] <= got[name].keys() for name in wanted))
        lost = {name: Counter(acked[body][0] for body in wanted[name] - got[name].keys()) for name in wanted}
        assert not any(lost.values()), f"seed {seed}: lost of {len(acked)}, by channel and partition: {lost}"


async def test_an_expansion_creates_the_channels_of_the_other_partitions(
    cluster: ClusterUnderTest, channel: str, mark: bytes
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 1, 1, multi_part=True)
    async with AdminClient(cluster.lookupd) as admin:
        await admin.create_channel(topic, channel)
    await asyncio.to_thread(cluster.expand, topic, 3)
    bodies = [mark + b"%d" % partition for partition in range(3)]
    async with Producer(lookupd=cluster.lookupd) as producer:
        for partition, body in enumerate(bodies):
            await eventually(functools.partial(is_stored, producer, topic, body, partition))
    got: Counter[bytes] = Counter()
    async with read(Consumer(topic, channel, lookupd=cluster.lookupd), got):
        await eventually(lambda: got.keys() >= set(bodies))


async def test_a_consumer_of_many_partitions_misses_nothing_after_it_was_entered(
    cluster: ClusterUnderTest, mark: bytes
) -> None:
    """It was entered after its limit with half of the partitions, and 1,380 of 3,000 messages never came."""
    bodies = [mark + b"%d" % number for number in range(BURST)]
    got: Counter[bytes] = Counter()
    async with (
        topic_of_many(cluster, mark) as topic,
        Producer(lookupd=cluster.lookupd, publish_timeout=60.0) as producer,
    ):
        await producer.wait_ready(topic)
        async with read(Consumer(topic, "ch", lookupd=cluster.lookupd), got):
            await asyncio.gather(
                *(producer.publish(topic, body, partition=number % MANY) for number, body in enumerate(bodies))
            )
            with contextlib.suppress(TimeoutError):
                await eventually(lambda: got.keys() >= set(bodies), UNSTABLE)
            assert not missing(bodies, got)


@contextlib.asynccontextmanager
async def topic_of_many(cluster: ClusterUnderTest, mark: bytes) -> AsyncIterator[str]:
    """Create an ordered topic for the block only: what other tests do with all topics would take long with this one."""
    topic = f"ct_{mark.decode().rstrip(':')}"
    async with AdminClient(cluster.lookupd) as admin:
        copies = min(2, len(await admin.nodes()))
        await admin.create_topic(topic, MANY, copies, ordered=True)
        try:
            yield topic
        finally:
            await admin.delete_topic(topic, timeout=UNSTABLE)


@contextlib.asynccontextmanager
async def read(consumer: Consumer, bodies: Counter[bytes]) -> AsyncIterator[None]:
    """Count the bodies that a consumer gets until the block ends."""

    async def count() -> None:
        async for message in consumer:
            bodies[message.body] += 1
            message.finish()

    async with consumer:
        counting = asyncio.create_task(count())
        try:
            yield
        finally:
            await consumer.aclose()
            await counting


async def is_stored(producer: Producer, topic: str, body: bytes, partition: int) -> bool:
    """Publish; return False while not all nsqlookupds know the partition."""
    try:
        await producer.publish(topic, body, partition=partition)
    except ConfigError:
        return False
    return True


def missing(bodies: Collection[bytes], got: Counter[bytes]) -> int:
    return len(set(bodies) - got.keys())


async def expand(lookupds: Sequence[str], topic: str, partitions: int) -> None:
    """Ask for more partitions, as an operator does who waits for nothing and creates no channels."""
    async with httpx.AsyncClient(verify=NO_CERTIFICATES, trust_env=False, timeout=10.0) as http:

        async def asked() -> bool:
            await dawdle(0.3)  # a real server logs each refusal
            answers = [
                await http.post(f"{url}/topic/partition/expand", params={"topic": topic, "partition_num": partitions})
                for url in lookupds
            ]
            return any(answer.status_code == 200 for answer in answers)

        await eventually(asked, UNSTABLE)
