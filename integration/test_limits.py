"""Time limits, cancellation, and clusters that are not there."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import Consumers, bodies, eventually, is_multiset, next_of, read
from nsq_ha import ClosedError, Consumer, OutgoingMessage, Producer, Receipt
from nsq_ha.errors import LookupUnavailableError, PublishError, TopicNotFoundError
from tests.support.ports import nobody_listens
from tests.support.waiting import turn

AT_ONCE = 20.0
"""Seconds for what takes a moment, on a busy machine too; the limits that must not be used up are longer."""


@pytest.fixture
def nobody() -> Iterator[str]:
    """The address of a port on which nobody listens."""
    with nobody_listens() as port:
        yield f"http://127.0.0.1:{port}"


async def test_an_unknown_topic_is_reported_within_seconds(producer: Producer) -> None:
    began = time.monotonic()
    with pytest.raises(PublishError) as caught:
        await producer.publish("ct_no_such_topic", b"x", key="k")
    assert time.monotonic() - began < AT_ONCE
    error = caught.value
    assert isinstance(error.__cause__, TopicNotFoundError)
    assert (error.topic, error.partition, error.attempts, error.maybe_stored) == ("ct_no_such_topic", None, 0, False)


async def test_a_topic_may_come_after_its_consumer(
    cluster: ClusterUnderTest, consume: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    async with consume("ct_no_such_topic", start_timeout=4.0) as consumer:
        waiting = asyncio.create_task(anext(consumer))
        await turn()
        assert not waiting.done()
        waiting.cancel()
    assert "there is no topic" in caplog.text


async def test_a_publish_ends_in_time_when_no_lookupd_answers(nobody: str) -> None:
    async with Producer(lookupd=nobody) as producer:
        began = time.monotonic()
        with pytest.raises(PublishError) as caught:
            await producer.publish("orders", b"x", timeout=2.0)
        results = await producer.publish_many("orders", [b"x", b"y"], timeout=2.0)
        assert time.monotonic() - began < AT_ONCE
    assert isinstance(caught.value.__cause__, LookupUnavailableError)
    assert nobody in str(caught.value)
    assert (caught.value.attempts, caught.value.maybe_stored) == (0, False)
    assert [type(result) for result in results] == [PublishError, PublishError]


async def test_a_consumer_starts_and_closes_in_time_when_no_lookupd_answers(
    nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.monotonic()
    async with Consumer("orders", "ch", lookupd=nobody, start_timeout=2.0, close_timeout=60.0):
        pass
    assert time.monotonic() - began < AT_ONCE
    assert "no nsqlookupd gave a usable answer" in caplog.text


async def test_one_lookupd_of_several_is_enough(
    cluster: ClusterUnderTest, consume: Consumers, ordinary: str, mark: bytes, nobody: str
) -> None:
    both = [nobody, cluster.lookupd[0]]
    began = time.monotonic()
    async with (
        Producer(lookupd=both) as producer,
        Consumer(ordinary, consume.channel, lookupd=both) as consumer,
    ):
        await producer.publish(ordinary, mark)
        await read(consumer, mark, 1)
    assert time.monotonic() - began < AT_ONCE


async def test_a_limit_that_is_too_short_says_what_is_known(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary) as consumer:
        outcomes: list[Receipt | PublishError] = []
        for number in range(1, 40):
            try:
                outcomes.append(await producer.publish(ordinary, mark + b"%d" % number, timeout=number * 5e-5))
            except PublishError as error:
                outcomes.append(error)
        for number, outcome in enumerate(outcomes, 1):
            if isinstance(outcome, PublishError):
                assert outcome.maybe_stored == (outcome.attempts > 0), number
        surely_stored = {b"%d" % n for n, outcome in enumerate(outcomes, 1) if isinstance(outcome, Receipt)}
        surely_not = {
            b"%d" % n for n, o in enumerate(outcomes, 1) if isinstance(o, PublishError) and not o.maybe_stored
        }
        await producer.publish_many(ordinary, [OutgoingMessage(mark + b"last", partition=p) for p in (0, 1)])
        found: list[bytes] = []
        while found.count(b"last") < 2 or not surely_stored <= set(found):
            message = await next_of(consumer, mark)
            message.finish()
            found.append(message.body.removeprefix(mark))
    assert not surely_not & set(found)


async def test_a_cancelled_publish_leaves_the_producer_in_order(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    async with consume(ordered) as consumer:
        await producer.publish(ordered, mark + b"first", key="k")
        tasks = [asyncio.create_task(producer.publish(ordered, mark + b"%d" % n, key="k")) for n in range(30)]
        await eventually(tasks[3].done)
        for task in tasks[5:20]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await producer.publish(ordered, mark + b"last", key="k")
        found: list[bytes] = []
        while b"last" not in found:
            found += bodies(await read(consumer, mark, 1), mark)
    stored = [b"%d" % n for n, outcome in enumerate(outcomes) if isinstance(outcome, Receipt)]
    in_doubt = {b"%d" % n for n, outcome in enumerate(outcomes) if isinstance(outcome, asyncio.CancelledError)}
    assert [body for body in found if body not in in_doubt] == [b"first", *stored, b"last"]
    assert found[1:-1] == sorted(found[1:-1], key=int)
    assert len(stored) >= 15


async def test_a_cancelled_batch_leaves_the_producer_in_order(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary) as consumer:
        task = asyncio.create_task(producer.publish_many(ordinary, [mark + b"x" * 500_000] * 10))
        await turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await producer.publish_many(ordinary, [OutgoingMessage(mark + b"last", partition=p) for p in (0, 1)])
        last = 0
        while last < 2:
            last += bodies(await read(consumer, mark, 1), mark) == [b"last"]


async def test_closing_lets_publishes_under_way_end(
    cluster: ClusterUnderTest, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary) as consumer:
        async with Producer(lookupd=cluster.lookupd) as producer:
            await producer.publish(ordinary, mark + b"first")
            tasks = [asyncio.create_task(producer.publish(ordinary, mark + b"%d" % n)) for n in range(50)]
            await turn()
        assert all(isinstance(receipt, Receipt) for receipt in await asyncio.gather(*tasks))
        found = bodies(await read(consumer, mark, 51), mark)
    assert is_multiset(found, [b"first", *(b"%d" % n for n in range(50))])


async def test_a_closed_producer_says_so(cluster: ClusterUnderTest) -> None:
    producer = Producer(lookupd=cluster.lookupd)
    with pytest.raises(ClosedError):
        await producer.publish("orders", b"x")
    async with producer:
        pass
    await producer.aclose()
    for call in (producer.publish("orders", b"x"), producer.publish_many("orders", [b"x"]), producer.__aenter__()):
        with pytest.raises(ClosedError):
            await call
