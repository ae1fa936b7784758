"""Columns of ``format("nsq")``: build Arrow record batches from messages.

``COLUMNS`` is the table of columns: name, Spark type, Arrow type and how to build a
column, from messages and from bytes without objects. A read builds only the columns of
the schema that Spark passes, which is the only pruning that Spark allows a Python source.

**Source:** Spark design 2.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from nsq_ha.base.identity import is_upstream_id
from nsq_ha.errors import ConfigError
from nsq_ha.message import Message
from nsq_ha.spark.read.bulk.cutting import StoredMessages

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql.types import StructType

_MAX_SHORT: Final = 2**15 - 1

Messages = Sequence[Message]


class SourceColumn(NamedTuple):
    """One column: its type in Spark and in Arrow, and the functions that build it from messages and from bytes."""

    spark_type: str
    arrow_type: Any
    of_messages: Callable[[Messages], Any]
    of_raw: Callable[[StoredMessages], Any]


class _Object(dict[str, object]):
    """A JSON object that also knows its repeated names."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def _header(ext: bytes) -> _Object | None:
    """Return a decoded extension header. None if it is not a JSON object.

    Other programs write headers; the message itself is intact, so the read must not fail.
    """
    try:
        header = json.loads(ext or b"{}", object_pairs_hook=_Object)
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, _Object) else None


_TEXTS: Final = msgspec.json.Decoder(dict[str, str])


def _texts(ext: bytes, *, unrepeated: bool) -> dict[str, str] | None:
    """Return a header whose values are all text, as nearly all are; in a fifth of the time of :func:`_header`.

    None if :func:`_header` must decode it; with ``unrepeated`` also if a name may be repeated.
    """
    try:
        found = _TEXTS.decode(ext or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # Without escapes, four quotes are one pair.
    if unrepeated and (b"\\" in ext or ext.count(b'"') != 4 * len(found)):
        return None
    return found


def _list_of(offsets: Any, names: Any, values: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    pairs = pa.StructArray.from_arrays([names, values.cast(pa.binary())], ["key", "value"])
    return pa.ListArray.from_arrays(offsets, pairs).cast(HEADER_ARRAY.arrow_type)


def _of_pairs(
    spark_type: str,
    arrow_type: Any,  # noqa: ANN401 - pyarrow has no types
    assemble: Callable[[Any, Any, Any], Any],
    *,
    repeated: bool,
) -> SourceColumn:
    """Return a column of all headers; with ``repeated`` all values of a repeated name, in their order.

    From flat lists Arrow makes it in a tenth of the time of nested ones.
    """

    def build(exts: Sequence[bytes | None] | None, count: int) -> Any:  # noqa: ANN401
        offsets: list[int | None] = []
        names: list[str] = []
        values: list[str] = []
        for ext in exts or [None] * count:
            if ext is not None and (texts := _texts(ext, unrepeated=repeated)) is not None:
                if b"##" in ext or b"\\" in ext:
                    texts = {name: value for name, value in texts.items() if not name.startswith("##")}
                offsets.append(len(names))
                names += texts
                values += texts.values()
                continue
            header = None if ext is None else _header(ext)
            offsets.append(None if header is None else len(names))
            for name, value in () if header is None else header.pairs if repeated else header.items():
                if not name.startswith("##"):
                    names.append(name)
                    values.append(value if isinstance(value, str) else json.dumps(value))
        return assemble(numbers([*offsets, len(names)], pa.int32()), _strings(names), _strings(values))

    return _of_exts(spark_type, arrow_type, build)


def _of_exts(
    spark_type: str,
    arrow_type: Any,  # noqa: ANN401 - pyarrow has no types
    build: Callable[[Sequence[bytes | None] | None, int], Any],
) -> SourceColumn:
    """Return a column that is built from extension headers, None for no header in any row, and the number of rows."""
    return SourceColumn(
        spark_type,
        arrow_type,
        lambda rows: build([row.ext for row in rows], len(rows)),
        lambda raw: build(raw.exts(), len(raw)),
    )


def _strings(texts: list[str]) -> Any:  # noqa: ANN401 - pyarrow has no types
    text = "".join(texts)
    data = text.encode("utf-8", "replace")
    sizes = map(len, texts if len(data) == len(text) else [each.encode("utf-8", "replace") for each in texts])
    return _binary(list(sizes), data, pa.string())


def _key(ext: bytes) -> bytes | None:
    """Return the header ``key``; NSQ itself stores no key."""
    if b"key" not in ext and b"\\" not in ext:
        return None
    found = _texts(ext, unrepeated=False)
    value = ((_header(ext) or {}) if found is None else found).get("key")
    text = value if value is None or isinstance(value, str) else json.dumps(value)
    # JSON may hold lone surrogates, UTF-8 may not.
    return None if text is None else text.encode("utf-8", "replace")


def _keys(exts: Sequence[bytes | None] | None, count: int) -> Any:  # noqa: ANN401 - pyarrow has no types
    if exts is None or not any(ext is not None for ext in exts):
        return pa.nulls(count, pa.binary())
    keys = [None if ext is None else _key(ext) for ext in exts]
    return _joined([key or b"" for key in keys], known=[key is not None for key in keys])


def _trace_ids(rows: Messages) -> Sequence[int] | NDArray[Any]:
    # An id is the server's number and then the trace id. All rows come from one kind of server.
    if is_upstream_id(rows[0].id):
        return [0] * len(rows)
    return np.frombuffer(b"".join([row.id for row in rows]), ">i8")[1::2]


def _attempts(rows: Messages) -> NDArray[Any]:
    return np.minimum([row.attempts for row in rows], _MAX_SHORT)


_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def numbers(values: Sequence[int | None] | NDArray[Any], kind: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return whole numbers as a column. Unlike ``pa.array`` it does not import pandas: a second of each new process."""
    known = None
    if isinstance(values, list) and None in values:
        known, values = [value is not None for value in values], [value or 0 for value in values]
    data = np.ascontiguousarray(values, f"i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, len(values), [_validity(known), pa.py_buffer(data)])


def _binary(
    sizes: Sequence[int] | NDArray[Any],
    data: object,
    kind: object = None,
    known: Sequence[bool] | None = None,
) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return bytes of these sizes as a column, as :func:`numbers`."""
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    buffers = [_validity(known), pa.py_buffer(bounds), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.binary(), len(sizes), buffers)


def _validity(known: Sequence[bool] | None) -> Any:  # noqa: ANN401 - pyarrow has no types
    return None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))


def _joined(bodies: Sequence[bytes], kind: object = None, known: Sequence[bool] | None = None) -> Any:  # noqa: ANN401
    """Return bodies as a column, copying each once."""
    return _binary(list(map(len, bodies)), b"".join(bodies), kind, known)


def _bodies(raw: StoredMessages) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return the bodies: every second slice of the data, whose other slices are the heads."""
    count, starts, ends = len(raw), raw.bodies, raw.ends
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2]
    slices = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(raw.data)])
    return slices.take(numbers(np.arange(0, 2 * count, 2), pa.int32()))


COLUMNS: Final[Mapping[str, SourceColumn]] = {
    "key": _of_exts("binary", pa.binary(), _keys),
    "value": SourceColumn("binary", pa.binary(), lambda rows: _joined([row.body for row in rows]), _bodies),
    # A reader reads one partition, so these two are the same in all its rows.
    "topic": SourceColumn(
        "string",
        pa.string(),
        lambda rows: _joined([rows[0].topic.encode()] * len(rows), pa.string()),
        lambda raw: _joined([raw.source.topic.encode()] * len(raw), pa.string()),
    ),
    "partition": SourceColumn(
        "int",
        pa.int32(),
        lambda rows: [rows[0].partition] * len(rows),
        lambda raw: np.full(len(raw), raw.source.partition),
    ),
    "offset": SourceColumn("bigint", pa.int64(), lambda rows: [row.offset for row in rows], lambda raw: raw.offsets),
    "timestamp": SourceColumn(
        "timestamp",
        _TIMESTAMP,
        lambda rows: [row.timestamp_ns // 1000 for row in rows],
        lambda raw: raw.heads["timestamp"].astype(np.int64) // 1000,
    ),
    "raw_size": SourceColumn(
        "int",
        pa.int32(),
        lambda rows: [row.raw_size for row in rows],
        lambda raw: raw.raw_sizes,
    ),
    "message_id": SourceColumn(
        "binary",
        pa.binary(),
        lambda rows: _joined([row.id for row in rows]),
        lambda raw: _binary(np.full(len(raw), 16), raw.ids),
    ),
    # Unsigned on the wire; Spark has no such type, so the upper half is shown as negative.
    "trace_id": SourceColumn("bigint", pa.int64(), _trace_ids, lambda raw: raw.heads["trace"]),
    "attempts": SourceColumn(
        "smallint",
        pa.int16(),
        _attempts,
        lambda raw: np.ones(len(raw)),  # a new channel would deliver them for the first time
    ),
    "headers": _of_pairs(
        "map<string,string>", pa.map_(pa.string(), pa.string()), pa.MapArray.from_arrays, repeated=False
    ),
}
"""All columns, in the order of the default schema; ``headers`` only on request."""

HEADER_ARRAY: Final = _of_pairs(
    "array<struct<key:string,value:binary>>",
    pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    _list_of,
    repeated=True,
)
"""The other type of ``headers``, that of Spark's Kafka connector; it keeps repeated names."""


_OF_KINDS: Final = {(name, column.spark_type): column for name, column in COLUMNS.items()} | {
    ("headers", HEADER_ARRAY.spark_type): HEADER_ARRAY
}


def default_schema(*, headers: bool, as_array: bool = False) -> str:
    """Return the schema with all columns as Spark DDL; ``headers`` only on request."""
    columns = {**COLUMNS, "headers": HEADER_ARRAY} if as_array else COLUMNS
    return ", ".join(f"{name} {column.spark_type}" for name, column in columns.items() if headers or name != "headers")


def built(column: SourceColumn, rows: Messages | StoredMessages) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return a column of messages as a ``pyarrow.Array``; there must be at least one message."""
    made = column.of_raw(rows) if isinstance(rows, StoredMessages) else column.of_messages(rows)
    return made if isinstance(made, pa.Array) else numbers(made, column.arrow_type)


class Projection:
    """The columns that one read builds, in the order of Spark's schema. Pickles with the reader.

    Attributes:
        arrow_schema: For Spark to compare each batch with: names, types and nullability.

    Raises:
        ConfigError: A column is unknown or has a wrong type.
    """

    def __init__(self, schema: StructType) -> None:
        self._kinds = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        for name, kind in self._kinds:
            if name not in COLUMNS:
                raise ConfigError(f"schema has column {name!r}; format 'nsq' has: {', '.join(COLUMNS)}")
            if (name, kind) not in _OF_KINDS:
                kinds = " or ".join(known for column, known in _OF_KINDS if column == name)
                raise ConfigError(f"schema has column {name!r} as {kind}, but it is {kinds}: cast it after reading")
        fields = zip(schema.fields, self._columns, strict=True)
        self.arrow_schema: Any = pa.schema(
            [pa.field(field.name, column.arrow_type, field.nullable) for field, column in fields]
        )

    def batch(self, rows: Messages | StoredMessages) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return one ``pyarrow.RecordBatch`` of the messages; there must be at least one."""
        return pa.RecordBatch.from_arrays([built(column, rows) for column in self._columns], schema=self.arrow_schema)

    def stored(self, batch: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return a spool's ``pyarrow.RecordBatch`` with these columns; null for those that a plain nsqd lacks."""
        stored, count = set(batch.schema.names), batch.num_rows
        arrays = [
            batch.column(field.name) if field.name in stored else pa.nulls(count, field.type)
            for field in self.arrow_schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    @property
    def _columns(self) -> list[SourceColumn]:
        # Looked up each time, since functions of a table do not pickle.
        return [_OF_KINDS[each] for each in self._kinds]
