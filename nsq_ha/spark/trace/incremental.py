"""Keep a table of message lives by day, from trace logs that keep coming.

Each run of the query takes the new files of a folder, stores their events by day, and
computes the lives of the days again that these events can change. Both steps replace
what an interrupted run has left, so every event counts once, however often a run is
repeated and however late a file comes.

**Source:** Spark design 4.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from nsq_ha.spark.trace.events import events, has_scheme, url_of
from nsq_ha.spark.trace.lifecycle import lifecycle

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_DAY_NS: Final = 86_400_000_000_000


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
        logs: Folder, or pattern, as for :func:`nsq_ha.spark.trace.events.url_of`. A file must be complete when it
            appears there, so move rotated logs into it; lines that are added later are not read.
        table: Folder for the lives, the events and the query's checkpoint; created if it is missing.
        grace_s: As for :func:`nsq_ha.spark.trace.lifecycle.lifecycle`.
        days: Maximum number of days between the first and the last event of a message. Each run reads that many more
            days of events on either side.

    Raises:
        FileNotFoundError: ``logs`` is a folder of this machine that does not exist.
    """
    base = table.rstrip("/") if isinstance(table, str) and has_scheme(table) else f"file:{Path(table).absolute()}"
    lines = spark.readStream.text(url_of(logs)).select("value", f.input_file_name().alias("file"))

    def add(batch: DataFrame, number: int) -> None:
        _add(batch, number, base, grace_s, days)

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
