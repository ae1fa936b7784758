"""``nsq-ha stat``: the figures of topics and channels, once or again and again."""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click
import msgspec

from nsq_ha.admin.causes import incidents
from nsq_ha.admin.distribution import distributions
from nsq_ha.admin.reading import connections_of
from nsq_ha.cli.options import CHANNEL, SECONDS, TOPIC, cluster_options, json_option
from nsq_ha.cli.output import FigureColumn, age, clean, columns_of, number, picked, print_rows, wants_json, warn
from nsq_ha.cli.running import run
from nsq_ha.cli.seen import looks
from nsq_ha.errors import TopicNotFoundError

if TYPE_CHECKING:
    from nsq_ha.admin import ClientStats
    from nsq_ha.admin.reading import FigureRow, Reading
    from nsq_ha.cli.cluster import ClusterAccess


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StatOptions:
    """The options of the command, by their names."""

    topic: str | None
    channel: str | None
    by_partition: bool
    clients: bool
    distributions: bool
    watch: bool
    interval: float
    count: int | None
    as_json: bool


@click.command(short_help="Print depths, clients and latencies.")
@click.argument("topic", type=TOPIC, required=False)
@click.option("--channel", type=CHANNEL, help="Only this channel.")
@click.option("-p", "--partitions", "by_partition", is_flag=True, help="A row for each partition (plain: each nsqd).")
@click.option("-c", "--clients", is_flag=True, help="A row for each connection that consumes.")
@click.option("-d", "--distributions", is_flag=True, help="How the sizes and times of messages are spread.")
@click.option("-w", "--watch", is_flag=True, help="Repeat it until Ctrl-C, with rates.")
@click.option("-i", "--interval", type=SECONDS, default=2.0, help="Seconds between two repeats.")
@click.option("-n", "--count", type=click.IntRange(1), help="With --watch: end after this many times.")
@cluster_options
@json_option
def stat(cluster: ClusterAccess, as_json: bool | None, **options: object) -> bool:
    """Show depth, messages in flight, requeues, timeouts and clients of TOPIC, or of all topics.

    A row is a channel, over all partitions. Where the terminal is narrow, columns are left out; JSON has all. Exit code
    1 if an nsqd or a leader does not answer, or has too many connections to list, so that figures are incomplete; not
    with --watch.
    """
    chosen = StatOptions(as_json=wants_json(as_json), **options)  # type: ignore[arg-type]  # click's names and types
    if chosen.count is not None and not chosen.watch:
        raise click.UsageError("--count needs --watch")
    if chosen.clients + chosen.distributions + chosen.watch > 1:
        raise click.UsageError("give one of --clients, --distributions and --watch")
    lacks = run(_stat(cluster, chosen), stopped=False if chosen.watch else None, has_end=chosen.count is not None)
    return lacks and not chosen.watch


async def _stat(cluster: ClusterAccess, options: StatOptions) -> bool:
    lacks, count = False, options.count if options.watch else 1
    async with cluster.admin() as admin:
        async for found in looks(
            cluster.lookupd, admin, clients=options.clients, interval=options.interval, count=count
        ):
            if isinstance(found, str):
                warn(found)
                continue
            if options.topic not in (None, *found.names):
                raise TopicNotFoundError.named(options.topic or "", found.names)
            lacks = tell_lacking(found, options.topic)
            if options.clients:
                lacks |= _print_clients(found, options)
            elif options.distributions:
                _print_distributions(found, options)
            else:
                _print_rows(found, options)
    return lacks


def tell_lacking(reading: Reading, topic: str | None) -> bool:
    """Say why figures are missing; return whether some are. On a partitioned cluster, others have what moved."""
    is_plain = reading.is_plain
    found = [
        each
        for each in incidents(reading)
        if each.trouble in ("unanswered", "silent")
        or (is_plain and each.trouble == "gone")
        or any(topic in (None, name) for name, _ in each.unled)
    ]
    for each in found:
        missing = "" if each.trouble == "unanswered" else ": what is there is missing here"
        warn(f"{each.sentence(reading.at)}{missing}; see nsq-ha doctor")
    return bool(found)


def _chosen(options: StatOptions, topic: str, channel: str) -> bool:
    return options.topic in (None, topic) and options.channel in (None, channel)


def _require(found: bool, options: StatOptions) -> None:
    """Refuse a channel that there is not; with ``--watch``, which may wait for it, warn.

    Raises:
        click.ClickException: No topic that was asked for has it.
    """
    if options.channel is None or found:
        return
    name = clean(options.channel)
    text = f"no topic has a channel {name!r}" if options.topic is None else f"{options.topic} has no channel {name!r}"
    if not options.watch:
        raise click.ClickException(text)
    warn(text)


_COUNTS: Final = ("in_flight", "deferred", "requeued", "timed_out", "clients")


def _as_dict(row: FigureRow) -> dict[str, object]:
    latency = row.latency
    return {
        "topic": row.topic,
        "channel": row.name or None,
        **picked(row, "partition", "nsqd", "messages", "depth"),
        **{name: getattr(row.channel, name, 0) for name in _COUNTS},
        "lag": row.lag,
        # Seconds, by the percent of messages that take no longer.
        "latency": latency and {"count": latency.count, **{f"p{share * 100:g}": s for share, s in latency.percentiles}},
        **picked(row, "in_rate", "out_rate"),
        **{name: getattr(row.channel, name, False) for name in ("paused", "skipped")},
        "state": row.state or None,
    }


def _print_rows(reading: Reading, options: StatOptions) -> None:
    rows = [r for r in (reading.parts if options.by_partition else reading.rows) if _chosen(options, r.topic, r.name)]
    _require(bool(rows), options)
    now = datetime.now(UTC)
    at = {"at": now.isoformat(timespec="milliseconds")} if options.watch else {}
    print_rows(
        rows,
        lambda row: at | _as_dict(row),
        columns_of(rows, by_partition=options.by_partition, rates=options.watch),
        as_json=options.as_json,
        title=now.astimezone().strftime("%H:%M:%S") if options.watch else None,
        empty="no topics" if options.channel is None else "no channels",
    )


def _print_clients(reading: Reading, options: StatOptions) -> bool:
    """Print the connections; say which nsqds have too many to list them, and return whether one has."""
    rows = [row for row in reading.parts if row.channel and _chosen(options, row.topic, row.name)]
    _require(bool(rows), options)
    connections, unlisted = connections_of(rows)

    def as_dict(each: tuple[FigureRow, ClientStats]) -> dict[str, object]:
        row, client = each
        place = {"topic": row.topic, "channel": row.name, **picked(row, "partition", "nsqd")}
        return place | msgspec.structs.asdict(client)

    if unlisted:
        warn(f"too many connections to list are at nsqd {', '.join(unlisted)}")
    columns = _client_columns(time.time())
    empty = "no connection is listed" if unlisted else "no connection consumes"
    print_rows(connections, as_dict, columns, as_json=options.as_json, empty=empty)
    return bool(unlisted)


_SPREAD: Final = (
    FigureColumn("topic", 0, lambda each: each.topic, is_number=False),
    FigureColumn("channel", 0, lambda each: each.channel or None, is_number=False),
    FigureColumn("part", 0, lambda each: str(each.partition)),
    FigureColumn("of", 0, lambda each: each.of, is_number=False),
    FigureColumn("messages", 1, lambda each: each.text, is_number=False, is_list=True),
)


def _print_distributions(reading: Reading, options: StatOptions) -> None:
    found = [each for topic in reading.topics.values() for each in distributions(topic)]
    rows = [each for each in found if _chosen(options, each.topic, each.channel)]
    empty = "no nsqd counts them: only partitioned ones do, of messages since their start"
    print_rows(rows, lambda each: each._asdict(), _SPREAD, as_json=options.as_json, empty=empty)


def _client_columns(now: float) -> list[FigureColumn]:
    return [
        FigureColumn("topic", 0, lambda each: each[0].topic, is_number=False),
        FigureColumn("channel", 0, lambda each: each[0].name, is_number=False),
        FigureColumn("client", 0, lambda each: each[1].client_id or each[1].hostname, is_number=False),
        FigureColumn("nsqd", 4, lambda each: each[0].nsqd, is_number=False),
        FigureColumn("ready", 2, lambda each: number(each[1].ready)),
        FigureColumn("in flight", 1, lambda each: number(each[1].in_flight)),
        FigureColumn("messages", 6, lambda each: number(each[1].messages)),
        FigureColumn("finished", 7, lambda each: number(each[1].finished)),
        FigureColumn("requeued", 5, lambda each: number(each[1].requeued)),
        FigureColumn("since", 3, lambda each: age(each[1].connected_at, now)),
        FigureColumn("address", 10, lambda each: each[1].address, is_number=False),
        FigureColumn("agent", 8, lambda each: each[1].user_agent, is_number=False),
        FigureColumn("connection", 9, lambda each: " ".join(each[1].agreed) or None, is_number=False),
    ]
