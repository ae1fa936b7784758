"""``nsq-ha node``: list and show nsqds, hide and remove them, and upgrade the cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from nsq_ha.admin.causes import incidents
from nsq_ha.admin.incident import OF_CHANNELS
from nsq_ha.cli.options import TOPIC, command_of, confirm, timeout_option, yes_option
from nsq_ha.cli.output import FigureColumn, age, clean, number, picked, print_rows, warn
from nsq_ha.cli.running import Progress, run
from nsq_ha.cli.seen import keep, look, recall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nsq_ha.admin import PartitionStats
    from nsq_ha.admin.reading import NsqdView
    from nsq_ha.cli.cluster import ClusterAccess


@click.group(short_help="List nsqds; hide, remove and upgrade them.")
def node() -> None:
    """List nsqds with their health; hide one, remove it for good, and upgrade the cluster."""


# ---------------------------------------------------------------- list


def _count(partitions: Mapping[str, Sequence[int]]) -> str | None:
    return number(sum(map(len, partitions.values())))


def _columns(nsqds: Sequence[NsqdView], now: float) -> list[FigureColumn]:
    columns = [
        FigureColumn("nsqd", 0, lambda each: each.address, is_number=False),
        FigureColumn("health", 1, lambda each: each.health, is_number=False),
        FigureColumn("leads", 1, lambda each: _count(each.leads)),
        FigureColumn("follows", 2, lambda each: None if each.said.error else _count(each.follows)),
        FigureColumn("topics", 3, lambda each: number(None if each.is_gone else len(each.topics))),
        FigureColumn(
            "tombstoned for", 2, lambda each: " ".join(each.tombstoned) or None, is_number=False, is_list=True
        ),
        FigureColumn("bytes", 3, lambda each: number(None if each.said.error else each.size)),
        FigureColumn("up", 4, lambda each: age(each.said.started_at, now)),
        FigureColumn("version", 5, lambda each: each.version or None, is_number=False),
        FigureColumn("HTTP", 6, lambda each: each.said.node.http_url.partition("://")[2], is_number=False),
        FigureColumn("host", 7, lambda each: each.hostname or None, is_number=False),
    ]
    return _useful(columns, nsqds)


def _useful(columns: Iterable[FigureColumn], nsqds: Sequence[NsqdView]) -> list[FigureColumn]:
    """Return the columns without those that say nothing about these nsqds."""
    left_out = {"leads", "follows", "bytes"} if all(each.said.node.is_plain for each in nsqds) else set()
    if not any(each.tombstoned for each in nsqds):
        left_out |= {"tombstoned for", "tombstoned"}
    return [column for column in columns if column.name not in left_out]


def _as_dict(each: NsqdView) -> dict[str, object]:
    return {
        "nsqd": each.address,
        "http": each.said.node.http_url,
        **picked(each, "hostname", "version", "health"),
        "error": each.said.error or None,
        "started_at": each.said.started_at or None,
        **picked(each, "topics", "leads", "follows", "tombstoned"),
        "bytes": None if each.said.error or each.said.node.is_plain else each.size,
    }


@command_of(node, name="list", shows=True)
def list_nodes(cluster: ClusterAccess, as_json: bool | None) -> bool:
    """List the nsqds: health, version, addresses, the partitions that each leads and follows, tombstones.

    It leads with what is wrong. An nsqd that answered within the last day, and is not listed now, is listed as gone.

    Where the terminal is narrow, columns are left out; JSON has all, and the numbers of the partitions. Exit code 1 if
    something is wrong.
    """
    reading = run(cluster.ask(lambda admin: look(cluster, admin)))
    nsqds = list(reading.nsqds.values())
    empty = "no nsqd is registered at the nsqlookupds"
    found = [each for each in incidents(reading) if each.trouble not in OF_CHANNELS]
    for each in found:
        click.echo(clean(each.sentence(reading.at)), err=True)
    print_rows(nsqds, _as_dict, _columns(nsqds, reading.at), as_json=as_json, empty=empty)
    return any(each.is_bad for each in found) or any(each.health != "OK" for each in nsqds)


# ---------------------------------------------------------------- show


def held_by(nsqd: NsqdView) -> list[dict[str, Any]]:
    """Return what an nsqd has of each topic, as for JSON; figures that it did not give are None.

    It follows what is counted by another leader.
    """
    is_plain, is_silent = nsqd.said.node.is_plain, bool(nsqd.said.error)

    def total(figures: Iterable[int]) -> int | None:
        return None if is_silent else sum(figures)

    led: dict[str, list[PartitionStats]] = {topic: [] for topic in nsqd.topics}
    for entry in nsqd.said.partitions:
        if is_plain or entry.partition in nsqd.leads.get(entry.topic, ()):
            led[entry.topic].append(entry)
    return [
        {
            "nsqd": nsqd.address,
            "topic": topic,
            "leads": None if is_plain else nsqd.leads.get(topic, []),
            "follows": None if is_plain or is_silent else nsqd.follows.get(topic, []),
            "messages": total(entry.messages for entry in entries),
            "depth": total(entry.unrouted + sum(channel.depth for channel in entry.channels) for entry in entries),
            "clients": total(channel.clients for entry in entries for channel in entry.channels),
            "bytes": None if is_plain else total(e.size for e in nsqd.said.partitions if e.topic == topic),
            "tombstoned": topic in nsqd.tombstoned,
        }
        for topic, entries in led.items()
    ]


def _numbers(name: str, need: int) -> FigureColumn:
    return FigureColumn(
        name, need, lambda each: " ".join(map(str, each[name] or ())) or None, is_number=False, is_list=True
    )


_HELD: Final = (
    FigureColumn("topic", 0, lambda each: each["topic"], is_number=False),
    _numbers("leads", 1),
    _numbers("follows", 2),
    FigureColumn("depth", 1, lambda each: number(each["depth"])),
    FigureColumn("clients", 3, lambda each: number(each["clients"])),
    FigureColumn("messages", 4, lambda each: number(each["messages"])),
    FigureColumn("bytes", 5, lambda each: number(each["bytes"])),
    FigureColumn("tombstoned", 2, lambda each: "yes" if each["tombstoned"] else None, is_number=False),
)


@command_of(node, click.argument("nsqd", metavar="NSQD"), shows=True)
def show(nsqd: str, cluster: ClusterAccess, as_json: bool | None) -> bool:
    """Show what NSQD has of each topic: partitions, messages, depths, clients, tombstones.

    NSQD is its address for TCP, host:port, as `node list` shows it. Exit code 1 if it does not answer.
    """
    nsqds = run(cluster.ask(lambda admin: look(cluster, admin))).nsqds
    each = nsqds.get(nsqd)
    if each is None:
        known = ", ".join(map(clean, nsqds)) or "none"
        raise click.ClickException(f"the cluster has no nsqd {clean(nsqd)}; it has {known}")
    title = f"{nsqd}: {each.version}, {each.health}"
    columns, empty = _useful(_HELD, [each]), f"{nsqd} has no topics"
    print_rows(held_by(each), dict, columns, as_json=as_json, title=title, empty=empty)
    if each.health != "OK":
        reason = f"does not answer: {each.said.error}" if each.said.error else f"is not healthy: {each.health}"
        warn(f"nsqd {each.address} {reason}")
    return each.health != "OK"


# ---------------------------------------------------------------- tombstones

_TIMEOUT: Final = timeout_option()
_DELETE: Final = click.option(
    "--delete",
    is_flag=True,
    help="Then delete the topic with its messages at this nsqd. Only on a plain (upstream) cluster.",
)
_ARGUMENTS: Final = click.argument("nsqd", metavar="NSQD"), click.argument("topic", type=TOPIC)


@command_of(node, *_ARGUMENTS, _TIMEOUT, _DELETE, yes_option)
def tombstone(nsqd: str, topic: str, cluster: ClusterAccess, *, timeout: float, delete: bool, yes: bool) -> None:
    """Hide NSQD from those who look TOPIC up, for example before it goes out of service.

    On a partitioned cluster, producers no longer find what it leads of the topic, until `node restore`; consumers do,
    and empty it. On a plain one, new consumers do not find it for nsqlookupd's -tombstone-lifetime, by default 45
    seconds.
    """
    also = f", and delete {topic} there with all its messages" if delete else ""
    reason = "this cannot be undone" if delete else "this takes the nsqd away from clients"
    confirm(f"Hide nsqd {clean(nsqd)} from those who look {topic} up{also}?", yes=yes, reason=reason)
    run(cluster.ask(lambda admin: admin.tombstone_node(topic, nsqd, delete=delete, timeout=timeout)))
    click.echo(f"tombstoned {nsqd} for {topic}{f', and deleted {topic} there' if delete else ''}", err=True)


@command_of(node, *_ARGUMENTS, _TIMEOUT)
def restore(nsqd: str, topic: str, cluster: ClusterAccess, *, timeout: float) -> None:
    """Let those who look TOPIC up find NSQD again: the opposite of `tombstone`.

    Only on a partitioned cluster: plain nsqlookupds forget a tombstone after their -tombstone-lifetime.
    """
    run(cluster.ask(lambda admin: admin.restore_node(topic, nsqd, timeout=timeout)))
    click.echo(f"restored {nsqd} for {topic}", err=True)


@command_of(
    node,
    click.argument("nsqd", metavar="NSQD"),
    timeout_option(3600.0, "Seconds to wait; the copies go on after that."),
    yes_option,
)
def remove(nsqd: str, cluster: ClusterAccess, *, timeout: float, yes: bool) -> None:
    """Have the cluster copy all that NSQD holds to other nsqds, and wait until it holds nothing: then stop it for good.

    The others must be enough for the replicas of every topic. Only on a partitioned cluster.
    """
    confirm(f"Take everything from nsqd {clean(nsqd)}, for good?", yes=yes)
    with Progress(f"removing {clean(nsqd)}", counts=False):
        run(cluster.ask(lambda admin: admin.remove_node(nsqd, timeout=timeout)))
    click.echo(f"{nsqd} holds nothing now: stop it, and then run nsq-ha node forget {nsqd}", err=True)


@command_of(node, name="begin-upgrade")
def begin_upgrade(cluster: ClusterAccess) -> None:
    """Keep the cluster from copying replicas elsewhere while its nsqds restart one by one, until `end-upgrade`."""
    run(cluster.ask(lambda admin: admin.begin_upgrade()))
    click.echo("the upgrade has begun: restart the nsqds one by one, and end it with nsq-ha node end-upgrade", err=True)


@command_of(node, name="end-upgrade")
def end_upgrade(cluster: ClusterAccess) -> None:
    """Let the cluster replace missing replicas again: the end of `begin-upgrade`."""
    run(cluster.ask(lambda admin: admin.end_upgrade()))
    click.echo("the upgrade has ended", err=True)


@command_of(node, click.argument("server", metavar="NSQD"))
def forget(server: str, cluster: ClusterAccess) -> None:
    """Forget NSQD, an nsqd or the URL of an nsqlookupd that was removed for good: nothing misses it any more.

    Commands remember the servers of a cluster for a day, in a file of this machine.
    """
    memory = recall(cluster.lookupd).memory
    left = memory.without(server)
    if left == memory:
        known = ", ".join(map(clean, (*memory.nsqds, *memory.lookupds))) or "none"
        raise click.ClickException(f"{clean(server)} is not remembered; these are: {known}")
    keep(cluster.lookupd, left, time.time())
    click.echo(f"forgot {clean(server)}", err=True)
