"""A stream from a topic to Parquet files, or on to a topic, here or in a program of its own that tests may kill.

The file sink keeps a log of its batches, so what it holds is exactly what the checkpoint says. A topic keeps what a
repeated task has published before, so each row says what it is.
"""

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from nsq_ha.spark.functions import by_partition, row_id
from nsq_ha.spark.session import local_session, register

PATIENCE = 120.0
"""Seconds for which a task is held at most."""


Sink = Mapping[str, str]
"""Where rows go on to: ``lookupd``, ``topic`` and its ``partitions``; ``path`` and ``files`` if they come from Parquet
files instead, so many at a time; ``tasks`` among which ``foreachBatch`` scatters them first, before it sorts them."""


def begin(
    spark: SparkSession, options: Mapping[str, str], folder: str, *, now: bool, sink: Sink | None = None
) -> StreamingQuery:
    """Start the stream, ``now``: of what there is now. A file ``hold`` in the folder stops the rows on their way."""
    if sink is not None:
        onward = to_topic(spark, options, folder, sink).option("checkpointLocation", f"{folder}/checkpoint")
        return (onward.trigger(availableNow=True) if now else onward).start()
    frame = spark.readStream.format("nsq").options(**options).load().select("partition", "offset", "value")
    if Path(folder, "hold").exists():
        frame = held(frame, folder)
    writer = frame.writeStream.format("parquet").outputMode("append")
    writer = writer.option("path", f"{folder}/out").option("checkpointLocation", f"{folder}/checkpoint")
    return (writer.trigger(availableNow=True) if now else writer).start()


def to_topic(spark: SparkSession, options: Mapping[str, str], folder: str, sink: Sink) -> DataStreamWriter:
    """Return what writes rows on to a topic, each key in the order of its numbers."""
    register(spark)  # in this thread
    # So that a task has published some rows when it is stopped: Spark gives a batch on when it has seen the next one.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    spark.conf.set("spark.sql.execution.pandas.udf.buffer.size", "512")
    key = f.substring(f.col("value").cast("string"), 1, 3).alias("key")
    if "path" in sink:
        files = spark.readStream.schema("number bigint, value binary").option("maxFilesPerTrigger", sink["files"])
        rows = files.parquet(sink["path"]).select("number", "value", row_id("number").alias("id"), key)
    else:
        source = spark.readStream.format("nsq").options(**options).load()
        rows = source.select(f.col("offset").alias("number"), "value", row_id().alias("id"), key)
    count = int(sink["partitions"])
    given = {"lookupd": sink["lookupd"], "topic": sink["topic"], "traceIdColumn": "id"}
    given |= {"batchMessages": "20", "publishTimeout": "120s"}
    if "tasks" not in sink:
        placed = by_partition(rows, count).drop("number")
        return (
            (held(placed, folder) if Path(folder, "hold").exists() else placed)
            .writeStream.format("nsq")
            .options(**given)
        )

    def write(batch: DataFrame, _: int) -> None:
        placed = by_partition(batch.repartition(int(sink["tasks"])), count).sortWithinPartitions("number")
        held(placed.drop("number"), folder, 2).write.format("nsq").mode("append").options(**given).save()

    return rows.writeStream.foreachBatch(write)


def held(frame: DataFrame, folder: str, most: int = 1) -> DataFrame:
    """Let each task give its first ``most`` batches on, make the file ``held``, and wait until ``hold`` is gone."""

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        pause = threading.Event()
        for number, batch in enumerate(batches, 1):
            yield batch
            if number < most:
                continue
            for _ in range(int(PATIENCE / 0.05)):
                if not Path(folder, "hold").exists():
                    break
                Path(folder, "held").touch()
                pause.wait(0.05)

    return frame.mapInArrow(wait, frame.schema)


def main(given: str) -> None:
    """Run the given streams until one of them ends."""
    spark = local_session("job", threads="4,4", config={"spark.driver.memory": "1g"})
    for job in json.loads(given):
        begin(spark, job["options"], job["folder"], now=False, sink=job.get("sink"))
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(sys.argv[1])
