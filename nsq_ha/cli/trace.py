"""``nsq-ha trace``: report from trace logs what happened to each message."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsq_ha.cli.options import TOPIC, Number, json_option
from nsq_ha.cli.output import print_json, print_table, wants_json
from nsq_ha.errors import SparkUnavailableError

if TYPE_CHECKING:
    from nsq_ha.spark.trace.report import TraceReport

_KINDS = ("lost", "repeated", "out_of_order")


@click.group()
def trace() -> None:
    """Follow messages through trace logs. Needs Spark: pip install 'nsq_ha[spark]', and Java 17 or newer."""


@trace.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the page, JSON and Parquet.")
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
@json_option
def report(
    logs: tuple[Path, ...],
    out: Path | None,
    *,
    topics: tuple[str, ...],
    ordered: tuple[str, ...],
    grace: float,
    skip_prefix: str,
    fail_on: tuple[str, ...],
    threads: str,
    as_json: bool | None,
) -> None:
    """Read trace logs of the SDK, logs of nsqds, or both, and report what happened to the messages.

    With --out, write a page (report.html), report.json and Parquet tables to that folder. Exit code 1 if an
    anomaly of --fail-on was found, or no trace line.
    """
    try:
        from nsq_ha.spark.session import local_session, require_spark

        require_spark()
    except (ModuleNotFoundError, SparkUnavailableError) as error:
        raise click.ClickException(str(error)) from error
    from nsq_ha.spark.trace.report import ReportOptions, trace_report

    options = ReportOptions(topics, ordered, grace, skip_prefix, fail_on)
    with contextlib.ExitStack() as stack:
        try:
            session = local_session("nsq_ha trace", threads=threads, config={"spark.sql.shuffle.partitions": "4"})
        except SparkUnavailableError as error:
            raise click.ClickException(str(error)) from error
        stack.callback(session.stop)
        found = trace_report(session, logs, out, options)
    if wants_json(as_json):
        print_json(found.as_dict())
    else:
        _print(found, out)
    if not found.is_ok:
        raise click.exceptions.Exit(1)


def _print(found: TraceReport, out: Path | None) -> None:
    print_table(
        ["log", "topic", "channel", "outcome", "messages#"],
        [(row["side"], row["topic"], row["channel"], row["outcome"], row["count"]) for row in found.outcomes],
        title=f"{found.events:,} events, {found.bad_lines:,} lines that cannot be read",
    )
    print_table(
        ["log", "topic", "channel", "stage", "messages#", "50 % ms#", "95 % ms#", "99 % ms#", "max ms#"],
        [
            (
                row["side"],
                row["topic"],
                row["channel"],
                row["stage"].replace("_", " "),
                row["messages"],
                *(f"{row[name]:,.1f}" for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")),
            )
            for row in found.latency
            if row["partition"] is None
        ],
        title="latency",
    )
    summary = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in found.counts.items())
    if not found.events:
        summary = "no trace line in these logs: is the trace of the topic switched on?"
    click.echo(f"{'ok' if found.is_ok else 'FAILED'}: {summary}")
    if out is not None:
        click.echo(f"page: {out / 'report.html'}")
