"""Bulk reads against subscriptions, for ``python -m benchmarks.spark bulk``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType

from benchmarks.spark_rounds import (
    PARTITIONS,
    ROWS,
    interleaved,
    made_body,
    rates,
    ratio,
    summed,
    topic,
    used,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERED_ROWS: Final = 30_000
"""Rows of an ordered topic for a subscription, which has one message under way at a time."""

LOTS: Final = (2, 100, 2000)
"""Messages published at once to two partitions: PUB, and MPUBs of 50 and of 1000."""

LOT_ROWS: Final = 60_000


def _frames(spark: SparkSession, lookupd: str, name: str) -> dict[str, DataFrame]:
    """Return reads of a topic, by label."""
    found: dict[str, DataFrame] = {}
    for fetch in ("subscribe", "bulk"):
        given = {"lookupd": lookupd, "topic": name, "fetch": fetch}
        found[fetch] = spark.read.format("nsq").options(**given).load()
        found[f"{fetch}, only value"] = spark.read.schema("value binary").format("nsq").options(**given).load()
    return found


def bulk(spark: SparkSession, lookupd: str, rounds: int) -> list[str]:
    """Measure reading in bulk."""
    made = f.udf(made_body, BinaryType(), useArrow=False)
    base = "range + pickled function"
    cpu: dict[str, list[float]] = {}
    with topic(lookupd, "bulk", ROWS) as name:
        frames = _frames(spark, lookupd, name)
        frames[base] = spark.range(0, ROWS, 1, PARTITIONS).select(made("id").alias("value"))
        found = interleaved({label: partial(summed, frame, ROWS) for label, frame in frames.items()}, rounds, cpu)
    lines = [rates(found), used(cpu, ROWS)]
    lines += [
        ratio(f"{label} / {base}", found[label], found[base], at_least=least)
        for label, least in (("bulk", 0.6), ("bulk, only value", 0.8))
    ]
    with (
        topic(lookupd, "bulkslow", ORDERED_ROWS, ordered=True) as slow,
        topic(lookupd, "bulkfast", ROWS, ordered=True) as fast,
    ):
        kinds = {
            "ordered, subscribe": partial(summed, _frames(spark, lookupd, slow)["subscribe"], ORDERED_ROWS),
            "ordered, bulk": partial(summed, _frames(spark, lookupd, fast)["bulk"], ROWS),
        }
        found = interleaved(kinds, rounds)
    lines += [
        rates(found),
        ratio("ordered: bulk / subscribe", found["ordered, bulk"], found["ordered, subscribe"], at_least=20),
    ]
    for lot in LOTS:
        with topic(lookupd, f"bulklot{lot}", LOT_ROWS, lot=lot) as name:
            kinds = {
                f"{label}, written by {lot // PARTITIONS}": partial(summed, frame, LOT_ROWS)
                for label, frame in _frames(spark, lookupd, name).items()
            }
            lines.append(rates(interleaved(kinds, rounds)))
    return lines
