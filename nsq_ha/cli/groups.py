"""Groups of commands, which list what each command does without cutting it off, and may load each when it is named."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

import click

from nsq_ha.cli import INTERRUPTED

_WHOLE: Final = 1000
"""Characters of a first sentence; a longer line is wrapped, not cut."""


class Group(click.Group):
    """A group whose help shows the first sentence of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with what they do."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_WHOLE)) for name, each in found if each is not None and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class OnDemand(UserDict[str, Any]):
    """Commands by their names; each is loaded when it is first asked for.

    Args:
        names: The commands; each is in the module of ``nsq_ha.cli`` that has its name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(dict.fromkeys(names))

    def __getitem__(self, name: str) -> click.Command:
        """Return a command."""
        command: click.Command | None = super().__getitem__(name)
        if command is None:
            own = name.replace("-", "_")
            try:
                module = import_module(f"nsq_ha.cli.{own}")
            except KeyboardInterrupt:  # click would make it 1
                raise click.exceptions.Exit(INTERRUPTED) from None
            command = self[name] = getattr(module, own)
        return command
