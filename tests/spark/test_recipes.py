"""The recipes of the page, run as a reader would copy them."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from nsq_ha import OutgoingMessage
from nsq_ha.devcluster import DevCluster
from nsq_ha.sync import Producer
from tests.examples import ROOT, examples_of
from tests.spark.conftest import Publish
from tests.spark.streams import numbered, read, spread
from tests.support.spark_queries import run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PAGE = ROOT / "docs/how-to/spark-streams.md"


@pytest.fixture(scope="module")
def recipes() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for example in examples_of(PAGE):
        if example.language == "python" and not {"library", "file"} & example.settings.keys():
            exec(compile(example.code, str(example), "exec"), names)  # noqa: S102 - our own page
    return names


@pytest.mark.slow
def test_a_backfill_by_time_that_becomes_a_stream_fills_a_lake_by_day(
    spark: SparkSession, dev_cluster: DevCluster, publish: Publish, recipes: dict[str, Any], tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("recipe_lake", 2)
    spread(publish, topic, numbered(10))
    whole = read(spark, dev_cluster, topic)
    start_ms = whole.agg(f.max(f.unix_millis("timestamp"))).head()
    assert start_ms is not None
    spread(publish, topic, numbered(50, 10))

    def drain() -> None:
        rows = recipes["since"](spark, dev_cluster.lookupd[0], topic, start_ms[0] + 1)
        run_to_end(lambda: recipes["into_lake"](rows, str(tmp_path)))

    drain()
    spread(publish, topic, numbered(20, 60))
    drain()
    lake = spark.read.parquet(f"{tmp_path}/rows")
    assert sorted(bytes(row.value) for row in lake.select("value").collect()) == numbered(70, 10)
    days = {row.day for row in whole.select(f.to_date("timestamp").alias("day")).collect()}
    assert {row.day for row in lake.select("day").distinct().collect()} <= days
    # A micro-batch that runs again adds nothing.
    table = str(tmp_path / "table")
    some = lake.drop("day").where("value < '000040'")
    for batch in (some, lake.drop("day"), some):
        recipes["add_once"](batch, table)
    assert spark.read.parquet(table).count() == 70


@pytest.mark.slow
def test_what_a_producer_repeats_is_counted_once(
    spark: SparkSession, dev_cluster: DevCluster, recipes: dict[str, Any], tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("recipe_count", 2)
    with Producer(lookupd=dev_cluster.lookupd) as producer:
        producer.publish_many(topic, [OutgoingMessage(b"order", trace_id=order) for order in (7, 8, 7, 7, 9)])
    counts = recipes["per_minute"](recipes["since"](spark, dev_cluster.lookupd[0], topic, 0))
    writer = counts.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    _, repeats = run_to_end(lambda: writer.trigger(availableNow=True).start())[0]["stateOperators"]
    assert (repeats["numRowsUpdated"], repeats["customMetrics"]["numDroppedDuplicateRows"]) == (3, 2)


@pytest.mark.slow
def test_a_database_has_each_row_once_whatever_is_repeated(
    spark: SparkSession, dev_cluster: DevCluster, publish: Publish, recipes: dict[str, Any], tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("recipe_database", 2)
    spread(publish, topic, numbered(50))
    database = tmp_path / "orders.db"
    begun: list[int] = []

    def add(batch: DataFrame, number: int) -> None:
        recipes["add_to_database"](batch, str(database))
        begun.append(number)
        if len(begun) == 1:
            raise RuntimeError("killed before Spark knows of the commit")

    def start() -> StreamingQuery:
        reader = spark.readStream.format("nsq").options(lookupd=dev_cluster.lookupd[0], topic=topic)
        rows = reader.options(startingOffsets="earliest", failOnDataLoss="false").load()
        writer: DataStreamWriter = rows.writeStream.foreachBatch(add).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        return writer.trigger(availableNow=True).start()

    with pytest.raises(StreamingQueryException, match="killed before"):
        run_to_end(start)
    spread(publish, topic, numbered(20, 50))
    run_to_end(start)
    assert begun[:2] == [0, 0]
    dev_cluster.delete_topic(topic)
    dev_cluster.create_topic(topic, 2)
    spread(publish, topic, numbered(30, 70))  # at offsets that the table has already
    run_to_end(start)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        bodies = [body for (body,) in connection.execute("select body from orders order by body")]
    assert bodies == numbered(100)


@pytest.mark.slow
def test_rows_of_a_table_keep_the_order_of_their_keys(
    spark: SparkSession, dev_cluster: DevCluster, recipes: dict[str, Any]
) -> None:
    topic = dev_cluster.create_topic("recipe_order", 2, ordered=True, extended=True)
    rows = spark.range(200).selectExpr(
        "concat('k', id % 7) as key", "cast(id as string) as value", "(id * 37) % 200 as at"
    )
    recipes["publish_in_order"](rows.repartition(3), dev_cluster.lookupd[0], topic, 2)
    stored = read(spark, dev_cluster, topic)
    found = stored.orderBy("partition", "offset").selectExpr("string(key) as key", "int(string(value)) as value")
    by_key: dict[str, list[int]] = {}
    for row in found.collect():
        by_key.setdefault(row.key, []).append(row.value)
    assert by_key == {f"k{key}": sorted(range(key, 200, 7), key=lambda number: number * 37 % 200) for key in range(7)}
