"""Parse the lines of trace logs into events, one row each; for batches and streams.

A line is JSON of :mod:`nsq_ha.tracelog`, or a ``[TRACE]`` line of an nsqd's log. Other
lines are skipped; one that begins like a trace line and cannot be parsed becomes a
``bad`` event.

**Source:** Spark design 4; youzan/nsq ``nsqd/tracer.go``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from nsq_ha.base.identity import PARTITION_MASK, PARTITION_SHIFT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

REPLAY_PREFIX: Final = "spark-"
"""Prefix of the channels of the connector's own reads, which are not consumers."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # at least two letters: C:/ is a drive
_GLOB: Final = re.compile(r"[\[\]{}*?\\]")
_JSON: Final = (
    "event string, time_ns bigint, acknowledged_ns bigint, topic string, partition int, channel string, "
    "internal_id bigint, trace_id decimal(20,0), offset bigint, attempt int, nsqd string"
)
_PUT: Final = (
    r"\[TRACE\] topic (\S+)-(\d+) trace id (\d+): message (\d+)(?:\( ?\d+\))? put (success|\S+) "
    r".*?at offset: (\d+),.*?at time (\d+)"
)
_CONSUME: Final = (
    r"\[TRACE\] topic (\S+) channel (\S+) trace id (\d+): message (\d+) \(ts: (\d+), offset: (\d+), pri:\S+\) "
    r"consume state (\S+) from client (\S*?)\(\d+\) at time: (\d+) cost: (-?\d+), attempt: (\d+)"
)
_STATES: Final = (
    ("delivery", r"^START$"),
    ("finish", r"^FIN"),
    ("requeue", r"^REQ"),
    ("timeout", r"^(DELAY_)?TIMEOUT$"),
)


def read_lines(spark: SparkSession, paths: Iterable[Path | str]) -> DataFrame:
    """Return the lines of log files, each with the name of its file: parsed, or as ``value`` if it is not JSON.

    Args:
        spark: The session, local or of a cluster.
        paths: As for :func:`url_of`: files, folders, patterns and URLs.

    Raises:
        FileNotFoundError: A file of this machine does not exist. Spark reports other missing ones.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - an extra

    # Spark reads JSON in half of the time that it takes to read text and parse that.
    reader = spark.read.schema(f"{_JSON}, value string").option("columnNameOfCorruptRecord", "value")
    found = reader.json([url_of(path) for path in paths])
    parsed = f.struct(*(name for name in found.columns if name != "value")).alias("parsed")
    return found.select("value", parsed, f.input_file_name().alias("file"))


def url_of(path: Path | str) -> str:
    """Return a path as Spark takes it.

    Args:
        path: A text with a scheme, such as ``s3a://bucket/trace/*.jsonl`` or ``hdfs:/logs``, goes to Spark as it is;
            it may be a pattern. Anything else is a path of this machine: a file or folder that exists, or else, as
            text only, a pattern. A cluster's workers must see it at the same place.

    Raises:
        FileNotFoundError: The file does not exist, and it is not a pattern.
    """
    from pathlib import Path  # noqa: PLC0415 - only for its own kind here

    if isinstance(path, str) and has_scheme(path):
        return path
    local = Path(path)
    if isinstance(path, str) and _GLOB.search(path) and not local.exists():
        return f"file:{local.absolute().as_posix()}"
    # Spark treats a path as a pattern, and does not decode a URL.
    return "file:" + _GLOB.sub(r"\\\g<0>", str(local.resolve(strict=True)))


def has_scheme(path: str) -> bool:
    """Return whether a path names its file system, such as ``s3a://bucket`` or ``hdfs:/logs``."""
    return _SCHEME.match(path) is not None


def events(lines: DataFrame) -> DataFrame:
    """Return one row per event.

    Columns: ``side`` (``client`` or ``server``), ``event`` (``publish``, ``put``,
    ``delivery``, ``finish``, ``requeue``, ``timeout``, ``other``, ``bad``),
    ``ts_ns``, ``topic``, ``partition``, ``nsqd`` (of a plain one, whose message ids
    mean nothing elsewhere; otherwise null), ``channel``, ``trace_id`` decimal(20,0),
    ``message_id`` (the server's internal one), ``offset``, ``attempt``,
    ``published_ns`` (if the line has it), ``acknowledged_ns``, ``cost_ns``,
    ``client``, ``node``. ``ts_ns`` of a client's ``publish`` is the time of the
    call, ``acknowledged_ns`` that of the answer (or of the call if the log does not
    have it); a server's ``publish`` has the time of its answer in both.

    Args:
        lines: The result of :func:`read_lines`, or texts: with columns ``value`` and ``file``, the node of a server's
            log.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    if "file" not in lines.columns:
        lines = lines.withColumn("file", f.lit(None).cast("string"))
    line = f.col("value")
    if "parsed" not in lines.columns:
        lines = lines.withColumn("parsed", f.when(line.startswith("{"), f.from_json(line, _JSON)))
    # Spark refuses to read of JSON only what is not, so this names an event as well.
    is_client = f.coalesce(line.startswith("{"), f.lit(True)) | f.col("parsed.event").isNotNull()
    parsed = lines.where(is_client | line.contains("[TRACE] topic ")).select(
        f.when(is_client, "client").otherwise("server").alias("side"),
        "parsed",
        # Not tried on a client's lines, which are JSON: that would cost more than to parse them.
        *(f.when(~is_client, f.regexp_extract(line, _PUT, group)).alias(f"p{group}") for group in range(1, 8)),
        *(f.when(~is_client, f.regexp_extract(line, _CONSUME, group)).alias(f"c{group}") for group in range(1, 12)),
        f.element_at(f.split("file", "/"), -1).alias("file"),
    )
    return parsed.select("side", *_columns())


def _columns() -> list[Column]:
    from pyspark.sql import functions as f  # noqa: PLC0415

    parsed = f.col("parsed")
    is_client, is_put = f.col("side") == "client", f.col("p4") != ""

    def pick(field: str, put: str | None, consumed: str | None, kind: str) -> Column:
        server = f.when(is_put, f.col(put) if put else f.lit(None)).otherwise(
            f.col(consumed) if consumed else f.lit(None)
        )
        # Not cast(), by which a number that is too large fails the query.
        return f.when(is_client, parsed[field].cast(kind)).otherwise(f.nullif(server, f.lit("")).try_cast(kind))

    message_id = pick("internal_id", "p4", "c4", "bigint")
    of_id = f.shiftrightunsigned(message_id, PARTITION_SHIFT)
    state = f.lit("other")
    for name, pattern in _STATES:
        state = f.when(f.col("c7").rlike(pattern), name).otherwise(state)
    put = f.when(f.col("p5") == "success", "publish").otherwise("put")
    event = f.when(is_client, parsed["event"]).when(is_put, put).when(f.col("c4") != "", state)
    times = pick("time_ns", "p7", "c9", "bigint")
    is_bad = event.isNull() | message_id.isNull() | times.isNull()
    return [
        f.when(is_bad, "bad").otherwise(event).alias("event"),
        times.alias("ts_ns"),
        pick("topic", "p1", "c1", "string").alias("topic"),
        f.coalesce(pick("partition", "p2", None, "int"), of_id.bitwiseAND(f.lit(PARTITION_MASK)).cast("int")).alias(
            "partition"
        ),
        # As in a MessageIdentity: in the id of a plain nsqd there is no partition.
        f.when(is_client & (of_id != parsed["partition"]), parsed["nsqd"]).alias("nsqd"),
        pick("channel", None, "c2", "string").alias("channel"),
        pick("trace_id", "p3", "c3", "decimal(20,0)").alias("trace_id"),
        message_id.alias("message_id"),
        pick("offset", "p6", "c6", "bigint").alias("offset"),
        pick("attempt", None, "c11", "int").alias("attempt"),
        f.when(~is_client, f.nullif(f.col("c5"), f.lit("")).try_cast("bigint")).alias("published_ns"),
        f.when(event == "publish", f.coalesce(parsed["acknowledged_ns"], times)).alias("acknowledged_ns"),
        f.when(~is_client, f.nullif(f.col("c10"), f.lit("")).try_cast("bigint")).alias("cost_ns"),
        f.when(~is_client, f.nullif(f.col("c8"), f.lit(""))).alias("client"),
        f.when(is_client, parsed["nsqd"]).otherwise(f.col("file")).alias("node"),
    ]
