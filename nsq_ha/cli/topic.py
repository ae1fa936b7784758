"""``nsq-ha topic``: create, list, describe and delete topics; ``topic_changes`` has the other changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from nsq_ha.admin.findings import counted
from nsq_ha.admin.plain import refused_option
from nsq_ha.admin.topics import MAX_REPLICAS
from nsq_ha.checks import MAX_PARTITIONS
from nsq_ha.cli.figures import number
from nsq_ha.cli.groups import Group
from nsq_ha.cli.options import SECONDS, TOPIC, cluster_options, confirm, json_option, yes_option
from nsq_ha.cli.output import clean, print_json, print_table, wants_json
from nsq_ha.cli.progress import waiting
from nsq_ha.cli.running import run
from nsq_ha.cli.tables import Column, print_fitting
from nsq_ha.cli.topic_changes import COMMANDS
from nsq_ha.cli.views import NO_NSQD
from nsq_ha.errors import ConfigError, ServerError, TopicNotFoundError
from nsq_ha.policy.topology import tcp_address

if TYPE_CHECKING:
    from nsq_ha.admin import PartitionDescription, TopicDescription
    from nsq_ha.cli.cluster import Cluster
    from nsq_ha.engine.answers import TopicInfo
    from nsq_ha.policy.topology import TopicView

USUAL_REPLICAS = 3
"""Number of replicas that lets writes continue after the loss of a node."""
_TOO_FEW_NODES = "No node is available"

_OPTIONS = {"disable_channel_auto_create": "--register-channels", "multi_part": "--multi-part and --no-multi-part"}
"""Options whose argument of ``AdminClient.create_topic`` has another name."""


_PARTITION_COLUMNS: Final = (
    Column("partition", 0, lambda entry: str(entry.partition)),
    Column("leader", 1, lambda entry: entry.leader.address if entry.leader else None, is_number=False),
    Column("writable", 3, lambda entry: "yes" if entry.writable else "no", is_number=False),
    Column(
        "in sync",
        2,
        lambda entry: " ".join(tcp_address(name) or name for name in entry.replicas) or None,
        is_number=False,
        is_list=True,
    ),
    Column("messages", 4, lambda entry: number(entry.stats.messages) if entry.stats else None),
    Column(
        "bytes", 5, lambda entry: number(entry.stats.end_offset - entry.stats.begin_offset) if entry.stats else None
    ),
)

_CHANNEL_COLUMNS: Final = (
    Column("channel", 0, lambda row: row[0], is_number=False),
    Column("part", 0, lambda row: str(row[1])),
    Column("depth", 0, lambda row: number(row[2])),
    Column("in flight", 1, lambda row: number(row[3])),
    Column("deferred", 3, lambda row: number(row[4])),
    Column("clients", 2, lambda row: number(row[5])),
)


@click.group(cls=Group, short_help="List, create, change and delete topics.")
def topic() -> None:
    """Create, list, describe, change and delete topics."""


for _command in COMMANDS:
    topic.add_command(_command)


@topic.command()
@click.argument("name", type=TOPIC)
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(1, MAX_PARTITIONS),
    default=1,
    show_default=True,
    help="Number of partitions.",
)
@click.option(
    "-r",
    "--replicas",
    type=click.IntRange(1, MAX_REPLICAS),
    help="Replicas of each partition. Default: 3, or the number of nodes.",
)
@click.option("--ordered", is_flag=True, help="Consumers read in order; messages need a key.")
@click.option("--extended", is_flag=True, help="Messages may have headers and a tag.")
@click.option(
    "--multi-part/--no-multi-part",
    default=None,
    help="Allow several partitions on a node. Default: only if there are too few nodes.",
)
@click.option(
    "--retention-days", type=click.IntRange(1), help="Days for which messages are kept. Default: the server's."
)
@click.option("--register-channels", is_flag=True, help="Channels must be created before a consumer can use them.")
@click.option("--timeout", type=SECONDS, default=150.0, show_default=True, help="Seconds to wait until it is usable.")
@cluster_options
@json_option
def create(name: str, cluster: Cluster, as_json: bool | None, **options: Any) -> None:  # noqa: ANN401
    """Create the topic NAME and wait until every partition has a leader.

    On a plain (upstream) cluster, create it at every given nsqlookupd, without options; the first publish creates it
    at an nsqd.
    """
    with waiting(f"creating {name}"):
        view = run(_create(cluster, name, **options))
    if view.is_plain:
        nsqds = list(_leaders(view).values())
        if wants_json(as_json):
            print_json({"topic": name, "nsqds": nsqds})
        else:
            print_table(["nsqd to publish to"], [(nsqd,) for nsqd in nsqds], title=f"created {name}")
        return
    created = {"topic": name, "partitions": view.partition_num, "leaders": _leaders(view)}
    if wants_json(as_json):
        print_json(created)
    else:
        print_table(["partition#", "leader"], list(_leaders(view).items()), title=f"created {name}")


@topic.command("list")
@cluster_options
@json_option
def list_topics(cluster: Cluster, as_json: bool | None) -> None:
    """List all topics."""
    topics = sorted(run(_topics(cluster)), key=lambda info: info.name)
    if wants_json(as_json):
        for info in topics:
            print_json({"topic": info.name, "ordered": info.ordered, "extended": info.extend_support})
    else:
        print_table(["topic", "ordered", "extended"], [(i.name, i.ordered, i.extend_support) for i in topics])


@topic.command()
@click.argument("name", type=TOPIC)
@cluster_options
@json_option
def describe(name: str, cluster: Cluster, as_json: bool | None) -> None:
    """Show partitions, leaders, replicas, channels and depths of the topic NAME.

    On a plain (upstream) cluster, show the channels and depths of each nsqd that has it.
    """
    found = run(_describe(cluster, name))
    if wants_json(as_json):
        print_json(_plain_as_dict(found) if found.view.is_plain else _as_dict(found))
    elif found.view.is_plain:
        _print_plain(found)
    else:
        _print_description(found)


@topic.command()
@click.argument("name", type=TOPIC)
@yes_option
@cluster_options
def delete(name: str, cluster: Cluster, *, yes: bool) -> None:
    """Delete the topic NAME with all its messages.

    On a plain (upstream) cluster, stop its producers and consumers first: they would create it again.
    """
    confirm(f"Delete topic {name} with all its messages?", yes=yes)
    run(_delete(cluster, name))
    click.echo(f"deleted {name}", err=True)


async def _create(cluster: Cluster, name: str, **options: Any) -> TopicView:  # noqa: ANN401
    async with cluster.admin() as admin:
        nodes = await admin.nodes()
        is_plain = any(info.node.is_plain for info in nodes)
        replicas = options.pop("replicas") or (1 if is_plain else max(1, min(USUAL_REPLICAS, len(nodes))))
        options["disable_channel_auto_create"] = options.pop("register_channels")
        refused = refused_option(options | {"replicas": replicas}) if is_plain else None
        if refused is not None:
            option, reason = refused
            raise ConfigError(f"remove {_OPTIONS.get(option) or '--' + option.replace('_', '-')}: {reason}")
        try:
            return await admin.create_topic(name, replicas=replicas, **options)
        except ServerError as error:
            if _TOO_FEW_NODES not in str(error):
                raise
            needed = replicas * (options["partitions"] if options["multi_part"] is False else 1)
            raise ConfigError(
                f"{error}: this takes {needed} nsqds, and the cluster has {len(await admin.nodes())}; "
                f"ask for fewer --replicas{_or_shared(options)}"
            ) from error


def _or_shared(options: dict[str, Any]) -> str:
    return "" if options["multi_part"] is not False else ", fewer --partitions, or --multi-part"


async def _topics(cluster: Cluster) -> tuple[TopicInfo, ...]:
    async with cluster.admin() as admin:
        return await admin.topics()


async def _describe(cluster: Cluster, name: str) -> TopicDescription:
    async with cluster.admin() as admin:
        try:
            return await admin.describe(name)
        except TopicNotFoundError as error:
            raise TopicNotFoundError.named(name) from error


async def _delete(cluster: Cluster, name: str) -> None:
    async with cluster.admin() as admin:
        await admin.delete_topic(name)


def _kept(entry: PartitionDescription) -> str | None:
    return None if entry.stats is None else number(entry.stats.end_offset - entry.stats.begin_offset)


def _leaders(view: TopicView) -> dict[int, str]:
    return {partition: node.address for partition, node in sorted(view.leaders.items())}


def _as_dict(found: TopicDescription) -> dict[str, Any]:
    meta = found.view.meta
    return {
        "topic": found.view.topic,
        "partitions": [_partition(entry) for entry in found.partitions],
        "replicas": meta.replica if meta else None,
        "ordered": meta.ordered if meta else None,
        "extended": meta.extend_support if meta else None,
        "multi_part": meta.multi_part if meta else None,
        "register_channels": meta.disable_channel_auto_create if meta else None,
        "depth": dict(found.depth),
        "note": found.note or None,
    }


def _plain_as_dict(found: TopicDescription) -> dict[str, Any]:
    nsqds = [
        {
            "nsqd": entry.leader.address if entry.leader else None,
            "messages": entry.stats.messages if entry.stats else None,
            "without_channel": entry.stats.unrouted if entry.stats else None,
            "channels": _channels(entry),
        }
        for entry in found.partitions
    ]
    return {"topic": found.view.topic, "nsqds": nsqds, "depth": dict(found.depth)}


def _partition(entry: PartitionDescription) -> dict[str, Any]:
    stats = entry.stats
    return {
        "partition": entry.partition,
        "leader": entry.leader.address if entry.leader else None,
        "writable": entry.writable,
        "replicas": list(entry.replicas),
        "messages": stats.messages if stats else None,
        "begin_offset": stats.begin_offset if stats else None,
        "end_offset": stats.end_offset if stats else None,
        "channels": _channels(entry),
    }


def _channels(entry: PartitionDescription) -> dict[str, Any]:
    return {
        channel.name: {
            "depth": channel.depth,
            "in_flight": channel.in_flight,
            "deferred": channel.deferred,
            "clients": channel.clients,
            "paused": channel.paused,
        }
        for channel in (entry.stats.channels if entry.stats else ())
    }


def _print_plain(found: TopicDescription) -> None:
    if not found.partitions:
        click.echo(f"{found.view.topic}: {NO_NSQD}")
        return
    rows: list[tuple[object, ...]] = []
    for entry in found.partitions:
        address, stats = entry.leader.address if entry.leader else None, entry.stats
        rows.append((address, stats.messages if stats else None, stats.unrouted if stats else None))
    print_table(
        ["nsqd", "messages since its start#", "without channel#"],
        rows,
        title=f"{found.view.topic}: {counted(len(rows), 'nsqd')}",
    )
    channels = [
        (channel.name, entry.leader.address, channel.depth, channel.in_flight, channel.deferred, channel.clients)
        for entry in found.partitions
        if entry.stats is not None and entry.leader is not None
        for channel in entry.stats.channels
    ]
    if channels:
        print_table(["channel", "nsqd", "depth#", "in flight#", "deferred#", "clients#"], sorted(channels))


def _print_description(found: TopicDescription) -> None:
    meta = found.view.meta
    kind = [
        word
        for word, holds in (
            ("ordered", meta is not None and meta.ordered),
            ("extended", meta is not None and meta.extend_support),
            ("channels must be registered", meta is not None and meta.disable_channel_auto_create),
        )
        if holds
    ]
    replicas = [] if meta is None else [counted(meta.replica, "replica")]
    title = ", ".join([counted(len(found.partitions), "partition"), *replicas, *kind])
    print_fitting(_PARTITION_COLUMNS, found.partitions, title=f"{found.view.topic}: {title}")
    channels = [
        (channel.name, entry.partition, channel.depth, channel.in_flight, channel.deferred, channel.clients)
        for entry in found.partitions
        for channel in (entry.stats.channels if entry.stats else ())
    ]
    if channels:
        print_fitting(_CHANNEL_COLUMNS, sorted(channels))
    if found.note:
        click.echo(clean(found.note))
