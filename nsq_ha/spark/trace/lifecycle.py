"""Follow messages: one row per message and channel with its times, counts and outcome; and their latencies.

Trace ids may repeat, so topic, partition and the server's message id name a message; with a plain nsqd, which numbers
messages by itself, so does that nsqd. The id grows within a partition, so it is also the order of messages without
offsets.

The events of a log are grouped once, by two numbers: that of the place (topic, partition, channel) and the message id.
Publishes have no channel, so the channels of their partition, which :func:`places` collects, multiply them first.

**Source:** Spark design 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as f

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
_CODES: Final = {event: code for code, event in enumerate(_CONSUMED)}
_NS_OF_MS: Final = 1e6
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
        events: The result of :func:`nsq_ha.spark.trace.events.events`; a batch.
        grace_s: Seconds after which an unfinished message may count as lost.
        known: The result of :func:`places`. None calls it, which reads the events once more.
    """
    found = [row.asDict() for row in (places(events) if known is None else known)]
    ends: dict[str, int] = {}
    for row in found:
        ends[row["side"]] = max(ends.get(row["side"], 0), row["end_ns"] or 0)
    channels = [row for row in found if row["from_id"] is not None]
    rows = [{**row, "number": number, "log_end_ns": ends[row["side"]]} for number, row in enumerate(channels)]
    # From Arrow Spark makes rows itself; from a list, its workers would need Python.
    table = events.sparkSession.createDataFrame(pa.Table.from_pylist(rows, _PLACES))
    place, event = f.broadcast(table.select("number", *PARTITION, "channel", "from_id")).alias("p"), events.alias("e")
    same = f.col("e.channel").isNull() & (f.col("e.message_id") >= f.col("p.from_id")) & is_publish("e.event")
    same |= (f.col("e.channel") == f.col("p.channel")) & f.col("e.event").isin(*_CONSUMED)
    for name in PARTITION:
        same &= f.col(f"e.{name}").eqNullSafe(f.col(f"p.{name}"))
    lives = event.join(place, same).select("number", "e.*").groupBy("number", "message_id").agg(*measures())
    whole = lives.join(f.broadcast(table.drop("from_id")), "number")
    is_late = f.col("log_end_ns") - f.col("published_ns") >= int(grace_s * 1e9)
    is_lost = is_late & (f.col("done_id") > f.col("message_id"))
    kept = [name for name in lives.columns if name not in {"number", "message_id", "last_event"}]
    return whole.select(*KEY, "channel", *kept, _outcome(is_lost).alias("outcome"))


def places(events: DataFrame) -> list[Row]:
    """Return what is known of each partition and channel; runs a job, whose result is small.

    Fields: ``side``, ``topic``, ``partition``, ``nsqd``, ``channel`` (None for the publishes), ``events``, ``bad``,
    ``begin_ns``, ``end_ns``, and of the messages that were delivered ``from_id``, the first, and ``done_id``, the last
    that was finished.
    """
    is_good, is_consumed = f.col("event") != "bad", f.col("channel").isNotNull() & f.col("event").isin(*_CONSUMED)
    found = events.groupBy(*PARTITION, "channel").agg(
        f.count(f.when(is_good, 1)).alias("events"),
        f.count(f.when(~is_good, 1)).alias("bad"),
        f.min(f.when(is_good, f.col("ts_ns"))).alias("begin_ns"),
        f.max(f.when(is_good, f.col("ts_ns"))).alias("end_ns"),
        f.min(f.when(is_consumed, f.col("message_id"))).alias("from_id"),
        f.max(f.when(is_consumed & (f.col("event") == "finish"), f.col("message_id"))).alias("done_id"),
    )
    return found.collect()


def is_publish(name: str = "event") -> Column:
    """Return whether an event is the publish of a message."""
    return f.col(name).isin("publish", "put")


def measures() -> list[Column]:
    """Return the aggregates over one message's events in one channel, for batch and stream: numbers only."""

    def when(event: str) -> Column:
        return f.when(f.col("event") == event, f.col("ts_ns"))

    # A text could not be changed in place, so Spark would sort the events instead of hashing them.
    code = f.coalesce(*(f.when(f.col("event") == event, code) for event, code in _CODES.items()))
    return [
        f.max("trace_id").alias("trace_id"),
        f.max("offset").alias("offset"),
        f.coalesce(f.min(f.when(is_publish(), f.col("ts_ns"))), f.min("published_ns")).alias("published_ns"),
        f.min(when("delivery")).alias("first_start_ns"),
        f.max(when("delivery")).alias("last_start_ns"),
        f.min(when("finish")).alias("first_finish_ns"),
        f.max(when("finish")).alias("last_finish_ns"),
        f.min("ts_ns").alias("first_event_ns"),
        f.max("ts_ns").alias("last_event_ns"),
        f.max_by(code, f.when(code.isNotNull(), f.col("ts_ns"))).alias("last_event"),
        *(f.count(when(event)).alias(count) for event, count in _CONSUMED.items()),
    ]


def _outcome(is_lost: Column) -> Column:
    return (
        f.when(f.col("finishes") > 0, "done")
        .when(is_lost, "lost")
        .when(f.col("last_event") == _CODES["timeout"], "timed out")
        .when(f.col("last_event") == _CODES["requeue"], "requeued")
        .otherwise("pending")
    )


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
    minute = f.timestamp_seconds(f.floor(f.col("published_ns") / 60e9) * 60)
    steps = (f.struct(f.lit(name).alias("stage"), (f.col(to) - f.col(start)).alias("ns")) for name, start, to in stages)
    flat = lives.withColumn("minute", minute).select(*by, f.explode(f.array(*steps)).alias("step"))
    unit = f.pow(f.lit(10.0), f.greatest(f.floor(f.log10(f.greatest(f.abs("ns"), f.lit(1)))) - 2, f.lit(0)))
    # Spark's round goes through decimals, which costs more than all the rest.
    rounded = (f.floor(f.col("ns") / unit + 0.5) * unit).cast("bigint")
    exact = flat.select(*by, "step.*").where("ns is not null").withColumns({"ns": rounded, "exact": f.col("ns")})
    return exact.groupBy(*by, "stage", "ns").agg(f.count("*").alias("messages"), f.max("exact").alias("max_ns"))


def percentiles(found: DataFrame, *by: str) -> DataFrame:
    """Return what :func:`latency` does, of the result of :func:`durations` by these columns or more."""
    group = Window.partitionBy(*by, "stage")
    upto, whole = f.sum("messages").over(group.orderBy("ns")), f.sum("messages").over(group)  # up to equal ones, too
    ranked = found.withColumns({"upto": upto, "whole": whole})

    def share(part: float) -> Column:
        reached = f.when(f.col("upto") >= part * f.col("whole"), f.col("ns"))
        return (f.min(reached) / _NS_OF_MS).alias(f"p{part * 100:.0f}_ms")

    return ranked.groupBy(*by, "stage").agg(
        f.sum("messages").alias("messages"),
        *(share(part) for part in (0.5, 0.95, 0.99)),
        (f.max("max_ns") / _NS_OF_MS).alias("max_ms"),
    )
