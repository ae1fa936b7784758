"""Tables that fit the terminal: what there is no room for is left out, and named."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from nsq_ha.cli.output import cell, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_GAP: Final = 3
"""Columns of the terminal between two columns of a table."""

_NAME_WIDTH: Final = 20
"""Characters of a name for which there should be room."""


class Column(NamedTuple):
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


def natural_width(column: Column, rows: Iterable[Any]) -> int:
    """Return the width in which a column shows everything on one line."""
    return max([len(column.name), *(len(column.text(row) or "-") for row in rows)])


def least_width(column: Column, rows: Iterable[Any]) -> int:
    """Return the width that a column needs; a long name takes several lines, and so does a list."""
    if column.is_list:
        return max([len(column.name), *(len(word) for row in rows for word in (column.text(row) or "-").split())])
    width = natural_width(column, rows)
    return width if column.is_number or column.need else min(width, _NAME_WIDTH)


def fitting(columns: Sequence[Column], rows: Sequence[Any], width: int) -> list[Column]:
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


def fitted_widths(columns: Sequence[Column], rows: Sequence[Any], width: int) -> dict[str, int]:
    """Return the width of each column; long names are cut so that all figures fit."""
    widths = {each.name: natural_width(each, rows) for each in columns}
    names = sorted((each.name for each in columns if not (each.is_number or each.need)), key=widths.__getitem__)
    left = width - sum(widths[each.name] + _GAP for each in columns) + _GAP + sum(widths[name] for name in names)
    for number_left, name in enumerate(names):
        widths[name] = max(1, min(widths[name], left // (len(names) - number_left)))
        left -= widths[name]
    return widths


def print_fitting(
    columns: Sequence[Column], rows: Sequence[object], *, title: str | None = None, says_hidden: bool = True
) -> None:
    """Print a table with the columns for which the terminal has room.

    Args:
        columns: All columns.
        rows: What they show.
        title: Stands above.
        says_hidden: Name the columns for which there is no room.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    room = Console().width - 2
    chosen = fitting(columns, rows, room)
    widths = {column.name: natural_width(column, rows) for column in chosen}
    over = sum(widths.values()) + _GAP * (len(widths) - 1) - room
    table = Table(title=cell(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in chosen:
        width = widths[column.name]
        if column.is_list and over > 0:
            width = max(least_width(column, rows), width - over)
        table.add_column(
            column.name,
            justify="right" if column.is_number else "left",
            overflow="fold",
            # Names fold first.
            width=width if column.is_number or column.need else None,
        )
    for row in rows:
        table.add_row(*(cell(column.text(row)) for column in chosen))
    show(table)
    hidden = [column.name for column in columns if column not in chosen]
    if hidden and says_hidden:
        say(f"not shown, for want of room: {', '.join(hidden)}; -o json has all")


def say(text: str) -> None:
    """Print a sentence to standard error; on a terminal its lines end between words."""
    if sys.stderr.isatty():
        from rich.console import Console

        text = click.wrap_text(text, Console(stderr=True).width - 1)
    click.echo(text, err=True)
