"""``nsq-ha topic``: expand, update, move leaders; pause, resume and empty plain topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from nsq_ha.admin.topics import MAX_REPLICAS
from nsq_ha.checks import MAX_PARTITIONS
from nsq_ha.cli.options import (
    PARTITION,
    SECONDS,
    TOPIC,
    cluster_options,
    confirm,
    json_option,
    yes_option,
)
from nsq_ha.cli.output import print_json, print_table, wants_json
from nsq_ha.cli.progress import waiting
from nsq_ha.cli.running import run
from nsq_ha.errors import TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nsq_ha.admin import AdminClient, TopicView
    from nsq_ha.cli.cluster import Cluster

_Result = TypeVar("_Result")


@click.command()
@click.argument("name", type=TOPIC)
@click.argument("partitions", type=click.IntRange(1, MAX_PARTITIONS))
@click.option("--timeout", type=SECONDS, default=150.0, show_default=True, help="Seconds to wait for the leaders.")
@yes_option
@cluster_options
@json_option
def expand(name: str, partitions: int, cluster: Cluster, *, timeout: float, yes: bool, as_json: bool | None) -> None:
    """Add partitions to the topic NAME, so that it has PARTITIONS in total, and wait for their leaders.

    They get the channels of the others, without ephemeral ones.

    It cannot be taken back, and keys go to other partitions from then on: messages of one key may overtake each other
    until the older ones are consumed.
    """
    text = f"Expand {name} to {partitions} partitions? Keys then go to other partitions, and it cannot be taken back."
    confirm(text, yes=yes)
    _show(_change(cluster, name, "expanding", lambda admin: admin.expand(name, partitions, timeout=timeout)), as_json)


@click.command()
@click.argument("name", type=TOPIC)
@click.option("-r", "--replicas", type=click.IntRange(1, MAX_REPLICAS), help="Replicas of each partition.")
@click.option(
    "--retention-days", type=click.IntRange(0), help="Days for which messages are kept; 0 for the server's default."
)
@click.option(
    "--sync-every", type=click.IntRange(0), help="Messages after which the disk is synced; 0 for the server's default."
)
@click.option("--extended", is_flag=True, help="Let messages have headers and a tag. It cannot be taken back.")
@click.option(
    "--register-channels/--no-register-channels",
    default=None,
    help="Channels must be created before a consumer can use them. Switching it on deletes all that exist.",
)
@click.option("--timeout", type=SECONDS, default=60.0, show_default=True, help="Seconds to wait until all show it.")
@yes_option
@cluster_options
@json_option
def update(
    name: str,
    cluster: Cluster,
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
    view = _change(
        cluster,
        name,
        "updating",
        lambda admin: admin.update_topic(
            name, extended=True if extended else None, disable_channel_auto_create=register_channels, **options
        ),
    )
    meta = view.meta
    settings: dict[str, object] = {
        "topic": name,
        "partitions": view.partition_num,
        "replicas": meta.replica if meta is not None else None,
        "ordered": meta.ordered if meta is not None else None,
        "extended": meta.extend_support if meta is not None else None,
        "register_channels": meta.disable_channel_auto_create if meta is not None else None,
    }
    if wants_json(as_json):
        print_json(settings)
    else:
        columns = [column.replace("_", " ") for column in settings]
        print_table(columns, [tuple(settings.values())], title=f"updated {name}")


@click.command("move-leader")
@click.argument("name", type=TOPIC)
@click.argument("partition", type=PARTITION)
@click.option("--to", metavar="HOST:PORT", help="TCP address of the nsqd that shall lead. Default: another replica.")
@click.option("--timeout", type=SECONDS, default=60.0, show_default=True, help="Seconds to wait until it leads.")
@cluster_options
@json_option
def move_leader(
    name: str, partition: int, cluster: Cluster, *, to: str | None, timeout: float, as_json: bool | None
) -> None:
    """Move the leadership of PARTITION of the topic NAME to another nsqd, and wait until that leads.

    Producers and consumers follow by themselves. For minutes after a node joined or left, the cluster refuses it.
    """
    leader = _change(
        cluster, name, "moving the leader of", lambda admin: admin.move_leader(name, partition, to, timeout=timeout)
    )
    if wants_json(as_json):
        print_json({"topic": name, "partition": partition, "leader": leader.address})
    else:
        click.echo(f"{name}-{partition} is now led by {leader.address}")


@click.command()
@click.argument("name", type=TOPIC)
@click.option("--timeout", type=SECONDS, default=30.0, show_default=True, help="Seconds to wait for all nsqds.")
@cluster_options
def pause(name: str, cluster: Cluster, *, timeout: float) -> None:
    """Hold the messages of the plain topic NAME back from its channels, until `resume`. Publishing goes on.

    On a partitioned cluster, pause the channels: nsq-ha channel pause.
    """
    _change(cluster, name, "pausing", lambda admin: admin.pause_topic(name, timeout=timeout))
    click.echo(f"paused {name}", err=True)


@click.command()
@click.argument("name", type=TOPIC)
@click.option("--timeout", type=SECONDS, default=30.0, show_default=True, help="Seconds to wait for all nsqds.")
@cluster_options
def resume(name: str, cluster: Cluster, *, timeout: float) -> None:
    """Let the messages of the paused plain topic NAME go to its channels."""
    _change(cluster, name, "resuming", lambda admin: admin.unpause_topic(name, timeout=timeout))
    click.echo(f"resumed {name}", err=True)


@click.command()
@click.argument("name", type=TOPIC)
@click.option("--timeout", type=SECONDS, default=30.0, show_default=True, help="Seconds to wait for all nsqds.")
@yes_option
@cluster_options
def empty(name: str, cluster: Cluster, *, timeout: float, yes: bool) -> None:
    """Drop the messages of the plain topic NAME that are in no channel yet.

    On a partitioned cluster, empty the channels: nsq-ha channel empty.
    """
    confirm(f"Drop the messages of {name} that are in no channel yet?", yes=yes)
    _change(cluster, name, "emptying", lambda admin: admin.empty_topic(name, timeout=timeout))
    click.echo(f"emptied {name}", err=True)


COMMANDS = (expand, update, move_leader, pause, resume, empty)


def _change(
    cluster: Cluster, name: str, what: str, change: Callable[[AdminClient], Coroutine[Any, Any, _Result]]
) -> _Result:
    async def work() -> _Result:
        async with cluster.admin() as admin:
            try:
                return await change(admin)
            except TopicNotFoundError as error:
                if "does not exist" not in str(error):
                    raise
                raise TopicNotFoundError.named(name) from error

    with waiting(f"{what} {name}"):
        return run(work())


def _show(view: TopicView, as_json: bool | None) -> None:
    leaders = {partition: node.address for partition, node in sorted(view.leaders.items())}
    if wants_json(as_json):
        print_json({"topic": view.topic, "partitions": view.partition_num, "leaders": leaders})
    else:
        title = f"{view.topic}: {view.partition_num} partitions"
        print_table(["partition#", "leader"], list(leaders.items()), title=title)
