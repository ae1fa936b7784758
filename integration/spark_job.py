"""A stream from a topic to Parquet files, here or in a program of its own that tests may kill.

The file sink keeps a log of its batches, so what it holds is exactly what the checkpoint says.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsq_ha.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE = 120.0
"""Seconds for which a task is held at most."""


def begin(spark: SparkSession, options: Mapping[str, str], folder: str, *, now: bool) -> StreamingQuery:
    """Start the stream, ``now``: of what there is now. A file ``hold`` in the folder stops the rows on their way."""
    frame = spark.readStream.format("nsq").options(**options).load().select("partition", "offset", "value")
    if Path(folder, "hold").exists():
        frame = held(frame, folder)
    writer = frame.writeStream.format("parquet").outputMode("append")
    writer = writer.option("path", f"{folder}/out").option("checkpointLocation", f"{folder}/checkpoint")
    return (writer.trigger(availableNow=True) if now else writer).start()


def held(frame: DataFrame, folder: str) -> DataFrame:
    """Let each task give its first rows on, make the file ``held``, and wait until ``hold`` is gone."""

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        pause = threading.Event()
        for batch in batches:
            yield batch
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
        begin(spark, job["options"], job["folder"], now=False)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main(sys.argv[1])
