"""Print the output of commands: tables for people, JSON lines for programs.

The invariant: control characters in external text (names, bodies, texts of
servers) never reach a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from rich.table import Table


def clean(text: str) -> str:
    """Return ``text`` on one line, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


_ADVICE: Final = {
    "set auth_secret": "give --auth-secret-file",
    "give ca_file= with its PEM file": "give --tls-ca with its PEM file",
    "give lookupd_tls=TlsConfig(ca_file=...)": "give --tls-ca with its PEM file",
    "; empty_channel drops those that wait": "; `nsq-ha channel empty` drops those that wait",
    "E_AUTH_FAILED AUTH failed": "E_AUTH_FAILED AUTH failed: the auth server does not know the secret of"
    " --auth-secret-file",
}
"""What errors of the library advise, and what that is at the terminal."""


def explained(error: object) -> str:
    """Return the text of an error on one line, with advice that names the options of commands."""
    text = str(error)
    for advice, here in _ADVICE.items():
        text = text.replace(advice, here)
    return clean(text)


def wants_json(flag: bool | None) -> bool:
    """Return whether to print JSON: as the user chose, otherwise if standard output is not a terminal."""
    return flag if flag is not None else not sys.stdout.isatty()


def print_json(value: object) -> None:
    """Print one JSON line."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)
    if not text.isprintable():  # json does not escape control characters such as U+009B and U+202E
        text = "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)
    click.echo(text)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table; columns whose name ends in ``#`` (which is not printed) are numbers, aligned right."""
    from rich import box
    from rich.table import Table

    table = Table(title=cell(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.removesuffix("#"), justify="right" if column.endswith("#") else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    show(table)


def cell(value: object) -> Any:  # noqa: ANN401 - a cell of rich: text or markup made by ourselves
    """Return a cell for rich: text without markup and control characters, None as a dash, booleans as yes or no."""
    from rich.text import Text

    if isinstance(value, Text):
        return value
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    return Text(clean(f"{value:,}" if isinstance(value, int) else str(value)))


def show(table: Table) -> None:
    """Print a rich table to standard output."""
    console().print(table)


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
