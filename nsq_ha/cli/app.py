"""``nsq-ha``: the group that holds all commands."""

from __future__ import annotations

import logging

import click

from nsq_ha._version import __version__
from nsq_ha.cli.bench import bench
from nsq_ha.cli.channel import channel
from nsq_ha.cli.copy import copy
from nsq_ha.cli.dashboard import dashboard
from nsq_ha.cli.demo import demo
from nsq_ha.cli.dev import dev
from nsq_ha.cli.doctor import doctor
from nsq_ha.cli.groups import Group
from nsq_ha.cli.letters import dead_letters
from nsq_ha.cli.lookup import lookup
from nsq_ha.cli.node import node
from nsq_ha.cli.options import context_option
from nsq_ha.cli.output import drop_output
from nsq_ha.cli.pub import pub
from nsq_ha.cli.running import READER_GONE, log_to_stderr
from nsq_ha.cli.stat import stat
from nsq_ha.cli.tail import tail
from nsq_ha.cli.to_file import to_file
from nsq_ha.cli.top import top
from nsq_ha.cli.topic import topic
from nsq_ha.cli.trace import trace


class Commands(Group):
    """All commands; they end quietly if the reader of the output has ended, as in ``nsq-ha ... | head``."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            drop_output()
            raise click.exceptions.Exit(READER_GONE) from None


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 the reader of the output ended,"
    " 143 ended by SIGTERM.",
)
@click.version_option(__version__, prog_name="nsq-ha")
@click.option("-v", "--verbose", count=True, help="Show the library's log: -v changes, -vv also each frame.")
@context_option
def app(verbose: int, context: str | None) -> None:
    """Work with an NSQ cluster: a partitioned, replicated one, or a plain (upstream) one.

    `nsq-ha dev` starts one of either kind here, `nsq-ha demo` shows a partitioned one at work.
    """
    log_to_stderr({0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG))
    # If only some nsqlookupds fail, the user need not know; if all fail, the command reports it.
    logging.getLogger("nsq_ha.discovery").setLevel(logging.NOTSET if verbose else logging.ERROR)


for _command in (
    demo,
    dev,
    topic,
    channel,
    node,
    pub,
    tail,
    lookup,
    stat,
    top,
    doctor,
    trace,
    to_file,
    copy,
    dead_letters,
    bench,
    dashboard,
):
    app.add_command(_command)
