"""``format("nsq")`` in Spark itself, on the dev cluster; one Spark session for the folder."""

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamReader

from nsq_ha.base.identity import partition_of
from nsq_ha.devcluster import DevCluster
from tests.spark.conftest import Publish
from tests.support.spark_queries import run_to_end

# The first use starts a JVM and its workers.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COUNT = 300


@pytest.fixture(scope="module")
def topics(dev_cluster: DevCluster, publish: Publish) -> dict[str, list[bytes]]:
    """Bodies by topic: an ordered one, an extended one, and one without messages."""
    sent = {}
    for topic, kind in (("source_ordered", {"ordered": True}), ("source_headed", {"extended": True})):
        dev_cluster.create_topic(topic, 2, **kind)
        sent[topic] = [b"%s \xff %d" % (topic.encode(), number) for number in range(COUNT)]
        publish(topic, 0, sent[topic][::2])
        publish(topic, 1, sent[topic][1::2])
    dev_cluster.create_topic("source_empty", 2)
    return sent


@pytest.fixture
def source(spark: SparkSession, dev_cluster: DevCluster) -> DataFrameReader:
    return spark.read.format("nsq").option("lookupd", ",".join(dev_cluster.lookupd)).option("fetchTimeout", "1s")


@pytest.fixture
def stream(spark: SparkSession, dev_cluster: DevCluster) -> DataStreamReader:
    return spark.readStream.format("nsq").options(lookupd=dev_cluster.lookupd[0], topic="source_empty")


def loaded(source: DataFrameReader, topic: str, **options: str) -> DataFrame:
    return source.option("topic", topic).options(**options).load()


def test_every_column_of_an_ordered_topic(source: DataFrameReader, topics: dict[str, list[bytes]]) -> None:
    rows = loaded(source, "source_ordered").orderBy("partition", "offset").collect()
    sent = topics["source_ordered"]
    assert [bytes(row.value) for row in rows] == sent[::2] + sent[1::2]
    position = 0
    for row in rows[: COUNT // 2]:
        assert (row.topic, row.partition, row.offset, row.attempts, row.trace_id) == (
            "source_ordered",
            0,
            position,
            1,
            0,
        )
        assert row.raw_size == 30 + len(row.value)
        assert partition_of(int.from_bytes(row.message_id[:8], "big")) == 0
        position += row.raw_size
    assert rows[-1].timestamp >= rows[0].timestamp


def test_several_topics_headers_and_a_projection(source: DataFrameReader, topics: dict[str, list[bytes]]) -> None:
    frame = loaded(source, ",".join(topics), includeHeaders="true")
    by_topic = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert by_topic == {"source_ordered": COUNT, "source_headed": COUNT}
    some = source.schema("headers map<string,string>, offset bigint")
    rows = loaded(some, "source_headed").where("headers['n'] = '7'").collect()
    assert [row.asDict() for row in rows] == [{"headers": {"n": "7"}, "offset": rows[0].offset}] * 2


def test_from_offset_to_offset(source: DataFrameReader, topics: dict[str, list[bytes]]) -> None:
    offsets = [
        row.offset for row in loaded(source, "source_ordered").where("partition = 1").orderBy("offset").collect()
    ]
    some = loaded(
        source,
        "source_ordered",
        startingOffsets=json.dumps({"source_ordered": {"1": offsets[10]}}),
        endingOffsets=json.dumps({"source_ordered": {"0": 0, "1": offsets[20]}}),
    )
    assert [row.offset for row in some.orderBy("offset").collect()] == offsets[10:20]


def test_the_end_is_fixed_by_the_first_action_until_it_is_loaded_anew(
    source: DataFrameReader, dev_cluster: DevCluster, publish: Publish
) -> None:
    topic = dev_cluster.create_topic("source_growing", 2)
    publish(topic, 0, [b"1", b"2"])
    frame = loaded(source, topic)
    assert frame.count() == 2
    publish(topic, 0, [b"3"])
    publish(topic, 1, [b"4"])
    assert (frame.count(), frame.where("partition = 0").count(), loaded(source, topic).count()) == (2, 2, 4)


def test_a_frame_that_was_read_is_written_back(
    spark: SparkSession, source: DataFrameReader, topics: dict[str, list[bytes]], dev_cluster: DevCluster
) -> None:
    topic = dev_cluster.create_topic("source_copy", 2)
    frame = loaded(source, "source_ordered").withColumn("key", f.col("raw_size").cast("decimal(20,0)"))
    frame.write.format("nsq").mode("append").options(lookupd=dev_cluster.lookupd[0], topic=topic).save()
    rows = loaded(source, topic).orderBy("partition", "offset").collect()
    sent = topics["source_ordered"]
    assert [bytes(row.value) for row in rows] == sent[::2] + sent[1::2]


def test_a_task_that_fails_runs_again_and_no_row_comes_twice(
    source: DataFrameReader, topics: dict[str, list[bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    mark = str(tmp_path_factory.mktemp("retry") / "failed")

    def once(value: bytes) -> bytes:
        if value.endswith(b" 100") and not Path(mark).exists():
            Path(mark).touch()
            raise RuntimeError("a worker's bad day")
        return value

    rows = loaded(source, "source_ordered").select("value").rdd.map(lambda row: once(bytes(row.value))).collect()
    assert Path(mark).exists()
    assert sorted(rows) == sorted(topics["source_ordered"])


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "now", "said"),
    [
        (
            {"maxOffsetsPerTrigger": "many"},
            False,
            "option 'maxOffsetsPerTrigger': must be a whole number, 1 or more, not 'many'",
        ),
        ({"endingOffsets": "latest"}, True, "option 'endingOffsets': a stream has no end"),
    ],
)
def test_a_stream_with_a_wrong_option_says_which(
    stream: DataStreamReader, tmp_path: Path, options: dict[str, str], now: bool, said: str
) -> None:
    writer = stream.options(**options).load().writeStream.format("noop")
    writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint")
    with pytest.raises(StreamingQueryException) as caught:
        run_to_end((writer.trigger(availableNow=True) if now else writer).start, 120)
    assert said in str(caught.value)
    assert "UnboundLocalError" not in str(caught.value)
