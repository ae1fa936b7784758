"""Groups of commands, which list what each command does without cutting it off."""

from __future__ import annotations

from typing import Final

import click

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
