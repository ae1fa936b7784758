"""Tables that fit the terminal: what there is no room for is left out, and named."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from nsq_ha.cli.figures import fitting, least_width, natural_width
from nsq_ha.cli.output import cell, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsq_ha.cli.figures import Column

_GAP = 3
"""Columns of the terminal between two columns of a table."""


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
    chosen = fitting(columns, rows, room, _GAP)
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
