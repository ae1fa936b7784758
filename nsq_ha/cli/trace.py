"""``nsq-ha trace``: what happened to one message, or, from trace logs, to each."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from nsq_ha.cli.figures import number
from nsq_ha.cli.groups import Group
from nsq_ha.cli.life import message
from nsq_ha.cli.options import TOPIC, Number, json_option
from nsq_ha.cli.output import print_json, print_table, wants_json
from nsq_ha.cli.tables import Column, print_fitting
from nsq_ha.errors import SparkUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsq_ha.spark.trace.report import TraceReport

_KINDS = ("lost", "repeated", "out_of_order")
_LATENCY = (
    Column("log", 4, lambda row: row["side"], is_number=False),
    Column("topic", 0, lambda row: row["topic"], is_number=False),
    Column("channel", 0, lambda row: row["channel"], is_number=False),
    Column("stage", 0, lambda row: row["stage"].replace("_", " "), is_number=False),
    Column("messages", 3, lambda row: number(row["messages"])),
    Column("50 %", 2, lambda row: number(row["p50_ms"])),
    Column("95 %", 0, lambda row: number(row["p95_ms"])),
    Column("99 %", 0, lambda row: number(row["p99_ms"])),
    Column("max", 0, lambda row: number(row["max_ms"])),
)


def _checked(_: click.Context, __: click.Parameter, logs: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse files of this machine that do not exist, before Spark starts."""
    from nsq_ha.spark.trace.events import url_of

    for path in logs:
        try:
            url_of(path)
        except OSError as error:
            raise click.BadParameter(f"there is no file {path!r} (give patterns in quotes)") from error
    return logs


def _session(master: str | None, threads: str) -> SparkSession:
    """Return a session on this machine, or on a cluster.

    Raises:
        SparkUnavailableError: Spark did not start.
    """
    from nsq_ha.spark.session import local_session

    if master is None:
        return local_session("nsq_ha trace", threads=threads, config={"spark.sql.shuffle.partitions": "4"})
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("nsq_ha trace")
    if master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    # As on this machine: Spark warns with a stack trace that a pattern is no file.
    return builder.master(master).config("spark.log.level", "ERROR").getOrCreate()


class WithMessage(Group):
    """A group whose command is ``message`` if the first argument is a number: ``trace 7`` is ``trace message 7``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name."""
        if args and args[0][:1].isdigit():
            args = ["message", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=WithMessage, short_help="Show the life of a message.")
def trace() -> None:
    """Follow messages: `trace ID` shows the life of one, `trace report` reads whole trace logs.

    `report` needs Spark: pip install 'nsq_ha[spark]', and Java 17 or newer.
    """


trace.add_command(message)


@trace.command()
@click.argument("logs", nargs=-1, required=True, callback=_checked)
@click.option("--out", help="Folder for the page, JSON and Parquet: a path, or a URL that Spark can write.")
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Report only this topic. May be repeated.")
@click.option("--ordered", type=TOPIC, multiple=True, help="Check the order of this topic. May be repeated.")
@click.option(
    "--grace",
    type=Number(0),
    default=60.0,
    show_default=True,
    help="Seconds after which a message that was not finished counts as lost.",
)
@click.option(
    "--skip-prefix",
    default="spark-",
    show_default=True,
    help="Leave out channels with this prefix, since they are not consumers.",
)
@click.option(
    "--fail-on",
    type=click.Choice(_KINDS),
    multiple=True,
    default=("lost", "out_of_order"),
    show_default=True,
    help="Anomaly that makes the exit code 1. May be repeated.",
)
@click.option(
    "--threads", default="*", show_default=True, help="Threads that Spark uses on this machine; * for one per core."
)
@click.option(
    "--master",
    help="Run on this Spark cluster (spark://..., yarn, k8s://...) or Spark Connect server (sc://...), not on this "
    "machine alone.",
)
@json_option
def report(
    logs: tuple[str, ...],
    out: str | None,
    *,
    topics: tuple[str, ...],
    ordered: tuple[str, ...],
    grace: float,
    skip_prefix: str,
    fail_on: tuple[str, ...],
    threads: str,
    master: str | None,
    as_json: bool | None,
) -> None:
    """Read trace logs of the SDK, logs of nsqds, or both, and report what happened to the messages.

    LOGS are files, folders and patterns of this machine, or URLs of any file system that Spark knows, such as
    `s3a://bucket/trace/*.jsonl`.

    With --out, write a page (report.html), report.json and Parquet tables to that folder. Exit code 1 if an
    anomaly of --fail-on was found, or no trace line.
    """
    try:
        from nsq_ha.spark.session import require_spark

        require_spark()
    except (ModuleNotFoundError, SparkUnavailableError) as error:
        raise click.ClickException(str(error)) from error
    from nsq_ha.spark.trace.report import ReportOptions, trace_report

    options = ReportOptions(topics, ordered, grace, skip_prefix, fail_on)
    with contextlib.ExitStack() as stack:
        try:
            session = _session(master, threads)
        except SparkUnavailableError as error:
            raise click.ClickException(str(error)) from error
        stack.callback(session.stop)
        found = trace_report(session, logs, out, options)
    if wants_json(as_json):
        print_json(found.as_dict())
    else:
        print_report(found, out)
    if not found.is_ok:
        raise click.exceptions.Exit(1)


def print_report(found: TraceReport, out: str | None) -> None:
    """Print the tables of a report, its verdict and where its page is."""
    print_table(
        ["log", "topic", "channel", "outcome", "messages#"],
        [(row["side"], row["topic"], row["channel"], row["outcome"], row["count"]) for row in found.outcomes],
        title=f"{found.events:,} events, {found.bad_lines:,} lines that cannot be read",
    )
    print_fitting(_LATENCY, [row for row in found.latency if row["partition"] is None], title="latency in ms")
    summary = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in found.counts.items())
    if not found.events:
        summary = "no trace line in these logs: is the trace of the topic switched on?"
    click.echo(f"{'ok' if found.is_ok else 'FAILED'}: {summary}")
    if out is not None:
        click.echo(f"page: {out.rstrip('/')}/report.html")
