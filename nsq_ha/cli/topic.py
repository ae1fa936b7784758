"""``nsq-ha topic``: list, describe, create, change and delete topics."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from nsq_ha.admin.topics import MAX_REPLICAS, USUAL_REPLICAS, settings_of
from nsq_ha.admin.words import counted, partly, some
from nsq_ha.cli.lookup import NO_NSQD, channel_rows, describe_topic, tell_silence
from nsq_ha.cli.options import PARTITION, TOPIC, command_of, confirm, timeout_option, yes_option
from nsq_ha.cli.output import (
    FigureColumn,
    age,
    clean,
    columns_of,
    number,
    picked,
    print_fitting,
    print_json,
    print_rows,
    print_table,
    wants_json,
)
from nsq_ha.cli.running import Progress, run
from nsq_ha.cli.seen import look
from nsq_ha.engine.answers import TopicInfo
from nsq_ha.errors import ConfigError, ServerError
from nsq_ha.options.checks import MAX_PARTITIONS
from nsq_ha.policy.topology import TopicMeta, TopicView, tcp_address

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsq_ha.admin import AdminClient, PartitionDescription, TopicDescription
    from nsq_ha.cli.cluster import ClusterAccess

_Result = TypeVar("_Result")

_TOO_FEW_NODES: Final = "No node is available"


def _leader(entry: PartitionDescription) -> str | None:
    return entry.leader.address if entry.leader else None


def _replicas(entry: PartitionDescription) -> str | None:
    return " ".join(tcp_address(name) or name for name in entry.replicas) or None


_PARTITION_COLUMNS: Final = (
    FigureColumn("partition", 0, lambda entry: str(entry.partition)),
    FigureColumn("leader", 1, _leader, is_number=False),
    FigureColumn("writable", 3, lambda entry: "yes" if entry.writable else "no", is_number=False),
    FigureColumn("in sync", 2, _replicas, is_number=False, is_list=True),
    FigureColumn("messages", 4, lambda entry: number(getattr(entry.stats, "messages", None))),
    FigureColumn("bytes", 5, lambda entry: number(getattr(entry.stats, "size", None))),
)


@click.group(short_help="List, create, change and delete topics.")
def topic() -> None:
    """Create, list, describe, change and delete topics."""


_command = partial(command_of, topic, click.argument("name", type=TOPIC))


@_command(
    click.argument("partitions", type=click.IntRange(1, MAX_PARTITIONS)), timeout_option(150.0), yes_option, shows=True
)
def expand(
    name: str, partitions: int, cluster: ClusterAccess, *, timeout: float, yes: bool, as_json: bool | None
) -> None:
    """Add partitions to the topic NAME, so that it has PARTITIONS in total, and wait for their leaders.

    They get the channels of the others, without ephemeral ones.

    It cannot be taken back, and keys go to other partitions from then on: messages of one key may overtake each other
    until the older ones are consumed.
    """
    text = f"Expand {name} to {partitions} partitions? Keys then go to other partitions, and it cannot be taken back."
    confirm(text, yes=yes)
    view = _change(cluster, name, f"expanding {name}", lambda admin: admin.expand(name, partitions, timeout=timeout))
    _print_leaders(view, f"{name}: {view.partition_num} partitions", as_json=as_json)


def _kept(least: int, default: str) -> tuple[Callable[[Any], Any], ...]:
    """Return the options of what the server has a default for."""
    texts = {
        "--retention-days": "Days for which messages are kept",
        "--sync-every": "Messages between syncs of the disk",
    }
    return tuple(
        click.option(name, type=click.IntRange(least), help=f"{text}{default}.") for name, text in texts.items()
    )


@_command(
    click.option("-r", "--replicas", type=click.IntRange(1, MAX_REPLICAS), help="Replicas of each partition."),
    *_kept(0, "; 0 for the server's default"),
    click.option("--extended", is_flag=True, help="Let messages have headers and a tag. It cannot be taken back."),
    click.option(
        "--register-channels/--no-register-channels",
        default=None,
        help="Channels must be created before a consumer can use them. Switching it on deletes all that exist.",
    ),
    timeout_option(60.0),
    yes_option,
    shows=True,
)
def update(
    name: str,
    cluster: ClusterAccess,
    *,
    extended: bool,
    register_channels: bool | None,
    yes: bool,
    as_json: bool | None,
    **options: Any,  # noqa: ANN401 - click has converted them
) -> None:
    """Change settings of the topic NAME; what is not given stays.

    Asks before --register-channels, which deletes the channels, and --extended, which cannot be taken back.
    """
    if not extended and register_channels is None and all(v is None for k, v in options.items() if k != "timeout"):
        raise click.UsageError("give a setting to change, such as --replicas 3")
    if register_channels:
        confirm(f"Delete all channels of {name} with their messages, and require registered ones?", yes=yes)
    if extended:
        confirm(f"Let messages of {name} have headers? It cannot be taken back.", yes=yes)
    options |= {"extended": True if extended else None, "disable_channel_auto_create": register_channels}
    view = _change(cluster, name, f"updating {name}", lambda admin: admin.update_topic(name, **options))
    settings = {"topic": name, "partitions": view.partition_num, **_settings(view.meta)}
    del settings["multi_part"]
    if wants_json(as_json):
        print_json(settings)
    else:
        columns = [column.replace("_", " ") for column in settings]
        print_table(columns, [tuple(settings.values())], title=f"updated {name}")


@_command(
    click.argument("partition", type=PARTITION),
    click.option(
        "--to", metavar="HOST:PORT", help="TCP address of the nsqd that shall lead. Default: another replica."
    ),
    timeout_option(60.0),
    name="move-leader",
    shows=True,
)
def move_leader(
    name: str, partition: int, cluster: ClusterAccess, *, to: str | None, timeout: float, as_json: bool | None
) -> None:
    """Move the leadership of PARTITION of the topic NAME to another nsqd, and wait until that leads.

    Producers and consumers follow by themselves. For minutes after a node joined or left, the cluster refuses it.
    """
    what = f"moving the leader of {name}"
    leader = _change(cluster, name, what, lambda admin: admin.move_leader(name, partition, to, timeout=timeout))
    if wants_json(as_json):
        print_json({"topic": name, "partition": partition, "leader": leader.address})
    else:
        click.echo(f"{name}-{partition} is now led by {leader.address}")


@_command(timeout_option())
def pause(name: str, cluster: ClusterAccess, *, timeout: float) -> None:
    """Hold the messages of the plain topic NAME back from its channels, until `resume`. Publishing goes on.

    On a partitioned cluster, pause the channels: nsq-ha channel pause.
    """
    _change(cluster, name, f"pausing {name}", lambda admin: admin.pause_topic(name, timeout=timeout))
    click.echo(f"paused {name}", err=True)


@_command(timeout_option())
def resume(name: str, cluster: ClusterAccess, *, timeout: float) -> None:
    """Let the messages of the paused plain topic NAME go to its channels."""
    _change(cluster, name, f"resuming {name}", lambda admin: admin.unpause_topic(name, timeout=timeout))
    click.echo(f"resumed {name}", err=True)


@_command(timeout_option(), yes_option)
def empty(name: str, cluster: ClusterAccess, *, timeout: float, yes: bool) -> None:
    """Drop the messages of the plain topic NAME that are in no channel yet.

    On a partitioned cluster, empty the channels: nsq-ha channel empty.
    """
    confirm(f"Drop the messages of {name} that are in no channel yet?", yes=yes)

    async def change(admin: AdminClient) -> tuple[TopicDescription, TopicDescription]:
        before = await admin.describe(name)
        await admin.empty_topic(name, timeout=timeout)
        return before, await admin.describe(name)

    before, now = _change(cluster, name, f"emptying {name}", change)
    dropped = sum(entry.stats.unrouted for entry in before.partitions if entry.stats is not None)
    wait = [f"{channel.name} {channel.depth:,}" for channel in now.totals if channel.depth]
    keep = (
        f"channels keep theirs: {clean(some(wait))} (nsq-ha channel empty drops them)" if wait else "no channel has any"
    )
    click.echo(f"emptied {name}: dropped {counted(dropped, 'message')} that no channel had; {keep}", err=True)


@_command(
    click.option("-p", "--partitions", type=click.IntRange(1, MAX_PARTITIONS), default=1, help="Number of partitions."),
    click.option(
        "-r",
        "--replicas",
        type=click.IntRange(1, MAX_REPLICAS),
        help="Replicas of each partition. Default: 3, or the number of nodes.",
    ),
    click.option("--ordered", is_flag=True, help="Consumers read in order; messages need a key."),
    click.option("--extended", is_flag=True, help="Messages may have headers and a tag."),
    click.option(
        "--multi-part/--no-multi-part",
        default=None,
        help="Allow several partitions on a node. Default: only if there are too few nodes.",
    ),
    *_kept(1, ". Default: the server's"),
    click.option("--register-channels", is_flag=True, help="Channels must be created before a consumer can use them."),
    timeout_option(150.0),
    shows=True,
)
def create(name: str, cluster: ClusterAccess, as_json: bool | None, **options: Any) -> None:  # noqa: ANN401
    """Create the topic NAME and wait until every partition has a leader.

    On a plain (upstream) cluster, create it at every given nsqlookupd, without options; the first publish creates it
    at an nsqd.
    """
    view = _change(cluster, None, f"creating {name}", lambda admin: _create(admin, name, **options))
    if view.is_plain:
        found = run(cluster.ask(lambda admin: admin.describe(name), name))  # the view has all that may create it
        if wants_json(as_json):
            print_json({"topic": name, "nsqds": [_leader(entry) for entry in found.partitions]})
        else:
            click.echo(f"created {name}")
            _print_plain(found)
    else:
        _print_leaders(view, f"created {name}", as_json=as_json)


@command_of(topic, name="list", shows=True)
def list_topics(cluster: ClusterAccess, as_json: bool | None) -> None:
    """List all topics: partitions, messages, what waits in their channels, bytes at the leaders. For rates: `top`."""
    reading = run(cluster.ask(lambda admin: look(cluster, admin)))
    names = ("topic", "ordered", "extended", "partitions", "messages", "depth", "bytes")
    rows = []
    for each in reading.names:
        info, stats = reading.listed.get(each, TopicInfo(each)), reading.topics.get(each)
        held = None if reading.is_plain else len(reading.partitions(each))
        depth = sum(row.depth or 0 for row in reading.by_topic.get(each, ()))
        size = None if reading.is_plain or stats is None else stats.size
        figures = (None, None, None) if stats is None else (stats.messages, depth, size)
        rows.append((each, info.ordered, info.extend_support, held, *figures))
    if wants_json(as_json):
        for values in rows:
            print_json(dict(zip(names, values, strict=True)))
    else:
        print_table([*names[:3], *(f"{each}#" for each in names[3:])], rows)


@_command(shows=True)
def describe(name: str, cluster: ClusterAccess, as_json: bool | None) -> bool:
    """Show partitions, leaders, replicas, channels and depths of the topic NAME; on a plain (upstream) cluster, nsqds.

    The channels of each partition, or nsqd: `stat --partitions`.

    Exit code 1 if an nsqd does not say what it has.
    """
    found = run(describe_topic(cluster, name))
    is_lacking = tell_silence(found)
    if wants_json(as_json):
        print_json(_as_dict(found))
    else:
        (_print_plain if found.view.is_plain else _print_description)(found)
        rows = channel_rows(found)
        print_fitting(columns_of(rows, by_partition=False, rates=False), rows)
    return is_lacking


_PRODUCER_COLUMNS: Final = (
    FigureColumn("address", 0, lambda each: each["address"], is_number=False),
    FigureColumn("library", 1, lambda each: each["user_agent"] or None, is_number=False),
    FigureColumn("nsqd", 2, lambda each: each["nsqd"], is_number=False),
    FigureColumn("partition", 3, lambda each: None if each["partition"] is None else str(each["partition"])),
    FigureColumn("published", 0, lambda each: number(each["messages"])),
    FigureColumn("failed", 1, lambda each: number(each["failed"])),
    FigureColumn("since", 2, lambda each: age(each["since"], time.time())),
)


@_command(shows=True)
def producers(name: str, cluster: ClusterAccess, as_json: bool | None) -> bool:
    """List the connections that publish to the topic NAME, as the nsqds report them.

    A plain (upstream) nsqd does not tell how many failed, and since when.

    Exit code 1 if an nsqd does not say what it has.
    """
    found = run(cluster.ask(lambda admin: admin.describe(name, clients=True), name))
    rows = [
        {"nsqd": _leader(entry), "partition": None if found.view.is_plain else entry.partition}
        | msgspec.structs.asdict(each)
        for entry in found.partitions
        for each in (entry.stats.producers if entry.stats else ())
    ]
    is_lacking = tell_silence(found)
    print_rows(rows, dict, _PRODUCER_COLUMNS, as_json=as_json, empty=f"nobody is connected who published to {name}")
    return is_lacking


@_command(yes_option)
def delete(name: str, cluster: ClusterAccess, *, yes: bool) -> None:
    """Delete the topic NAME with all its messages.

    On a plain (upstream) cluster, stop its producers and consumers first: they would create it again.
    """
    confirm(f"Delete topic {name} with all its messages?", yes=yes)
    run(cluster.ask(lambda admin: admin.delete_topic(name), name))
    click.echo(f"deleted {name}", err=True)


def _change(
    cluster: ClusterAccess, topic: str | None, what: str, change: Callable[[AdminClient], Awaitable[_Result]]
) -> _Result:
    """Make a change; ``topic`` is that of :meth:`ClusterAccess.ask`."""
    with Progress(what, counts=False):
        return run(cluster.ask(change, topic))


async def _create(admin: AdminClient, name: str, **options: Any) -> TopicView:  # noqa: ANN401
    options["disable_channel_auto_create"] = options.pop("register_channels")
    await admin.nodes()  # fails at once if there is no cluster, for whose leader a change would wait
    try:
        return await admin.create_topic(name, **options)
    except ServerError as error:
        if _TOO_FEW_NODES not in str(error):
            raise
        is_spread = options["multi_part"] is False
        nodes = len(await admin.nodes())
        replicas = options["replicas"] or min(USUAL_REPLICAS, nodes)
        raise ConfigError(
            f"{error}: this takes {replicas * (options['partitions'] if is_spread else 1)} nsqds, and the cluster has"
            f" {nodes}; ask for fewer --replicas"
            f"{', fewer --partitions, or --multi-part' if is_spread else ''}"
        ) from error


def _settings(meta: TopicMeta | None) -> dict[str, Any]:
    settings = settings_of(meta)
    del settings["partitions"]
    return settings | {"register_channels": settings.pop("disable_channel_auto_create")}


def _as_dict(found: TopicDescription) -> dict[str, Any]:
    topic, depth = found.view.topic, dict(found.depth)
    if found.view.is_plain:
        nsqds = [
            {
                "nsqd": _leader(entry),
                **picked(entry.stats, "messages"),
                "without_channel": entry.stats.unrouted if entry.stats else None,
                "channels": _channels(entry),
            }
            for entry in found.partitions
        ]
        return {"topic": topic, "nsqds": nsqds, "depth": depth}
    partitions = [
        {
            "partition": entry.partition,
            "leader": _leader(entry),
            "writable": entry.writable,
            "replicas": list(entry.replicas),
            **picked(entry.stats, "messages", "begin_offset", "end_offset"),
            "channels": _channels(entry),
        }
        for entry in found.partitions
    ]
    settings = _settings(found.view.meta)
    return {"topic": topic, "partitions": partitions, **settings, "depth": depth, "note": found.note or None}


def _channels(entry: PartitionDescription) -> dict[str, Any]:
    channels = entry.stats.channels if entry.stats else ()
    return {each.name: picked(each, "depth", "in_flight", "deferred", "clients", "paused") for each in channels}


def _print_leaders(view: TopicView, title: str, *, as_json: bool | None) -> None:
    leaders = {partition: node.address for partition, node in sorted(view.leaders.items())}
    if wants_json(as_json):
        print_json({"topic": view.topic, "partitions": view.partition_num, "leaders": leaders})
    else:
        print_table(["partition#", "leader"], list(leaders.items()), title=title)


def _print_plain(found: TopicDescription) -> None:
    if not found.partitions:
        click.echo(f"{found.view.topic}: {NO_NSQD}")
        return
    rows = [
        (_leader(entry), getattr(entry.stats, "messages", None), getattr(entry.stats, "unrouted", None))
        for entry in found.partitions
    ]
    paused = sum(entry.stats.paused for entry in found.partitions if entry.stats is not None)
    state = f", {partly('paused', paused, len(rows))}" if paused else ""
    title = f"{found.view.topic}: {counted(len(rows), 'nsqd')}{state}"
    print_table(["nsqd", "messages since its start#", "without channel#"], rows, title=title)


def _print_description(found: TopicDescription) -> None:
    settings = _settings(found.view.meta)
    words = {"ordered": "ordered", "extended": "extended", "register_channels": "channels must be registered"}
    replicas = [] if found.view.meta is None else [counted(found.view.meta.replica, "replica")]
    kinds = [word for name, word in words.items() if settings[name]]
    title = ", ".join([counted(len(found.partitions), "partition"), *replicas, *kinds])
    print_fitting(_PARTITION_COLUMNS, found.partitions, title=f"{found.view.topic}: {title}")
    if found.note:
        click.echo(clean(found.note))
