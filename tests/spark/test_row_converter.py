"""Rows to messages: where each goes, what its header holds, and what is refused."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    ShortType,
    StringType,
    StructType,
)

from nsq_ha.errors import ConfigError
from nsq_ha.policy.sharding import partition_for
from nsq_ha.protocol import Mpub
from nsq_ha.protocol.commands import MpubExt, MpubTrace
from nsq_ha.protocol.encoding import MAX_TRACE_ID
from nsq_ha.protocol.server.decoder import decode_commands
from nsq_ha.spark.options import WriteOptions
from nsq_ha.spark.sink import check_columns, check_target
from nsq_ha.spark.write.partition_writer import encode
from nsq_ha.spark.write.row_converter import OutgoingRow, RowConverter, TargetTopic, TraceIds, UnplacedRowError

PLAIN = TargetTopic("t", 4, ordered=False, extended=False)
ORDERED = TargetTopic("t", 4, ordered=True, extended=False)
HEADED = TargetTopic("t", 4, ordered=False, extended=True)
TASK = 1
HEADERS = pa.map_(pa.string(), pa.string())
ARRAY = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def options(**more: str) -> WriteOptions:
    return WriteOptions.parse({"lookupd": "127.0.0.1:4161", "topic": "t"} | more)


def schema(fields: str) -> StructType:
    """Return what Spark makes of such a text, without a Spark that runs."""
    kinds: dict[str, DataType] = {"string": StringType(), "int": IntegerType(), "double": DoubleType()}
    kinds |= {"decimal": DecimalType(20, 0), "fraction": DecimalType(20, 2), "smallint": ShortType()}
    found = StructType()
    for name, kind in (field.split() for field in fields.split(", ")):
        found.add(name, kinds[kind])
    return found


def converter(given: WriteOptions, targets: dict[str, TargetTopic], ids: TraceIds) -> RowConverter:
    return RowConverter(given, targets, lambda topic: targets[topic], ids, {})


def rows_of(
    target: TargetTopic, columns: dict[str, Any], given: WriteOptions | None = None, task: int = TASK
) -> list[OutgoingRow]:
    ids = TraceIds("run/3", task)
    return list(converter(given or options(), {"t": target}, ids).messages(pa.RecordBatch.from_pydict(columns)))


def refused(target: TargetTopic, columns: dict[str, Any], match: str, **more: str) -> None:
    with pytest.raises(ConfigError, match=match):
        rows_of(target, columns, options(**more))


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("ddl", "more", "match"),
    [
        ("key string", {}, "column 'value' is missing"),
        ("value string, colour string", {}, "column 'colour' is not a column of a write; these are: value, key"),
        ("value int", {}, "column 'value' is int; it must be binary or string"),
        ("value string, key double", {}, "column 'key' is double"),
        ("value string, key fraction", {}, r"column 'key' is decimal\(20,2\); it must be .*decimal\(p,0\)"),
        ("value string, offset int", {"traceIdColumn": "trace_id"}, "column 'trace_id' is missing"),
        ("value string", {"traceIdColumn": "n"}, "column 'n' is missing"),
        ("value string, n double", {"traceIdColumn": "n"}, "column 'n' is double; it must be bigint or int or string"),
        ("value string", {"trace": "true"}, "option 'trace': nothing says what a row is, .*row_id.*by_partition"),
        ("value string, partition int", {"trace": "true", "partitioner": "murmur3"}, "nothing says what a row is"),
        ("value string, key string", {"trace": "true", "partitioner": "roundrobin"}, "nothing says what a row is"),
    ],
)
def test_columns_that_do_not_fit_are_named(ddl: str, more: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        check_columns(schema(ddl), options(**more))


def test_columns_that_only_a_read_has_are_ignored_and_named() -> None:
    frame = "value string, key smallint, offset int, partition int, timestamp string, trace_id int"
    assert check_columns(schema(frame), options()) == ["offset", "timestamp", "trace_id"]
    assert check_columns(schema(frame), options(traceIdColumn="trace_id")) == ["offset", "timestamp"]
    assert check_columns(schema("value string, key decimal"), options()) == []


def test_a_topic_must_come_from_somewhere() -> None:
    given = WriteOptions.parse({"lookupd": "127.0.0.1:4161"})
    with pytest.raises(ConfigError, match="column 'topic' is missing, and so is option 'topic'"):
        check_columns(schema("value string"), given)
    check_columns(schema("value string, topic string"), given)


@pytest.mark.parametrize(
    ("target", "columns", "more", "match"),
    [
        (PLAIN, ("value", "headers", "tag"), {}, "accepts no headers and no tag"),
        (ORDERED, ("value",), {}, "is ordered: add a column 'key' or 'partition'"),
        (ORDERED, ("value", "key"), {"partitioner": "roundrobin"}, "is ordered"),
        (ORDERED, ("value", "partition"), {"partitioner": "murmur3"}, "is ordered"),
    ],
)
def test_what_a_topics_kind_asks(
    target: TargetTopic, columns: tuple[str, ...], more: dict[str, str], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        check_target(target, columns, options(**more))
    check_target(target, ("value", "key"), options())


# ---------------------------------------------------------------- places


KEYS = st.one_of(st.text(min_size=1, max_size=20), st.binary(min_size=1, max_size=20), st.integers(0, 2**31))


@given(st.lists(KEYS, min_size=1, max_size=20))
def test_a_key_goes_where_the_producer_puts_it(keys: list[str | bytes | int]) -> None:
    for kind in (str, bytes, int):
        chosen = [key for key in keys if type(key) is kind]
        if chosen:
            rows = rows_of(ORDERED, {"value": [b"v"] * len(chosen), "key": chosen})
            assert [row.partition for row in rows] == [partition_for(key, 4) for key in chosen]


@pytest.mark.parametrize("kind", [pa.int16(), pa.decimal128(38, 0)])
def test_small_and_decimal_keys_are_whole_numbers(kind: Any) -> None:  # noqa: ANN401 - pyarrow has no types
    numbers = [7, -3, 1000, None]
    rows = rows_of(HEADED, {"value": ["v"] * 4, "key": pa.array(numbers, pa.int64()).cast(kind)})
    assert [json.loads(row.ext)["key"] for row in rows[:3]] == ["7", "-3", "1000"]
    assert [row.partition for row in rows[:3]] == [partition_for(number, 4) for number in numbers[:3] if number]
    assert rows[3].ext == b""


def test_a_named_partition_wins_over_the_key_unless_the_partitioner_says_otherwise() -> None:
    columns = {"value": ["a", "b"], "key": ["k", "k"], "partition": pa.array([3, None], pa.int32())}
    assert [row.partition for row in rows_of(PLAIN, columns)] == [3, partition_for("k", 4)]
    by_key = rows_of(PLAIN, columns, options(partitioner="javahash"))
    assert [row.partition for row in by_key] == [partition_for("k", 4, "java")] * 2
    refused(PLAIN, {"value": ["a"], "partition": [4]}, "partition 4: topic 't' has only 4")
    refused(PLAIN, {"value": ["a"], "partition": [-1]}, "partition -1")


def test_rows_without_key_go_in_turn_by_batches() -> None:
    rows = rows_of(PLAIN, {"value": [b"v"] * 6, "key": [None] * 6}, options(batchMessages="2"))
    assert [row.partition for row in rows] == [2, 2, 3, 3, 0, 0]
    other = rows_of(PLAIN, {"value": [b"v"]}, options(partitioner="roundrobin"), task=2)
    assert [row.partition for row in other] == [3], "each task begins elsewhere"


def test_on_an_ordered_topic_a_row_without_key_is_reported_by_its_number() -> None:
    rows = converter(options(), {"t": ORDERED}, TraceIds("run/3", TASK))
    list(rows.messages(pa.RecordBatch.from_pydict({"value": ["a", "b"], "key": ["k", "k"]})))
    with pytest.raises(ConfigError, match="row 3 of the task has no key, and topic 't' is ordered"):
        rows.messages(pa.RecordBatch.from_pydict({"value": ["c", "d"], "key": ["k", None]}))


@pytest.mark.parametrize("empty", [b"", None])
def test_an_empty_value_is_refused(empty: bytes | None) -> None:
    refused(PLAIN, {"value": pa.array([b"v", empty], pa.binary())}, "row 1 of the task has no value")


# ---------------------------------------------------------------- ids and headers


def attempt(rows: list[bytes], run: str = "q/7", cut: int = 3, task: int = TASK) -> list[tuple[int, bytes]]:
    """Return ids and bodies as a task stores them that has these rows in this order."""
    rows_in = converter(options(trace="true"), {"t": PLAIN}, TraceIds(run, task))
    batches = [rows[at : at + cut] for at in range(0, len(rows), cut)]
    return [
        (row.trace_id, row.body)
        for lot in batches
        for row in rows_in.messages(pa.RecordBatch.from_pydict({"value": lot, "partition": [task] * len(lot)}))
    ]


@given(st.lists(st.sampled_from([b"paid", b"sent", b"back", b"lost"]), max_size=12), st.data())
def test_a_task_that_runs_again_in_another_order_repeats_the_ids_of_its_rows(
    rows: list[bytes], data: st.DataObject
) -> None:
    """Any part of a first attempt is stored, and all of the second; each with its rows in an order of its own."""
    first = attempt(data.draw(st.permutations(rows)), cut=data.draw(st.integers(1, 5)))
    again = attempt(data.draw(st.permutations(rows)), cut=data.draw(st.integers(1, 5)))
    stored = first[: data.draw(st.integers(0, len(rows)))] + again
    kept = dict(stored)
    assert len(kept) == len(rows), "equal rows are as many as before"
    assert sorted(kept.values()) == sorted(rows), "the rows themselves, not only their number"
    assert all(kept[number] == body for number, body in stored), "one id never names two rows"
    assert all(0 < number <= MAX_TRACE_ID for number in kept)


def test_rows_of_other_writes_and_tasks_and_without_ids() -> None:
    ids = [number for run in ("q/7", "q/8", "r/7") for number, _ in attempt([b"a", b"a", b"b"], run)]
    assert len(set(ids)) == 9
    assert len({*attempt([b"a"]), *attempt([b"a"], task=2)}) == 2
    assert [row.trace_id for row in rows_of(PLAIN, {"value": ["a"]})] == [0]


def test_rows_that_differ_in_what_is_stored_have_other_ids() -> None:
    given = options(trace="true")
    headers = pa.array([[("a", "b")], [("a", "c")], None, [("a", "b")]], HEADERS)
    columns = {"value": ["v"] * 4, "partition": [TASK] * 4, "tag": ["t", "t", "t", None], "headers": headers}
    rows = rows_of(HEADED, columns, given)
    assert len({row.trace_id for row in rows}) == 4
    assert [json.loads(row.ext)["##trace_id"] for row in rows] == [str(row.trace_id) for row in rows]


@pytest.mark.parametrize("bad_row", ["fail", "drop"])
def test_rows_that_are_not_placed_are_refused_instead_of_numbered(bad_row: str) -> None:
    """Equal ones in two tasks would have one id, and ``drop_repeats`` would delete one of them."""
    given = options(trace="true", onBadRow=bad_row)
    with pytest.raises(UnplacedRowError, match=r"row 1 of task 1 goes to partition 2; .*traceIdColumn.*by_partition"):
        rows_of(PLAIN, {"value": ["a", "b"], "partition": [1, 2]}, given)
    assert rows_of(PLAIN, {"value": ["a"], "partition": [2], "n": ["x"]}, options(traceIdColumn="n"))


def test_a_bad_row_uses_up_no_number() -> None:
    given = options(trace="true", onBadRow="drop")
    good = attempt([b"a", b"b", b"a"], "run/3")
    for lots in ([[b"a", b"", b"b", b"a"]], [[b"a", b""], [b"b", b"a"]], [[b"", b"b"], [b"a", b"", b"a"]]):
        rows_in = converter(given, {"t": PLAIN}, TraceIds("run/3", TASK))
        found = [
            (row.trace_id, row.body)
            for lot in lots
            for row in rows_in.messages(pa.RecordBatch.from_pydict({"value": lot, "partition": [TASK] * len(lot)}))
        ]
        assert sorted(found) == sorted(good)


def test_a_column_of_text_or_bytes_is_hashed_to_ids() -> None:
    def ids(column: list[Any], task: int) -> list[int]:
        rows = rows_of(PLAIN, {"value": ["a"] * len(column), "n": column}, options(traceIdColumn="n"), task)
        return [row.trace_id for row in rows]

    texts = ids(["one", "two", None], 1)
    assert texts == ids(["one", "two", None], 0) == ids([b"one", b"two", None], 3), "whatever the task"
    assert len({*texts}) == 3
    assert texts[2] == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"traceIdColumn": "offset"}, "option 'traceIdColumn': 'offset' is a position, .*row_id"),
        ({"traceIdColumn": "partition"}, "option 'traceIdColumn': 'partition' is a position"),
        ({"writeId": "daily"}, "option 'writeId': needs trace=true"),
        ({"writeId": "daily", "traceIdColumn": "n"}, "option 'writeId': needs trace=true without 'traceIdColumn'"),
    ],
)
def test_options_of_trace_ids_that_do_not_agree(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options(**given)


def test_ids_of_a_column_are_taken_without_their_sign() -> None:
    rows = rows_of(PLAIN, {"value": ["a", "b", "c"], "n": [7, -1, None]}, options(traceIdColumn="n"))
    assert [row.trace_id for row in rows] == [7, MAX_TRACE_ID, 0]


def test_headers_hold_key_tag_and_trace_id() -> None:
    columns = {
        "value": ["a", "b", "c"],
        "key": ["k", None, None],
        "headers": pa.array([[("a", "ä"), ("n", None)], None, []], HEADERS),
        "tag": ["T", None, None],
        "n": [7, 0, 0],
    }
    rows = rows_of(HEADED, columns, options(traceIdColumn="n"))
    headers = [json.loads(row.ext) if row.ext else None for row in rows]
    assert headers == [{"key": "k", "a": "ä", "##client_dispatch_tag": "T", "##trace_id": "7"}, None, None]
    assert rows_of(PLAIN, {"value": ["a"], "key": ["k"]})[0].ext == b"", "a plain topic has no header"


def test_a_key_that_is_no_text_is_refused_where_it_would_be_lost_and_one_of_the_headers_wins() -> None:
    keys = pa.array([b"\xff", b"k"], pa.binary())
    headers = pa.array([[("key", "mine")], [("key", "mine")]], HEADERS)
    mine = rows_of(HEADED, {"value": ["a", "b"], "key": keys, "headers": headers})
    assert [row.ext for row in mine] == [b'{"key":"mine"}'] * 2
    columns = {"value": ["a", "b"], "key": keys}
    refused(HEADED, columns, "header 'key' is not UTF-8 text, which headers of NSQ must be: encode it")
    assert [row.partition for row in rows_of(PLAIN, columns)] == [partition_for(key, 4) for key in (b"\xff", b"k")]
    (kept,) = rows_of(HEADED, columns, options(onBadRow="drop"))
    assert kept.ext == b'{"key":"k"}'


def test_an_array_of_headers_keeps_repeated_names() -> None:
    headers = pa.array([[("a", b"1"), ("n", None), ("a", b"2")], [None, ("key", b"mine")], None], ARRAY)
    rows = rows_of(HEADED, {"value": ["a", "b", "c"], "key": ["k", "k", "k"], "headers": headers, "tag": [None] * 3})
    assert [row.ext for row in rows] == [b'{"key":"k","a":"1","a":"2"}', b'{"key":"mine"}', b'{"key":"k"}']


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"tag": ["x" * 101]}, "must have 1..100 bytes"),
        ({"tag": [""]}, "must have 1..100 bytes"),
        ({"headers": pa.array([[("##x", "y")]], HEADERS)}, "names with ## belong to the server"),
        ({"headers": pa.array([[("##x", b"y")]], ARRAY)}, "names with ## belong to the server"),
        ({"headers": pa.array([[("x", b"\xff")]], ARRAY)}, "header 'x' is not UTF-8 text"),
        ({"headers": pa.array([[("x", "y" * 70_000)]], HEADERS)}, "bytes as JSON, but the limit is"),
    ],
)
def test_headers_that_the_server_would_refuse(columns: dict[str, Any], match: str) -> None:
    refused(HEADED, {"value": ["a"], **columns}, match)


@pytest.mark.parametrize("target", [PLAIN, HEADED], ids=["plain", "extended"])
def test_a_value_is_as_large_as_the_option_says(target: TargetTopic) -> None:
    head = 3 * target.extended
    rows = rows_of(target, {"value": ["a", "x" * (3_000_000 - head)]}, options(maxMessageBytes="3000000"))
    assert len(rows[1].body) == 3_000_000 - head
    refused(
        target,
        {"value": ["a", "x" * (3_000_001 - head)]},
        f"^row 1 of the task has a value of {3_000_001 - head} bytes: with headers and trace id the limit is 3000000:"
        " set 'maxMessageBytes' if nsqd accepts more, as its --max-msg-size says$",
        maxMessageBytes="3000000",
    )


# ---------------------------------------------------------------- the wire


@pytest.mark.parametrize(("extended", "traced", "kind"), [(0, 0, Mpub), (0, 1, MpubTrace), (1, 0, MpubExt)])
def test_an_mpub_holds_the_rows_in_order(extended: int, traced: int, kind: type) -> None:
    rows = [OutgoingRow("t", 2, b"%d" % number, number, b'{"n":"%d"}' % number) for number in range(1, 4)]
    batch = encode("t", 2, rows, extended=bool(extended), traced=bool(traced))
    (command,) = decode_commands(batch.command)
    assert type(command) is kind
    assert isinstance(command, Mpub | MpubTrace | MpubExt)
    assert (command.topic, command.partition, batch.rows, batch.size) == ("t", 2, 3, 3)
    bodies: dict[type, list[Any]] = {
        Mpub: [b"1", b"2", b"3"],
        MpubTrace: [(1, b"1"), (2, b"2"), (3, b"3")],
        MpubExt: [(b'{"n":"%d"}' % number, b"%d" % number) for number in (1, 2, 3)],
    }
    found: Any = command
    assert list(found.messages if hasattr(found, "messages") else found.bodies) == bodies[kind]
