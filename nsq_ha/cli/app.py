"""``nsq-ha``: the group that holds all commands."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

from nsq_ha._version import __version__
from nsq_ha.cli import INTERRUPTED, READER_GONE

_COMMANDS: Final = (
    *("dev", "topic", "channel", "node", "pub", "tail", "browse", "lookup", "stat", "top", "doctor", "trace"),
    *("copy", "dead-letters", "dashboard"),
)
"""All commands; each has a module of its name, and only that of the command that runs is loaded."""


class Commands(click.Group):
    """All commands; they end quietly at Ctrl-C, and if the reader of the output has ended: ``nsq-ha ... | head``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command. None if there is none."""
        if cmd_name not in _COMMANDS:
            return None
        own = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"nsq_ha.cli.{own}"), own)
        return command

    def invoke(self, ctx: click.Context) -> None:
        """Run the command that the arguments name; what it returns is the exit code."""
        try:
            code: int | None = super().invoke(ctx)
        except BrokenPipeError:
            from nsq_ha.cli.output import drop_output

            drop_output()
            raise click.exceptions.Exit(READER_GONE) from None
        except KeyboardInterrupt:  # click would make it 1
            raise click.exceptions.Exit(INTERRUPTED) from None
        ctx.exit(int(code or 0))


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the reader of the output ended,"
    " 143 ended by SIGTERM.",
)
@click.version_option(__version__, prog_name="nsq-ha")
@click.option(
    "-v", "--verbose", count=True, show_default=False, help="Show the library's log: -v changes, -vv also each frame."
)
def app(verbose: int) -> None:
    """Work with an NSQ cluster: a partitioned, replicated one, or a plain (upstream) one.

    `nsq-ha dev` starts one of either kind here.
    """
    import logging

    from nsq_ha.cli.running import log_to_stderr

    log_to_stderr({0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG))
    # If only some nsqlookupds fail, the user need not know; if all fail, the command reports it.
    logging.getLogger("nsq_ha.discovery").setLevel(logging.NOTSET if verbose else logging.ERROR)
