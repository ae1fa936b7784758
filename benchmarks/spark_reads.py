"""Reads for ``python -m benchmarks.spark``: by size of the bodies, by who wrote them, and of ordered topics."""

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType

from benchmarks.processes import Usage
from benchmarks.spark_page import BASE
from benchmarks.spark_rounds import BODY_BYTES, PARTITIONS, Effort, interleaved, summed, topic

SIZES: Final = {50: 300_000, 200: 300_000, 1024: 150_000, 16_384: 12_000, 65_536: 3_000, 1_000_000: 300}
"""Rows by size of the bodies: about a second each."""

HEADERS: Final = {f"header-{number}": "x" * 100 for number in range(60)}
HEADERS_ROWS: Final = 20_000

LOTS: Final = {1: 60_000, 50: 150_000, 1000: 300_000}
"""Rows by messages of an MPUB; 1 for PUB."""

ORDERED_ROWS: Final = {"subscribe": 30_000, "bulk": 300_000}
"""A subscription to an ordered topic has one message under way at a time."""


def _write_files(spark: SparkSession, folder: str, rows: int, size: int) -> None:
    """Write the same bodies as files, none of them shorter than it is."""
    # Spark reads 4,096 values of Parquet at a time, however large they are.
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", max(1, min(4096, 2**24 // size)))
    made = spark.range(0, rows, 1, PARTITIONS).select(f.repeat(f.lit("x"), size).alias("value"))
    bare = {"compression": "none", "parquet.enable.dictionary": "false"}
    made.select(f.col("value").cast("binary")).write.options(**bare).parquet(f"{folder}/parquet")
    made.write.json(f"{folder}/json")


def _reads(
    spark: SparkSession, lookupd: str, name: str, rows: int, size: int = BODY_BYTES, *, files: str | None = None
) -> dict[str, Callable[[], float]]:
    """Return what measures each way to read a topic, and what they are compared with, in a folder for files too."""
    found: dict[str, DataFrame] = {}
    for fetch in ("subscribe", "bulk"):
        given = {"lookupd": lookupd, "topic": name, "fetch": fetch}
        found[fetch] = spark.read.format("nsq").options(**given).load()
        found[f"{fetch}, only value"] = spark.read.schema("value binary").format("nsq").options(**given).load()
    body = b"x" * size
    made = f.udf(lambda _: body, BinaryType(), useArrow=False)
    found[BASE] = spark.range(0, rows, 1, PARTITIONS).select(made("id").alias("value"))
    if files is not None:
        _write_files(spark, files, rows, size)
        found["Parquet"] = spark.read.parquet(f"{files}/parquet")
        found["JSON lines"] = spark.read.schema("value string").json(f"{files}/json")
    return {label: partial(summed, frame, rows, size) for label, frame in found.items()}


def sizes(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure reading by size of the bodies."""
    found = {}
    for size, count in SIZES.items():
        rows = effort.of(count)
        cpu: dict[str, list[Usage]] = {}
        with topic(lookupd, f"size{size}", rows, size) as name, tempfile.TemporaryDirectory() as files:
            rates = interleaved(_reads(spark, lookupd, name, rows, size, files=f"file:{files}"), effort, cpu)
        found[str(size)] = {"rows": rows, "rates": rates, "cpu": cpu}
    return found


def writers(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure reading what was published one by one, and in lots."""
    found = {}
    for lot, count in LOTS.items():
        rows = effort.of(count)
        cpu: dict[str, list[Usage]] = {}
        with topic(lookupd, f"lot{lot}", rows, lot=lot * PARTITIONS) as name:
            rates = interleaved(_reads(spark, lookupd, name, rows), effort, cpu)
        found[str(lot)] = {"rows": rows, "rates": rates, "cpu": cpu}
    return found


def ordered(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure reading ordered topics."""
    slow, fast = (effort.of(count) for count in ORDERED_ROWS.values())
    with (
        topic(lookupd, "ordered", slow, ordered=True) as short,
        topic(lookupd, "orderedbulk", fast, ordered=True) as long,
    ):
        kinds = {
            "subscribe": _reads(spark, lookupd, short, slow)["subscribe"],
            "bulk": _reads(spark, lookupd, long, fast)["bulk"],
        }
        return {"rates": interleaved(kinds, effort)}


def headers(spark: SparkSession, lookupd: str, effort: Effort) -> dict[str, Any]:
    """Measure reading messages with many headers."""
    rows, size = effort.of(HEADERS_ROWS), BODY_BYTES
    cpu: dict[str, list[Usage]] = {}
    with topic(lookupd, "headers", rows, headers=HEADERS) as name:
        frames = {}
        for fetch in ("subscribe", "bulk"):
            given = {"lookupd": lookupd, "topic": name, "fetch": fetch, "includeHeaders": "true"}
            read = spark.read.format("nsq").options(**given).load()
            frames[fetch] = read.where(f.size("headers") == len(HEADERS))
        kinds = {fetch: partial(summed, frame, rows, size) for fetch, frame in frames.items()}
        return {"rows": rows, "rates": interleaved(kinds, effort, cpu), "cpu": cpu}
