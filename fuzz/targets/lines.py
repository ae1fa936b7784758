"""Standard input of ``nsq-ha pub``."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fuzz.target import Target, pieces
from nsq_ha.cli.inputs import BadLine, InputOptions, csv_rows, message_of
from nsq_ha.cli.lines import Line, Splitter
from nsq_ha.errors import ConfigError
from nsq_ha.producer.messages import check_message

if TYPE_CHECKING:
    from nsq_ha.message import OutgoingMessage

T = TypeVar("T")

_LIMIT: Final = 2048
_OPTIONS: Final = (
    InputOptions(),
    InputOptions(jsonl=True, key="k"),
    InputOptions(key_field="id"),
    InputOptions(key_delimiter=b"\t", tag="t"),
    InputOptions(from_tail=True, keeps_partition=True),
    InputOptions(from_tail=True, body_only=True, headers={"a": "b"}),
    InputOptions(from_tail=True, key_field="id"),
)


def _split(stream: Iterable[bytes]) -> list[Line]:
    splitter, found = Splitter(_LIMIT), list[Line]()
    for piece in stream:
        found += splitter.feed(piece)
    return found + splitter.end()


async def _rows(lines: list[Line]) -> list[Line | BadLine]:
    async def given() -> AsyncIterator[list[Line]]:
        yield lines

    return [row async for rows in csv_rows(given(), ",", _LIMIT) for row in rows]


def _done(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("it waits")


def run_lines(data: bytes) -> None:
    """Lines and rows of CSV, cut anywhere; each becomes a message, or an error that says why not."""
    how, cut, stream = *data[:2].ljust(2, b"\1"), data[2:]
    lines = _split([stream])
    assert _split(pieces(stream, cut)) == lines
    assert [line.data for line in lines] == [
        each if len(each) <= _LIMIT else None for each in stream.removesuffix(b"\n").split(b"\n") if stream
    ]
    for line in lines:
        _message(line, how)
    try:
        rows = _done(_rows(lines))
    except ConfigError as error:
        assert str(error)
        return
    for row in rows:
        assert isinstance(row, BadLine) or isinstance(json.loads(row.data or b""), dict)


def _message(line: Line, how: int) -> None:
    try:
        message: OutgoingMessage = message_of(line.data or b"", _OPTIONS[how % len(_OPTIONS)])
        check_message(message, message.trace_id)
    except ConfigError as error:
        assert str(error)


def seeds_of_lines() -> Iterator[bytes]:
    """Yield lines of all forms."""
    yield b'\1\1{"a":1}\n{"id":"x"}\nno json\n\n'
    yield b'\2\2{"id":7}\n{"id":null}\n{"id":"\\ud800"}\n[]\n'
    yield b"\0\1" + b"long" * 600 + b"\nshort\n" + b"x" * 2049
    yield b"\3\3key\tbody\nkey only\n\tbody\n"
    for how in (4, 5, 6):
        yield bytes((how, 1)) + (
            b'{"topic":"t","body":"b","key":"k","headers":{"a":"b"},"tag":"t","trace_id":5,"offset":1}\n'
            b'{"body_base64":"eA==","partition":3,"attempts":1}\n{"body":"\\ud800"}\n{"body":1}\n{"body":"x","no":1}\n{"body_base64":"e"}'
        )
    yield b'\0\1a,b\n1,"two ""quoted"""\n"over\nlines",3\n1\n\xff,2\n'


TARGETS: Final = (Target("lines", "standard input of nsq-ha pub", run_lines, seeds_of_lines),)
