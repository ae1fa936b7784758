"""``python scripts/java_archive.py FILE``: keep the classes that Spark loads in a file that other JVMs map.

A JVM that starts Spark reads and checks thousands of classes, which takes it longer than the queries of the tests. It
takes them from the file instead, and does without it if Java or PySpark has changed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from nsq_ha.spark.session import local_session

LIMIT = 300.0
"""Seconds to write the file."""


def main(file: Path) -> int:
    """Run queries like those of the tests, and return the exit code of the JVM."""
    unfinished = file.with_suffix(".new")
    # What is skipped, such as classes of signed archives, would be a thousand warnings.
    options = f"-XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    spark = local_session("java_archive", config={"spark.driver.defaultJavaOptions": options})
    with tempfile.TemporaryDirectory() as folder:
        numbers = spark.createDataFrame([(number, f"{number}") for number in range(99)], "number int, text string")
        event = f.from_json(f.format_string('{"at": %s}', "text"), "at long").alias("event")
        sums = numbers.select("text", event).groupBy("event.at").agg(f.count_distinct("text").alias("texts"))
        same = numbers.mapInArrow(lambda batches: batches, numbers.schema)
        sums.join(same, f.expr("at = number")).orderBy("at").write.parquet(f"{folder}/rows")
        stream = spark.readStream.schema(spark.read.parquet(f"{folder}/rows").schema).parquet(f"{folder}/rows")
        query = stream.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        query.foreachBatch(_collect).start().awaitTermination()
        spark.stop()
    java: subprocess.Popen[bytes] = SparkContext._gateway.proc  # type: ignore[union-attr]  # noqa: SLF001
    java.communicate(timeout=LIMIT)
    if java.returncode == 0:
        unfinished.replace(file)
    return java.returncode


def _collect(batch: DataFrame, _: int) -> None:
    batch.collect()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
