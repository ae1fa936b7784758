"""Find anomalies in the lives of messages (losses, repeats, wrong order, gaps), and changes of leader.

**Source:** Spark design 4.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from nsq_ha.spark.functions import unsigned
from nsq_ha.spark.trace.lifecycle import PARTITION

KINDS: Final = ("lost", "repeated", "out_of_order", "gap")
"""Kinds of anomalies."""

_OF_MESSAGES: Final = ("side", "topic", "partition", "channel", "message_id", "trace_id")
"""The columns of an anomaly that those of messages have, too."""


def anomalies(lives: DataFrame, *, ordered: Collection[str] = ()) -> DataFrame:
    """Return one row per anomaly: its ``kind``, the columns of the message, ``ts_ns`` and ``detail``.

    * ``lost``: its outcome is ``lost``.
    * ``repeated``: finished more than once, or delivered again after a finish.
    * ``out_of_order``: first delivered after a later message of its partition, in a topic of ``ordered``.

    Args:
        lives: The result of :func:`nsq_ha.spark.trace.lifecycle.lifecycle`.
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
    waited = f.col("acknowledged_ns") - f.col("ts_ns")
    second = f.floor(f.col("acknowledged_ns") / 1e9).alias("second")
    return (
        events.where("event = 'publish'")
        .groupBy("side", "topic", "partition", "node", second)
        .agg(
            f.min("acknowledged_ns").alias("ts_ns"),
            f.max(waited).alias("longest_ns"),
            f.max_by("ts_ns", waited).alias("called_ns"),
        )
    )


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
