"""The memory of Spark's workers with bodies of 1 MB, for ``python -m benchmarks.spark memory``."""

from pathlib import Path
from typing import Any, Final

from pyspark.sql import functions as f

from benchmarks.processes import in_a_process, workers
from benchmarks.spark_page import IDLE
from benchmarks.spark_rounds import PARTITIONS, Effort, topic
from nsq_ha.spark.session import local_session

SETTINGS: Final = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
LARGE_BYTES: Final = 1_000_000
LARGE_COUNTS: Final = (50, 200)


def _remember(pipe: Any, lookupd: str, name: str, onward: str | None) -> None:  # noqa: ANN401 - one end of a pipe
    """Read a topic once, or copy it, and tell the peak of the workers; in a process and so with workers of its own."""
    spark = local_session("memory", threads="2", config=SETTINGS)
    source = spark.read.format("nsq").options(lookupd=lookupd, topic=name).load()
    if onward is None:
        source.agg(f.sum(f.length("value"))).collect()
    else:
        source.select("value", "partition").write.format("nsq").mode("append").options(
            lookupd=lookupd, topic=onward
        ).save()
    pipe.send(max((each.peak for each in workers().values()), default=0))
    spark.stop()


def _write_large(pipe: Any, lookupd: str, name: str, count: int) -> None:  # noqa: ANN401 - one end of a pipe
    """Write bodies of 1 MB that Spark itself makes, and tell the peak of the workers: they do nothing but write."""
    spark = local_session("memory", threads="2", config=SETTINGS)
    value = f.repeat(f.lit("x"), LARGE_BYTES).cast("binary")
    rows = spark.range(0, count, 1, PARTITIONS).select(
        value.alias("value"), (f.col("id") % PARTITIONS).cast("int").alias("partition")
    )
    rows.write.format("nsq").mode("append").options(lookupd=lookupd, topic=name).save()
    pipe.send(max((each.peak for each in workers().values()), default=0))
    spark.stop()


def _in_a_process(lookupd: str, name: str, onward: str | None = None) -> int:
    peak: int = in_a_process(_remember, lookupd, name, onward, join_timeout=60)
    return peak


def memory(lookupd: str, effort: Effort) -> dict[str, int]:
    """Measure the peak of the largest worker, in bytes; empty without ``/proc``."""
    if not Path("/proc/self/status").exists():
        return {}
    with topic(lookupd, "small", 1000) as name:
        found = {IDLE: _in_a_process(lookupd, name)}
    for count in dict.fromkeys(effort.of(most) for most in LARGE_COUNTS):
        with topic(lookupd, f"large{count}", count, LARGE_BYTES) as name, topic(lookupd, f"copy{count}") as copy:
            found[f"read {count}"] = _in_a_process(lookupd, name)
            found[f"read and write {count}"] = _in_a_process(lookupd, name, copy)
        with topic(lookupd, f"made{count}") as made:
            found[f"write {count}"] = in_a_process(_write_large, lookupd, made, count, join_timeout=60)
    return found
