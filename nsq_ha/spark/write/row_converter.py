"""Convert the rows of a DataFrame into messages: topic, partition, body, trace id and headers.

This module also counts rows that cannot be published and builds their dead letters; the
option ``onBadRow`` decides between an error and these. It does no I/O (``partition_writer``).

**Source:** Spark design 2.3.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pyarrow as pa

from nsq_ha.errors import ConfigError
from nsq_ha.message import TAG_KEY, TRACE_KEY
from nsq_ha.options.checks import MAX_TAG_BYTES
from nsq_ha.policy.sharding import partition_for
from nsq_ha.protocol.encoding import MAX_EXT_BYTES, MAX_TRACE_ID
from nsq_ha.spark import logger
from nsq_ha.spark.options import WriteOptions

if TYPE_CHECKING:
    from nsq_ha.policy.topology import Node


COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string", "bigint", "int", "smallint", "tinyint", "decimal(p,0)"),
    "partition": ("int", "bigint", "smallint"),
    "topic": ("string",),
    "headers": ("map<string,string>", "array<struct<key:string,value:binary>>"),
    "tag": ("string",),
}
"""Columns of a write, with their allowed types."""

_MAX_HEAD: Final = 3 + MAX_EXT_BYTES  # bytes besides the value that count for a message
_MAX_VALUE: Final = 256 * 1024  # bytes of a bad value that a dead letter keeps
_TRACE_BYTES: Final = len(f',"{TRACE_KEY}":"{MAX_TRACE_ID}"')
_MAX_TEXT: Final = 10_000  # characters of the other fields of a dead letter


class TargetTopic(NamedTuple):
    """A topic to write to, as it was when the write was planned: all tasks use the same number of partitions."""

    topic: str
    partitions: int
    ordered: bool
    extended: bool
    leaders: Mapping[int, Node] = MappingProxyType({})


class OutgoingRow(NamedTuple):
    """One message: topic, partition, body, trace id and headers."""

    topic: str
    partition: int
    body: bytes
    trace_id: int
    ext: bytes


class UnplacedRowError(ConfigError):
    """Equal rows could be in several tasks, so nothing tells a repeated row from an equal one."""


@dataclass(slots=True)
class TraceIds:
    """Trace ids of the rows of one task, from what is stored; equal rows are numbered among themselves.

    The ids stay the same if the task runs again with its rows in another order: equal rows may change places. All rows
    that are equal must be in one task, see :class:`UnplacedRowError`.

    Attributes:
        run: Names the write; the same if it is repeated. Equal rows of other writes have other ids.
        task: Number of the task's partition.
    """

    run: str
    task: int
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def of(self, *parts: bytes) -> int:
        """Return the id of the next row that consists of these parts: 64 bits, never 0."""
        content = hashlib.blake2b(b"".join([b"%d:%s" % (len(part), part) for part in parts]), digest_size=16).digest()
        number = self._numbers[content] = self._numbers.get(content, -1) + 1
        return hashed(b"%s/%d/%s" % (self.run.encode(), number, content))


def hashed(identity: bytes) -> int:
    """Return a trace id of 64 bits, never 0, for something that identifies a row."""
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "big") or 1


@dataclass(slots=True)
class BadRows:
    """The rows of one task that could not be published.

    Attributes:
        dropped: Number of rows that were skipped.
        dead_letters: Number of rows that were published to ``deadLetterTopic`` instead.
        first: Why the first of them was bad. None if there was none.
    """

    dropped: int = 0
    dead_letters: int = 0
    first: str | None = None

    def count(self, reason: str, *, dropped: bool) -> None:
        """Count a row, and log the first one."""
        if self.first is None:
            self.first = reason
            action = "dropped" if dropped else "sent to the dead-letter topic"
            logger.warning("a row was %s: %s; this task only counts further ones", action, reason)
        self.dropped += dropped
        self.dead_letters += not dropped

    def add(self, other: BadRows) -> None:
        """Add the counts of another task."""
        self.dropped += other.dropped
        self.dead_letters += other.dead_letters
        self.first = self.first or other.first

    def __str__(self) -> str:
        """Return the end of a log line; empty if there was no bad row."""
        if self.first is None:
            return ""
        return (
            f"; {self.dropped} rows dropped, {self.dead_letters} sent to the dead-letter topic, the first: {self.first}"
        )


class RowConverter:
    """Converts the record batches of one task into messages, in order.

    Args:
        options: The options of the write.
        targets: Known topics by name.
        find: Returns a topic that is not among them; it raises if its rows cannot be published.
        ids: The trace ids of rows without a declared one.
        origin: Where the rows come from, for dead letters: the ids of query, micro-batch and task.

    Attributes:
        targets: As given, and those found since.
        bad: The rows that could not be published, unless ``onBadRow`` is ``fail``.
    """

    def __init__(
        self,
        options: WriteOptions,
        targets: dict[str, TargetTopic],
        find: Callable[[str], TargetTopic],
        ids: TraceIds,
        origin: Mapping[str, object],
    ) -> None:
        self.bad: BadRows = BadRows()
        self._origin = origin
        self._options = options
        self.targets: dict[str, TargetTopic] = targets
        self._find = find
        self._ids = ids
        self._number = 0
        self._next_partition = ids.task

    def messages(self, batch: Any) -> Iterator[OutgoingRow]:  # noqa: ANN401 - pyarrow has no types
        """Return the messages of a ``pyarrow.RecordBatch``.

        Raises:
            ConfigError: A row cannot be published; the message has its number.
            UnplacedRowError: Rows without a declared trace id are not placed by partition.
        """
        for topic in {*self._topics(columns_of(batch), batch.num_rows)} - {None, *self.targets}:
            self.targets[topic] = self._find(topic)
        if self._options.on_bad_row == "fail":
            return self._all(batch)
        return iter(self._fit(batch))

    def _fit(self, batch: Any) -> list[OutgoingRow]:  # noqa: ANN401 - pyarrow has no types
        """Return the messages of publishable rows; find the others by bisection."""
        began_at = self._next_partition
        try:
            return list(self._all(batch))
        except UnplacedRowError:
            raise
        except ConfigError as error:
            self._next_partition = began_at
            if batch.num_rows == 1:
                return self._refused(batch, str(error))
        middle = batch.num_rows // 2
        return [*self._fit(batch.slice(0, middle)), *self._fit(batch.slice(middle))]

    def _refused(self, batch: Any, reason: str) -> list[OutgoingRow]:  # noqa: ANN401 - pyarrow has no types
        """Count a row that cannot be published; return its dead letter, if wanted."""
        columns, (row,) = columns_of(batch), batch.to_pylist()
        number = self._number
        self._number += 1
        self.bad.count(reason, dropped=self._options.on_bad_row != "deadLetter")
        if self._options.on_bad_row != "deadLetter" or self._options.dead_letter_topic is None:
            return []
        target = self.targets[self._options.dead_letter_topic]
        topic = self._topics(columns, 1)[0]
        trace = 0
        if self._options.trace_id_column is not None:
            trace = self._declared(columns)[0]
        elif self._options.trace:
            # With the task: a bad row may have no partition, and so no place.
            trace = self._ids.of(b"bad", b"%d" % self._ids.task, repr(row).encode())
        at = datetime.datetime.now(datetime.UTC).isoformat()
        body = dead_letter(row, topic, reason, {**self._origin, "row": number, "at": at})
        ext = _with_trace(b"", trace) if target.extended else b""
        return [OutgoingRow(target.topic, number % target.partitions, body, trace, ext)]

    def _all(self, batch: Any) -> Iterator[OutgoingRow]:  # noqa: ANN401 - pyarrow has no types
        """Return the messages of all rows; count none if one of them cannot be published."""
        columns = columns_of(batch)
        count = batch.num_rows
        bodies: list[bytes] = as_binary(columns["value"]).to_pylist()
        topics = self._topics(columns, count)
        if None in topics:
            raise ConfigError(f"row {self._number + topics.index(None)} of the task has no topic")
        if not all(bodies):
            number = next(number for number, body in enumerate(bodies) if not body)
            raise ConfigError(f"row {self._number + number} of the task has no value: NSQ accepts no empty message")
        partitions = self._partitions(columns, topics)
        exts = self._headers(columns, topics)
        if max(map(len, bodies), default=0) > self._options.max_message_bytes - _MAX_HEAD:
            self._check_sizes(topics, bodies, exts)
        # Last, since nothing may fail after rows are numbered.
        traces = self._traces(columns, topics, partitions, bodies, exts)
        self._number += count
        if self._options.trace and any(self.targets[topic].extended for topic in set(topics)):
            exts = [
                _with_trace(ext, trace) if self.targets[topic].extended else ext
                for topic, ext, trace in zip(topics, exts, traces, strict=True)
            ]
        return map(OutgoingRow, topics, partitions, bodies, traces, exts)

    def _topics(self, columns: Mapping[str, Any], count: int) -> list[Any]:
        return [self._options.topic] * count if self._options.topic else columns["topic"].to_pylist()

    def _check_sizes(self, topics: Sequence[str], bodies: Sequence[bytes], exts: Sequence[bytes]) -> None:
        for number, (topic, body, ext) in enumerate(zip(topics, bodies, exts, strict=True)):
            traced = _TRACE_BYTES if self.targets[topic].extended else 8
            head = (3 + len(ext) if self.targets[topic].extended else 0) + traced * self._options.trace
            if len(body) + head > self._options.max_message_bytes:
                raise ConfigError(
                    f"row {self._number + number} of the task has a value of {len(body)} bytes: with headers and trace "
                    f"id the limit is {self._options.max_message_bytes}: set 'maxMessageBytes' if nsqd accepts more, as"
                    f" its --max-msg-size says"
                )

    def _partitions(self, columns: Mapping[str, Any], topics: Sequence[str]) -> list[int]:
        how = self._options.partitioner
        named = columns["partition"].to_pylist() if how == "column" and "partition" in columns else [None] * len(topics)
        only = self.targets[topics[0]] if topics and None not in named and len(set(topics)) == 1 else None
        if only is not None and min(named) >= 0 and max(named) < only.partitions:
            return list(named)
        keys = keys_in(columns["key"]) if how != "roundrobin" and "key" in columns else [None] * len(topics)
        rule: Literal["java", "murmur3"] = "java" if how == "javahash" else "murmur3"
        found: list[int] = []
        for number, (topic, partition, key) in enumerate(zip(topics, named, keys, strict=True)):
            target = self.targets[topic]
            if partition is not None:
                if not 0 <= partition < target.partitions:
                    raise ConfigError(f"partition {partition}: topic {topic!r} has only {target.partitions} partitions")
                found.append(partition)
            elif key is not None:
                found.append(partition_for(key, target.partitions, rule))
            elif target.ordered:
                raise ConfigError(f"row {self._number + number} of the task has no key, and topic {topic!r} is ordered")
            else:
                # Round robin by batches of rows: one connection is busy at a time, and all get the same share.
                self._next_partition += number % self._options.batch_messages == 0
                found.append(self._next_partition % target.partitions)
        return found

    def _traces(
        self,
        columns: Mapping[str, Any],
        topics: Sequence[str],
        partitions: Sequence[int],
        bodies: Sequence[bytes],
        exts: Sequence[bytes],
    ) -> list[int]:
        if self._options.trace_id_column is not None:
            return self._declared(columns)
        if not self._options.trace:
            return [0] * len(topics)
        task, ids = self._ids.task, self._ids.of
        if misplaced := [number for number, partition in enumerate(partitions) if partition != task]:
            number = misplaced[0]
            raise UnplacedRowError(
                f"option 'trace': row {self._number + number} of task {task} goes to partition {partitions[number]}; "
                "equal rows may then be in several tasks, and no id tells them from repeated ones: set 'traceIdColumn' "
                "to a column that says what a row is, such as nsq_ha.spark.functions.row_id() for rows of NSQ or "
                "Kafka, or place the rows with nsq_ha.spark.functions.by_partition, so that each task has one partition"
            )
        return [
            ids(topic.encode(), b"%d" % partition, body, ext)
            for topic, partition, body, ext in zip(topics, partitions, bodies, exts, strict=True)
        ]

    def _declared(self, columns: Mapping[str, Any]) -> list[int]:
        """Return the ids of ``traceIdColumn``: a number as it is, text and bytes hashed; 0 for null."""
        values = columns[str(self._options.trace_id_column)].to_pylist()
        return [
            (value or 0) & MAX_TRACE_ID
            if value is None or isinstance(value, int)
            else hashed(value.encode() if isinstance(value, str) else value)
            for value in values
        ]

    def _headers(self, columns: Mapping[str, Any], topics: Sequence[str]) -> list[bytes]:
        if not any(self.targets[topic].extended for topic in set(topics)):
            return [b""] * len(topics)
        headers = columns["headers"].to_pylist() if "headers" in columns else [None] * len(topics)
        tags = columns["tag"].to_pylist() if "tag" in columns else [None] * len(topics)
        keys = keys_in(columns["key"]) if "key" in columns else [None] * len(topics)
        most = MAX_EXT_BYTES - _TRACE_BYTES * self._options.trace
        return [
            _header(*each, most) if self.targets[topic].extended else b""
            for topic, each in zip(topics, zip(headers, tags, keys, strict=True), strict=True)
        ]


def dead_letter(row: Mapping[str, Any], topic: str | None, reason: str, origin: Mapping[str, object]) -> bytes:
    """Return the body of a dead letter: a JSON object, at most about 400 KiB.

    Args:
        row: The row, by column name.
        topic: The topic of the row.
        reason: Why the row cannot be published.
        origin: Where the row comes from.
    """
    value = row.get("value")
    raw = value.encode() if isinstance(value, str) else value
    letter: dict[str, Any] = {"reason": _short(reason), "topic": topic}
    for name in (name for name in row if name not in ("value", "topic")):
        letter[name] = row[name] if row[name] is None or isinstance(row[name], int) else _short(row[name])
    letter["size"] = None if raw is None else len(raw)
    letter["value"] = None if raw is None else base64.b64encode(raw[:_MAX_VALUE]).decode()
    letter["truncated"] = raw is not None and len(raw) > _MAX_VALUE
    letter["spark"] = origin
    return json.dumps(letter).encode()


def columns_of(batch: Any) -> dict[str, Any]:  # noqa: ANN401 - pyarrow has no types
    """Return the columns of a ``pyarrow.RecordBatch`` by name."""
    return {name: batch.column(at) for at, name in enumerate(batch.schema.names)}


def keys_in(column: Any) -> list[Any]:  # noqa: ANN401
    """Return the keys of a column: decimals, which have no digits after the point, as ints."""
    keys: list[Any] = column.to_pylist()
    return [key if key is None else int(key) for key in keys] if pa.types.is_decimal(column.type) else keys


def as_binary(column: Any) -> Any:  # noqa: ANN401
    """Return a column of bodies, text or bytes, as bytes."""
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _header(headers: object, tag: str | None, key: object, most: int) -> bytes:
    """Return the extension header without the trace id, at most ``most`` bytes."""
    full = _pairs(headers)
    if key is not None and "key" not in dict(full):
        full.insert(0, ("key", _text(key, "key")))
    if tag is not None:
        if not 1 <= len(tag.encode()) <= MAX_TAG_BYTES:
            raise ConfigError(f"tag {tag!r} must have 1..{MAX_TAG_BYTES} bytes")
        full.append((TAG_KEY, tag))
    if not full:
        return b""
    # An object by hand: a dict would lose repeated names.
    ext = ("{" + ",".join([f"{json.dumps(name)}:{json.dumps(value)}" for name, value in full]) + "}").encode()
    if len(ext) > most:
        raise ConfigError(f"headers take {len(ext)} bytes as JSON, but the limit is {most}")
    return ext


def _with_trace(ext: bytes, trace_id: int) -> bytes:
    """Return an extension header with the trace id added."""
    if not trace_id:
        return ext
    entry = b'"%s":"%d"}' % (TRACE_KEY.encode(), trace_id)
    return b"{" + entry if not ext else ext[:-1] + b"," + entry


def _pairs(headers: object) -> list[tuple[str, str]]:
    """Return the headers of a row, a map's or an array's, without those that are null."""
    found: list[tuple[str, str]] = []
    for each in headers if isinstance(headers, list) else ():
        # A map's entries are tuples; an array's are dicts, whose values are bytes.
        name, value = each if isinstance(each, tuple) else ((each or {}).get("key"), (each or {}).get("value"))
        if name is None or value is None:
            continue
        if name.startswith("##"):
            raise ConfigError(
                f"header {name!r}: names with ## belong to the server; use column 'tag' or option 'traceIdColumn'"
            )
        found.append((name, _text(value, name)))
    return found


def _text(value: object, name: str) -> str:
    """Return the value of a header as text; raise if it is not UTF-8, since JSON cannot hold it."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"header {name!r} is not UTF-8 text, which headers of NSQ must be: encode it, such as with base64()"
        ) from error


def _short(value: object) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text[:_MAX_TEXT]
