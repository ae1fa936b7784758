"""Print the output of commands: tables for people, JSON lines for programs.

Tables fit the terminal: columns for which there is no room are left out, and named.

The columns of channels and partitions are those of ``stat``, ``top`` and ``channel list``; their rows those of a
:class:`~nsq_ha.admin.reading.Reading`.

The invariant: control characters in external text (names, bodies, texts of
servers) never reach a terminal.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from datetime import UTC, datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from nsq_ha.admin.words import brief, span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rich.console import Console, OverflowMethod
    from rich.table import Table

    from nsq_ha.admin import Latency
    from nsq_ha.admin.reading import FigureRow


_Row = TypeVar("_Row")


def clean(text: str) -> str:
    """Return ``text`` on one line, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    click.echo(f"warning: {clean(text)}", err=True)


_ADVICE: Final = {
    "set auth_secret": "give --auth-secret-file",
    "give ca_file= with its PEM file": "give --tls-ca with its PEM file",
    "give lookupd_tls=TlsConfig(ca_file=...)": "give --tls-ca with its PEM file",
    "; empty_channel drops those that wait": "; `nsq-ha channel empty` drops those that wait",
    "E_AUTH_FAILED AUTH failed": "E_AUTH_FAILED AUTH failed: the auth server does not know the secret of"
    " --auth-secret-file",
}
"""What errors of the library advise, and what that is at the terminal."""


_KEYWORD: Final = re.compile(r"\b(give|remove) ([a-z_]+)=(?![\w(])")
"""Advice that names an argument of the library."""


def local_time(time_ns: int) -> str:
    """Return nanoseconds since the epoch as a time of this machine, to the millisecond."""
    return datetime.fromtimestamp(time_ns / 1e9, UTC).astimezone().isoformat(" ", "milliseconds")[:23]


def explained(error: object) -> str:
    """Return the text of an error on one line, with advice that names the options of commands."""
    text = _KEYWORD.sub(lambda found: f"{found[1]} {_option(found[2])}", str(error))
    for advice, here in _ADVICE.items():
        text = text.replace(advice, here)
    return clean(text)


def _option(argument: str) -> str:
    """Return the option of commands for an argument of ``AdminClient``."""
    name = {"disable_channel_auto_create": "register_channels"}.get(argument, argument)
    return f"--{name.replace('_', '-')}"


def wants_json(flag: bool | None) -> bool:
    """Return whether to print JSON: as the user chose, otherwise if standard output is not a terminal."""
    return flag if flag is not None else not sys.stdout.isatty()


def json_of(value: object, **form: Any) -> str:  # noqa: ANN401 - options of json.dumps
    """Return a value as JSON. Infinity and NaN, which JSON does not have, become texts."""
    try:
        return json.dumps(value, default=str, allow_nan=False, **form)
    except ValueError:
        # A header may hold 1e999, which is JSON, but Python reads it as infinity.
        return json.dumps(json.loads(json.dumps(value, default=str), parse_constant=str), **form)


def picked(value: object, *names: str) -> dict[str, Any]:
    """Return some attributes of a value, by their names; None for those that it does not have."""
    return {name: getattr(value, name, None) for name in names}


def print_json(value: object) -> None:
    """Print one JSON line."""
    # What another encoding does not have would be escaped as in Python, and not as in JSON.
    is_utf8 = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    text = json_of(value, separators=(",", ":"), ensure_ascii=not is_utf8)
    if not text.isprintable():  # json does not escape control characters such as U+009B and U+202E
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    click.echo(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table; columns whose name ends in ``#`` (which is not printed) are numbers, aligned right."""
    drawn = [(column.removesuffix("#"), column.endswith("#"), None) for column in columns]
    console().print(table_of(drawn, rows, title=title))


def table_of(
    columns: Iterable[tuple[str, bool, int | None]],
    rows: Iterable[Iterable[object]],
    *,
    title: str | None = None,
    styles: Iterable[str] | None = None,
) -> Table:
    """Return a table of rich.

    Args:
        columns: Of each its name, whether it is of numbers, and its width, if that is fixed.
        rows: What they show.
        title: Stands above.
        styles: Those of the rows; what has no room is then cut, so that each row is one line.
    """
    from rich import box
    from rich.table import Table

    table = Table(title=cell(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, is_number, width in columns:
        overflow: OverflowMethod = "ellipsis" if styles else "fold"
        table.add_column(name, justify="right" if is_number else "left", overflow=overflow, width=width)
    for row, style in zip(rows, styles or repeat(""), strict=False):
        table.add_row(*(cell(each, no_wrap=True if styles else None) for each in row), style=style)
    return table


def cell(value: object, *, no_wrap: bool | None = None) -> Any:  # noqa: ANN401 - a cell of rich: text or markup made by ourselves
    """Return a cell for rich: text without markup and control characters, None as a dash, booleans as yes or no."""
    from rich.text import Text

    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    return Text(clean(f"{value:,}" if isinstance(value, int) else str(value)), no_wrap=no_wrap)


def console() -> Console:
    """Return rich's standard output; if its reader ends, it raises BrokenPipeError, as other output does.

    Rich's own would end the program with exit code 1.
    """
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Output(highlight=False)


def drop_output() -> None:
    """Discard the remaining output, so that the interpreter's last flush does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


_GAP: Final = 3
"""Columns of the terminal between two columns of a table."""

_NAME_WIDTH: Final = 20
"""Characters of a name for which there should be room."""


class FigureColumn(NamedTuple):
    """A column of figures.

    Attributes:
        name: Its title.
        need: Columns with a larger number are left out first, where there is no room; 0 always stays.
        text: What it shows for a row. None shows a dash.
        is_number: It is aligned right.
        is_list: Its words may stand on lines of their own, where there is no room beside each other.
    """

    name: str
    need: int
    text: Callable[[Any], str | None]
    is_number: bool = True
    is_list: bool = False


def natural_width(column: FigureColumn, rows: Iterable[Any]) -> int:
    """Return the width in which a column shows everything on one line."""
    return max([len(column.name), *(len(column.text(row) or "-") for row in rows)])


def least_width(column: FigureColumn, rows: Iterable[Any]) -> int:
    """Return the width that a column needs; a long name takes several lines, and so does a list."""
    if column.is_list:
        return max([len(column.name), *(len(word) for row in rows for word in (column.text(row) or "-").split())])
    width = natural_width(column, rows)
    return width if column.is_number or column.need else min(width, _NAME_WIDTH)


def fitting(columns: Sequence[FigureColumn], rows: Sequence[Any], width: int) -> list[FigureColumn]:
    """Return the columns that fit, in their order; those that are needed least are left out first.

    A long name takes several lines, rather than the place of figures.
    """
    widths = {column.name: least_width(column, rows) for column in columns}
    left = list(columns)
    for column in sorted(columns, key=lambda each: -each.need):
        if column.need == 0 or sum(widths[each.name] + _GAP for each in left) - _GAP <= width:
            break
        left.remove(column)
    return left


def print_fitting(columns: Sequence[FigureColumn], rows: Sequence[object], *, title: str | None = None) -> None:
    """Print a table with the columns for which the terminal has room, and name the others.

    Args:
        columns: All columns.
        rows: What they show.
        title: Stands above.
    """
    from rich.console import Console

    room = Console().width - 2
    chosen = fitting(columns, rows, room)
    widths = {column.name: natural_width(column, rows) for column in chosen}
    over = max(0, sum(widths.values()) + _GAP * (len(widths) - 1) - room)

    def width(column: FigureColumn) -> int | None:
        if not (column.is_number or column.need):
            return None  # names fold first
        natural = widths[column.name]
        return max(least_width(column, rows), natural - over) if column.is_list else natural

    drawn = [(column.name, column.is_number, width(column)) for column in chosen]
    console().print(table_of(drawn, ([column.text(row) for column in chosen] for row in rows), title=title))
    hidden = [column.name for column in columns if column not in chosen]
    if hidden:
        click.echo(f"hidden, terminal too narrow: {', '.join(hidden)}; --json has all", err=True)


def print_rows(
    rows: Sequence[_Row],
    as_dict: Callable[[_Row], object],
    columns: Sequence[FigureColumn],
    *,
    as_json: bool | None,
    title: str | None = None,
    empty: str = "",
) -> None:
    """Print rows as JSON lines or as a table, as the user chose.

    Args:
        rows: The rows.
        as_dict: Returns what a JSON line has of a row.
        columns: What a table shows of it.
        as_json: What the user chose.
        title: Stands above a table.
        empty: Stands instead of a table without rows. An empty text prints the empty table.
    """
    if wants_json(as_json):
        for row in rows:
            print_json(as_dict(row))
    elif rows or not empty:
        print_fitting(columns, rows, title=title)
    else:
        click.echo(empty)


def number(value: float | None) -> str | None:
    """Return a count, or a rate with a digit if it is small."""
    if value is None:
        return None
    if 0 < value < 10 and value != round(value):
        return f"{value:.1f}"
    return f"{round(value):,}"


def age(at: int, now: float) -> str | None:
    """Return for how long something lasts, in whole seconds. None if it is 0, unknown."""
    return span(int(max(0.0, now - at))) if at else None


def latencies(found: Latency | None) -> str | None:
    """Return the percentiles of a latency, such as ``50 % in 3 ms, 99 % in 1.2 s``."""
    return None if found is None else ", ".join(f"{share * 100:g} % in {brief(s)}" for share, s in found.percentiles)


def _count(name: str) -> Callable[[FigureRow], str | None]:
    """Return what shows a count of a channel."""
    return lambda row: None if row.channel is None else number(getattr(row.channel, name))


TOPIC: Final = FigureColumn("topic", 0, lambda row: row.topic, is_number=False)
CHANNEL: Final = FigureColumn("channel", 0, lambda row: row.name or None, is_number=False)
PARTITION: Final = FigureColumn("part", 0, lambda row: None if row.partition is None else str(row.partition))
NSQD: Final = FigureColumn("leader", 4, lambda row: row.nsqd, is_number=False)
FIGURES: Final = (
    FigureColumn("depth", 0, lambda row: number(row.depth)),
    FigureColumn("in flight", 2, _count("in_flight")),
    FigureColumn("lag", 1, lambda row: None if row.lag is None else span(row.lag)),
    FigureColumn("clients", 3, _count("clients")),
    FigureColumn("full", 3, lambda row: row.full or None, is_number=False),
    FigureColumn("requeued", 6, _count("requeued")),
    FigureColumn("timed out", 7, _count("timed_out")),
    FigureColumn("deferred", 8, _count("deferred")),
    FigureColumn("messages", 9, lambda row: number(row.messages)),
    FigureColumn("latency", 10, lambda row: latencies(row.latency), is_number=False, is_list=True),
    FigureColumn("state", 1, lambda row: row.state or None, is_number=False),
)
_RARE: Final = ("state", "latency", "full")
"""Columns that are left out if no row has anything to show; each is an attribute of a row."""
RATES: Final = (
    FigureColumn("in/s", 1, lambda row: number(row.in_rate)),
    FigureColumn("out/s", 1, lambda row: number(row.out_rate)),
)


def columns_of(rows: Sequence[FigureRow], *, by_partition: bool, rates: bool) -> list[FigureColumn]:
    """Return the columns that have something to show."""
    places = []
    if by_partition:
        is_plain = all(row.partition is None for row in rows)
        places = [NSQD._replace(name="nsqd", need=0)] if is_plain else [PARTITION, NSQD]
    figures = [each for each in FIGURES if each.name not in _RARE or any(getattr(row, each.name) for row in rows)]
    return [TOPIC, CHANNEL, *places, *(RATES if rates else ()), *figures]


SORTS: Final[Mapping[str, Callable[[FigureRow], float]]] = {
    "depth": lambda row: row.depth or 0,
    "lag": lambda row: row.lag or 0.0,
    "in": lambda row: row.in_rate or 0.0,
    "out": lambda row: row.out_rate or 0.0,
    "flight": lambda row: row.channel.in_flight if row.channel else 0,
    "clients": lambda row: row.channel.clients if row.channel else 0,
    "requeued": lambda row: row.channel.requeued if row.channel else 0,
    "timeouts": lambda row: row.channel.timed_out if row.channel else 0,
}
"""Figures by which rows can be sorted, largest first. ``name`` is the order without them."""


def in_order(rows: Iterable[FigureRow], by: str) -> list[FigureRow]:
    """Return rows sorted by a figure of :data:`SORTS`, largest first, or by ``name``."""
    named = sorted(
        rows, key=lambda row: (row.topic, row.name, -1 if row.partition is None else row.partition, row.nsqd or "")
    )
    if by != "name":
        named.sort(key=SORTS[by], reverse=True)
    return named
