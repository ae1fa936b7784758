"""Analyse trace logs: one report as plain values, and its files.

This module runs the queries of a report and writes Parquet tables, ``report.json`` and
``report.html`` (``page``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from nsq_ha.spark.pyspark_private import write_file
from nsq_ha.traces import queries
from nsq_ha.traces.events import REPLAY_PREFIX, base_url, events, has_scheme, read_lines
from nsq_ha.traces.page import html_page

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

FIRST: Final = 50
"""Number of anomalies in the report; the Parquet table has all of them."""

_BUCKETS: Final = 120
_NARROWEST_NS: Final = 10_000_000
_PLACES: Final = ("side", "topic", "channel")
_USED: Final = (
    *(*queries.PARTITION, "event", "ts_ns", "channel", "message_id", "trace_id", "offset", "published_ns"),
    *("acknowledged_ns", "node"),
)
"""The columns of events that a report needs."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The options of a report.

    Attributes:
        topics: Only these topics. Empty for all.
        ordered: Topics whose order is checked.
        grace_s: Seconds after which a message that was not finished counts as lost.
        skip_prefix: Skip channels with this prefix, the connector's own reads.
        fail_on: Kinds of anomalies that make the report a failure.
    """

    topics: tuple[str, ...] = ()
    ordered: tuple[str, ...] = ()
    grace_s: float = 60.0
    skip_prefix: str = REPLAY_PREFIX
    fail_on: tuple[str, ...] = ("lost", "out_of_order", "gap")


@dataclass(frozen=True, slots=True)
class TraceReport:
    """The result of an analysis. Times are in nanoseconds since the epoch, latencies in milliseconds.

    Attributes:
        is_ok: Whether there were events and no anomaly of a failing kind; logs without events prove nothing.
        counts: Anomalies by kind; ``gap`` only if the topic itself was read.
        first: The first anomalies by time, at most :data:`FIRST`.
        outcomes: Messages by side, topic, channel and outcome.
        latency: Percentiles of each stage by side, topic, channel and partition (None for all).
        leaders: Leaders by partition, since the acknowledgement of their first publish.
        begin_ns: Time of the first event. None without events.
        end_ns: Time of the last event.
        bucket_ns: Width of the buckets of ``series`` and ``timeline``.
        side: The log behind ``series`` and ``timeline``: the client's if there is one.
        stall: The publish that waited longest for its acknowledgement: ``topic``, ``partition``, ``begin_ns`` and
            ``end_ns``. None if no log has acknowledgements.
        undelivered: Published messages without a delivery, by topic, partition and channel.
        series: Per bucket: number, messages and latencies from publish to first delivery.
        timeline: Per topic, partition and bucket: deliveries.
        events: Number of events.
        bad_lines: Number of lines that begin like a trace line and cannot be parsed.
    """

    is_ok: bool
    counts: dict[str, int]
    first: list[dict[str, Any]]
    outcomes: list[dict[str, Any]]
    latency: list[dict[str, Any]]
    leaders: list[dict[str, Any]]
    begin_ns: int | None
    end_ns: int | None
    bucket_ns: int
    side: str
    stall: dict[str, Any] | None
    undelivered: list[dict[str, Any]]
    series: list[dict[str, Any]]
    timeline: list[dict[str, Any]]
    events: int
    bad_lines: int
    options: ReportOptions = field(default_factory=ReportOptions)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return dataclasses.asdict(self)


def trace_report(
    spark: SparkSession,
    logs: Iterable[Path | str],
    out: Path | str | None = None,
    options: ReportOptions | None = None,
    *,
    topic_gaps: DataFrame | None = None,
) -> TraceReport:
    """Analyse trace logs.

    Args:
        spark: The session, local or of a cluster; the queries need nothing on its workers but Spark.
        logs: Files of :mod:`nsq_ha.tracelog`, logs of nsqds, or both: paths, patterns and URLs, as for
            :func:`nsq_ha.traces.events.url_of`.
        out: Folder for ``report.json``, ``report.html`` and the Parquet tables ``lifecycle``, ``latency``
            and ``anomalies``: a path of this machine, or a URL such as ``s3a://bucket/report``. Created if it is
            missing, overwritten otherwise. None writes nothing.
        options: The options of the report.
        topic_gaps: More anomalies, from :func:`nsq_ha.traces.queries.gaps`.

    Raises:
        FileNotFoundError: A log of this machine does not exist.
        ConfigError: ``out`` is a URL, and the session is one of Spark Connect, which cannot write single files.
    """
    options = options or ReportOptions()

    found = events(read_lines(spark, logs))
    is_ours = f.col("channel").isNull() | ~f.col("channel").startswith(options.skip_prefix or "\0")
    is_asked = f.col("topic").isin(list(options.topics)) | (f.col("event") == "bad")
    wanted = is_asked if options.topics else f.lit(True)
    with contextlib.ExitStack() as held:

        def hold(frame: DataFrame) -> DataFrame:
            held.callback(frame.unpersist)
            return frame.persist()

        kept = hold(found.where(is_ours & wanted).select(*_USED))
        known = queries.places(kept)
        lives = hold(queries.lifecycle(kept, grace_s=options.grace_s, known=known))
        wrong = queries.anomalies(lives, ordered=options.ordered)
        wrong = hold(wrong if topic_gaps is None else wrong.union(topic_gaps))
        report = _report(known, kept, lives, wrong, options)
        if topic_gaps is not None:
            report.counts.setdefault("gap", 0)
        if out is not None:
            _write(out, report, lives, wrong)
    return report


def _report(
    known: Sequence[Row], kept: DataFrame, lives: DataFrame, wrong: DataFrame, options: ReportOptions
) -> TraceReport:
    count = sum(row.events for row in known)
    begin = min((row.begin_ns for row in known if row.events), default=None)
    end = max((row.end_ns for row in known if row.events), default=None)
    bucket = max(_NARROWEST_NS, -(-((end or 0) - (begin or 0) + 1) // _BUCKETS))
    side = "client" if any(row.side == "client" for row in known) else "server"
    publishes = queries.acknowledged(kept)
    counts = dict.fromkeys(("lost", "repeated", "out_of_order"), 0)
    counts |= {row["kind"]: row["count"] for row in _rows(wrong.groupBy("kind").count())}
    unstarted = lives.where("first_start_ns is null")
    earliest = wrong.orderBy("ts_ns", "message_id").limit(FIRST)
    return TraceReport(
        is_ok=count > 0 and not any(counts.get(kind) for kind in options.fail_on),
        counts=counts,
        first=_rows(earliest.withColumn("trace_id", f.col("trace_id").cast("string"))),
        outcomes=_rows(lives.groupBy(*_PLACES, "outcome").count().orderBy(*_PLACES, "outcome")),
        latency=_latencies(lives),
        leaders=_rows(queries.leaders(publishes).orderBy("topic", "partition", "ts_ns")),
        begin_ns=begin,
        end_ns=end,
        bucket_ns=bucket,
        side=side,
        stall=_stall(publishes),
        undelivered=_rows(unstarted.groupBy("side", "topic", "partition", "channel").count().orderBy("partition")),
        series=_series(lives.where(f.col("side") == side), begin or 0, bucket),
        timeline=_timeline(kept.where(f.col("side") == side), begin or 0, bucket),
        events=count,
        bad_lines=sum(row.bad for row in known),
        options=options,
    )


def _stall(publishes: DataFrame) -> dict[str, Any] | None:
    # A log that has only one of the two times, such as an nsqd's, has the same in both.
    waited = publishes.where("longest_ns > 0").orderBy(f.desc("longest_ns"), "called_ns", "topic", "partition").limit(1)
    found = waited.selectExpr("topic", "partition", "called_ns as begin_ns", "called_ns + longest_ns as end_ns")
    return next(iter(_rows(found)), None)


def _latencies(lives: DataFrame) -> list[dict[str, Any]]:
    times = queries.durations(lives, *_PLACES, "partition").persist()
    by_partition = _rows(queries.percentiles(times, *_PLACES, "partition").orderBy(*_PLACES, "partition", "stage"))
    whole = _rows(queries.percentiles(times, *_PLACES).orderBy(*_PLACES, "stage"))
    times.unpersist()
    return by_partition + [{**row, "partition": None} for row in whole]


def _series(lives: DataFrame, begin: int, bucket: int) -> list[dict[str, Any]]:
    numbered = lives.withColumn("bucket", _bucket("published_ns", begin, bucket))
    found = queries.percentiles(queries.durations(numbered, "bucket", stages=queries.STAGES[:1]), "bucket")
    return _rows(found.drop("stage").orderBy("bucket"))


def _timeline(kept: DataFrame, begin: int, bucket: int) -> list[dict[str, Any]]:
    names = "topic", "partition", "bucket"
    numbered = kept.where("event = 'delivery'").withColumn("bucket", _bucket("ts_ns", begin, bucket))
    return _rows(numbered.groupBy(*names).agg(f.count("*").alias("messages")).orderBy(*names))


def _bucket(time_ns: str, begin: int, bucket: int) -> Column:
    return f.floor((f.col(time_ns) - begin) / bucket).cast("int")


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _write(out: Path | str, report: TraceReport, lives: DataFrame, wrong: DataFrame) -> None:
    base = base_url(out)
    minutes = queries.latency(lives, *_PLACES, "partition", "minute")
    for name, frame in (("lifecycle", lives), ("latency", minutes), ("anomalies", wrong)):
        frame.write.mode("overwrite").parquet(f"{base}/{name}")
    values = json.dumps(report.as_dict(), indent=1, default=str) + "\n"
    for name, text in (("report.json", values), ("report.html", html_page(report.as_dict()))):
        if has_scheme(str(out)):
            write_file(lives.sparkSession, f"{base}/{name}", text.encode())
        else:
            (Path(out) / name).write_text(text, encoding="utf-8")
