"""The commands of the reference: the options that choose the cluster are described once, and not for each command.

.. cluster-options::  those options, as a table

They made up more than half of the page.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import click

from docs._ext.reference import Made, table
from nsq_ha.cli.options import cluster_options

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LABEL: Final = "options-of-the-cluster"


@click.command()
@cluster_options
def _any() -> None:
    """Have these options and no other."""


SHARED: Final = {option.name: option for option in _any.params if isinstance(option, click.Option)}


def shared_table() -> str:
    """Return the table of the options that choose the cluster."""
    rows = []
    for option in SHARED.values():
        value = option.metavar or ("FILE" if isinstance(option.type, click.Path) else option.type.name.upper())
        rows.append((", ".join(f"``{flag} {value}``" for flag in option.opts), option.help or ""))
    return table(("Option", "Meaning"), rows, widths="32 68")


def leave_out_shared(_: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Replace these options in the description of a command by a link to the table."""
    if not {option.name for option in context.command.params} >= set(SHARED):
        return
    flags = {option.opts[0] for option in context.command.params if option.name in SHARED}
    starts = [index for index, line in enumerate(lines) if line.startswith(".. option:: ")]
    kept = lines[: starts[0]]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        if lines[start].split()[2].strip(",") not in flags:
            kept += lines[start:end]
    lines[:] = [*kept, f"It also has the :ref:`options that choose the cluster <{LABEL}>`.", ""]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the table, and the change to each command."""
    app.add_directive("cluster-options", type("ClusterOptions", (Made,), {"make": staticmethod(shared_table)}))
    app.connect("sphinx-click-process-options", leave_out_shared)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
