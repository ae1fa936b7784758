"""Columns of ``format("nsq")`` and how messages become Arrow record batches.

Owns the table of columns: name, Spark type, Arrow type and how a column is made
from messages. The schema given to the reader is a projection of it: a column
that is not asked for is not built, which is the only pruning that Spark allows
a Python source.

**Source:** Spark reference 2.1 ("Columns", "Honour the schema").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from nsq_ha.errors import ConfigError, RemoteProtocolError
from nsq_ha.message import Message, is_upstream_id

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_MAX_SHORT: Final = 2**15 - 1
_TRACE_ID: Final = Struct(">8xq")

Messages = Sequence[Message]


class Column(NamedTuple):
    """One column: Spark's name of its type, Arrow's type, and how it is built from the rows."""

    spark_type: str
    arrow_type: Any
    build: Callable[[Messages], Any]


def _headers(message: Message) -> list[tuple[str, str]] | None:
    """Return the header as pairs, values that are no text as JSON; None when the header is none of ours."""
    if message.ext is None:
        return None
    try:
        header = message.headers
    except RemoteProtocolError:
        # Headers are written by other programs; the message itself is whole and must not fail the read.
        return None
    return [
        (_text(key), _text(value if isinstance(value, str) else json.dumps(value))) for key, value in header.items()
    ]


def _key(message: Message) -> bytes | None:
    """Return the header ``key``; NSQ itself keeps no key."""
    if not message.ext:
        return None
    try:
        told = message.headers.get("key")
    except RemoteProtocolError:
        return None
    return None if told is None else _text(told if isinstance(told, str) else json.dumps(told)).encode()


def _keys(rows: Messages) -> Any:  # noqa: ANN401 - pyarrow has no types
    if not any(row.ext for row in rows):
        return pa.nulls(len(rows), pa.binary())
    return [_key(row) for row in rows]


def _trace_ids(rows: Messages) -> list[int]:
    # An id is the server's own number and then the trace id. All rows come from one kind of server.
    if is_upstream_id(rows[0].id):
        return [0] * len(rows)
    return [number for (number,) in _TRACE_ID.iter_unpack(b"".join([row.id for row in rows]))]


def _attempts(rows: Messages) -> list[int]:
    told = [row.attempts for row in rows]
    return told if max(told) <= _MAX_SHORT else [min(attempts, _MAX_SHORT) for attempts in told]


def _text(text: str) -> str:
    """Return ``text`` without lone surrogates: JSON may hold them, UTF-8 and so Arrow may not."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _repeated(value: object, kind: object, count: int) -> Any:  # noqa: ANN401 - pyarrow has no types
    return pa.repeat(pa.scalar(value, kind), count)


_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.map_(pa.string(), pa.string())

COLUMNS: Final[Mapping[str, Column]] = MappingProxyType(
    {
        "key": Column("binary", pa.binary(), _keys),
        "value": Column("binary", pa.binary(), lambda rows: [row.body for row in rows]),
        # One reader reads one partition, so these two are the same in all its rows.
        "topic": Column("string", pa.string(), lambda rows: _repeated(rows[0].topic, pa.string(), len(rows))),
        "partition": Column("int", pa.int32(), lambda rows: _repeated(rows[0].partition, pa.int32(), len(rows))),
        "offset": Column("bigint", pa.int64(), lambda rows: [row.offset for row in rows]),
        "timestamp": Column("timestamp", _TIMESTAMP, lambda rows: [row.timestamp_ns // 1000 for row in rows]),
        "raw_size": Column("int", pa.int32(), lambda rows: [row.raw_size for row in rows]),
        "message_id": Column("binary", pa.binary(), lambda rows: [row.id for row in rows]),
        # Unsigned on the wire; Spark has no such type, so the upper half shows negative.
        "trace_id": Column("bigint", pa.int64(), _trace_ids),
        "attempts": Column("smallint", pa.int16(), _attempts),
        "headers": Column("map<string,string>", _HEADERS, lambda rows: [_headers(row) for row in rows]),
    }
)
"""Every column, in the order of the default schema; ``headers`` only on request."""


def default_schema(*, headers: bool) -> str:
    """Return the schema as Spark DDL; all columns, ``headers`` when asked."""
    return ", ".join(f"{name} {column.spark_type}" for name, column in COLUMNS.items() if headers or name != "headers")


class Projection:
    """The columns that one read builds, in the order of the schema that Spark gave.

    Pickles with the reader.

    Attributes:
        names: The columns.
    """

    def __init__(self, schema: StructType) -> None:
        """Check ``schema`` against the columns there are.

        Raises:
            ConfigError: A column is unknown, or of another type than it has here.
        """
        for field in schema.fields:
            column = COLUMNS.get(field.name)
            if column is None:
                raise ConfigError(f"schema has column {field.name!r}; format 'nsq' has: {', '.join(COLUMNS)}")
            told = field.dataType.simpleString()
            if told != column.spark_type:
                raise ConfigError(
                    f"schema has column {field.name!r} as {told}; it is {column.spark_type}: cast it later"
                )
        self.names = tuple(schema.fieldNames())
        self._nullable = tuple(field.nullable for field in schema.fields)

    def batch(self, rows: Messages) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return one ``pyarrow.RecordBatch`` of the messages; there must be one at least."""
        columns = [COLUMNS[name] for name in self.names]
        built = (column.build(rows) for column in columns)
        arrays = [
            made if isinstance(made, pa.Array) else pa.array(made, column.arrow_type)
            for made, column in zip(built, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema())

    def stored(self, batch: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return a spool's ``pyarrow.RecordBatch`` with these columns; what a plain nsqd does not tell is null."""
        told = set(batch.schema.names)
        arrays = [
            batch.column(name) if name in told else pa.nulls(batch.num_rows, COLUMNS[name].arrow_type)
            for name in self.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema())

    def arrow_schema(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the Arrow schema that Spark compares each batch with: names, types and nullability."""
        return pa.schema(
            [
                pa.field(name, COLUMNS[name].arrow_type, nullable)
                for name, nullable in zip(self.names, self._nullable, strict=True)
            ]
        )
