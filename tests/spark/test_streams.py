"""Streams and writes in Spark itself, on the dev cluster: exact rows through limits, restarts and faults."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as f

from nsq_ha import OutgoingMessage, Producer
from nsq_ha.policy import sharding
from nsq_ha.spark.functions import by_partition, drop_repeats, partition_for
from tests.spark.streams import Stream, numbered, read, spread, wait_for_rows, write, writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsq_ha.devcluster import DevCluster
    from tests.spark.conftest import Publish

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_limit_of_bytes(spark: SparkSession, dev_cluster: DevCluster, publish: Publish, tmp_path: Path) -> None:
    topic = dev_cluster.create_topic("bytes", 2)
    spread(publish, topic, numbered(1000))
    stream = Stream(spark, dev_cluster, topic, tmp_path, maxBytesPerTrigger="14400")
    # 36 bytes a message in the log: 200 of each partition.
    assert [each["numInputRows"] for each in stream.drain()] == [400, 400, 200]
    assert stream.values() == numbered(1000)


def test_leaders_move_and_die_and_partitions_are_added_in_a_running_query(
    spark: SparkSession, dev_cluster: DevCluster, publish: Publish, tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("running", 2)
    spread(publish, topic, numbered(2000))
    stream = Stream(spark, dev_cluster, topic, tmp_path, maxOffsetsPerTrigger="500", arrowBatchRows="50")
    query = stream.start()
    try:
        wait_for_rows(query, 500)
        dev_cluster.move_leader(topic, 0)
        produce(dev_cluster, topic, numbered(1000, 2000), 2)
        leader = dev_cluster.leader(topic, 1)
        assert leader is not None
        dev_cluster.kill(leader)
        try:
            produce(dev_cluster, topic, numbered(1000, 3000), 2)
        finally:
            dev_cluster.start(leader)
        dev_cluster.expand(topic, 4)
        produce(dev_cluster, topic, numbered(1000, 4000), 4)
        wait_for_rows(query, 5000)
    finally:
        query.stop()
    stream.drain()
    # A publish in doubt may be stored twice: the stream has what the log has, each message once.
    stored = read(spark, dev_cluster, topic).select("partition", "offset").collect()
    got = spark.read.parquet(f"{tmp_path}/out").select("partition", "offset").collect()
    assert sorted(got) == sorted(stored)
    assert sorted(set(stream.values())) == numbered(5000)


def produce(dev_cluster: DevCluster, topic: str, bodies: list[bytes], partitions: int) -> None:
    """Publish through what comes; the producer waits for leaders."""

    async def send() -> None:
        async with Producer(lookupd=dev_cluster.lookupd) as producer:
            sent = [OutgoingMessage(body, partition=number % partitions) for number, body in enumerate(bodies)]
            await producer.publish_many(topic, sent)

    asyncio.run(send())


def test_a_stream_under_a_live_writer_has_each_row_once(
    spark: SparkSession, dev_cluster: DevCluster, publish: Publish, tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("live_stream", 2)
    stream = Stream(spark, dev_cluster, topic, tmp_path)
    count = 0
    with writing(lambda number: spread(publish, topic, numbered(40, 40 * number))) as written:
        query = stream.start()
        try:
            wait_for_rows(query, 400)
        finally:
            query.stop()
    count = 40 * written[0]
    stream.drain()
    assert stream.values() == numbered(count)


def test_a_topic_that_was_made_anew_is_data_loss(
    spark: SparkSession, dev_cluster: DevCluster, publish: Publish, tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("anew", 1)
    publish(topic, 0, numbered(500))
    stream = Stream(spark, dev_cluster, topic, tmp_path)
    stream.drain()
    dev_cluster.delete_topic(topic)
    dev_cluster.create_topic(topic, 1)
    publish(topic, 0, numbered(20, 500))
    with pytest.raises(StreamingQueryException, match="the log ends at 720, before the offset 18000 reached"):
        stream.drain()
    stream.options["failOnDataLoss"] = "false"
    stream.drain()
    assert stream.values() == numbered(520)


def test_per_key_order_holds_from_the_sink_to_the_source(spark: SparkSession, dev_cluster: DevCluster) -> None:
    topic = dev_cluster.create_topic("by_key", 2, ordered=True)
    frame = spark.range(2000).select(
        f.concat_ws("/", f.col("id") % 50, f.col("id")).alias("value"),
        (f.col("id") % 50).cast("string").alias("key"),
        "id",
    )
    placed = by_partition(frame, 2).sortWithinPartitions("id").drop("id")
    write(placed, dev_cluster, topic)
    rows = read(spark, dev_cluster, topic, fetchTimeout="2s").orderBy("partition", "offset").collect()
    assert len(rows) == 2000
    last: dict[str, tuple[int, int]] = {}
    for row in rows:
        key, number = bytes(row.value).decode().split("/")
        partition, before = last.get(key, (row.partition, -1))
        assert (partition, before < int(number)) == (row.partition, True)
        assert row.partition == sharding.partition_for(key, 2)
        last[key] = row.partition, int(number)
    assert len(last) == 50


def test_the_partition_of_a_key_is_that_of_the_producer(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("hello",), ("订单-1",), (None,)], "k string")
    numbers = frame.select(
        partition_for("k", 16).alias("m"), partition_for(f.col("k"), 16, "java").alias("j")
    ).collect()
    assert [row.m for row in numbers] == [0x248BFA47 % 16, sharding.partition_for("订单-1", 16), None]
    assert [row.j for row in numbers[:2]] == [sharding.partition_for(key, 16, "java") for key in ("hello", "订单-1")]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_a_task_that_fails_after_writing_repeats_rows_with_the_same_ids(
    spark: SparkSession, dev_cluster: DevCluster, tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("repeats", 2)
    mark = str(tmp_path / "failed")

    def once(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if not Path(mark).exists():
            Path(mark).touch()
            # NSQ takes no empty message, so this fails the task when the rows before it are published.
            yield pa.RecordBatch.from_pydict({"value": [""]})

    rows = spark.range(20_000).select(f.col("id").cast("string").alias("value")).coalesce(1)
    write(rows.mapInArrow(once, "value string"), dev_cluster, topic, trace="true", batchMessages="500")
    found = read(spark, dev_cluster, topic)
    assert 20_000 < found.count() <= 40_000, "what was written before the failure is there twice"
    kept = drop_repeats(found)
    assert sorted(int(bytes(row.value)) for row in kept.select("value").collect()) == list(range(20_000))


def test_headers_tags_keys_and_traces_come_back_from_an_extended_topic(
    spark: SparkSession, dev_cluster: DevCluster
) -> None:
    topic = dev_cluster.create_topic("headed_sink", 1, extended=True)
    frame = spark.createDataFrame(
        [(b"one", "k", {"a": "ä"}, "T", 7), (b"two", None, None, None, None)],
        "value binary, key string, headers map<string,string>, tag string, number bigint",
    ).coalesce(1)
    write(frame, dev_cluster, topic, traceIdColumn="number")
    rows = read(spark, dev_cluster, topic, includeHeaders="true").orderBy("offset").collect()
    assert [(bytes(row.value), row.key and bytes(row.key), row.headers, row.trace_id) for row in rows] == [
        (b"one", b"k", {"key": "k", "a": "ä"}, 7),
        (b"two", None, None if rows[1].headers is None else {}, 0),
    ]


def test_rows_go_to_the_topics_that_a_column_names(spark: SparkSession, dev_cluster: DevCluster) -> None:
    one, two = dev_cluster.create_topic("column_one", 1), dev_cluster.create_topic("column_two", 2)
    frame = spark.range(10).select(
        f.col("id").cast("string").alias("value"), f.when(f.col("id") < 3, one).otherwise(two).alias("topic")
    )
    write(frame, dev_cluster, "")
    assert [read(spark, dev_cluster, topic).count() for topic in (one, two)] == [3, 7]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("value string, extra int", {}, "a write has no use for column 'extra'"),
        ("value int", {}, "column 'value' is int; it must be binary or string"),
        ("key string", {}, "column 'value' is missing"),
        ("value string, tag string", {}, "is not extended, so it takes no tag"),
        ("value string", {"topic": "sink_nowhere"}, "there is no topic 'sink_nowhere'"),
        ("value string", {"batchMessages": "none"}, "option 'batchMessages': is 'none'"),
    ],
)
def test_a_bad_write_fails_on_the_driver(
    spark: SparkSession, dev_cluster: DevCluster, columns: str, options: dict[str, str], said: str
) -> None:
    if "sink_plain" not in made:
        made.add(dev_cluster.create_topic("sink_plain", 1))
    with pytest.raises(PySparkException) as caught:
        write(spark.createDataFrame([], columns), dev_cluster, **{"topic": "sink_plain", **options})
    assert said in str(caught.value)


made: set[str] = set()


def test_ranges_are_cut_and_filters_narrow_them(spark: SparkSession, dev_cluster: DevCluster, publish: Publish) -> None:
    topic = dev_cluster.create_topic("cut", 2)
    spread(publish, topic, numbered(1000))
    whole = read(spark, dev_cluster, topic, minPartitions="5")
    assert whole.rdd.getNumPartitions() >= 5
    assert sorted(bytes(row.value) for row in whole.collect()) == numbered(1000)
    assert read(spark, dev_cluster, topic, maxRecordsPerPartition="100").rdd.getNumPartitions() == 10
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        narrow = read(spark, dev_cluster, topic, pushdown="true").where("partition = 1 and offset >= 3600")
        assert narrow.rdd.getNumPartitions() == 1
        assert sorted(bytes(row.value) for row in narrow.collect()) == numbered(1000)[1::2][100:]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_topics_by_pattern_and_partitions_by_assignment(
    spark: SparkSession, dev_cluster: DevCluster, publish: Publish
) -> None:
    for name in ("pattern_a", "pattern_b", "another_c"):
        publish(dev_cluster.create_topic(name, 2), 1, [name.encode()])
    source = spark.read.format("nsq").option("lookupd", dev_cluster.lookupd[0])
    by_pattern = source.option("subscribePattern", "pattern_.").load()
    assert {row.topic for row in by_pattern.collect()} == {"pattern_a", "pattern_b"}
    source = spark.read.format("nsq").option("lookupd", dev_cluster.lookupd[0])
    assert source.option("assign", '{"another_c": [0]}').load().count() == 0
