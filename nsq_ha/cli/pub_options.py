"""The options of ``nsq-ha pub``, and what they may not be together."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import click

from nsq_ha.cli.inputs import InputOptions


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
    csv_separator: str = ","

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


def parse_character(_: click.Context, __: click.Parameter, value: str) -> str:
    """Return the character that a text means."""
    found = "\t" if value == "\\t" else value
    if len(found) != 1 or found in '"\r\n':
        raise click.BadParameter(f"give one character, such as ';' or \\t, not {value!r}")
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
