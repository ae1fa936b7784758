"""Streams and writes in Spark itself, on the dev cluster: what options and columns do."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from nsq_ha.devcluster import DevCluster
from nsq_ha.policy import sharding
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.functions import drop_repeats, partition_for
from tests.devcluster.probes import until
from tests.spark.conftest import Publish
from tests.spark.streams import Stream, numbered, read, spread, write
from tests.support.spark_queries import LIMIT, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.slow
def test_partitions_that_are_added_are_read_within_a_minute_and_without_a_restart(
    spark: SparkSession, dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("grown", 4, multi_part=True)
    spread(publish, topic, numbered(40), 4)
    stream = Stream(spark, dev_cluster, topic, tmp_path)
    grown = []

    def start() -> StreamingQuery:
        query = stream.start()

        def has(rows: int) -> bool:
            return not query.isActive or sum(each["numInputRows"] for each in query.recentProgress) >= rows

        until(lambda: has(40), LIMIT)
        if query.isActive:
            grown.append(query.runId)
            dev_cluster.expand(topic, 6)
            until(lambda: len(asked.view(topic).leaders) == 6)
            publish(topic, 4, numbered(10, 40))
            publish(topic, 5, numbered(10, 50))
            until(lambda: has(60), 60.0)
            query.stop()
        return query

    run_to_end(start)
    assert len(grown) == 1
    assert stream.values() == numbered(60)


@pytest.mark.slow
def test_the_partition_of_a_key_is_that_of_the_producer(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("hello",), ("订单-1",), (None,)], "k string")
    numbers = frame.select(
        partition_for("k", 16).alias("m"), partition_for(f.col("k"), 16, "java").alias("j")
    ).collect()
    assert [row.m for row in numbers] == [0x248BFA47 % 16, sharding.partition_for("订单-1", 16), None]
    assert [row.j for row in numbers[:2]] == [sharding.partition_for(key, 16, "java") for key in ("hello", "订单-1")]


def test_only_rows_with_the_same_trace_id_are_repeats(spark: SparkSession) -> None:
    ids = [7, 7, -1, -1, 0, 0, None, None]  # of delivery=ack there are none
    rows = [("t", None if each is None else 0, number, each) for number, each in enumerate(ids)]
    frame = spark.createDataFrame(rows, "topic string, partition int, offset bigint, trace_id bigint")
    kept = [row.trace_id for row in drop_repeats(frame).collect()]
    assert sorted(kept, key=str) == [-1, 0, 0, 7, None, None]


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


def test_an_array_of_headers_is_written_and_read_with_its_repeated_names(
    spark: SparkSession, dev_cluster: DevCluster
) -> None:
    topic = dev_cluster.create_topic("headed_array", 1, extended=True)
    headers = [("a", b"1"), ("a", b"2")]
    frame = spark.createDataFrame([(b"one", headers)], "value binary, headers array<struct<key string, value binary>>")
    write(frame, dev_cluster, topic)
    row = read(spark, dev_cluster, topic, includeHeaders="true", headersAs="array").select("value", "headers").first()
    assert row is not None
    assert (bytes(row.value), [(each.key, bytes(each.value)) for each in row.headers]) == (b"one", headers)


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
        ("key string", {}, "column 'value' is missing"),
        ("value string, tag string", {}, "is not extended, so it accepts no tag"),
        ("value string", {"topic": "sink_nowhere"}, "there is no topic 'sink_nowhere'"),
        (
            "value string",
            {"batchMessages": "none"},
            "option 'batchMessages': must be a whole number, 1..100000, not 'none'",
        ),
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


def test_ranges_are_cut_and_filters_lose_no_row_of_other_queries(
    spark: SparkSession, dev_cluster: DevCluster, publish: Publish
) -> None:
    topic = dev_cluster.create_topic("cut", 2)
    spread(publish, topic, numbered(1000))
    whole = read(spark, dev_cluster, topic, minPartitions="5")
    assert whole.rdd.getNumPartitions() >= 5
    assert sorted(bytes(row.value) for row in whole.collect()) == numbered(1000)
    assert read(spark, dev_cluster, topic, maxRecordsPerPartition="100").rdd.getNumPartitions() == 10
    # Spark pushes no filter down, even where it may: it would keep the narrowed reader for the frame's other queries.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        narrow = whole.where("partition = 1 and offset >= 3600")
        assert sorted(bytes(row.value) for row in narrow.collect()) == numbered(1000)[1::2][100:]
        assert whole.where("partition = 0").union(whole.where("partition = 1")).count() == 1000
        assert whole.count() == 1000
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.slow
def test_a_plain_nsqd_is_streamed_through_a_spool(
    spark: SparkSession, dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("plain", 1)
    leader = asked.view(topic).leaders[0]
    asked.open_channel(topic, 0, leader, "spark", 0)
    publish(topic, 0, numbered(2500))
    stream = Stream(spark, dev_cluster, topic, tmp_path, maxOffsetsPerTrigger="1000", minPartitions="2")
    del stream.options["lookupd"], stream.options["startingOffsets"]
    spool = tmp_path / "spool"
    stream.options |= {"delivery": "ack", "nsqd": leader.address, "channel": "spark", "spool": str(spool)}
    # Its HTTP is not at the port above, so it is waited for until what was under way to others has come again.
    stream.options |= {"msgTimeout": "1s"}
    progress = stream.drain()
    assert max(each["numInputRows"] for each in progress) <= 1000
    publish(topic, 0, numbered(100, 2500))
    stream.drain()
    # At least once: on a slow machine messages come again after the second that they may take.
    assert set(stream.values()) == set(numbered(2600))
    # The last batch's files go when the next one is planned.
    rows = [int(path.name.split("-")[2]) for path in spool.glob("*.arrow")]
    assert sum(rows) <= 1000
