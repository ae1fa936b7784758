"""Columns: what a message becomes in Arrow, and the user's schema as projection."""

import datetime
import json
import pickle
import subprocess
import sys
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType, TimestampNTZType

from nsq_ha.errors import ConfigError
from nsq_ha.message import Message
from nsq_ha.spark.read import columns
from nsq_ha.spark.read.columns import COLUMNS, HEADER_ARRAY, Projection, default_schema
from tests.spark.logs import Source, message
from tests.spark.projections import TYPES

WHEN = datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC)


def traced(trace_id: int = 7, ext: bytes | None = None, attempts: int = 1) -> Message:
    timestamp_ns = int(WHEN.timestamp()) * 10**9 + 123_456_789
    id_ = (5 << 50 | 9).to_bytes(8, "big") + trace_id.to_bytes(8, "big")
    return Message(id_, b"\x00\xffbody", attempts, timestamp_ns, Source(), 240, 60, ext)


def schema_of(*names: str) -> StructType:
    return StructType([StructField(name, TYPES[COLUMNS[name].spark_type]) for name in names])


def whole_schema(*, headers: bool) -> StructType:
    pairs = (part.split(" ") for part in default_schema(headers=headers).split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def only(name: str, row: Message) -> object:
    return Projection(schema_of(name)).batch([row]).column(0).to_pylist()[0]


def test_the_default_schema_is_what_the_batches_have() -> None:
    for headers in (False, True):
        schema = whole_schema(headers=headers)
        batch = Projection(schema).batch([traced(), message(300, 40)])
        # Spark compares exactly: order, types, nullability.
        assert to_arrow_schema(schema, timezone="UTC").equals(batch.schema)
        assert ("headers" in schema.fieldNames()) is headers


ALONE = """
import sys, tempfile
from nsq_ha.spark.ack.spool import Spool, read_file
from nsq_ha.spark.read.columns import COLUMNS, HEADER_ARRAY, built
from tests.spark.logs import message
for column in (*COLUMNS.values(), HEADER_ARRAY):
    assert len(built(column, [message(300, 40)])) == 1
with tempfile.TemporaryDirectory() as folder:
    spool = Spool(folder)
    assert len(read_file(f"{folder}/{spool.append([message(300, 40)]).name}")) == 1
print("pandas" in sys.modules)
"""


def test_columns_are_built_without_importing_pandas() -> None:
    """``pa.array`` and ``pa.scalar`` import it, which took each new process longer than reading 100,000 messages."""
    assert subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_row() -> None:
    batch = Projection(whole_schema(headers=True)).batch([traced(ext=b'{"a":"b","key":"k\xc3\xa4"}')])
    assert batch.to_pylist() == [
        {
            "key": "kä".encode(),
            "value": b"\x00\xffbody",
            "topic": "flights",
            "partition": 5,
            "offset": 240,
            "timestamp": WHEN.replace(microsecond=123_456),
            "raw_size": 60,
            "message_id": traced().id,
            "trace_id": 7,
            "attempts": 1,
            "headers": [("a", "b"), ("key", "kä")],
        }
    ]


def test_an_unsigned_trace_id_shows_signed() -> None:
    assert only("trace_id", traced(2**64 - 1)) == -1
    assert only("trace_id", traced(2**63 - 1)) == 2**63 - 1


def test_an_id_of_upstream_shows_no_trace_id() -> None:
    assert only("trace_id", Message(b"0c1d2e3f40516273", b"x", 1, 1, Source(), 0, 1)) == 0


def test_attempts_beyond_a_short_stay_at_its_end() -> None:
    assert only("attempts", traced(attempts=65535)) == 32767


@pytest.mark.parametrize(
    ("ext", "headers"),
    [
        (None, None),
        (b"", []),
        (b'{"##trace_id":"7","a":"b"}', [("a", "b")]),
        (b'{"n":1,"o":{"x":[null]},"u":null}', [("n", "1"), ("o", '{"x": [null]}'), ("u", "null")]),
        (b'{"lone":"\\ud800"}', [("lone", "?")]),
        (b"[1]", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
    ],
)
def test_headers_of_any_writer_become_text_or_nothing(ext: bytes | None, headers: list[tuple[str, str]] | None) -> None:
    assert only("headers", traced(ext=ext)) == headers
    pairs = None if headers is None else [{"key": name, "value": text.encode()} for name, text in headers]
    assert header_array(traced(ext=ext)) == pairs


def header_array(row: Message) -> object:
    schema = StructType([StructField("headers", TYPES[HEADER_ARRAY.spark_type])])
    assert default_schema(headers=True, as_array=True).endswith(
        f", headers {schema['headers'].dataType.simpleString()}"
    )
    batch = pickle.loads(pickle.dumps(Projection(schema))).batch([row])  # noqa: S301 - our own
    assert to_arrow_schema(schema, timezone="UTC").equals(batch.schema)
    return batch.column(0).to_pylist()[0]


PAIRS = st.lists(
    st.tuples(st.sampled_from(["a", "key", "##x", "#", "\u00e4", 'q"', "\\"]), st.text(max_size=3) | st.integers())
)


@given(
    st.lists(st.none() | st.just(b"") | PAIRS, min_size=1, max_size=3),
    st.sampled_from([(",", ":"), (" ,", " : ")]),
    st.booleans(),
)
def test_headers_decoded_at_once_are_those_decoded_one_by_one(
    rows: list[bytes | list[tuple[str, str | int]] | None], separators: tuple[str, str], is_ascii: bool
) -> None:
    between, colon = separators

    def ext(pairs: bytes | list[tuple[str, str | int]] | None) -> bytes | None:
        if not isinstance(pairs, list):
            return pairs
        written = [colon.join(json.dumps(part, ensure_ascii=is_ascii) for part in pair) for pair in pairs]
        return ("{" + between.join(written) + "}").encode("utf-8", "surrogatepass")

    def columns_of(messages: list[Message]) -> list[object]:
        kinds = (COLUMNS["headers"], HEADER_ARRAY, COLUMNS["key"])
        return [columns.built(kind, messages).to_pylist() for kind in kinds]

    messages = [traced(ext=ext(pairs)) for pairs in rows]
    at_once = columns_of(messages)
    with mock.patch.object(columns._Exts, "all", return_value=None):  # noqa: SLF001 - the other way
        assert at_once == columns_of(messages)


def test_an_array_of_headers_keeps_repeated_names() -> None:
    row = traced(ext=b'{"a":"1","b":{"x":1,"x":2},"a":"2","##client_dispatch_tag":"T"}')
    assert header_array(row) == [
        {"key": "a", "value": b"1"},
        {"key": "b", "value": b'{"x": 2}'},
        {"key": "a", "value": b"2"},
    ]
    assert only("headers", row) == [("a", "2"), ("b", '{"x": 2}')]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (StructField("body", BinaryType()), "schema has column 'body'; format 'nsq' has: key, value, topic,"),
        (StructField("value", StringType()), "schema has column 'value' as string, but it is binary: cast it after"),
        (StructField("timestamp", TimestampNTZType()), "column 'timestamp' as timestamp_ntz"),
        (StructField("headers", StringType()), "it is map<string,string> or array<struct<key:string,value:binary>>"),
    ],
)
def test_a_schema_of_other_columns_is_refused(field: StructField, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Projection(StructType([field]))
