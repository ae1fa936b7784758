"""A pipeline through two topics, as a program for a Spark of any kind: local, standalone cluster, Connect.

Reads a topic whole, in more tasks than it has partitions and with a shuffle; reads it as a stream with state,
which shuffles too; writes to a second topic, each partition by one task. Writes what it saw as JSON.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from nsq_ha.spark.functions import by_partition, drop_repeats


def session(url: str, config: dict[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName("pipeline")
    builder = builder.remote(url) if url.startswith("sc://") else builder.master(url)
    for name, value in config.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def processes(spark: SparkSession) -> list[int]:
    """Tell which processes run tasks: their parents are the daemons, one an executor."""

    def parents(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"parent": [os.getppid()]})

    rows = spark.range(0, 16, 1, 8).mapInArrow(parents, "parent bigint").distinct().collect()
    return sorted(row.parent for row in rows)


def in_batch(source: DataFrame) -> dict[str, int]:
    number = f.col("value").cast("string").cast("int")
    rows = source.groupBy((number % 10).alias("last")).agg(f.count("*").alias("rows")).collect()
    return {str(row["last"]): row["rows"] for row in rows}


def as_stream(spark: SparkSession, options: dict[str, str], folder: str) -> tuple[list[str], int]:
    """Return the rows and how many micro-batches had some."""
    stream = spark.readStream.format("nsq").options(**options, maxOffsetsPerTrigger="2500").load()
    # Nothing came twice, so nothing goes; but each row is looked for where its id is remembered.
    kept = drop_repeats(stream, within="1 hour").select(f.col("value").cast("string"))
    writer = kept.writeStream.format("parquet").option("path", f"{folder}/out")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    if not query.awaitTermination(300):
        raise TimeoutError("the stream does not end")
    # A query that has ended tells no progress through Connect; its checkpoint does.
    batches = sum(1 for path in Path(folder, "checkpoint", "commits").iterdir() if path.name.isdigit())
    return sorted(row.value for row in spark.read.parquet(f"{folder}/out").collect()), batches


def onward(source: DataFrame, lookupd: str, topic: str, partitions: int) -> None:
    """Write the rows to an ordered topic, by key and in the order of their numbers."""
    value = f.col("value").cast("string")
    rows = source.select(value.alias("value"), (value.cast("int") % 50).cast("string").alias("key"))
    placed = by_partition(rows, partitions).sortWithinPartitions("value")
    placed.write.format("nsq").mode("append").options(lookupd=lookupd, topic=topic).save()


def main(given: str) -> None:
    asked = json.loads(given)
    spark = session(asked["master"], asked["config"])
    lookupd = asked["lookupd"]
    options = {"lookupd": lookupd, "topic": asked["from"], "startingOffsets": "earliest"}
    source = spark.read.format("nsq").options(**options, minPartitions="6").load()
    streamed, batches = as_stream(spark, options, asked["folder"])
    result = {
        "version": spark.version,
        "processes": processes(spark),
        "batch": in_batch(source),
        "stream": streamed,
        "batches": batches,
    }
    onward(source, lookupd, asked["to"], asked["partitions"])
    written = spark.read.format("nsq").options(lookupd=lookupd, topic=asked["to"]).load()
    rows = written.orderBy("partition", "offset").select("partition", f.col("value").cast("string")).collect()
    result["written"] = [[row.partition, row.value] for row in rows]
    sys.stdout.write(json.dumps(result) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
