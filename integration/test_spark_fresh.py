"""Spark right after a publish: the newest messages are acknowledged, and nsqd cannot find them yet.

Before each question some messages are published and waited for, then some more: these stay fresh until nsqd's clock
flushes them, which is seconds later. Nothing else reads the topics, since a consumer would have them flushed.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.cluster import ClusterUnderTest
from integration.jobs import Job, wait_until
from integration.replays import is_fresh, of
from nsq_ha import OutgoingMessage, Producer, Receipt

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SYNC_EVERY = 100_000
"""Messages that may wait unflushed; more than these tests publish."""
MOST_RUNS = 20


def numbered(count: int, first: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def runs(least: int, met: list[bool]) -> Iterator[int]:
    """Number the runs of a test: ``least`` of them, and more until one ``met`` a fresh message.

    nsqd's clock may flush in the moment after a publish, whatever the test does.
    """
    for run in range(MOST_RUNS):
        if run >= least and any(met):
            return
        yield run
    assert any(met), f"none of {MOST_RUNS} runs met a fresh message"


async def publish(cluster: ClusterUnderTest, topic: str, bodies: list[bytes], fresh: int) -> bool:
    """Publish, the last ``fresh`` ones once the others are flushed; tell whether they are fresh still."""
    async with Producer(lookupd=cluster.lookupd) as producer:

        async def send(lot: list[bytes]) -> None:
            receipts = await producer.publish_many(topic, [OutgoingMessage(body) for body in lot])
            assert all(isinstance(receipt, Receipt) for receipt in receipts)

        if len(bodies) > fresh:
            await send(bodies[:-fresh])
            await asyncio.to_thread(wait_until, lambda: not is_fresh(cluster, topic))
        # One by one: of a whole batch nsqd answers with an error, of single messages with a wrong one.
        for body in bodies[-fresh:]:
            await producer.publish(topic, body)
    return await asyncio.to_thread(is_fresh, cluster, topic)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "110"}, {"maxBytesPerTrigger": "4000"}], ids=str)
async def test_queries_right_after_publishes_read_each_message_once(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, limit: dict[str, str]
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 1, 2, sync_every=SYNC_EVERY)
    job = Job(topic, tmp_path, **of(cluster), **limit)
    met: list[bool] = []
    for run in runs(3, met):
        met.append(await publish(cluster, topic, numbered(130, 130 * run), 30))
        await asyncio.to_thread(job.drain, spark)
        assert job.values() == numbered(130 * (run + 1), 0)
    ends = [each["0"] for each in job.ends()]
    assert ends == sorted(set(ends)), "each batch ends behind the one before"
