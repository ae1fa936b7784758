"""Spark: ``NSQ_HA_TEST_LOOKUPD=http://host:port python -m benchmarks.spark [ROW ...]``, on the HA server.

*read*: a topic of two partitions into an aggregate, against the same aggregate
over ``range`` with a pickled Python function that makes such bodies. *bulk*: the
same with ``fetch=bulk``, also of ordered topics and by the size of the batches
that wrote the topic. *trigger*: what a micro-batch with next to no rows costs,
against the built-in source ``rate`` and against a source in Python that does
nothing. *sink*: a write, against an Arrow writer with the same plan that drops
its rows. *memory*: of the Python workers, with bodies of 1 MB. Rounds are interleaved in one session; the
figures are medians of the ratios within a round.

Servers and Spark share the machine's cores, so on a busy one the rates tell more
of the others than of us. The CPU of Spark and its workers is printed as well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType

from benchmarks.bare_source import BareSource
from benchmarks.processes import in_a_process, peaks
from benchmarks.spark_bulk import bulk
from benchmarks.spark_rounds import (
    BODY_BYTES,
    PARTITIONS,
    ROWS,
    interleaved,
    made_body,
    rates,
    ratio,
    summed,
    topic,
    used,
)
from nsq_ha import OutgoingMessage, Producer
from nsq_ha.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOOKUPD_VARIABLE: Final = "NSQ_HA_TEST_LOOKUPD"
LARGE_BYTES: Final = 1_000_000
LARGE_COUNTS: Final = (50, 200)
TRIGGERS: Final = 8
BARE: Final = "a Python source that does nothing"
_SETTINGS: Final = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}

Made = Callable[["SparkSession", str, int], list[str]]


# ---------------------------------------------------------------- read


def read(spark: SparkSession, lookupd: str, rounds: int) -> list[str]:
    """Measure reading."""
    made = f.udf(made_body, BinaryType(), useArrow=False)
    numbers = spark.range(0, ROWS, 1, PARTITIONS)
    cpu: dict[str, list[float]] = {}
    with topic(lookupd, "read", ROWS) as name:
        ours = spark.read.format("nsq").option("lookupd", lookupd).option("topic", name).load()
        frames = {
            "nsq": ours,
            "nsq, only value": spark.read.schema("value binary")
            .format("nsq")
            .options(lookupd=lookupd, topic=name)
            .load(),
            "range + pickled function": numbers.select(made("id").alias("value")),
            "range": numbers.select(f.repeat(f.lit("x"), BODY_BYTES).alias("value")),
        }
        kinds = {label: partial(summed, frame, ROWS) for label, frame in frames.items()}
        found = interleaved(kinds, rounds, cpu)
    lines = [rates(found), used(cpu, ROWS)]
    lines += [
        ratio(f"{one} / range + pickled function", found[one], found["range + pickled function"], at_least=0.5)
        for one in ("nsq", "nsq, only value")
    ]
    return lines


# ---------------------------------------------------------------- trigger


def _triggers(frame: DataFrame) -> dict[str, float]:
    """Run a stream into nothing for some seconds, and return the median milliseconds of its triggers' parts."""
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="1 second").start()
        until = time.monotonic() + 90
        try:
            while True:
                # The first ones compile the plan.
                figures = [dict(each["durationMs"]) for each in query.recentProgress if each["numInputRows"]][2:]
                if len(figures) >= TRIGGERS or time.monotonic() > until:
                    break
                time.sleep(0.2)
        finally:
            query.stop()
    parts = set().union(*figures)
    return {part: statistics.median(each.get(part, 0) for each in figures) for part in parts}


@contextmanager
def _trickle(lookupd: str, name: str) -> Iterator[None]:
    """Publish some messages all the time."""
    over = threading.Event()

    def run() -> None:
        async def send() -> None:
            async with Producer(lookupd=lookupd) as producer:
                while not over.is_set():
                    await producer.publish_many(name, [OutgoingMessage(b"x", partition=n % 2) for n in range(10)])
                    await asyncio.sleep(0.25)

        asyncio.run(send())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def trigger(spark: SparkSession, lookupd: str, rounds: int) -> list[str]:
    """Measure what a micro-batch costs by itself."""
    parts: dict[str, list[dict[str, float]]] = {"nsq": [], "rate": [], BARE: []}
    spark.dataSource.register(BareSource)

    def measured(label: str, frame: DataFrame) -> float:
        parts[label].append(_triggers(frame))
        return parts[label][-1]["triggerExecution"]

    with topic(lookupd, "trigger") as name, _trickle(lookupd, name):
        frames = {
            "nsq": spark.readStream.format("nsq").options(lookupd=lookupd, topic=name).load(),
            "rate": spark.readStream.format("rate").options(rowsPerSecond=40, numPartitions=PARTITIONS).load(),
            BARE: spark.readStream.format("bare").load(),
        }
        found = interleaved({label: partial(measured, label, frame) for label, frame in frames.items()}, rounds)
    lines = [
        f"  {label}, ms: "
        + ", ".join(
            f"{part} {statistics.median(figures[part] for figures in rounds_):.0f}" for part in sorted(rounds_[0])
        )
        for label, rounds_ in parts.items()
    ]
    return [
        *lines,
        ratio("trigger of nsq / of rate", found["nsq"], found["rate"], at_most=1.5),
        ratio(f"trigger of {BARE} / of rate", found[BARE], found["rate"]),
        ratio(f"trigger of nsq / of {BARE}", found["nsq"], found[BARE]),
    ]


# ---------------------------------------------------------------- sink


class _Dropped(WriterCommitMessage):
    """What one task dropped."""


class _DroppingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return _Dropped()


class Dropping(DataSource):
    """A sink that takes Arrow batches and drops them."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "dropping"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer."""
        return _DroppingWriter()


def sink(spark: SparkSession, lookupd: str, rounds: int) -> list[str]:
    """Measure writing."""
    spark.dataSource.register(Dropping)
    number = f.col("id").cast("string")
    value = f.concat(number, f.repeat(f.lit("x"), BODY_BYTES)).substr(1, BODY_BYTES).cast("binary")
    rows = spark.range(0, ROWS, 1, PARTITIONS).select(
        value.alias("value"), (f.col("id") % PARTITIONS).cast("int").alias("partition")
    )
    placed = rows.repartitionById(PARTITIONS, "partition")

    def written(form: str, **options: str) -> float:
        began = time.perf_counter()
        placed.write.format(form).mode("append").options(**options).save()
        return ROWS / (time.perf_counter() - began)

    cpu: dict[str, list[float]] = {}
    with topic(lookupd, "sink") as name:
        kinds = {
            "nsq": lambda: written("nsq", lookupd=lookupd, topic=name),
            "dropped": lambda: written("dropping"),
        }
        found = interleaved(kinds, rounds, cpu)
    return [rates(found), used(cpu, ROWS), ratio("sink / dropped", found["nsq"], found["dropped"], at_least=0.6)]


# ---------------------------------------------------------------- memory


def _remember(pipe: Any, lookupd: str, name: str, onward: str | None) -> None:  # noqa: ANN401 - one end of a pipe
    """Read a topic once, or copy it, and tell the peak of the workers; in a process and so with workers of its own."""
    spark = local_session("memory", threads="2", config=_SETTINGS)
    source = spark.read.format("nsq").options(lookupd=lookupd, topic=name).load()
    if onward is None:
        source.agg(f.sum(f.length("value"))).collect()
    else:
        source.select("value", "partition").write.format("nsq").mode("append").options(
            lookupd=lookupd, topic=onward
        ).save()
    pipe.send(max(peaks(), default=0))
    spark.stop()


def _write_large(pipe: Any, lookupd: str, name: str, count: int) -> None:  # noqa: ANN401 - one end of a pipe
    """Write bodies of 1 MB that Spark itself makes, and tell the peak of the workers: they do nothing but write."""
    spark = local_session("memory", threads="2", config=_SETTINGS)
    value = f.repeat(f.lit("x"), LARGE_BYTES).cast("binary")
    rows = spark.range(0, count, 1, PARTITIONS).select(
        value.alias("value"), (f.col("id") % PARTITIONS).cast("int").alias("partition")
    )
    rows.write.format("nsq").mode("append").options(lookupd=lookupd, topic=name).save()
    pipe.send(max(peaks(), default=0))
    spark.stop()


def _in_a_process(lookupd: str, name: str, onward: str | None = None) -> int:
    peak: int = in_a_process(_remember, lookupd, name, onward, join_timeout=60)
    return peak


def memory(lookupd: str) -> list[str]:
    """Measure the memory of workers."""
    if not Path("/proc/self/status").exists():
        return ["memory: skipped, no /proc here"]
    with topic(lookupd, "small", 1000) as name:
        least = _in_a_process(lookupd, name)
    lines = [f"peak of the largest worker, MB: {least / 1e6:.0f} with 1,000 bodies of {BODY_BYTES} B"]
    for count in LARGE_COUNTS:
        with topic(lookupd, f"large{count}", count, LARGE_BYTES) as name, topic(lookupd, f"copy{count}") as copy:
            figures = _in_a_process(lookupd, name), _in_a_process(lookupd, name, copy)
        with topic(lookupd, f"made{count}") as made:
            written: int = in_a_process(_write_large, lookupd, made, count, join_timeout=60)
        lines.append(
            f"  {count} bodies of 1 MB: read {figures[0] / 1e6:.0f}, read and written {figures[1] / 1e6:.0f}, "
            f"only written {written / 1e6:.0f}"
        )
    return lines


# ---------------------------------------------------------------- all


PARTS: Final[dict[str, Made]] = {"read": read, "bulk": bulk, "trigger": trigger, "sink": sink}


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    rows = [*PARTS, "memory"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(rows)}; all when none is named")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of each row; one more warms up")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.rows if name not in rows]:
        parser.error(f"unknown: {', '.join(unknown)}")
    lookupd = os.environ.get(LOOKUPD_VARIABLE)
    if not lookupd:
        print(f"spark: skipped, {LOOKUPD_VARIABLE} names no cluster")
        return
    wanted = chosen.rows or rows
    if measured := [name for name in wanted if name in PARTS]:
        spark = local_session("bench", threads="2", config=_SETTINGS)
        for name in measured:
            print("\n".join(PARTS[name](spark, lookupd, chosen.rounds)), flush=True)
        spark.stop()
    if "memory" in wanted:
        print("\n".join(memory(lookupd)), flush=True)


if __name__ == "__main__":
    main()
