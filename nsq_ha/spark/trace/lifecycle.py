"""Join events to lives: one row per message and channel with its times, counts and outcome; compute latencies.

Trace ids may repeat, so events are joined by topic and the server's message id. This id
grows within a partition, so it is also the order of messages without offsets.

**Source:** Spark design 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY: Final = ("side", "topic", "partition", "message_id")
STAGES: Final = (
    ("publish_to_start", "published_ns", "first_start_ns"),
    ("start_to_finish", "first_start_ns", "first_finish_ns"),
    ("publish_to_finish", "published_ns", "first_finish_ns"),
)
"""Name of a stage, its start and its end."""

_NS_OF_MS: Final = 1e6


def lifecycle(events: DataFrame, *, grace_s: float = 60.0) -> DataFrame:
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
    """
    published = (
        events.where("event in ('publish', 'put')")
        .groupBy(*KEY)
        .agg(
            f.min("ts_ns").alias("put_ns"),
            f.max("offset").alias("put_offset"),
            f.max("trace_id").alias("put_trace_id"),
        )
    )
    through = per_channel(events)
    reach = through.groupBy("side", "topic", "partition", "channel").agg(
        f.min("message_id").alias("from_id"),
        f.max(f.when(f.col("finishes") > 0, f.col("message_id"))).alias("done_id"),
    )
    due = published.join(f.broadcast(reach), ["side", "topic", "partition"]).where("message_id >= from_id")
    due = due.drop("from_id", "done_id")
    ends = events.groupBy("side").agg(f.max("ts_ns").alias("log_end_ns"))
    joined = due.join(through, [*KEY, "channel"], "full").join(
        f.broadcast(reach.drop("from_id")), ["side", "topic", "partition", "channel"], "left"
    )
    lives = joined.join(f.broadcast(ends), "side").select(
        *KEY,
        "channel",
        f.coalesce("put_trace_id", "trace_id").alias("trace_id"),
        f.coalesce("put_offset", "offset").alias("offset"),
        f.coalesce("put_ns", "published_ns").alias("published_ns"),
        "first_start_ns",
        "first_finish_ns",
        "last_finish_ns",
        "last_start_ns",
        f.least("put_ns", "first_event_ns").alias("first_event_ns"),  # skips nulls
        f.greatest("put_ns", "last_event_ns").alias("last_event_ns"),
        *(f.coalesce(f.col(name), f.lit(0)).alias(name) for name in ("deliveries", "finishes", "requeues", "timeouts")),
        "last_event",
        "done_id",
        "log_end_ns",
    )
    is_late = f.col("log_end_ns") - f.col("published_ns") >= int(grace_s * 1e9)
    is_lost = is_late & (f.col("done_id") > f.col("message_id"))
    return lives.withColumn("outcome", _outcome(is_lost)).drop("done_id", "log_end_ns", "last_event")


def per_channel(events: DataFrame) -> DataFrame:
    """Return one row per channel and message delivered to it."""
    return (
        events.where("channel is not null and event in ('delivery', 'finish', 'requeue', 'timeout')")
        .groupBy(*KEY, "channel")
        .agg(*measures())
    )


def measures() -> list[Column]:
    """Return the aggregates over one message's events in one channel, for batch and stream."""

    def when(event: str) -> Column:
        return f.when(f.col("event") == event, f.col("ts_ns"))

    return [
        f.max("trace_id").alias("trace_id"),
        f.max("offset").alias("offset"),
        f.min("published_ns").alias("published_ns"),
        f.min(when("delivery")).alias("first_start_ns"),
        f.max(when("delivery")).alias("last_start_ns"),
        f.min(when("finish")).alias("first_finish_ns"),
        f.max(when("finish")).alias("last_finish_ns"),
        f.min("ts_ns").alias("first_event_ns"),
        f.max("ts_ns").alias("last_event_ns"),
        f.max_by("event", "ts_ns").alias("last_event"),
        f.count(when("delivery")).alias("deliveries"),
        f.count(when("finish")).alias("finishes"),
        f.count(when("requeue")).alias("requeues"),
        f.count(when("timeout")).alias("timeouts"),
    ]


def _outcome(is_lost: Column) -> Column:
    return (
        f.when(f.col("finishes") > 0, "done")
        .when(is_lost, "lost")
        .when(f.col("last_event") == "timeout", "timed out")
        .when(f.col("last_event") == "requeue", "requeued")
        .otherwise("pending")
    )


def latency(lives: DataFrame, *by: str) -> DataFrame:
    """Return percentiles in milliseconds of each stage, by columns such as ``topic``, ``partition``, ``minute``.

    This function adds ``minute``, the start of the minute of the publish. Columns:
    ``stage``, ``messages``, ``p50_ms``, ``p95_ms``, ``p99_ms``, ``max_ms``.

    Args:
        lives: The result of :func:`lifecycle`.
        *by: Columns to group by; without any, all lives are one group.
    """
    minute = f.timestamp_seconds(f.floor(f.col("published_ns") / 60e9) * 60)
    stages = f.explode(
        f.array(
            *(
                f.struct(f.lit(name).alias("stage"), ((f.col(to) - f.col(start)) / _NS_OF_MS).alias("ms"))
                for name, start, to in STAGES
            )
        )
    )
    flat = lives.withColumn("minute", minute).select(*by, stages.alias("step")).select(*by, "step.*")
    percents = f.percentile_approx("ms", f.array(*(f.lit(share) for share in (0.5, 0.95, 0.99))), 10_000)
    return (
        flat.where("ms is not null")
        .groupBy(*by, "stage")
        .agg(f.count("*").alias("messages"), percents.alias("p"), f.max("ms").alias("max_ms"))
        .select(
            *by,
            "stage",
            "messages",
            *(f.col("p")[at].alias(name) for at, name in enumerate(("p50_ms", "p95_ms", "p99_ms"))),
            "max_ms",
        )
    )


def split(lives: DataFrame) -> DataFrame:
    """Return the time to the server, inside it and back, for messages that are in both logs.

    Columns: the key without ``side``, ``channel``, ``to_server_ms``, ``in_server_ms``, ``to_client_ms``. The times
    to the server and to the client compare the clocks of two machines, so they are only as exact as those.
    """
    on = ["topic", "partition", "message_id", "channel"]
    mine, theirs = lives.where("side = 'client'").alias("c"), lives.where("side = 'server'").alias("s")
    return mine.join(theirs, on).select(
        *on,
        ((f.col("s.published_ns") - f.col("c.published_ns")) / _NS_OF_MS).alias("to_server_ms"),
        ((f.col("s.first_start_ns") - f.col("s.published_ns")) / _NS_OF_MS).alias("in_server_ms"),
        ((f.col("c.first_start_ns") - f.col("s.first_start_ns")) / _NS_OF_MS).alias("to_client_ms"),
    )


def lifecycle_stream(events: DataFrame, *, grace: str = "1 minute") -> DataFrame:
    """Return lives from a stream of events; one row per message, after ``grace`` without an event.

    Spark keeps state for messages with events within ``grace``. A row without
    ``channel`` is the publish. An outcome is ``done``, ``timed out``,
    ``requeued`` or ``pending``; only the whole log shows that a message is lost.

    Args:
        events: The result of :func:`nsq_ha.spark.trace.events.events`; a stream.
        grace: A duration in Spark's notation.
    """
    timed = events.where("ts_ns is not null").withColumn(
        "at", f.timestamp_micros((f.col("ts_ns") / 1000).cast("bigint"))
    )
    lives = timed.withWatermark("at", grace).groupBy(*KEY, "channel", f.session_window("at", grace)).agg(*measures())
    return lives.withColumn("outcome", _outcome(f.lit(False))).drop("session_window", "last_event")
