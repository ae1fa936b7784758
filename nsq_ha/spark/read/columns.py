"""Columns of ``format("nsq")``: build Arrow record batches from messages.

``COLUMNS`` is the table of columns: name, Spark type, Arrow type and how to build a
column, from messages and from bytes without objects. A read builds only the columns of
the schema that Spark passes, which is the only pruning that Spark allows a Python source.

**Source:** Spark design 2.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from nsq_ha.base.identity import is_upstream_id
from nsq_ha.errors import ConfigError
from nsq_ha.message import Message
from nsq_ha.spark.pull.calls import HEAD_BYTES
from nsq_ha.spark.read.bulk.cutting import StoredMessages

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql.types import StructType

T = TypeVar("T")

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


class _Keyed(msgspec.Struct):
    """The one header that is a column of its own."""

    key: str | None = None


_TEXTS: Final = msgspec.json.Decoder(dict[str, str])
_KEYED: Final = msgspec.json.Decoder(_Keyed)


def _header(ext: bytes) -> _Object | None:
    """Return a decoded extension header. None if it is not a JSON object.

    Other programs write headers; the message itself is intact, so the read must not fail.
    """
    try:
        header = json.loads(ext or b"{}", object_pairs_hook=_Object)
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, _Object) else None


class _Exts(NamedTuple):
    """The extension headers of some rows, one after the other.

    Attributes:
        data: Their bytes.
        bounds: Where each begins in them, and where the last one ends.
        known: Which rows have one.
    """

    data: bytes
    bounds: NDArray[np.int32]
    known: NDArray[np.bool_]

    def each(self) -> Iterator[_Object | None]:
        """Decode one after the other; None for a row without a header, or with one that is not a JSON object."""
        bounds = self.bounds.tolist()
        for has, begin, end in zip(self.known.tolist(), bounds, bounds[1:], strict=False):
            yield _header(self.data[begin:end]) if has else None

    def all(self, decoder: msgspec.json.Decoder[T]) -> Sequence[T | None] | None:
        """Decode as :meth:`each`, but all at once. None if the decoder does not take one of them."""
        try:
            found = decoder.decode_lines(self.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if len(found) != np.count_nonzero(self.known):
            return None
        ordered = iter(found)
        return found if self.known.all() else [next(ordered) if has else None for has in self.known.tolist()]


def _exts_of(rows: Messages) -> _Exts | None:
    exts = [row.ext for row in rows]
    data = b"".join([ext for ext in exts if ext is not None])
    known = np.array([ext is not None for ext in exts])
    return _Exts(data, _bounds([len(ext or b"") for ext in exts]), known) if known.any() else None


def _exts_in(raw: StoredMessages) -> _Exts | None:
    headers, bodies = raw.parts
    # A message with a version only has no header; an empty header is one.
    known = bodies - raw.starts > HEAD_BYTES + 1
    if not known.any():
        return None
    column = _slices(raw, headers, bodies)
    bounds = np.frombuffer(column.buffers()[1], np.int32)
    return _Exts(column.buffers()[2].to_pybytes(), bounds, known)


def _of_exts(
    spark_type: str,
    arrow_type: Any,  # noqa: ANN401 - pyarrow has no types
    build: Callable[[_Exts], Any],
) -> SourceColumn:
    """Return a column that is built from extension headers; null in each row if no row has one."""

    def built_of(exts: _Exts | None, count: int) -> Any:  # noqa: ANN401
        return pa.nulls(count, arrow_type) if exts is None else build(exts)

    return SourceColumn(
        spark_type,
        arrow_type,
        lambda rows: built_of(_exts_of(rows), len(rows)),
        lambda raw: built_of(_exts_in(raw), len(raw)),
    )


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

    def pairs_of(exts: _Exts) -> Iterator[Iterable[tuple[str, object]] | None]:
        texts = exts.all(_TEXTS)
        if texts is not None and repeated:
            # Without escapes, four quotes are one pair, unless a name is repeated.
            is_whole = b"\\" not in exts.data and exts.data.count(b'"') == 4 * sum(len(each or ()) for each in texts)
            texts = texts if is_whole else None
        if texts is None:
            return (None if found is None else found.pairs if repeated else found.items() for found in exts.each())
        return (None if each is None else each.items() for each in texts)

    def build(exts: _Exts) -> Any:  # noqa: ANN401
        offsets: list[int | None] = []
        names: list[str] = []
        values: list[str] = []
        for pairs in pairs_of(exts):
            offsets.append(None if pairs is None else len(names))
            for name, value in pairs or ():
                if not name.startswith("##"):
                    names.append(name)
                    values.append(value if isinstance(value, str) else json.dumps(value))
        return assemble(numbers([*offsets, len(names)], pa.int32()), _strings(names), _strings(values))

    return _of_exts(spark_type, arrow_type, build)


def _keys(exts: _Exts) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return the header ``key`` of each row; NSQ itself stores no key."""
    if (found := exts.all(_KEYED)) is not None:
        texts = [None if each is None else each.key for each in found]
    else:
        keys = [None if each is None else each.get("key") for each in exts.each()]
        texts = [key if key is None or isinstance(key, str) else json.dumps(key) for key in keys]
    return _strings(texts, pa.binary())


def _strings(texts: Sequence[str | None], kind: object = None) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return texts as a column in UTF-8, which has no lone surrogates, as JSON may."""
    known = [text is not None for text in texts] if None in texts else None
    whole = [text or "" for text in texts]
    text = "".join(whole)
    data = text.encode("utf-8", "replace")
    parts = whole if len(data) == len(text) else [each.encode("utf-8", "replace") for each in whole]
    return _binary(np.fromiter(map(len, parts), np.int32, len(parts)), data, kind or pa.string(), known)


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
    buffers = [_validity(known), pa.py_buffer(_bounds(sizes)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.binary(), len(sizes), buffers)


def _repeated(text: bytes, count: int) -> Any:  # noqa: ANN401 - pyarrow has no types
    return _binary(np.full(count, len(text)), text * count, pa.string())


def _bounds(sizes: Sequence[int] | NDArray[Any]) -> NDArray[np.int32]:
    """Return where each of some parts begins, and where the last one ends."""
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def _validity(known: Sequence[bool] | None) -> Any:  # noqa: ANN401 - pyarrow has no types
    return None if known is None else pa.py_buffer(np.packbits(known, bitorder="little"))


def _joined(bodies: Sequence[bytes], kind: object = None, known: Sequence[bool] | None = None) -> Any:  # noqa: ANN401
    """Return bodies as a column, copying each once."""
    return _binary(list(map(len, bodies)), b"".join(bodies), kind, known)


def _slices(raw: StoredMessages, starts: NDArray[Any], ends: NDArray[Any]) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return a part of each message as a column: every second slice of the data."""
    count = len(raw)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2]
    slices = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(raw.data)])
    return slices.take(numbers(np.arange(0, 2 * count, 2), pa.int32()))


COLUMNS: Final[Mapping[str, SourceColumn]] = {
    "key": _of_exts("binary", pa.binary(), _keys),
    "value": SourceColumn(
        "binary",
        pa.binary(),
        lambda rows: _joined([row.body for row in rows]),
        lambda raw: _slices(raw, raw.parts[1], raw.ends),
    ),
    # A reader reads one partition, so these two are the same in all its rows.
    "topic": SourceColumn(
        "string",
        pa.string(),
        lambda rows: _repeated(rows[0].topic.encode(), len(rows)),
        lambda raw: _repeated(raw.source.topic.encode(), len(raw)),
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
