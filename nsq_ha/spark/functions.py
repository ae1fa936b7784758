"""Helpers for DataFrames: compute the partition of a key, group rows by partition, drop repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from nsq_ha.errors import ConfigError
from nsq_ha.policy import sharding

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

Rule = Literal["murmur3", "java"]
"""The hash of a key: that of the Go clients or that of the Java client."""


def partition_for(key: Column | str, partitions: int, rule: Rule = "murmur3") -> Column:
    """Return the partition of a key on a topic, as a column of type int.

    The same rule as :class:`nsq_ha.Producer`, so that other programs choose the same
    partition for a key. Spark's own ``hash`` is another function.

    Args:
        key: Column of type binary, string or integer. Null gives null.
        partitions: Number of partitions of the topic, from its lookup.
        rule: The hash; ``java`` accepts strings and integers only.

    Raises:
        ConfigError: ``partitions`` is not positive, or the rule is unknown. A key
            that the rule does not accept fails the task.
    """
    import pyarrow as pa  # noqa: PLC0415 - pyspark and pyarrow are an extra
    from pyspark.sql.functions import col  # noqa: PLC0415
    from pyspark.sql.pandas.functions import arrow_udf  # noqa: PLC0415 - no pandas in spite of its name
    from pyspark.sql.types import IntegerType  # noqa: PLC0415

    if partitions < 1:
        raise ConfigError(f"partitions must be positive, not {partitions}: take it from the topic's lookup")
    hash_of = sharding.hasher(rule)

    def place(keys: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
        return pa.array([None if each is None else hash_of(each) % partitions for each in keys.to_pylist()], pa.int32())

    # Spark detects the kind of function by its annotations, which are text in this module.
    place.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    placed: Callable[[Column], Column] = arrow_udf(place, IntegerType())  # type: ignore[call-overload]
    return placed(col(key) if isinstance(key, str) else key)


def by_partition(frame: DataFrame, partitions: int, key: str = "key", rule: Rule = "murmur3") -> DataFrame:
    """Add the column ``partition`` and send each partition's rows to one task, for a write in order.

    Follow it with ``sortWithinPartitions`` if the order of rows matters, then
    write: rows of one key reach their partition in that order.

    Args:
        frame: Rows with the column ``key``.
        partitions: Number of partitions of the topic.
        key: Name of the key's column; no row may have null there.
        rule: As for :func:`partition_for`.
    """
    placed = frame.withColumn("partition", partition_for(key, partitions, rule))
    return placed.repartitionById(partitions, "partition")


def drop_repeats(frame: DataFrame, within: str | None = None) -> DataFrame:
    """Drop rows that a repeated task or a repeated publish stored more than once.

    Rows are the same if topic and trace id are; rows without a trace id (0) stay.
    Write with ``trace`` or ``traceIdColumn`` for this to work.

    Args:
        frame: A read of ``format("nsq")`` with ``topic``, ``partition``, ``offset`` and ``trace_id``, and on a
            stream also ``timestamp``.
        within: On a stream, how far apart repeats may be by publish time, such as ``10 minutes``; Spark
            remembers the ids for this time. None for a batch.

    Raises:
        ConfigError: ``frame`` is a stream, and ``within`` is missing.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    if frame.isStreaming and within is None:
        raise ConfigError(
            "drop_repeats on a stream needs within=, such as '10 minutes': Spark remembers ids for this time"
        )
    place = f.concat_ws("/", f.col("partition"), f.col("offset"))
    named = frame.withColumn(
        "_repeat", f.when(f.col("trace_id") == 0, place).otherwise(f.col("trace_id").cast("string"))
    )
    if within is None:
        kept = named.dropDuplicates(["topic", "_repeat"])
    else:
        kept = named.withWatermark("timestamp", within).dropDuplicatesWithinWatermark(["topic", "_repeat"])
    return kept.drop("_repeat")
