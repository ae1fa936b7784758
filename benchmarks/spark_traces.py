"""Trace logs for ``python -m benchmarks.spark``: events a second of CPU, of reading them and of following messages."""

import tempfile
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.processes import Usage, used
from benchmarks.spark_rounds import Effort
from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.traces.events import events, read_lines
from nsq_ha.traces.queries import lifecycle

MESSAGES: Final = 1_000_000
"""Each has three events: it is published, delivered and finished."""
PARTITIONS: Final = 8
BEGAN_NS: Final = 1_700_000_000_000_000_000
APART_NS: Final = 100_000
ROUNDS: Final = 3


def _log(spark: SparkSession, messages: int) -> DataFrame:
    """Return the lines of a client's trace log."""
    number, partition = f.col("id"), (f.col("id") % PARTITIONS).cast("int")
    message_id = f.shiftleft(partition.cast("bigint"), PARTITION_SHIFT) + number
    kinds = f.explode(f.array(*map(f.lit, ("publish", "delivery", "finish")))).alias("event")
    fields = {
        "time_ns": BEGAN_NS + number * APART_NS + f.length("event") * 1_000_000 + number % 1_000_003,
        "topic": f.lit("flights"),
        "partition": partition,
        "channel": f.when(f.col("event") != "publish", "billing"),
        "internal_id": message_id,
        "trace_id": number,
        "offset": number * 40,
        "attempt": f.lit(1),
        "nsqd": f.lit("10.0.0.1:4150"),
    }
    line = f.struct("event", *(value.alias(name) for name, value in fields.items()))
    return spark.range(messages).select("id", kinds).select(f.to_json(line).alias("value"))


def traces(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure the analysis of a trace log."""
    count = effort.of(MESSAGES)
    with tempfile.TemporaryDirectory() as folder:
        _log(spark, count).write.mode("overwrite").text(f"file:{folder}/log")
        found = events(read_lines(spark, [f"{folder}/log"]))
        kinds = {"reading": found, "reading and lifecycle": lifecycle(found)}
        if (lives := kinds["reading and lifecycle"].where("outcome = 'done'").count()) != count:
            raise RuntimeError(f"{lives} of {count} messages are done")
        cpu: dict[str, list[Usage]] = {label: [] for label in kinds}
        for _ in range(min(effort.rounds, ROUNDS)):
            for label, frame in kinds.items():
                before = used()
                frame.write.format("noop").mode("overwrite").save()
                cpu[label].append(used().since(before))
    return {"rows": 3 * count, "cpu": cpu}
