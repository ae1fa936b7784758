"""``nsq-ha trace``: what happened to one message, by trace logs and by the cluster, or, from trace logs, to each."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsq_ha.admin.trace_lines import events_of
from nsq_ha.base.identity import partition_of
from nsq_ha.cli.dead_letters import MessageId
from nsq_ha.cli.lookup import require_topic
from nsq_ha.cli.options import FILE, TOPIC, Number, cluster_options, json_option
from nsq_ha.cli.output import (
    FigureColumn,
    clean,
    local_time,
    number,
    picked,
    print_fitting,
    print_json,
    print_table,
    wants_json,
)
from nsq_ha.cli.reading import scan
from nsq_ha.cli.running import failures, run
from nsq_ha.cli.start import from_option
from nsq_ha.errors import NsqError, SparkUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pyspark.sql import SparkSession

    from nsq_ha import StartFrom
    from nsq_ha.admin import StoredMessage
    from nsq_ha.cli.cluster import ClusterAccess
    from nsq_ha.traces.report import TraceReport


@dataclass(slots=True)
class MessageLife:
    """What is known about one message.

    Attributes:
        topic: Its topic. None if it is unknown.
        internal_id: The server's id. None if it is unknown.
        events: Its lines of trace logs, by time.
        stored: What the log of its partition holds. None if it was not found there.
        channels: Where each channel stands, by name: ``passed`` or ``not passed``.
        note: Why the cluster does not show more. None if it does.
    """

    topic: str | None
    internal_id: int | None
    events: list[dict[str, Any]] = field(default_factory=list)
    stored: StoredMessage | None = None
    channels: dict[str, str] = field(default_factory=dict)
    note: str | None = None

    @property
    def partition(self) -> int | None:
        """The partition that the id contains."""
        return None if self.internal_id is None else partition_of(self.internal_id)

    @property
    def offset(self) -> int | None:
        """Its position in the partition. None if nobody says it."""
        if self.stored is not None:
            return self.stored.offset
        return next((each["offset"] for each in self.events if each.get("offset") is not None), None)


@click.command("message")
@click.argument("number", metavar="ID", type=MessageId())
@click.option("--trace-id", "by_trace", is_flag=True, help="ID is a trace id, not an internal id.")
@click.option("--topic", type=TOPIC, help="Its topic. Needed to ask the cluster, unless a log names it.")
@click.option("--log", "logs", type=FILE, multiple=True, help="Trace log of the SDK to search. May be repeated.")
@click.option("--offline", is_flag=True, help="Only search the logs.")
@from_option("the oldest message; only for a search by trace id, which reads the topic")
@cluster_options
@json_option
def message(
    number: int,
    cluster: ClusterAccess,
    *,
    by_trace: bool,
    topic: str | None,
    logs: tuple[Path, ...],
    offline: bool,
    start: StartFrom | None,
    as_json: bool | None,
) -> None:
    """Show the life of one message: its events in trace logs, where it is stored, and which channels have passed it.

    ID is the internal id that receipts, messages and logs show, decimal or with 0x. With --trace-id it is the
    publisher's; the cluster then has to be searched by reading the topic. Exit code 1 if the message was not found.
    """
    if offline and not logs:
        raise click.UsageError("--offline needs --log")
    with failures():
        events = events_of(logs, "trace_id" if by_trace else "internal_id", number, topic)
    known = topic or next((event["topic"] for event in events if event.get("topic")), None)
    if known is None and not logs:
        raise click.UsageError("give --topic, --log, or both")
    named = next((event["internal_id"] for event in events if event.get("internal_id") is not None), None)
    life = MessageLife(known, named if by_trace else number, events)
    if known is not None and not offline:
        run(_complete(life, _ask_cluster(cluster, known, life, number if by_trace else None, start)))
    if wants_json(as_json):
        print_json(_as_dict(life))
    else:
        _print(life)
    if not life.events and life.stored is None:
        kind, why = "trace id" if by_trace else "id", f": {life.note}" if life.note else ""
        where = "in the logs" if life.topic is None else f"of topic {life.topic!r}"
        raise click.ClickException(f"no message {where} has the {kind} {number}{why}")


async def _complete(life: MessageLife, asking: Awaitable[None]) -> None:
    """Add what the cluster knows. If it cannot be asked, the events of the logs are still worth showing."""
    try:
        await asking
    except NsqError as error:
        if not life.events:
            raise
        life.note = str(error)


async def _ask_cluster(
    cluster: ClusterAccess, topic: str, life: MessageLife, trace_id: int | None, start: StartFrom | None
) -> None:
    found = await require_topic(cluster, topic)
    if found.meta is None:
        nsqds = {event.get("nsqd") for event in life.events}
        life.note = "a plain cluster keeps no log of messages" + (
            "; plain nsqds may give equal ids, so each nsqd's lines are a message of its own" if len(nsqds) > 1 else ""
        )
        return
    if life.internal_id is None:
        unread = set[int]()
        async with contextlib.aclosing(scan(cluster, topic, found, unread, start=start)) as messages:
            async for each in messages:
                if each.trace_id == trace_id:
                    life.internal_id = each.internal_id
                    break
        if life.internal_id is None:
            part = "what could be read of the topic" if unread else "the topic"
            life.note = f"{part} does not hold it now" + ("" if start is None else ", or not from that time on")
            return
    async with cluster.admin() as admin:
        life.stored = await admin.find_message(topic, internal_id=life.internal_id)
        described = await admin.describe(topic)
    if life.stored is None:
        life.note = "the server does not show it: it is not flushed yet, or was cleaned up"
    stats = next((entry.stats for entry in described.partitions if entry.partition == life.partition), None)
    if stats is not None and life.offset is not None:
        passed = {each.name: life.offset < stats.end_offset - each.depth_bytes for each in stats.channels}
        life.channels = {name: "passed" if is_passed else "not passed" for name, is_passed in passed.items()}


def _as_dict(life: MessageLife) -> dict[str, Any]:
    stored = life.stored
    return {
        **picked(life, "topic", "partition", "internal_id"),
        "trace_id": stored.trace_id if stored is not None else next((e.get("trace_id") for e in life.events), None),
        "offset": life.offset,
        **picked(stored, "number", "timestamp_ns"),
        "stored": stored is not None,
        **picked(stored, "body"),
        "headers": getattr(stored, "headers", None) or None,
        **picked(life, "channels", "events", "note"),
    }


def _print(life: MessageLife) -> None:
    facts = _as_dict(life)
    rows = [
        (name.replace("_", " "), str(facts[name]))
        for name in ("topic", "partition", "trace_id", "offset", "number", "headers")
        if facts[name] is not None
    ]
    if life.stored is not None:
        rows += [("published", local_time(life.stored.timestamp_ns)), ("body", life.stored.body)]
    rows += [(f"channel {name}", standing) for name, standing in life.channels.items()]
    title = "message" if life.internal_id is None else f"message {life.internal_id:#x} ({life.internal_id})"
    if rows:
        print_table(["what", "value"], rows, title=title)
    if life.events:
        first, names = life.events[0]["time_ns"], ("event", "channel", "attempt", "nsqd")
        steps = [
            (local_time(each["time_ns"]), f"{(each['time_ns'] - first) / 1e6:,.3f}", *map(each.get, names))
            for each in life.events
        ]
        print_table(["time", "after ms#", "event", "channel", "attempt#", "nsqd"], steps)
    if life.note:
        click.echo(clean(life.note))


_KINDS = ("lost", "repeated", "out_of_order")
_LATENCY = (
    FigureColumn("log", 4, lambda row: row["side"], is_number=False),
    FigureColumn("topic", 0, lambda row: row["topic"], is_number=False),
    FigureColumn("channel", 0, lambda row: row["channel"], is_number=False),
    FigureColumn("stage", 0, lambda row: row["stage"].replace("_", " "), is_number=False),
    FigureColumn("messages", 3, lambda row: number(row["messages"])),
    FigureColumn("50 %", 2, lambda row: number(row["p50_ms"])),
    FigureColumn("95 %", 0, lambda row: number(row["p95_ms"])),
    FigureColumn("99 %", 0, lambda row: number(row["p99_ms"])),
    FigureColumn("max", 0, lambda row: number(row["max_ms"])),
)


def _checked(_: click.Context, __: click.Parameter, logs: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse files of this machine that do not exist, before Spark starts."""
    from nsq_ha.traces.events import url_of

    for path in logs:
        try:
            url_of(path)
        except OSError as error:
            raise click.BadParameter(f"there is no file {path!r} (give patterns in quotes)") from error
    return logs


def _session(master: str | None) -> SparkSession:
    """Return a session on this machine, or on a cluster.

    Raises:
        SparkUnavailableError: Spark did not start.
    """
    from nsq_ha.spark.session import local_session

    if master is None:
        return local_session("nsq_ha trace", config={"spark.sql.shuffle.partitions": "4"})
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("nsq_ha trace")
    if master.startswith("sc://"):
        return builder.remote(master).getOrCreate()
    # As on this machine: Spark warns with a stack trace that a pattern is no file.
    return builder.master(master).config("spark.log.level", "ERROR").getOrCreate()


class WithMessage(click.Group):
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

    `report` needs nsq_ha[spark] and Java 17 or newer.
    """


trace.add_command(message)


@trace.command()
@click.argument("logs", nargs=-1, required=True, callback=_checked)
@click.option("--out", help="Folder for the page, JSON and Parquet: a path, or a URL that Spark can write.")
@click.option("--topic", "topics", type=TOPIC, multiple=True, help="Report only this topic. May be repeated.")
@click.option("--ordered", type=TOPIC, multiple=True, help="Check the order of this topic. May be repeated.")
@click.option(
    "--grace",
    "grace_s",
    type=Number(0),
    default=60.0,
    help="Seconds after which a message that was not finished counts as lost.",
)
@click.option(
    "--skip-prefix", default="spark-", help="Leave out channels with this prefix, since they are not consumers."
)
@click.option(
    "--fail-on",
    type=click.Choice(_KINDS),
    multiple=True,
    default=("lost", "out_of_order"),
    help="Anomaly that makes the exit code 1. May be repeated.",
)
@click.option(
    "--master",
    help="Run on this Spark cluster (spark://..., yarn, k8s://...) or Spark Connect server (sc://...), not on this"
    " machine alone; local[N] runs N threads here.",
)
@json_option
def report(
    logs: tuple[str, ...],
    out: str | None,
    *,
    master: str | None,
    as_json: bool | None,
    **options: Any,  # noqa: ANN401 - what ReportOptions takes
) -> bool:
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
    from nsq_ha.traces.report import ReportOptions, trace_report

    with contextlib.ExitStack() as stack:
        try:
            session = _session(master)
        except SparkUnavailableError as error:
            raise click.ClickException(str(error)) from error
        stack.callback(session.stop)
        found = trace_report(session, logs, out, ReportOptions(**options))
    if wants_json(as_json):
        print_json(found.as_dict())
    else:
        print_report(found, out)
    return not found.is_ok


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
