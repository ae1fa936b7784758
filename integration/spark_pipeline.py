"""A pipeline through two topics, as a program that uses Spark Connect.

Reads a topic whole, in more tasks than it has partitions and with a shuffle; reads it as a stream with state,
which shuffles too; writes to a second topic, each partition by one task. Writes what it saw as JSON.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from nsq_ha.spark.functions import by_partition, drop_repeats


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
    spark = SparkSession.builder.appName("pipeline").remote(asked["server"]).getOrCreate()
    lookupd = asked["lookupd"]
    options = {"lookupd": lookupd, "topic": asked["from"], "startingOffsets": "earliest"}
    source = spark.read.format("nsq").options(**options, minPartitions="6").load()
    streamed, batches = as_stream(spark, options, asked["folder"])
    result = {
        "version": spark.version,
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
