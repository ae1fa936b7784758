"""Streams and writes in Spark, on a cluster of any kind: the exact set of rows, whatever interrupts them."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.processes import workers
from integration.cluster import ClusterUnderTest
from integration.holding import delete_channels, run_held
from integration.jobs import Job, publish
from integration.replays import of
from nsq_ha.policy import sharding
from nsq_ha.spark.checkpoint import undated
from nsq_ha.spark.functions import by_partition, drop_repeats, row_id
from tests.support.spark_queries import run_to_end

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]
"""Seconds that a sink takes for one portion; above 90 the server's heartbeats go unanswered for too long as well."""


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(first, first + count)]


def read(spark: SparkSession, cluster: ClusterUnderTest, topic: str, **options: str) -> DataFrame:
    return spark.read.format("nsq").options(lookupd=",".join(cluster.lookupd), topic=topic, **options).load()


def write(frame: DataFrame, cluster: ClusterUnderTest, topic: str, **options: str) -> None:
    writer = frame.write.format("nsq").mode("append").options(lookupd=",".join(cluster.lookupd), topic=topic, **options)
    writer.save()


async def test_limits_then_a_restart_with_new_rows(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2)
    await publish(cluster.lookupd, topic, numbered(2500))
    job = Job(topic, tmp_path, **of(cluster), maxOffsetsPerTrigger="1000")
    progress = await asyncio.to_thread(job.drain, spark)
    rows = [each["numInputRows"] for each in progress]
    assert (len(rows), sum(rows)) == (3, 2500)
    assert {999, 1000} >= set(rows[:2]), "each partition's share is rounded down"
    source = progress[0]["sources"][0]
    end = json.loads(progress[-1]["sources"][0]["endOffset"])
    assert undated(json.loads(source["latestOffset"])) == undated(end) == {topic: end[topic]}
    await publish(cluster.lookupd, topic, numbered(100, 2500))
    assert [each["numInputRows"] for each in await asyncio.to_thread(job.drain, spark)] == [100]
    assert job.values() == numbered(2600)
    assert await asyncio.to_thread(job.drain, spark) == []


async def heavy(cluster: ClusterUnderTest, partitions: int) -> tuple[str, list[bytes]]:
    """Return a topic with 45 MB in each partition, more than fits into what lies between server and sink.

    Linux lets one socket gather 32 MB; 15 MB were sometimes read to their end before anything happened.
    """
    topic = await asyncio.to_thread(cluster.create_topic, partitions, 2)
    bodies = [each + b"x" * 60_000 for each in numbered(750 * partitions)]
    for start in range(0, len(bodies), 50):
        await publish(cluster.lookupd, topic, bodies[start : start + 50])
    return topic, bodies


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers in /proc")
async def test_workers_that_are_killed_in_the_middle_of_a_read_change_no_row(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    topic, bodies = await heavy(cluster, 2)
    job = Job(topic, tmp_path, **of(cluster), arrowBatchRows="20")
    killed: list[int] = []

    def kill() -> None:
        for worker in workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    await asyncio.to_thread(run_held, job, spark, kill)
    assert killed
    assert job.values() == bodies


@pytest.mark.slow
async def test_channels_that_are_deleted_under_the_readers_change_no_row(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    topic, bodies = await heavy(cluster, 2)
    job = Job(topic, tmp_path, **of(cluster), fetch="subscribe", arrowBatchRows="20")
    deleted: list[int] = []
    await asyncio.to_thread(run_held, job, spark, lambda: deleted.append(delete_channels(cluster, topic)))
    assert deleted != [0]
    assert job.values() == bodies


"""Seconds from the first query to the second one."""


# In the short form each value once.


async def test_per_key_order_holds_from_the_sink_to_the_source(spark: SparkSession, cluster: ClusterUnderTest) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2, ordered=True)
    frame = spark.range(2000).select(
        f.concat_ws("/", f.col("id") % 50, f.col("id")).alias("value"),
        (f.col("id") % 50).cast("string").alias("key"),
        "id",
    )
    placed = by_partition(frame, 2).sortWithinPartitions("id").drop("id")
    # From the thread that made the session: in others Spark does not find a format that Python brings.
    write(placed, cluster, topic)
    found = read(spark, cluster, topic, fetchTimeout="2s").orderBy("partition", "offset")
    rows = await asyncio.to_thread(found.collect)
    assert len(rows) == 2000
    last: dict[str, tuple[int, int]] = {}
    for row in rows:
        key, number = bytes(row.value).decode().split("/")
        partition, before = last.get(key, (row.partition, -1))
        assert (partition, before < int(number)) == (row.partition, True)
        assert row.partition == sharding.partition_for(key, 2)
        last[key] = row.partition, int(number)
    assert len(last) == 50


@pytest.mark.few(1)
@pytest.mark.parametrize("ids", ["declared", "content"])
async def test_a_task_that_runs_again_in_another_order_repeats_the_ids_of_its_rows(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path, ids: str
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2)
    # Spark gives the writer 10 000 rows at once: some come before those that fail.
    mark, count = str(tmp_path / "failed"), 12_000

    def once(batches: Iterator[Any]) -> Iterator[Any]:
        again = Path(mark).exists()
        rows = pa.Table.from_batches(batches)
        yield from (rows.take(list(range(len(rows) - 1, -1, -1))) if again else rows).to_batches()
        if not again:
            Path(mark).touch()
            # NSQ accepts no empty message, so this fails the task when the rows before it are published.
            yield pa.RecordBatch.from_pylist([{**rows.slice(0, 1).to_pylist()[0], "value": ""}], rows.schema)

    # Equal rows, too: three of each.
    value = (f.col("id") % (count // 3 if ids == "content" else count)).cast("string").alias("value")
    rows = spark.range(count).select(value, (f.col("id") * 0).cast("int").alias("partition")).coalesce(1)
    if ids == "declared":
        # Rows as they come from a source, without a place among the partitions.
        rows = rows.withColumn("id", row_id("value")).drop("partition")
    options = {"traceIdColumn": "id"} if ids == "declared" else {"trace": "true"}
    schema = "value string, id string" if ids == "declared" else "value string, partition int"
    write(rows.mapInArrow(once, schema), cluster, topic, batchMessages="500", **options)
    found = read(spark, cluster, topic)
    stored = found.count()
    kept = sorted(int(bytes(row.value)) for row in drop_repeats(found).select("value").collect())
    sys.stdout.write(f"{stored} messages of {count} rows, {len(kept)} kept, {len(set(kept))} distinct\n")
    assert count < stored <= 2 * count, "what was written before the failure is there twice"
    assert kept == sorted(number % (count // 3 if ids == "content" else count) for number in range(count))


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Have Spark give a writer 100 rows at once, so that some are published before one fails."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "100")
    yield
    spark.conf.set(name, before or "10000")


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
async def test_a_micro_batch_that_the_driver_reads_and_tasks_repeat_keeps_the_ids_of_its_rows(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    source, topic = [await asyncio.to_thread(cluster.create_topic, 2, 2) for _ in range(2)]
    await publish(cluster.lookupd, source, numbered(600))
    fails = tmp_path / "fails"
    fails.touch()
    mark = str(fails)
    schema = pa.schema([("value", pa.binary()), ("id", pa.string())])

    def failing(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if Path(mark).exists():
            yield pa.RecordBatch.from_pylist([{"value": b"", "id": "none"}], schema)

    def drain(**options: str) -> list[dict[str, Any]]:
        given = {"lookupd": ",".join(cluster.lookupd), "topic": source, "startingOffsets": "earliest", **options}
        rows = spark.readStream.format("nsq").options(**given).load().select("value", row_id().alias("id"))
        writer = rows.mapInArrow(failing, "value binary, id string").writeStream.format("nsq")
        writer = writer.options(
            lookupd=",".join(cluster.lookupd), topic=topic, traceIdColumn="id", batchMessages="50"
        ).option("checkpointLocation", f"{tmp_path}/checkpoint")
        return run_to_end(lambda: writer.trigger(availableNow=True).start())

    with pytest.raises(StreamingQueryException, match="has no value"):
        # From the thread that made the session, as above.
        drain(driverBytes="1m")
    fails.unlink()
    progress = drain(driverBytes="0")
    assert [each["numInputRows"] for each in progress] == [600]
    found = read(spark, cluster, topic)
    stored = found.count()
    kept = sorted(bytes(row.value) for row in drop_repeats(found).select("value").collect())
    sys.stdout.write(f"{stored} messages of 600 rows, {len(kept)} kept, {len(set(kept))} distinct\n")
    assert stored > 600
    assert kept == numbered(600)
