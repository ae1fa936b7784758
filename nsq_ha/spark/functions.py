"""Helpers for DataFrames: partitions of keys, dropping repeats, decoding JSON and setting bad rows aside.

The dead letters that :func:`split_bad` makes have the forms of ``nsq_ha.dead_letters``, whose readers and commands
understand them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf  # no pandas in spite of its name
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from nsq_ha.dead_letters.provenance import MAX_ERROR
from nsq_ha.dead_letters.writing import MAGIC, PREFIX, VERSION
from nsq_ha.errors import ConfigError
from nsq_ha.policy import sharding
from nsq_ha.spark.write.row_converter import keys_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import Column, DataFrame

Rule = Literal["murmur3", "java"]
"""The hash of a key: that of the Go clients or that of the Java client."""


_CORRUPT: Final = "_nsq_ha_corrupt"
_ORIGIN: Final = ("value", "topic", "partition", "timestamp", "message_id", "trace_id", "attempts")
_ALL_IDS: Final = "18446744073709551616"  # 2 to the 64th, too large for an int of Java


class Split(NamedTuple):
    """Rows set apart by :func:`split_bad`.

    Attributes:
        good: The rows without an error, without the column of the error.
        bad: A dead letter for each other row: ``key``, ``value``, ``headers`` unless in envelopes, and what is kept.
    """

    good: DataFrame
    bad: DataFrame


def partition_for(key: Column | str, partitions: int, rule: Rule = "murmur3") -> Column:
    """Return the partition of a key on a topic, as a column of type int.

    The same rule as :class:`nsq_ha.Producer`, so that other programs choose the same
    partition for a key. Spark's own ``hash`` is another function.

    Args:
        key: Column of type binary, string, integer or decimal without digits after the point. Null gives null.
        partitions: Number of partitions of the topic, from its lookup.
        rule: The hash; ``java`` accepts strings and integers only.

    Raises:
        ConfigError: ``partitions`` is not positive, or the rule is unknown. A key
            that the rule does not accept fails the task.
    """
    if partitions < 1:
        raise ConfigError(f"partitions must be positive, not {partitions}: take it from the topic's lookup")
    hash_of = sharding.hasher(rule)

    def place(keys: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
        return pa.array([None if each is None else hash_of(each) % partitions for each in keys_in(keys)], pa.int32())

    # Spark detects the kind of function by its annotations, which are text in this module.
    place.__annotations__ = {"keys": pa.Array, "return": pa.Array}
    placed: Callable[[Column], Column] = arrow_udf(place, IntegerType())  # type: ignore[call-overload]
    return placed(f.col(key) if isinstance(key, str) else key)


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


def row_id(*columns: Column | str) -> Column:
    """Return what a row is, as text for the option ``traceIdColumn`` of a write.

    Args:
        columns: Columns that together tell a row from all others, and that are the same if it is computed again. By
            default the place of a message in its source, ``topic``, ``partition``, ``offset`` and ``timestamp``, for
            rows of ``format("nsq")`` and of Spark's Kafka connector; the time tells a re-created topic from the one
            before. If a message becomes several rows, add what tells these apart. Never add a position that Spark
            chooses, such as ``monotonically_increasing_id``, or the time of the query.
    """
    named: list[Column] = [f.col(each) if isinstance(each, str) else each for each in columns]
    if not columns:
        named = [f.col("topic"), f.col("partition"), f.col("offset"), f.unix_micros("timestamp").alias("micros")]
    # As JSON, since no two lists of values give the same text.
    return f.to_json(f.struct(*named), {"ignoreNullFields": "false"})


def drop_repeats(frame: DataFrame, within: str | None = None) -> DataFrame:
    """Drop rows that a repeated task or a repeated publish stored more than once.

    Rows are the same if topic and trace id are; rows without a trace id (0, or null) stay.
    Write with ``traceIdColumn`` and :func:`row_id`, or with ``trace``, for this to work.

    Args:
        frame: A read of ``format("nsq")`` with ``topic``, ``partition``, ``offset`` and ``trace_id``, and on a
            stream also ``timestamp``.
        within: On a stream, how far apart repeats may be by publish time, such as ``10 minutes``; Spark
            remembers the ids for this time. It is a watermark: Spark also drops rows whose publish lies further
            behind the newest row, so it must be above the longest time for which a partition may wait. None for a
            batch.

    Raises:
        ConfigError: ``frame`` is a stream, and ``within`` is missing.
    """
    if frame.isStreaming and within is None:
        raise ConfigError(
            "drop_repeats on a stream needs within=, such as '10 minutes': Spark remembers ids for this time"
        )
    place = f.concat_ws("/", f.coalesce(f.col("partition").cast("string"), f.lit("")), f.col("offset"))
    named = frame.withColumn(
        "_repeat", f.coalesce(f.when(f.col("trace_id") != 0, f.col("trace_id").cast("string")), place)
    )
    same = ["topic", "_repeat"]
    if within is None:
        return named.dropDuplicates(same).drop("_repeat")
    return named.withWatermark("timestamp", within).dropDuplicatesWithinWatermark(same).drop("_repeat")


def decode_json(
    frame: DataFrame,
    schema: StructType | str,
    *,
    column: str = "value",
    required: Sequence[str] = (),
    into: str = "data",
    error: str = "error",
) -> DataFrame:
    """Decode JSON bodies, and say for each row what is wrong with it instead of failing the query.

    Args:
        frame: Rows with the column.
        schema: The fields to read from the JSON object: a StructType, or DDL such as ``"id bigint, total double"``.
        column: Name of the column with the JSON, binary or string.
        required: Names of fields that must be there and not null.
        into: Name of the new column with the fields. Null in bad rows.
        error: Name of the new column with the reason. Null in good rows.

    Returns:
        ``frame`` with both columns; see :func:`split_bad`.

    Raises:
        ConfigError: A required field is not in the schema.
    """
    text = f.col(column).cast("string")
    corrupt = StructField(_CORRUPT, StringType())
    whole = f"{schema}, {_CORRUPT} string" if isinstance(schema, str) else StructType([*schema.fields, corrupt])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    # Spark moves a filter on the error below the column, with a copy of it for each use: it would parse a body once for
    # each required field. It moves no filter below explode.
    decoded = frame.withColumn(into, f.explode(f.array(f.from_json(text, whole, options))))
    fields = decoded.schema[into].dataType
    known = [field.name for field in fields.fields if field.name != _CORRUPT] if isinstance(fields, StructType) else []
    if unknown := [name for name in required if name not in known]:
        raise ConfigError(
            f"decode_json requires the field {unknown[0]!r}, which is not in the schema: {', '.join(known)}"
        )
    data = f.col(into)
    reason = (
        f.when(f.col(column).isNull(), "there is no body")
        .when(
            data.isNull() | data[_CORRUPT].isNotNull(),
            f"the body is not a JSON object, or a field of {', '.join(known)} has another type",
        )
        .otherwise(None)
    )
    for name in required:
        reason = f.coalesce(reason, f.when(data[name].isNull(), f"field {name} is missing or null"))
    is_good = f.col(error).isNull()
    return decoded.withColumn(error, reason).withColumn(into, f.when(is_good, data.dropFields(_CORRUPT)))


def unsigned(trace_id: Column) -> Column:
    """Return a trace id as decimal(20,0), without the sign that a read shows: Spark has no unsigned numbers."""
    number = trace_id.cast("decimal(20,0)")
    return f.when(number < 0, number + f.lit(_ALL_IDS).cast("decimal(20,0)")).otherwise(number)


def split_bad(frame: DataFrame, *, error: str = "error", envelope: bool = False, keep: Sequence[str] = ()) -> Split:
    """Set rows with an error apart, as dead letters for a write to a dead-letter topic.

    Each dead letter has the body and where it came from: topic, partition, id, trace id and time of the publish, the
    error, and the time of this query. ``nsq_ha.dead_letters.DeadLetter`` reads it. ``key`` keeps the order of a
    partition.

    Args:
        frame: Rows of ``format("nsq")`` with ``value``, ``topic``, ``partition``, ``timestamp``, ``message_id``,
            ``trace_id`` and ``attempts``, and with the error.
        error: Name of the column with the reason; rows with null are good.
        envelope: Whether to put all this in front of the body. Otherwise it goes into headers, which only extended
            topics accept.
        keep: Names of columns that the dead letters have as well, such as that of ``traceIdColumn``, made by
            :func:`row_id`.

    Raises:
        ConfigError: A column is missing.
    """
    if missing := [name for name in (*_ORIGIN, error, *keep) if name not in frame.columns]:
        raise ConfigError(
            f"split_bad needs the column {missing[0]!r} of format('nsq'); there are: {', '.join(frame.columns)}"
        )
    fields = {
        "topic": f.col("topic"),
        "partition": f.col("partition").cast("string"),
        "channel": f.lit("spark"),
        "nsqd": f.lit(""),
        "id": f.lower(f.hex("message_id")),
        "trace_id": unsigned(f.coalesce("trace_id", f.lit(0))).cast("string"),
        "attempts": f.col("attempts").cast("string"),
        "timestamp_ns": (f.unix_micros("timestamp") * 1000).cast("string"),
        "given_up_at": f.date_format(f.current_timestamp(), "yyyy-MM-dd'T'HH:mm:ss.SSSSSSxxx"),
        "reason": f.lit("failed"),
        "error_type": f.lit("BadRow"),
        "error": f.substring(f.col(error).cast("string"), 1, MAX_ERROR),
    }
    rows = frame.where(f.col(error).isNotNull())
    key = f.concat_ws("-", "topic", fields["partition"]).cast("binary")
    body = f.coalesce(f.col("value").cast("binary"), f.lit(b""))
    if envelope:
        line = f.to_json(
            f.struct(*[text.alias(name) for name, text in fields.items()], f.length(body).cast("string").alias("size"))
        )
        begin = f.lit(f"{MAGIC.decode()}{VERSION} ")
        columns = [f.concat(f.concat(begin, line, f.lit("\n")).cast("binary"), body).alias("value")]
    else:
        headers = [f.lit(f"{PREFIX}version"), f.lit(VERSION)]
        for name, text in fields.items():
            headers += [f.lit(f"{PREFIX}{name}"), text]
        columns = [body.alias("value"), f.create_map(*headers).alias("headers")]
    return Split(frame.where(f.col(error).isNull()).drop(error), rows.select(key.alias("key"), *columns, *keep))
