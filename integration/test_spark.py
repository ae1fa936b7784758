"""Replays for Spark: exact rows from a cluster of any kind, also through a change of leader."""

import asyncio
import functools
import os
import threading
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from integration.cluster import ClusterUnderTest
from integration.jobs import live_writer
from integration.reading import eventually
from integration.replays import Rows, assert_chains, replay
from nsq_ha import OutgoingMessage, Producer
from nsq_ha.errors import DataLossError
from nsq_ha.spark import connection
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range, plan
from nsq_ha.spark.read.range_reader import RangeReader
from tests.support.spark_rows import delivered

COUNT = 2000
SLOW = float(os.environ.get("NSQ_HA_TEST_SLOW_SINK", "2.5"))
"""Seconds that a sink takes for one portion; above 90 the server's heartbeats go unanswered for too long as well."""
ROUNDS = 3


@pytest.fixture(params=["ordinary", "ordered", "extended"])
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.getfixturevalue(request.param)
    return name


async def test_what_was_published_is_read_in_order_with_what_receipts_say(
    cluster: ClusterUnderTest, producer: Producer, topic: str, mark: bytes
) -> None:
    bodies = [mark + b"%04d" % number for number in range(COUNT)]
    sent = [OutgoingMessage(body, key=number % 40) for number, body in enumerate(bodies)]
    await producer.publish_many(topic, sent)
    receipt = await producer.publish(topic, mark + b"last", key=0, trace_id=2**64 - 1)
    rows = await asyncio.to_thread(replay, cluster.lookupd, topic)
    assert_chains(rows)
    ours = [[row for row in messages if row.body.startswith(mark)] for messages in rows.values()]
    assert sorted(row.body for part in ours for row in part) == sorted([*bodies, mark + b"last"])
    (last,) = [row for part in ours for row in part if row.body == mark + b"last"]
    assert (last.partition, last.internal_id) == (receipt.partition, receipt.internal_id)
    assert (last.offset, last.raw_size, last.trace_id) == (receipt.offset, receipt.raw_size, 2**64 - 1)


# A real cluster refuses to move leaders for minutes after any change of its nodes.
@pytest.mark.few(1)
@pytest.mark.timeout(900)
async def test_a_leader_that_moves_in_the_middle_changes_no_row(
    cluster: ClusterUnderTest, producer: Producer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small reads: the server must still have something to send when its leadership goes.
    monkeypatch.setattr(connection, "READ_BYTES", 4096)
    for partition in (0, 1):
        await producer.publish_many(topic, [OutgoingMessage(b"x" * 200, partition=partition)] * COUNT)

    def move(part: Range) -> None:
        if part.partition == 0:
            cluster.move_leader(topic, 0)

    before = await asyncio.to_thread(replay, cluster.lookupd, topic)
    moved = await asyncio.to_thread(replay, cluster.lookupd, topic, move)
    assert_chains(moved)
    assert facts(moved) == facts(before)


def facts(rows: Rows) -> list[tuple[object, ...]]:
    return [
        (row.partition, row.offset, row.raw_size, row.id, row.timestamp_ns, row.ext, row.body)
        for messages in rows.values()
        for row in messages
    ]


@pytest.mark.few(1)
@pytest.mark.timeout(900)
async def test_a_sink_that_is_slower_than_the_server_allows_changes_no_row(
    cluster: ClusterUnderTest, producer: Producer, topic: str
) -> None:
    await producer.publish_many(topic, [OutgoingMessage(b"x" * 200, partition=0)] * COUNT)
    before = await asyncio.to_thread(replay, cluster.lookupd, topic)

    def pause(part: Range) -> None:
        # All that is in flight by now times out, and comes again on the same channel.
        threading.Event().wait(SLOW if part.partition == 0 else 0)

    slow = await asyncio.to_thread(replay, cluster.lookupd, topic, pause, msgTimeout="1s", fetchTimeout="1s")
    assert_chains(slow)
    assert facts(slow) == facts(before)


@pytest.mark.timeout(900)
async def test_an_end_that_the_log_never_reached_is_reported_or_left_out(
    cluster: ClusterUnderTest, producer: Producer
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 1, 1)
    bodies = [b"%04d" % number for number in range(100)]
    await producer.publish_many(topic, [OutgoingMessage(body) for body in bodies])

    def read(beyond: int, *, strict: bool) -> list[bytes]:
        given = {"lookupd": ",".join(cluster.lookupd), "topic": topic, "failOnDataLoss": str(strict)}
        options = ReadOptions.parse({**given, "fetchTimeout": "1s", "fetchRetries": "1"})
        with BlockingCluster(options.lookupd) as asked:
            (part,) = plan(options, asked)
            # As a leader that died with a tail that its replicas had not got has left it in a checkpoint.
            lost = replace(part, end=size * len(bodies) + beyond)
            return [row.body for batch in delivered(RangeReader(lost, options, asked)) for row in batch]

    size = next(iter(await asyncio.to_thread(replay, cluster.lookupd, topic))).end // len(bodies)
    with pytest.raises(DataLossError, match="its tail was never committed"):
        await asyncio.to_thread(read, 10 * size, strict=True)
    assert await asyncio.to_thread(read, 10 * size, strict=False) == bodies
    # What other messages have filled has its boundaries elsewhere.
    await producer.publish(topic, b"x" * 200)
    with pytest.raises(DataLossError, match="lies inside the message"):
        await asyncio.to_thread(read, size, strict=True)
    assert await asyncio.to_thread(read, size, strict=False) == bodies


@pytest.mark.timeout(900)
async def test_an_ordered_topic_that_is_written_meanwhile_is_read_whole_each_time(cluster: ClusterUnderTest) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2, ordered=True)
    async with live_writer(topic, lookupd=cluster.lookupd) as stored:
        for _ in range(ROUNDS):
            before = len(stored)
            await eventually(functools.partial(is_longer, stored, before + 100), 60.0)
            # One message in flight: a stray that is not finished stalls the channel, and another is opened.
            rows = await asyncio.to_thread(replay, cluster.lookupd, topic, fetchTimeout="1s")
            assert_chains(rows)
            assert sum(map(len, rows.values())) > before


def is_longer(things: list[bytes], count: int) -> bool:
    return len(things) > count


@pytest.mark.spark
@pytest.mark.timeout(900)
async def test_spark_reads_what_was_published(
    spark: SparkSession, cluster: ClusterUnderTest, producer: Producer, ordered: str, mark: bytes
) -> None:
    bodies = [mark + b"%04d" % number for number in range(COUNT)]
    await producer.publish_many(ordered, [OutgoingMessage(body, key=body) for body in bodies])

    def read() -> list[bytes]:
        source = spark.read.format("nsq").option("lookupd", ",".join(cluster.lookupd)).option("topic", ordered)
        return [bytes(row.value) for row in source.load().select("value").collect()]

    values = await asyncio.to_thread(read)
    assert sorted(value for value in values if value.startswith(mark)) == bodies
