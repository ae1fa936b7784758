"""TLS for longer than the partitioned nsqd can write to one connection: nothing is late by seconds, lost, or repeated.

``UpgradeTLS`` of that server sets a deadline of 5 s and never removes the half of it that ends writing. The embedded
cluster does the same here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import LIMIT, Consumers, eventually, next_of, numbers_by_key, read
from nsq_ha import Compression, Consumer, Message, Producer
from nsq_ha.policy.tls_renewal import WRITES_FOR
from tests.support.waiting import dawdle

pytestmark = pytest.mark.tls

ROUNDS = 60
KEYS = (b"a", b"b", b"c")
PAUSE = 0.15
"""Between two rounds: all of them take more than twice as long as one connection can be written to."""


class Flow:
    """Publishes to a topic and reads it, both by TLS."""

    def __init__(self, cluster: ClusterUnderTest, consume: Consumers, mark: bytes) -> None:
        self.mark = mark
        self.consume = consume
        self._cluster = cluster

    @asynccontextmanager
    async def on(self, topic: str, **options: Any) -> AsyncIterator[tuple[Producer, Consumer]]:  # noqa: ANN401 - ClientConfig's fields
        tls, lookupd = self._cluster.tls, self._cluster.lookupd
        async with (
            self.consume(topic, tls=tls, **options) as consumer,
            Producer(lookupd=lookupd, tls=tls, **options) as producer,
        ):
            yield producer, consumer

    async def pass_all(self, topic: str, producer: Producer, consumer: Consumer) -> list[Message]:
        """Publish rounds of messages, and return what came."""
        limit = ROUNDS * PAUSE + LIMIT
        reading = asyncio.create_task(read(consumer, self.mark, ROUNDS * len(KEYS), limit=limit))
        for number in range(ROUNDS):
            publishes = [producer.publish(topic, self.mark + key + b":%d" % number, key=key) for key in KEYS]
            assert {receipt.attempts for receipt in await asyncio.gather(*publishes)} == {1}
            await dawdle(PAUSE)
        return await reading


@pytest.fixture
def flow(cluster: ClusterUnderTest, consume: Consumers, mark: bytes) -> Flow:
    return Flow(cluster, consume, mark)


@pytest.mark.parametrize("options", [{}, {"compression": Compression.DEFLATE}], ids=["tls", "tls+deflate"])
async def test_messages_pass_once_while_connections_are_replaced(
    flow: Flow, ordinary: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "nsq_ha")
    async with flow.on(ordinary, **options) as (producer, consumer):
        messages = await flow.pass_all(ordinary, producer, consumer)
        await eventually(lambda: _all_answered(flow.consume, ordinary))
    _each_once(messages, flow.mark)
    _replaced_quietly(caplog)


async def test_messages_pass_in_order_while_connections_are_replaced(
    flow: Flow, ordered: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "nsq_ha")
    async with flow.on(ordered) as (producer, consumer):
        messages = await flow.pass_all(ordered, producer, consumer)
    _each_once(messages, flow.mark)
    assert numbers_by_key(messages, flow.mark) == {key: list(range(ROUNDS)) for key in KEYS}
    _replaced_quietly(caplog)


@pytest.mark.parametrize("kind", ["ordinary", "ordered"])
async def test_work_that_outlasts_a_connection_is_done_once(
    flow: Flow, kind: str, request: pytest.FixtureRequest
) -> None:
    """What came over a connection is answered there, long after nsqd can write to it."""
    topic: str = request.getfixturevalue(kind)
    async with flow.on(topic) as (producer, consumer):
        await producer.publish(topic, flow.mark + b"slow", key=b"k")
        message = await next_of(consumer, flow.mark)
        await dawdle(WRITES_FOR * 1.8)
        message.finish()
        await producer.publish(topic, flow.mark + b"next", key=b"k")
        following = await next_of(consumer, flow.mark)
        assert (following.body, following.attempts) == (flow.mark + b"next", 1)
        following.finish()
        await eventually(lambda: _all_answered(flow.consume, topic))
    assert message.attempts == 1


async def _all_answered(consume: Consumers, topic: str) -> bool:
    stats = await consume.stats(topic)
    return all(channel.in_flight == 0 for channel in stats.values())


def _each_once(messages: list[Message], mark: bytes) -> None:
    assert sorted(message.body for message in messages) == sorted(
        mark + key + b":%d" % number for key in KEYS for number in range(ROUNDS)
    )
    assert {message.attempts for message in messages} == {1}


def _replaced_quietly(caplog: pytest.LogCaptureFixture) -> None:
    replaced = [record for record in caplog.records if "another connection to" in record.getMessage()]
    assert len(replaced) >= 2
    assert {record.levelno for record in replaced} == {logging.DEBUG}
    subscribed = [record.getMessage() for record in caplog.records if "subscribed to" in record.getMessage()]
    assert len(subscribed) == len(set(subscribed)), "no subscription was lost"
