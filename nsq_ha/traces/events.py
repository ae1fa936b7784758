"""Parse the lines of trace logs into events, one row each; for batches and streams.

A line is JSON of :mod:`nsq_ha.tracelog`, or a ``[TRACE]`` line of an nsqd's log. Other
lines are skipped; one that begins like a trace line and cannot be parsed becomes a
``bad`` event.

**Source:** Spark design 4; youzan/nsq ``nsqd/tracer.go``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsq_ha.base.identity import PARTITION_MASK, PARTITION_SHIFT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame, SparkSession

REPLAY_PREFIX: Final = "spark-"
"""Prefix of the channels of the connector's own reads, which are not consumers."""

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # at least two letters: C:/ is a drive
_GLOB: Final = re.compile(r"[\[\]{}*?\\]")
_JSON: Final = (
    "event string, time_ns bigint, acknowledged_ns bigint, topic string, partition int, channel string, "
    "internal_id bigint, trace_id decimal(20,0), offset bigint, nsqd string"
)
_PUT: Final = (
    r"\[TRACE\] topic (\S+)-(\d+) trace id (\d+): message (\d+)(?:\( ?\d+\))? put (success|\S+) "
    r".*?at offset: (\d+),.*?at time (\d+)"
)
_CONSUME: Final = (
    r"\[TRACE\] topic (\S+) channel (\S+) trace id (\d+): message (\d+) \(ts: (\d+), offset: (\d+), pri:\S+\) "
    r"consume state (\S+) from client \S*?\(\d+\) at time: (\d+) cost: -?\d+, attempt: \d+"
)
_FIELDS: Final = (
    ("ts_ns", "time_ns", "p7", "c8", "bigint"),
    ("topic", "topic", "p1", "c1", "string"),
    ("given", "partition", "p2", "null", "int"),
    ("channel", "channel", "null", "c2", "string"),
    ("trace_id", "trace_id", "p3", "c3", "decimal(20,0)"),
    ("message_id", "internal_id", "p4", "c4", "bigint"),
    ("offset", "offset", "p6", "c6", "bigint"),
)
"""A column, its name in a client's log, its groups in the lines of a server that puts and delivers, and its type."""

_DERIVED: Final = (
    f"cast(shiftrightunsigned(message_id, {PARTITION_SHIFT}) & {PARTITION_MASK} as int) in_id",
    """case when is_client then parsed.event
        when p4 != '' then if(p5 = 'success', 'publish', 'put')
        when c4 = '' then null
        when c7 = 'START' then 'delivery'
        when c7 like 'FIN%' then 'finish'
        when c7 like 'REQ%' then 'requeue'
        when c7 in ('TIMEOUT', 'DELAY_TIMEOUT') then 'timeout'
        else 'other' end named""",
)
_COLUMNS: Final = (
    "if(is_client, 'client', 'server') side",
    "if(named is null or message_id is null or ts_ns is null, 'bad', named) event",
    *("ts_ns", "topic", "coalesce(given, in_id) partition"),
    # As in a MessageIdentity: in the id of a plain nsqd there is no partition.
    f"if(is_client and shiftrightunsigned(message_id, {PARTITION_SHIFT}) != given, parsed.nsqd, null) nsqd",
    *("channel", "trace_id", "message_id", "offset", "try_cast(nullif(c5, '') as bigint) published_ns"),
    "if(named = 'publish', coalesce(parsed.acknowledged_ns, ts_ns), null) acknowledged_ns",
    "if(is_client, parsed.nsqd, element_at(split(file, '/'), -1)) node",
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
    if isinstance(path, str) and has_scheme(path):
        return path
    local = Path(path)
    if isinstance(path, str) and _GLOB.search(path) and not local.exists():
        return f"file:{local.absolute().as_posix()}"
    # Spark treats a path as a pattern, and does not decode a URL.
    return "file:" + _GLOB.sub(r"\\\g<0>", str(local.resolve(strict=True)))


def base_url(folder: Path | str) -> str:
    """Return a folder, which need not exist, as a URL without a slash at its end."""
    if isinstance(folder, str) and has_scheme(folder):
        return folder.rstrip("/")
    return f"file:{Path(folder).absolute().as_posix()}"


def has_scheme(path: str) -> bool:
    """Return whether a path names its file system, such as ``s3a://bucket`` or ``hdfs:/logs``."""
    return _SCHEME.match(path) is not None


def events(lines: DataFrame) -> DataFrame:
    """Return one row per event.

    Columns: ``side`` (``client`` or ``server``), ``event`` (``publish``, ``put``,
    ``delivery``, ``finish``, ``requeue``, ``timeout``, ``other``, ``bad``),
    ``ts_ns``, ``topic``, ``partition``, ``nsqd`` (of a plain one, whose message ids
    mean nothing elsewhere; otherwise null), ``channel``, ``trace_id`` decimal(20,0),
    ``message_id`` (the server's internal one), ``offset``,
    ``published_ns`` (if the line has it), ``acknowledged_ns``, ``node``. ``ts_ns`` of a
    client's ``publish`` is the time of the
    call, ``acknowledged_ns`` that of the answer (or of the call if the log does not
    have it); a server's ``publish`` has the time of its answer in both.

    Args:
        lines: The result of :func:`read_lines`, or texts: with columns ``value`` and ``file``, the node of a server's
            log.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    line = f.col("value")
    if "parsed" not in lines.columns:
        lines = lines.withColumn("parsed", f.when(line.startswith("{"), f.from_json(line, _JSON)))
    # Spark refuses to read of JSON only what is not, so this names an event as well.
    is_client = f.coalesce(line.startswith("{"), f.lit(True)) | f.col("parsed.event").isNotNull()

    def groups(pattern: str, name: str) -> list[Column]:
        # Not tried on a client's lines, which are JSON: that would cost more than to parse them.
        numbers = range(1, re.compile(pattern).groups + 1)
        return [f.when(~is_client, f.regexp_extract(line, pattern, each)).alias(f"{name}{each}") for each in numbers]

    found = lines.where(is_client | line.contains("[TRACE] topic ")).select(
        is_client.alias("is_client"), "parsed", "file", *groups(_PUT, "p"), *groups(_CONSUME, "c")
    )
    # Not cast() of a server's text, by which a number that is too large fails the query.
    picked = (
        f"if(is_client, cast(parsed.{field} as {kind}), "
        f"try_cast(nullif(if(p4 != '', {put}, {consumed}), '') as {kind})) {name}"
        for name, field, put, consumed, kind in _FIELDS
    )
    return found.selectExpr("*", *picked).selectExpr("*", *_DERIVED).selectExpr(*_COLUMNS)
