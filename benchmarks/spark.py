"""Spark: ``NSQ_HA_TEST_LOOKUPD=http://host:port python -m benchmarks.spark [ROW ...]``, on the HA server.

*sizes*, *writers*: a topic of two partitions into an aggregate, by a subscription and in bulk, against the same
aggregate over the floor: a source in Python that hands over the same Arrow batches out of files. *sizes* also reads the
same rows from Parquet, and from the Kafka node that ``NSQ_HA_TEST_KAFKA=host:port`` names, which makes topics of two
partitions by itself, with the connector in ``NSQ_HA_TEST_KAFKA_JARS``, file names with commas between them. *ordered*:
the same of ordered topics; *headers*: with 60 headers of 100 B. *traces*: the analysis of a trace log. *sink*: a
write, against an Arrow writer with the same plan that drops its rows. *trigger*: what a micro-batch with next to no
rows costs, against the built-in source ``rate`` and against a source in Python that does nothing. *ack*: a backlog of
the plain nsqd that ``UPSTREAM_NSQD_BIN`` names, without a limit and with a small spool. *memory*: of the Python
workers, with bodies of 1 MB. Rounds are interleaved in one session; the figures are medians of the ratios within
a round.

With ``--json`` the figures are kept, and ``--page`` writes the tables that the docs include. ``--try`` measures next to
nothing, to see that all parts run. CPU is that of Spark, of the workers of its tasks, and of servers on this machine.

Servers and Spark share the machine's cores, so on a busy one the rates tell more of the others than of us.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from benchmarks.bare_source import BareSource
from benchmarks.processes import Usage, listeners
from benchmarks.record import Record, load
from benchmarks.spark_ack import ack
from benchmarks.spark_memory import SETTINGS, memory
from benchmarks.spark_page import BARE, TABLES, write_page
from benchmarks.spark_reads import KAFKA_VARIABLE, headers, ordered, sizes, writers
from benchmarks.spark_rounds import BODY_BYTES, PARTITIONS, ROWS, Effort, interleaved, nsqds, topic
from benchmarks.spark_traces import traces
from nsq_ha import OutgoingMessage, Producer
from nsq_ha.spark.session import local_session

LOOKUPD_VARIABLE: Final = "NSQ_HA_TEST_LOOKUPD"
JARS_VARIABLE: Final = "NSQ_HA_TEST_KAFKA_JARS"
TRIGGERS: Final = 8
TRIGGER_ROUNDS: Final = 3
"""Each takes half a minute."""
TRIGGER_TIMEOUT: Final = 120.0


Made = Callable[["SparkSession", str, Effort], dict[str, Any]]


# ---------------------------------------------------------------- trigger


def _triggers(frame: DataFrame, count: int) -> dict[str, float]:
    """Run a stream into nothing for some seconds, and return the median milliseconds of its triggers' parts."""
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="1 second").start()
        until = time.monotonic() + TRIGGER_TIMEOUT
        figures: list[dict[str, float]] = []
        try:
            while len(figures) < count:
                if time.monotonic() > until:
                    raise RuntimeError(f"{len(figures)} of {count} micro-batches had rows within {TRIGGER_TIMEOUT:g} s")
                time.sleep(0.2)
                # The first ones compile the plan.
                figures = [dict(each["durationMs"]) for each in query.recentProgress if each["numInputRows"]][2:]
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
            async with Producer(lookupd=lookupd.split(",")) as producer:
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


def trigger(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure what a micro-batch costs by itself."""
    parts: dict[str, list[dict[str, float]]] = {"nsq": [], "rate": [], BARE: []}
    spark.dataSource.register(BareSource)

    def measured(label: str, frame: DataFrame) -> float:
        parts[label].append(_triggers(frame, effort.of(TRIGGERS)))
        return parts[label][-1]["triggerExecution"]

    with topic(lookupd, "trigger") as name, _trickle(lookupd, name):
        frames = {
            "nsq": spark.readStream.format("nsq").options(lookupd=lookupd, topic=name).load(),
            "rate": spark.readStream.format("rate").options(rowsPerSecond=40, numPartitions=PARTITIONS).load(),
            BARE: spark.readStream.format("bare").load(),
        }
        kinds = {label: partial(measured, label, frame) for label, frame in frames.items()}
        found = interleaved(kinds, replace(effort, rounds=min(effort.rounds, TRIGGER_ROUNDS)))
    # Without those of the round that warms up.
    return {"ms": found, "parts": {label: each[-len(found[label]) :] for label, each in parts.items()}}


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


def sink(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure writing."""
    spark.dataSource.register(Dropping)
    number = f.col("id").cast("string")
    value = f.concat(number, f.repeat(f.lit("x"), BODY_BYTES)).substr(1, BODY_BYTES).cast("binary")
    count = effort.of(ROWS)
    rows = spark.range(0, count, 1, PARTITIONS).select(
        value.alias("value"), (f.col("id") % PARTITIONS).cast("int").alias("partition")
    )
    placed = rows.repartitionById(PARTITIONS, "partition")

    def written(form: str, **options: str) -> float:
        began = time.perf_counter()
        placed.write.format(form).mode("append").options(**options).save()
        return count / (time.perf_counter() - began)

    cpu: dict[str, list[Usage]] = {}
    with topic(lookupd, "sink") as name:
        kinds = {
            "nsq": lambda: written("nsq", lookupd=lookupd, topic=name),
            "dropped": lambda: written("dropping"),
        }
        found = interleaved(kinds, effort, cpu)
    return {"rows": count, "rates": found, "cpu": cpu}


# ---------------------------------------------------------------- all


PARTS: Final[dict[str, Made]] = {
    "sizes": sizes,
    "writers": writers,
    "ordered": ordered,
    "headers": headers,
    "sink": sink,
    "trigger": trigger,
    "ack": ack,
    "traces": traces,
}
TRY: Final = Effort(rounds=1, share=0.01)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and keep."""
    rows = [*PARTS, "memory"]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(rows)}; all when none is named")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of each row; one more warms up")
    parser.add_argument("--json", type=Path, help="keep the figures there; a row that is measured again is replaced")
    parser.add_argument("--page", type=Path, help="write the tables of all figures that are kept to this folder")
    parser.add_argument("--try", action="store_true", dest="is_trial", help="measure next to nothing")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.rows if name not in rows]:
        parser.error(f"unknown: {', '.join(unknown)}")
    if chosen.page and not chosen.json:
        parser.error("--page needs --json")
    lookupd = os.environ.get(LOOKUPD_VARIABLE)
    if not lookupd:
        print(f"spark: skipped, {LOOKUPD_VARIABLE} names no cluster")
        return
    node, jars = (os.environ.get(name, "") for name in (KAFKA_VARIABLE, JARS_VARIABLE))
    servers = nsqds(lookupd) | (listeners(frozenset({int(node.rpartition(":")[2])})) if node else frozenset())
    effort = replace(TRY if chosen.is_trial else Effort(chosen.rounds), servers=servers)
    record = Record(chosen.json)
    wanted = chosen.rows or rows
    measured = [name for name in wanted if name in PARTS]
    config = {**SETTINGS, "spark.jars": jars}
    spark = local_session("bench", threads="2", config=config) if measured else None
    for name in wanted:
        before, began = load(), time.monotonic()
        figures = PARTS[name](spark, lookupd, effort) if spark and name in PARTS else memory(lookupd, effort)
        record.keep(f"spark/{name}", figures, before)
        seconds = time.monotonic() - began
        print(f"{name}, {seconds:.0f} s, load {before:.1f} before\n\n{TABLES[name](figures)}\n", flush=True)
    if spark is not None:
        spark.stop()
    if chosen.page:
        write_page(record.read(), chosen.page)


if __name__ == "__main__":
    main()
