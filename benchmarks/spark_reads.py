"""Reads for ``python -m benchmarks.spark``: by size of the bodies, by who wrote them, and of ordered topics."""

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StructField, StructType

from benchmarks.bare_source import BareSource
from benchmarks.processes import Usage
from benchmarks.spark_page import BULK, FLOOR, KAFKA, ONLY_VALUE, PARQUET, SUBSCRIBE
from benchmarks.spark_rounds import BODY_BYTES, PARTITIONS, Effort, interleaved, summed, topic
from nsq_ha.spark.read.columns import Projection
from nsq_ha.spark.source import NsqDataSource

KAFKA_VARIABLE: Final = "NSQ_HA_TEST_KAFKA"
"""``host:port`` of a Kafka node that makes topics of two partitions by itself."""

SIZES: Final = {200: 600_000, 2048: 100_000, 16_384: 12_000}
"""Rows by size of the bodies: a second or two each."""

TOPICS: Final = {"plain": None, "extended": lambda number: {"key": f"order-{number}", "source": "checkout"}}
"""The headers by the kind of topic."""

HEADERS: Final = {f"header-{number}": "x" * 100 for number in range(60)}
HEADERS_ROWS: Final = 20_000

LOTS: Final = {1: 150_000, 50: 300_000}
"""Rows by messages of an MPUB; 1 for PUB. The sizes are measured with MPUBs of 1000."""

ORDERED_ROWS: Final = {"subscribe": 30_000, "bulk": 300_000}
"""A subscription to an ordered topic has one message under way at a time."""


def _floor(spark: SparkSession, given: dict[str, str], schema: StructType, folder: Path) -> DataFrame:
    """Return a read of files that hold the very Arrow batches of a read in bulk."""
    reader = NsqDataSource(given).reader(schema)
    folder.mkdir()
    for number, partition in enumerate(reader.partitions()):
        with pa.ipc.new_file(folder / str(number), Projection(schema).arrow_schema) as file:
            for batch in reader.read(partition):
                file.write_batch(batch)
    return spark.read.format("bare").schema(schema).options(folder=str(folder)).load()


def _reads(spark: SparkSession, lookupd: str, name: str, folder: Path) -> dict[str, DataFrame]:
    """Return the ways to read a topic, and the floor of each, with files in a folder."""
    spark.dataSource.register(BareSource)
    given = {"lookupd": lookupd, "topic": name, "fetch": "bulk"}
    only = StructType([StructField("value", BinaryType())])
    subscribe, bulk = (
        spark.read.format("nsq").options(**given | {"fetch": fetch}).load() for fetch in ("subscribe", "bulk")
    )
    return {
        SUBSCRIBE: subscribe,
        BULK: bulk,
        BULK + ONLY_VALUE: spark.read.schema(only).format("nsq").options(**given).load(),
        FLOOR: _floor(spark, given, bulk.schema, folder / "all"),
        FLOOR + ONLY_VALUE: _floor(spark, given, only, folder / "value"),
    }


def _others(spark: SparkSession, lookupd: str, name: str, folder: Path) -> dict[str, DataFrame]:
    """Return what reads the same rows from elsewhere: Parquet files in a folder, and Kafka where there is a node."""
    given = {"lookupd": lookupd, "topic": name, "fetch": "bulk", "includeHeaders": "true", "headersAs": "array"}
    rows = spark.read.format("nsq").options(**given).load()
    rows.drop("headers").write.parquet(f"file:{folder}/parquet")
    found = {PARQUET: spark.read.parquet(f"file:{folder}/parquet")}
    if node := os.environ.get(KAFKA_VARIABLE):
        placed = rows.select("key", "value", "partition", "headers")
        placed.write.format("kafka").options(**{"kafka.bootstrap.servers": node, "topic": name}).save()
        of = {"kafka.bootstrap.servers": node, "subscribe": name}
        found[KAFKA] = spark.read.format("kafka").options(**of).load()
    return found


def _measured(frames: dict[str, DataFrame], rows: int, size: int, effort: Effort) -> dict[str, Any]:
    cpu: dict[str, list[Usage]] = {}
    kinds = {label: partial(summed, frame, rows, size) for label, frame in frames.items()}
    return {"rows": rows, "rates": interleaved(kinds, effort, cpu), "cpu": cpu}


def sizes(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure reading plain and extended topics by size of the bodies."""
    found: dict[str, dict[str, Any]] = {}
    for kind, headers_of in TOPICS.items():
        for size, count in SIZES.items():
            rows, name = effort.of(count), f"{kind}{size}"
            with topic(lookupd, name, rows, size, headers=headers_of) as full, tempfile.TemporaryDirectory() as files:
                arguments = spark, lookupd, full, Path(files)
                frames = _reads(*arguments) | _others(*arguments)
                if not found:  # The JVM goes on compiling what all reads share for some rounds.
                    _measured(frames, rows, size, effort)
                found.setdefault(kind, {})[str(size)] = _measured(frames, rows, size, effort)
    return found


def writers(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure reading what was published one by one, and in lots."""
    found = {}
    for lot, count in LOTS.items():
        rows, messages = effort.of(count), lot * PARTITIONS
        with topic(lookupd, f"lot{lot}", rows, lot=messages) as name, tempfile.TemporaryDirectory() as files:
            frames = _reads(spark, lookupd, name, Path(files))
            found[str(lot)] = _measured(frames, rows, BODY_BYTES, effort)
    return found


def ordered(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure reading ordered topics."""
    slow, fast = (effort.of(count) for count in ORDERED_ROWS.values())
    with (
        topic(lookupd, "ordered", slow, ordered=True) as short,
        topic(lookupd, "orderedbulk", fast, ordered=True) as long,
    ):
        kinds = {}
        for fetch, name, rows in (("subscribe", short, slow), ("bulk", long, fast)):
            read = spark.read.format("nsq").options(lookupd=lookupd, topic=name, fetch=fetch).load()
            kinds[fetch] = partial(summed, read, rows)
        return {"rates": interleaved(kinds, effort)}


def headers(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure reading messages with many headers."""
    rows = effort.of(HEADERS_ROWS)
    with topic(lookupd, "headers", rows, headers=lambda _: HEADERS) as name:
        frames = {}
        for fetch in ("bulk", "subscribe"):
            given = {"lookupd": lookupd, "topic": name, "fetch": fetch, "includeHeaders": "true"}
            read = spark.read.format("nsq").options(**given).load()
            frames[fetch] = read.where(f.size("headers") == len(HEADERS))
        return _measured(frames, rows, BODY_BYTES, effort)
