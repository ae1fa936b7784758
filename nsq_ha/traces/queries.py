"""Follow messages: their lives, what went wrong in them, their latencies, and a table of lives by day.

A life is one message in one channel, with its times, counts and outcome. Trace ids may repeat, so topic, partition and
the server's message id name a message; with a plain nsqd, which numbers messages by itself, so does that nsqd. The id
grows within a partition, so it is also the order of messages without offsets.

The events of a log are grouped once, by two numbers: that of the place (topic, partition, channel) and the message id.
Publishes have no channel, so the channels of their partition, which :func:`places` collects, multiply them first.

Each run of the query of :func:`lives_by_day` takes the new files of a folder, stores their events by day, and
computes the lives of the days again that these events can change. Both steps replace
what an interrupted run has left, so every event counts once, however often a run is
repeated and however late a file comes.

**Source:** Spark design 4.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

from nsq_ha.spark.functions import unsigned
from nsq_ha.traces.events import base_url, events, url_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITION: Final = ("side", "topic", "partition", "nsqd")
"""What names a partition in one of the logs."""
KEY: Final = (*PARTITION, "message_id")
STAGES: Final = (
    ("publish_to_start", "published_ns", "first_start_ns"),
    ("start_to_finish", "first_start_ns", "first_finish_ns"),
    ("publish_to_finish", "published_ns", "first_finish_ns"),
)
"""Name of a stage, its start and its end."""

_CONSUMED: Final = {"delivery": "deliveries", "finish": "finishes", "requeue": "requeues", "timeout": "timeouts"}
"""Events of channels, and the columns that count them."""
# A text could not be changed in place, so Spark would sort the events instead of hashing them.
_CODES: Final = {event: code for code, event in enumerate(_CONSUMED, 1)}
_CODE: Final = f"nullif(array_position(array{tuple(_CODES)}, event), 0)"
_OF_MESSAGES: Final = ("side", "topic", "partition", "channel", "message_id", "trace_id")
"""The columns of an anomaly that those of messages have, too."""
_MEASURES: Final = (
    "max(trace_id) trace_id",
    "max(offset) offset",
    "coalesce(min(if(event in ('publish', 'put'), ts_ns, null)), min(published_ns)) published_ns",
    "min(if(event = 'delivery', ts_ns, null)) first_start_ns",
    "max(if(event = 'delivery', ts_ns, null)) last_start_ns",
    "min(if(event = 'finish', ts_ns, null)) first_finish_ns",
    "max(if(event = 'finish', ts_ns, null)) last_finish_ns",
    "min(ts_ns) first_event_ns",
    "max(ts_ns) last_event_ns",
    f"max_by({_CODE}, if(event in {tuple(_CONSUMED)}, ts_ns, null)) last_event",
    *(f"count(if(event = '{event}', 1, null)) {count}" for event, count in _CONSUMED.items()),
)
"""What is known of one message's events in one channel: numbers only."""
_DAY_NS: Final = 86_400_000_000_000
_PLACES: Final = pa.schema(
    [("number", pa.int32()), ("side", pa.string()), ("topic", pa.string()), ("partition", pa.int32())]
    + [(name, pa.string()) for name in ("nsqd", "channel")]
    + [(name, pa.int64()) for name in ("from_id", "done_id", "log_end_ns")]
)


def lifecycle(events: DataFrame, *, grace_s: float = 60.0, known: Sequence[Row] | None = None) -> DataFrame:
    """Return one row per message and channel, by side (client or server log).

    Columns besides the key: ``channel``, ``trace_id``, ``offset``,
    ``published_ns``, ``first_start_ns``, ``first_finish_ns``, ``last_finish_ns``,
    ``last_start_ns``, ``first_event_ns``, ``last_event_ns``, ``deliveries``,
    ``finishes``, ``requeues``, ``timeouts``, ``outcome``:

    * ``done``: finished.
    * ``lost``: published at least ``grace_s`` before the log's end, never finished,
      though the channel has finished a later message of the partition.
    * ``requeued``, ``timed out``: its last event.
    * ``pending``: not finished yet, which is not an error.

    In each partition a channel counts from the first message delivered to it.

    Args:
        events: The result of :func:`nsq_ha.traces.events.events`; a batch.
        grace_s: Seconds after which an unfinished message may count as lost.
        known: The result of :func:`places`. None calls it, which reads the events once more.
    """
    found = places(events) if known is None else known
    ends = {row.side: max(each.end_ns or 0 for each in found if each.side == row.side) for row in found}
    channels = enumerate(row for row in found if row.from_id is not None)
    rows = [{**row.asDict(), "number": number, "log_end_ns": ends[row.side]} for number, row in channels]
    # From Arrow Spark makes rows itself; from a list, its workers would need Python.
    table = events.sparkSession.createDataFrame(pa.Table.from_pylist(rows, _PLACES))
    place = f.broadcast(table.select("number", *PARTITION, "channel", "from_id")).alias("p")
    same = " and ".join(f"e.{name} <=> p.{name}" for name in PARTITION)
    published = "e.channel is null and e.message_id >= p.from_id and e.event in ('publish', 'put')"
    wanted = f.expr(f"{same} and ({published} or e.channel = p.channel and e.event in {tuple(_CONSUMED)})")
    of_place = events.alias("e").join(place, wanted).select("number", "e.*").groupBy("number", "message_id")
    lives = of_place.agg(*map(f.expr, _MEASURES))
    kept = [name for name in lives.columns if name not in {"number", "message_id", "last_event"}]
    outcome = f"""case when finishes > 0 then 'done'
        when log_end_ns - published_ns >= {int(grace_s * 1e9)} and done_id > message_id then 'lost'
        when last_event = {_CODES["timeout"]} then 'timed out'
        when last_event = {_CODES["requeue"]} then 'requeued' else 'pending' end outcome"""
    return lives.join(f.broadcast(table.drop("from_id")), "number").selectExpr(*KEY, "channel", *kept, outcome)


def places(events: DataFrame) -> list[Row]:
    """Return what is known of each partition and channel; runs a job, whose result is small.

    Fields: ``side``, ``topic``, ``partition``, ``nsqd``, ``channel`` (None for the publishes), ``events``, ``bad``,
    ``begin_ns``, ``end_ns``, and of the messages that were delivered ``from_id``, the first, and ``done_id``, the last
    that was finished.
    """
    good = "if(event != 'bad', {}, null)"
    consumed = f"if(channel is not null and event in {tuple(_CONSUMED)}, message_id, null)"
    known = (
        f"count({good.format(1)}) events",
        "count(if(event = 'bad', 1, null)) bad",
        f"min({good.format('ts_ns')}) begin_ns",
        f"max({good.format('ts_ns')}) end_ns",
        f"min({consumed}) from_id",
        f"max(if(event = 'finish', {consumed}, null)) done_id",
    )
    return events.groupBy(*PARTITION, "channel").agg(*map(f.expr, known)).collect()


def latency(lives: DataFrame, *by: str) -> DataFrame:
    """Return percentiles in milliseconds of each stage, by columns such as ``topic``, ``partition``, ``minute``.

    This function adds ``minute``, the start of the minute of the publish. Columns:
    ``stage``, ``messages``, ``p50_ms``, ``p95_ms``, ``p99_ms`` (rounded to three digits), ``max_ms``.

    Args:
        lives: The result of :func:`lifecycle`.
        *by: Columns to group by; without any, all lives are one group.
    """
    return percentiles(durations(lives, *by), *by)


def durations(lives: DataFrame, *by: str, stages: Sequence[tuple[str, str, str]] = STAGES) -> DataFrame:
    """Return how often each duration of a stage occurs, by columns as for :func:`latency`.

    Columns: ``stage``, ``ns`` (rounded to three digits), ``messages``, ``max_ns``. At most a few thousand rows for
    each group, from which :func:`percentiles` makes those of coarser groups, too.
    """
    minute = "timestamp_seconds(floor(published_ns / 60e9) * 60) minute"
    steps = ", ".join(f"struct('{name}' stage, {to} - {start} exact)" for name, start, to in stages)
    flat = lives.selectExpr("*", minute).selectExpr(*by, f"inline(array({steps}))").where("exact is not null")
    unit = "pow(10, greatest(floor(log10(greatest(abs(exact), 1))) - 2, 0))"
    # Spark's round goes through decimals, which costs more than all the rest.
    rounded = flat.withColumn("unit", f.expr(unit)).withColumn("ns", f.expr("bigint(floor(exact / unit + 0.5) * unit)"))
    return rounded.groupBy(*by, "stage", "ns").agg(f.count("*").alias("messages"), f.max("exact").alias("max_ns"))


def percentiles(found: DataFrame, *by: str) -> DataFrame:
    """Return what :func:`latency` does, of the result of :func:`durations` by these columns or more."""
    group = Window.partitionBy(*by, "stage")
    upto, whole = f.sum("messages").over(group.orderBy("ns")), f.sum("messages").over(group)  # up to equal ones, too
    ranked = found.withColumns({"upto": upto, "whole": whole})

    shares = (f"min(if(upto >= {part} * whole, ns, null)) / 1e6 p{part * 100:.0f}_ms" for part in (0.5, 0.95, 0.99))
    measures = "sum(messages) messages", *shares, "max(max_ns) / 1e6 max_ms"
    return ranked.groupBy(*by, "stage").agg(*map(f.expr, measures))


def anomalies(lives: DataFrame, *, ordered: Collection[str] = ()) -> DataFrame:
    """Return one row per anomaly: its ``kind``, the columns of the message, ``ts_ns`` and ``detail``.

    * ``lost``: its outcome is ``lost``.
    * ``repeated``: finished more than once, or delivered again after a finish.
    * ``out_of_order``: first delivered after a later message of its partition, in a topic of ``ordered``.

    Args:
        lives: The result of :func:`lifecycle`.
        ordered: Topics whose order is checked.
    """
    lost = _found(
        lives.where("outcome = 'lost'"), "lost", "published_ns", "'delivered ', deliveries, ' times, never finished'"
    )
    repeated = _found(
        lives.where("finishes > 1 or last_start_ns > first_finish_ns"),
        "repeated",
        "coalesce(last_start_ns, last_finish_ns)",
        "'delivered ', deliveries, ' times, finished ', finishes, ' times'",
    )
    window = Window.partitionBy(*PARTITION, "channel").orderBy("first_start_ns", "message_id")
    before = f.max("message_id").over(window.rowsBetween(Window.unboundedPreceding, -1))
    begun = lives.where(f.col("topic").isin(list(ordered)) & f.col("first_start_ns").isNotNull())
    disorder = begun.withColumn("before", before).where("message_id < before")
    return lost.union(repeated).union(_found(disorder, "out_of_order", "first_start_ns", "'after message ', before"))


def _found(rows: DataFrame, kind: str, ts_ns: str, detail: str) -> DataFrame:
    """Return the anomalies that rows are, with their times and what ``detail`` lists, both in SQL."""
    return rows.selectExpr(f"'{kind}' kind", *_OF_MESSAGES, f"{ts_ns} ts_ns", f"concat({detail}) detail")


def gaps(rows: DataFrame) -> DataFrame:
    """Return where the log of a partition has gaps, from a read of the topic itself; needs no trace log.

    Args:
        rows: A read of ``format("nsq")``, with ``topic``, ``partition``, ``offset``, ``raw_size``,
            ``message_id``, ``trace_id`` and ``timestamp``.
    """
    window = Window.partitionBy("topic", "partition").orderBy("offset")
    end = f.lag(f.col("offset") + f.col("raw_size")).over(window)
    broken = rows.withColumn("end", end).where("end is not null and end != offset")
    number = f.conv(f.hex(f.substring("message_id", 1, 8)), 16, 10).cast("bigint")
    named = {"side": f.lit("topic"), "channel": f.lit(None).cast("string"), "message_id": number}
    whole = broken.withColumns({**named, "trace_id": unsigned(f.col("trace_id")).cast("decimal(20,0)")})
    detail = "'begins at ', offset, ', the one before ends at ', end"
    return _found(whole, "gap", "unix_micros(timestamp) * 1000", detail)


def acknowledged(events: DataFrame) -> DataFrame:
    """Return one row per partition, nsqd and second with publishes, for :func:`leaders`: small.

    Columns: ``side``, ``topic``, ``partition``, ``node``, ``ts_ns`` of the first acknowledgement, ``longest_ns`` from
    a call to its acknowledgement, and ``called_ns`` of that call.
    """
    waited, second = "acknowledged_ns - ts_ns", f.expr("floor(acknowledged_ns / 1e9) second")
    found = events.where("event = 'publish'").groupBy("side", "topic", "partition", "node", second)
    measures = "min(acknowledged_ns) ts_ns", f"max({waited}) longest_ns", f"max_by(ts_ns, {waited}) called_ns"
    return found.agg(*map(f.expr, measures))


def leaders(found: DataFrame) -> DataFrame:
    """Return since when each node has led each partition: one row at the first event and at each change.

    Columns: ``topic``, ``partition``, ``node``, ``ts_ns``. The rows come from publishes,
    which only a leader accepts, in the order of their acknowledgements, since a new leader
    may answer a call that began before it took over. ``ts_ns`` is the time of the first
    acknowledgement by that leader. Two changes of leader within a second count as one.

    Args:
        found: The result of :func:`acknowledged`.
    """
    window = Window.partitionBy("side", "topic", "partition").orderBy("ts_ns", "node")
    changed = found.withColumn("before", f.lag("node").over(window)).where("before is null or before != node")
    return changed.select("topic", "partition", "node", "ts_ns").distinct()


def lives_by_day(
    spark: SparkSession, logs: Path | str, table: Path | str, *, grace_s: float = 60.0, days: int = 1
) -> DataStreamWriter:
    """Return a query that turns the files of a folder into a table of lives by day.

    Start it with ``.trigger(availableNow=True).start()`` from time to time, or with
    another trigger. Only one query may write a table. Read the lives with
    ``spark.read.parquet(f"{table}/lives")``; the column ``day`` is the day, in UTC, of a
    message's first event. A day's files are replaced while a run writes it.

    Args:
        spark: The session, local or of a cluster.
        logs: Folder, or pattern, as for :func:`nsq_ha.traces.events.url_of`. A file must be complete when it
            appears there, so move rotated logs into it; lines that are added later are not read.
        table: Folder for the lives, the events and the query's checkpoint; created if it is missing.
        grace_s: As for :func:`lifecycle`.
        days: Maximum number of days between the first and the last event of a message. Each run reads that many more
            days of events on either side.

    Raises:
        FileNotFoundError: ``logs`` is a folder of this machine that does not exist.
    """
    base = base_url(table)
    lines = spark.readStream.text(url_of(logs)).select("value", f.input_file_name().alias("file"))

    add = partial(_add, base=base, grace_s=grace_s, days=days)
    return events(lines).writeStream.foreachBatch(add).option("checkpointLocation", f"{base}/checkpoint")


def _add(batch: DataFrame, number: int, base: str, grace_s: float, days: int) -> None:
    dated = batch.where("event != 'bad'").withColumn("day", _day(f.col("ts_ns"))).persist()
    try:
        touched = {row.day for row in dated.select("day").distinct().collect()}
        # A repeated batch has the same number and days, so it replaces its own files.
        whole = dated.withColumn("batch", f.lit(number)).write.mode("overwrite")
        whole.option("partitionOverwriteMode", "dynamic").partitionBy("day", "batch").parquet(f"{base}/events")
    finally:
        dated.unpersist()
    if touched:
        _compute(batch.sparkSession, touched, base, grace_s, days)


def _compute(spark: SparkSession, touched: Collection[datetime.date], base: str, grace_s: float, days: int) -> None:
    """Write the lives of the days that events of ``touched`` can belong to."""
    stored = spark.read.parquet(f"{base}/events")
    wanted = _around(touched, days)
    near = stored.where(f.col("day").isin(list(_around(wanted, days))))
    lives = lifecycle(near.drop("day", "batch"), grace_s=grace_s)
    dated = lives.withColumn("day", _day(f.col("first_event_ns"))).persist()
    known = {row.day for row in stored.select("day").distinct().collect()}
    try:
        for day in sorted(wanted & known):
            # Day by day: a day that has lost its only message, since that began a day earlier, must become empty.
            of_day = dated.where(f.col("day") == day).drop("day")
            of_day.write.mode("overwrite").parquet(f"{base}/lives/day={day.isoformat()}")
    finally:
        dated.unpersist()


def _around(days: Collection[datetime.date], reach: int) -> set[datetime.date]:
    return {day + datetime.timedelta(days=step) for day in days for step in range(-reach, reach + 1)}


def _day(time_ns: Column) -> Column:
    """Return the day in UTC, whatever the session's time zone."""
    return f.date_from_unix_date(f.floor(time_ns / _DAY_NS).cast("int"))
