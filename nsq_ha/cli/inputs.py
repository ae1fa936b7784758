"""The options of ``nsq-ha pub``, and what it publishes for a line, a row of CSV, or a message of ``nsq-ha tail``.

The invariant: each piece of the input becomes a message, or an error with the number of its line.
"""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import click
import msgspec

from nsq_ha.cli.lines import Line
from nsq_ha.errors import ConfigError
from nsq_ha.message import OutgoingMessage
from nsq_ha.options.checks import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class InputOptions:
    """How a piece of the input becomes a message.

    Attributes:
        jsonl: It must be JSON.
        from_tail: It is a message as ``nsq-ha tail --json`` prints it.
        body_only: Take only the body of such a message.
        key_delimiter: Separates its key from its body. None if it has no key.
        key: The key of all. None for none.
        key_field: The field of a body's JSON object that is the key. None for none.
        partition: The partition of all. None for any.
        headers: The headers of all; the own ones of a message win.
        tag: The tag of all that have none. None for none.
        keeps_partition: Messages of ``nsq-ha tail`` without a key go to the partition that they name.
    """

    jsonl: bool = False
    from_tail: bool = False
    body_only: bool = False
    key_delimiter: bytes | None = None
    key: str | None = None
    key_field: str | None = None
    partition: int | None = None
    headers: Mapping[str, object] | None = None
    tag: str | None = None
    keeps_partition: bool = False


def message_of(data: bytes, options: InputOptions) -> OutgoingMessage:
    """Return the message for a piece of the input.

    Raises:
        ConfigError: There is none; the text says why.
    """
    if options.from_tail:
        return _of_tail(data, options)
    key: str | bytes | int | None = options.key
    if options.key_delimiter is not None:
        key, found, data = data.partition(options.key_delimiter)
        if not found:
            delimiter = options.key_delimiter.decode(errors="backslashreplace")
            raise ConfigError(f"it has no {delimiter!r} (--key-delimiter) after a key")
        if not data:
            raise ConfigError("there is no body after the key")
    if options.jsonl:
        _decode(data, parse_constant=_refuse)
    if options.key_field is not None:
        key = key_of(data, options.key_field)
    return OutgoingMessage(data, key, options.partition, None, options.headers or None, options.tag)


def key_of(data: bytes, name: str) -> str | int:
    """Return the sharding key that a field of a JSON object is.

    Raises:
        ConfigError: The data is not JSON, or has no usable key.
    """
    value = _decode(data)
    if not isinstance(value, dict):
        raise ConfigError(f"not a JSON object, so it has no field {name!r} (--key-field)")
    if name not in value:
        raise ConfigError(f"field {name!r} (--key-field) is missing")
    key = value[name]
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ConfigError(f"field {name!r} (--key-field) must be text or an integer, not {shown(key)}")
    return key


def _decode(data: bytes, **how: Any) -> Any:  # noqa: ANN401 - options of json.loads; any JSON value
    try:
        return json.loads(data, **how)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from error


def _refuse(constant: str) -> object:
    """Refuse NaN and infinity, which Python reads and other programs do not."""
    raise ValueError(f"it has {constant}")


# ---------------------------------------------------------------- messages of tail


class _Told(msgspec.Struct, forbid_unknown_fields=True):
    """A message as ``nsq-ha tail --json`` prints it. The last fields say where it was, and are not published."""

    body: str | None = None
    body_base64: bytes | None = None
    key: str | int | None = None
    partition: int | None = None
    headers: dict[str, Any] | None = None
    tag: str | None = None
    trace_id: Annotated[int, msgspec.Meta(ge=0)] | None = None
    header_error: Any = None
    ext_base64: Any = None
    topic: Any = None
    offset: Any = None
    internal_id: Any = None
    attempts: Any = None
    timestamp_ns: Any = None
    nsqd: Any = None
    dead_letter: Any = None


def _of_tail(data: bytes, options: InputOptions) -> OutgoingMessage:
    try:
        told = msgspec.json.decode(data, type=_Told)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"not a message as `nsq-ha tail --json` prints it: {error}") from error
    body = told.body_base64 if told.body is None else told.body.encode()
    if body is None or None not in (told.body, told.body_base64):
        raise ConfigError("it must have either a field body or a field body_base64")
    key = options.key if options.key_field is None else key_of(body, options.key_field)
    if key is None and options.partition is None:
        key = told.key
    partition = options.partition
    if partition is None and key is None and options.keeps_partition:
        partition = told.partition
    if options.body_only:
        return OutgoingMessage(body, key, partition, None, options.headers or None, options.tag)
    if told.header_error is not None or told.ext_base64 is not None:
        raise ConfigError("its headers are not JSON, so they cannot be published: give --body-only to leave them out")
    headers = {**(options.headers or {}), **(told.headers or {})}
    tag = options.tag if told.tag is None else told.tag
    return OutgoingMessage(body, key, partition, told.trace_id or None, headers or None, tag)


# ---------------------------------------------------------------- CSV


async def csv_rows(chunks: AsyncIterator[list[Line]], separator: str, limit: int) -> AsyncIterator[list[Line]]:
    """Yield the rows of CSV as JSON objects, those that end in one chunk together.

    The first row has the names of the fields.

    Args:
        chunks: The lines. A quoted field may contain newlines, so a row may have several.
        separator: The character between fields.
        limit: Maximum size of a row in bytes.

    Raises:
        ConfigError: The first row cannot be used.
    """
    rows = _Rows(separator, limit)
    async for lines in chunks:
        yield [row for line in lines for row in rows.take(line)]
    yield rows.end()


class _Rows:
    """Joins lines to rows.

    Args:
        separator: The character between fields.
        limit: Maximum size of a row in bytes.
    """

    def __init__(self, separator: str, limit: int) -> None:
        self._separator = separator
        self._limit = limit
        self._names: list[str] | None = None
        # A quote within a field is an ordinary character. The group is empty if the field goes on in the next line.
        between = re.escape(separator.encode(errors="surrogateescape"))
        self._quoted = re.compile(rb'(?:\A(?:\xef\xbb\xbf)?|%b)"[^"]*(?:""[^"]*)*("?)' % between)
        csv.field_size_limit(max(limit, csv.field_size_limit()))  # 128 KiB, unless somebody sets it
        self._parts: list[bytes] = []
        self._size = 0
        self._first = 0
        self._is_quoted = False

    def take(self, line: Line) -> list[Line]:
        """Return the row that ends in a line, if one does."""
        if not self._parts:
            self._first = line.number
            self._size = 0
        if line.data is None or self._size + len(line.data) > self._limit:
            self._reset()
            if self._names is None:
                raise ConfigError(f"line {line.number}: the first row of CSV is longer than {self._limit} bytes")
            return [Line(self._first, None, f"a row longer than {self._limit} bytes, up to line {line.number}")]
        self._parts.append(line.data)
        self._size += len(line.data) + 1
        text = b'"' + line.data if self._is_quoted else line.data
        self._is_quoted = b'"' in text and any(not field[1] for field in self._quoted.finditer(text))
        return [] if self._is_quoted else self._cut()

    def end(self) -> list[Line]:
        """Return the last row if its quotes do not end."""
        return self._cut() if self._parts else []

    def _reset(self) -> None:
        self._parts = []
        self._is_quoted = False

    def _cut(self) -> list[Line]:
        data = b"\n".join(self._parts).removesuffix(b"\r")
        last = self._first + len(self._parts) - 1
        self._reset()
        if not data:
            return []
        try:
            fields = self._fields(data.decode("utf-8-sig" if self._names is None else "utf-8"))
        except (UnicodeDecodeError, csv.Error) as error:
            what = "not UTF-8" if isinstance(error, UnicodeDecodeError) else "not CSV"
            if self._names is None:
                raise ConfigError(f"line {self._first}: the first row is {what}: {error}") from error
            up_to = f", up to line {last}" if last > self._first else ""
            return [Line(self._first, None, f"{what}: {error}{up_to}")]
        if self._names is None:
            if len(set(fields)) < len(fields):
                raise ConfigError(f"line {self._first}: two fields of the first row have the same name")
            self._names = fields
            return []
        if len(fields) != len(self._names):
            return [Line(self._first, None, f"{len(fields)} fields, but the first row names {len(self._names)}")]
        return [Line(self._first, msgspec.json.encode(dict(zip(self._names, fields, strict=True))))]

    def _fields(self, text: str) -> list[str]:
        rows = list(csv.reader([text], delimiter=self._separator, strict=True))
        if len(rows) != 1:
            raise csv.Error("a newline outside quotes")
        return rows[0]


def parse_headers(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, object]:
    """Return ``key=value`` pairs as a dict."""
    headers: dict[str, object] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"write key=value, not {value!r}")
        headers[key] = text
    return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class PubOptions(InputOptions):
    """The options of the command, by their names."""

    trace: bool
    timeout: float | None
    in_flight: int
    receipts: bool
    stop_on_error: bool
    defer: float | None = None
    delimiter: bytes = b"\n"
    whole: bool = False
    csv: bool = False
    csv_separator: bytes = b","

    @property
    def has_keys(self) -> bool:
        """Whether each message has a key or a partition."""
        return bool(self.given("from_tail", "key", "key_field", "partition", "key_delimiter"))

    def given(self, *names: str) -> list[str]:
        """Return which of these options the user gave, as they are written."""
        values = {name: getattr(self, name) for name in names}
        return [f"--{n.replace('_', '-')}" for n, value in values.items() if value is not None and value is not False]


def parse_bytes(_: click.Context, __: click.Parameter, value: str | None) -> bytes | None:
    """Return the bytes of a text, which may have escapes for control characters."""
    if value is None:
        return None
    try:
        with warnings.catch_warnings(action="error"):  # of an escape that does not exist
            found = value.encode().decode("unicode_escape").encode("latin-1") if "\\" in value else value.encode()
    except (UnicodeDecodeError, UnicodeEncodeError, DeprecationWarning):
        raise click.BadParameter(f"{value!r} has a wrong escape: \\n, \\t, \\0 and \\x1e are right ones") from None
    if not found:
        raise click.BadParameter("it is empty")
    return found


def parse_byte(context: click.Context, parameter: click.Parameter, value: str) -> bytes:
    """Return the byte that a text means, which may be an escape."""
    found = parse_bytes(context, parameter, value) or b""
    if len(found) != 1:
        raise click.BadParameter(f"give one byte, such as \\0 or ';', not {value!r}")
    return found


def check_usage(options: PubOptions) -> None:
    """Reject options that contradict each other."""
    given = options.given("jsonl", "from_tail", "csv", "whole", "key_delimiter")
    if len(given) > 1 and given not in (["--jsonl", "--key-delimiter"], ["--jsonl", "--whole"]):
        raise click.UsageError(f"give {given[0]} or {given[1]}, not both")
    chosen = options.given("key", "key_field", "key_delimiter")
    if len(chosen) > 1:
        raise click.UsageError(f"give {chosen[0]} or {chosen[1]}, not both")
    if options.partition is not None and chosen:
        raise click.UsageError("give --partition or a key, not both: the key chooses the partition")
    if options.body_only and not options.from_tail:
        raise click.UsageError("--body-only needs --from-tail")
    if options.delimiter != b"\n" and (options.whole or options.csv):
        raise click.UsageError(f"give --delimiter or {'--whole' if options.whole else '--csv'}, not both")
