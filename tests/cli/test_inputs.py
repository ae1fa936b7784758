"""What ``nsq-ha pub`` makes of its input: messages, or an error for each line that is none."""

import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.cli.inputs import InputOptions, csv_rows, message_of
from nsq_ha.cli.lines import Line, Splitter
from nsq_ha.cli.tail import as_dict
from nsq_ha.errors import ConfigError
from nsq_ha.message import Message, OutgoingMessage
from tests.cli.conftest import Invoke
from tests.support.sources import Source

TAIL = InputOptions(from_tail=True)
ORDERED = InputOptions(from_tail=True, keeps_partition=True)


def of_tail(options: InputOptions = TAIL, **fields: Any) -> OutgoingMessage:  # noqa: ANN401
    return message_of(json.dumps(fields).encode(), options)


# ---------------------------------------------------------------- messages of tail


@given(st.binary(min_size=1), st.dictionaries(st.text(), st.text(), max_size=3), st.none() | st.text(min_size=1))
def test_what_tail_prints_gives_the_same_message(body: bytes, headers: dict[str, str], tag: str | None) -> None:
    own = {key: value for key, value in headers.items() if not key.startswith("##")}
    ext = json.dumps(own | ({} if tag is None else {"##client_dispatch_tag": tag})).encode()
    message = Message(bytes(15) + b"\x07", body, 2, 5, Source(), 10, 40, ext)
    line = json.dumps(as_dict(message)).encode()
    assert message_of(line, ORDERED) == OutgoingMessage(body, None, 3, 7, own or None, tag)
    assert message_of(line, TAIL) == OutgoingMessage(body, None, None, 7, own or None, tag)


def test_flags_win_over_a_line_and_headers_are_joined() -> None:
    line: dict[str, Any] = {
        "body": '{"u":5}',
        "key": "k",
        "partition": 3,
        "headers": {"a": 1},
        "tag": "own",
        "trace_id": 0,
    }
    both: dict[str, Any] = {"headers": {"a": 2, "b": 2}, "tag": "all"}
    assert of_tail(**line) == OutgoingMessage(b'{"u":5}', "k", None, None, {"a": 1}, "own")
    assert of_tail(ORDERED, **line).partition is None, "the key chooses it"
    assert of_tail(InputOptions(from_tail=True, **both), **line).headers == {"a": 1, "b": 2}
    assert of_tail(InputOptions(from_tail=True, **both), body="x").tag == "all"
    assert of_tail(InputOptions(from_tail=True, key_field="u"), **line).key == 5
    assert of_tail(InputOptions(from_tail=True, partition=1), **line) == OutgoingMessage(
        b'{"u":5}', None, 1, None, {"a": 1}, "own"
    )
    assert of_tail(InputOptions(from_tail=True, body_only=True), **line) == OutgoingMessage(b'{"u":5}', "k")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "it must have either a field body or a field body_base64"),
        ({"body": "a", "body_base64": "YQ=="}, "it must have either a field body or a field body_base64"),
        ({"body": 1}, "not a message as `nsq-ha tail --json` prints it: Expected `str | null`, got `int`"),
        ({"body_base64": "*"}, "not a message as `nsq-ha tail --json` prints it: Invalid base64"),
        ({"body": "\ud800"}, "not a message as `nsq-ha tail --json` prints it: "),
        ({"body": "a", "bdoy": "b"}, "not a message as `nsq-ha tail --json` prints it: Object contains unknown field"),
        ({"body": "a", "key": 1.5}, "not a message as `nsq-ha tail --json` prints it: Expected `"),
        ({"body": "a", "partition": True}, "not a message as `nsq-ha tail --json` prints it: Expected `int | null`"),
        ({"body": "a", "trace_id": -1}, "not a message as `nsq-ha tail --json` prints it: Expected `int` >= 0"),
        ({"body": "a", "headers": None, "header_error": "x"}, "its headers are not JSON, so they cannot be published"),
    ],
)
def test_a_line_that_is_no_message_says_why(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        of_tail(ORDERED, **fields)
    assert str(refused.value).startswith(text)


@pytest.mark.parametrize("line", [b"[1]", b"{", b"\xff"])
def test_a_line_that_is_no_object_says_so(line: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^not a message as"):
        message_of(line, TAIL)


# ---------------------------------------------------------------- keys


def test_a_key_stands_before_its_delimiter() -> None:
    options = InputOptions(key_delimiter=b"::")
    assert message_of(b"k::b::c", options) == OutgoingMessage(b"b::c", b"k")
    for line, text in ((b"no key", "it has no '::'"), (b"k::", "there is no body after the key")):
        with pytest.raises(ConfigError, match=text):
            message_of(line, options)
    with pytest.raises(ConfigError, match=r"it has no '\\\\xff' \(--key-delimiter\)"):
        message_of(b"no key", InputOptions(key_delimiter=b"\xff"))


# ---------------------------------------------------------------- CSV


async def rows_of(text: bytes, separator: str = ",", limit: int = 1000) -> list[Line]:
    splitter = Splitter(limit)

    async def lines() -> AsyncIterator[list[Line]]:
        yield splitter.feed(text)
        yield splitter.end()

    return [row async for rows in csv_rows(lines(), separator, limit) for row in rows]


async def test_rows_are_json_objects() -> None:
    text = '\ufeffid;name\r\n1;"a;""b""\nc"\r\n\r\n2;grün\n'.encode()
    assert await rows_of(text, ";") == [
        Line(2, b'{"id":"1","name":"a;\\"b\\"\\nc"}'),
        Line(5, '{"id":"2","name":"grün"}'.encode()),
    ]


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1, max_size=5))
async def test_what_python_writes_is_read(rows: list[list[str]]) -> None:
    rows = [[field.encode("utf-8", "ignore").decode() for field in row] for row in rows]
    output = io.StringIO()
    csv.writer(output, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([["a", "b"], *rows])
    found = await rows_of(output.getvalue().encode(), limit=100_000)
    assert [list(json.loads(row.data).values()) for row in found if row.data is not None] == rows


@pytest.mark.parametrize("separator", [",", "|", "ü"])
async def test_a_quote_within_a_field_begins_no_quoted_one(separator: str) -> None:
    """It used to join the row with the next ones, of which all were refused."""
    lines = ['\ufeff"a","b"', '5" pipe,1', '6","7 "",8"', '"9",""""', '"10', '",",11', 'x"']
    text = "\n".join(lines).replace(",", separator)
    found = [json.loads(row.data) for row in await rows_of(text.encode(), separator) if row.data is not None]
    wanted = [('5" pipe', "1"), ('6"', f'7 "{separator}8'), ("9", '"'), ("10\n", f"{separator}11\nx")]
    assert found == [{"a": a, "b": b} for a, b in wanted]


async def test_a_field_may_have_the_size_of_a_message() -> None:
    before = csv.field_size_limit(131_072)
    try:
        assert [row.reason for row in await rows_of(b"a\n" + b"x" * 200_000, limit=1_000_000)] == [""]
        assert csv.field_size_limit() == 1_000_000
    finally:
        csv.field_size_limit(before)


async def test_each_wrong_row_is_reported_with_its_line() -> None:
    found = await rows_of(b'a,b\n1\n1,2,3\n\xff,1\n"x"y,1\nok,1\n' + b"z" * 1001 + b'\nok,2\n"open,1\nend', limit=1000)
    wrong = {row.number: row.reason for row in found if row.data is None}
    assert [row.number for row in found if row.data is not None] == [6, 8]
    assert list(wrong) == [2, 3, 4, 5, 7, 9]
    assert (wrong[2], wrong[3]) == ("1 fields, but the first row names 2", "3 fields, but the first row names 2")
    assert wrong[4].startswith("not UTF-8")
    assert wrong[5].startswith("not CSV")
    assert wrong[7] == "a row longer than 1000 bytes, up to line 7"
    assert wrong[9] == "not CSV: unexpected end of data, up to line 10"


@pytest.mark.parametrize(
    ("text", "reason"),
    [(b"a,a\n", "two fields of the first row"), (b"\xff\n", "the first row is not UTF-8"), (b"x" * 1001, "is longer")],
)
async def test_a_wrong_first_row_ends_it(text: bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        await rows_of(text)


# ---------------------------------------------------------------- the command


@pytest.mark.few(every=4)
@pytest.mark.parametrize(
    "wrong",
    [
        ("--csv", "--jsonl"),
        ("--from-tail", "--whole"),
        ("--body-only",),
        ("--delimiter", "ab"),
        ("--delimiter", ""),
        ("--delimiter", "\\"),
        ("--delimiter", ";", "--whole"),
        ("--csv-separator", "ab"),
        ("-K", ":", "--key", "k"),
        ("-K", ""),
        ("-K", "\\q"),
        ("-K", "\\N{DASH}"),
    ],
)
def test_options_that_contradict_each_other_are_refused(invoke: Invoke, topic: str, wrong: tuple[str, ...]) -> None:
    assert invoke("pub", topic, *wrong, stdin="a").exit_code == 2
