"""``nsq-ha node``: list and show nsqds; hide one from those who look a topic up, and show it again."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from nsq_ha.cli.figures import Column, duration, number
from nsq_ha.cli.groups import Group
from nsq_ha.cli.options import SECONDS, TOPIC, cluster_options, confirm, json_option, yes_option
from nsq_ha.cli.output import clean, print_json, wants_json
from nsq_ha.cli.running import run
from nsq_ha.cli.tables import print_fitting
from nsq_ha.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsq_ha.admin import ClusterStats, NodeStats, PartitionStats
    from nsq_ha.cli.cluster import Cluster
    from nsq_ha.engine.answers import NodeInfo


@dataclass(frozen=True, slots=True)
class Nsqd:
    """One nsqd, by what the nsqlookupds list and what it says of itself.

    Attributes:
        listed: What the nsqlookupds list.
        said: What it says.
        is_plain: It is an upstream nsqd, which has no partitions.
    """

    listed: NodeInfo
    said: NodeStats
    is_plain: bool

    @property
    def health(self) -> str:
        """``OK``, or what is wrong."""
        return self.said.health or "unknown" if not self.said.error else "silent"

    @property
    def is_healthy(self) -> bool:
        """Whether it answers, and says that it is healthy."""
        return self.health == "OK"

    @property
    def tombstoned(self) -> list[str]:
        """The topics for which it is hidden."""
        return sorted(self.listed.tombstoned)

    def partitions(self, *, leads: bool) -> dict[str, list[int]]:
        """Return the partitions that it leads, or those that it follows, by topic; none on a plain cluster."""
        if self.is_plain:
            return {}
        if self.said.error:
            return {topic: sorted(held) for topic, held in sorted(self.listed.partitions.items()) if leads and held}
        found: dict[str, list[int]] = {}
        for entry in self.said.partitions:
            if entry.is_leader is leads:
                found.setdefault(entry.topic, []).append(entry.partition)
        return found

    @property
    def topics(self) -> list[str]:
        """The topics of which it has something."""
        return sorted({*self.listed.topics, *(entry.topic for entry in self.said.partitions)})


def nsqds_of(listed: Iterable[NodeInfo], stats: ClusterStats) -> list[Nsqd]:
    """Return the nsqds that both know, by address."""
    said = {each.node.address: each for each in stats.nodes}
    infos = sorted(listed, key=lambda info: info.node.address)
    return [Nsqd(info, said[info.node.address], info.node.is_plain) for info in infos if info.node.address in said]


@click.group(cls=Group, short_help="List nsqds; hide one and show it again.")
def node() -> None:
    """List nsqds with their health; hide one from those who look a topic up, and show it again."""


# ---------------------------------------------------------------- list


def _held(partitions: Mapping[str, list[int]]) -> int:
    return sum(map(len, partitions.values()))


def _columns(nsqds: list[Nsqd], now: float) -> list[Column]:
    def up(each: Nsqd) -> str | None:
        at = each.said.started_at
        return duration(float(int(max(0.0, now - at)))) if at else None

    columns = [
        Column("nsqd", 0, lambda each: each.listed.node.address, is_number=False),
        Column("health", 1, lambda each: each.health, is_number=False),
        Column("leads", 1, lambda each: number(_held(each.partitions(leads=True)))),
        Column("follows", 2, lambda each: None if each.said.error else number(_held(each.partitions(leads=False)))),
        Column("topics", 3, lambda each: number(len(each.topics))),
        Column("tombstoned for", 2, lambda each: " ".join(each.tombstoned) or None, is_number=False, is_list=True),
        Column("up", 4, up),
        Column("version", 5, lambda each: each.said.version or each.listed.version or None, is_number=False),
        Column("HTTP", 6, lambda each: each.listed.node.http_url.partition("://")[2], is_number=False),
        Column("host", 7, lambda each: each.listed.hostname or None, is_number=False),
    ]
    left_out = {"leads", "follows"} if all(each.is_plain for each in nsqds) else set()
    if not any(each.tombstoned for each in nsqds):
        left_out.add("tombstoned for")
    return [column for column in columns if column.name not in left_out]


def _as_dict(each: Nsqd) -> dict[str, object]:
    return {
        "nsqd": each.listed.node.address,
        "http": each.listed.node.http_url,
        "hostname": each.listed.hostname,
        "version": each.said.version or each.listed.version,
        "health": each.health,
        "error": each.said.error or None,
        "started_at": each.said.started_at or None,
        "topics": each.topics,
        "leads": each.partitions(leads=True),
        "follows": each.partitions(leads=False),
        "tombstoned": each.tombstoned,
    }


@node.command("list")
@cluster_options
@json_option
def list_nodes(cluster: Cluster, as_json: bool | None) -> None:
    """List the nsqds: health, version, addresses, the partitions that each leads and follows, tombstones.

    Where the terminal is narrow, columns are left out; JSON has all, and the numbers of the partitions. Exit code 1 if
    an nsqd does not answer, or says that it is not healthy.
    """
    nsqds = run(_nsqds(cluster))
    if wants_json(as_json):
        for each in nsqds:
            print_json(_as_dict(each))
    elif nsqds:
        print_fitting(_columns(nsqds, time.time()), nsqds)
    else:
        click.echo("no nsqd is registered at the nsqlookupds")
    _report(nsqds)


def _report(nsqds: Iterable[Nsqd]) -> None:
    """Say what is wrong with nsqds, and exit with 1 if something is."""
    wrong = [each for each in nsqds if not each.is_healthy]
    for each in wrong:
        address = clean(each.listed.node.address)
        reason = f"does not answer: {each.said.error}" if each.said.error else f"is not healthy: {each.health}"
        click.echo(f"warning: nsqd {address} {clean(reason)}", err=True)
    if wrong:
        raise click.exceptions.Exit(1)


async def _nsqds(cluster: Cluster) -> list[Nsqd]:
    async with cluster.admin() as admin:
        return nsqds_of(*await asyncio.gather(admin.nodes(), admin.stats()))


# ---------------------------------------------------------------- show


@dataclass(slots=True)
class Held:
    """What an nsqd has of a topic.

    Attributes:
        topic: The topic.
        leads: The partitions that it leads.
        follows: The partitions that it follows.
        messages: Number of messages ever stored in what it leads; on a plain nsqd since its start.
        depth: Number of messages that wait in the channels of what it leads, or for a channel.
        clients: Number of connections that consume what it leads.
        is_tombstoned: It is hidden for the topic.
        is_plain: It is an upstream nsqd, which has no partitions.
    """

    topic: str
    leads: list[int] = field(default_factory=list)
    follows: list[int] = field(default_factory=list)
    messages: int = 0
    depth: int = 0
    clients: int = 0
    is_tombstoned: bool = False
    is_plain: bool = False

    def add(self, entry: PartitionStats) -> None:
        """Add a partition, or all that a plain nsqd has."""
        if not entry.is_leader:
            self.follows.append(entry.partition)
            return
        self.leads.append(entry.partition)
        self.messages += entry.messages
        self.depth += entry.unrouted + sum(channel.depth for channel in entry.channels)
        self.clients += sum(channel.clients for channel in entry.channels)


def held_by(nsqd: Nsqd) -> list[Held]:
    """Return what an nsqd has, by topic."""
    found = {
        topic: Held(topic, is_tombstoned=topic in nsqd.listed.tombstoned, is_plain=nsqd.is_plain)
        for topic in nsqd.topics
    }
    for entry in nsqd.said.partitions:
        found[entry.topic].add(entry)
    return list(found.values())


def _numbers(partitions: Iterable[int]) -> str | None:
    return " ".join(map(str, partitions)) or None


_HELD_COLUMNS: Final = (
    Column("topic", 0, lambda each: each.topic, is_number=False),
    Column("leads", 1, lambda each: _numbers(each.leads), is_number=False, is_list=True),
    Column("follows", 2, lambda each: _numbers(each.follows), is_number=False, is_list=True),
    Column("depth", 1, lambda each: number(each.depth)),
    Column("clients", 3, lambda each: number(each.clients)),
    Column("messages", 4, lambda each: number(each.messages)),
    Column("tombstoned", 2, lambda each: "yes" if each.is_tombstoned else None, is_number=False),
)


@node.command()
@click.argument("nsqd", metavar="NSQD")
@cluster_options
@json_option
def show(nsqd: str, cluster: Cluster, as_json: bool | None) -> None:
    """Show what NSQD has of each topic: partitions, messages, depths, clients, tombstones.

    NSQD is its address for TCP, host:port, as `node list` shows it. Exit code 1 if it does not answer.
    """
    nsqds = run(_nsqds(cluster))
    each = next((each for each in nsqds if each.listed.node.address == nsqd), None)
    if each is None:
        known = ", ".join(clean(other.listed.node.address) for other in nsqds) or "none"
        raise click.ClickException(f"the cluster has no nsqd {clean(nsqd)}; it has {known}")
    held = held_by(each)
    if wants_json(as_json):
        for entry in held:
            print_json(_held_as_dict(nsqd, entry))
    elif held:
        left_out = {"leads", "follows"} if each.is_plain else set()
        left_out |= set() if each.tombstoned else {"tombstoned"}
        columns = [column for column in _HELD_COLUMNS if column.name not in left_out]
        print_fitting(columns, held, title=f"{nsqd}: {each.said.version or each.listed.version}, {each.health}")
    else:
        click.echo(f"{nsqd} has no topics")
    _report([each])


def _held_as_dict(nsqd: str, entry: Held) -> dict[str, object]:
    return {
        "nsqd": nsqd,
        "topic": entry.topic,
        "leads": None if entry.is_plain else entry.leads,
        "follows": None if entry.is_plain else entry.follows,
        "messages": entry.messages,
        "depth": entry.depth,
        "clients": entry.clients,
        "tombstoned": entry.is_tombstoned,
    }


# ---------------------------------------------------------------- tombstones

_TIMEOUT: Final = click.option(
    "--timeout", type=SECONDS, default=30.0, show_default=True, help="Seconds to wait until all nsqlookupds show it."
)


def _of_one_topic(call: Any) -> Any:  # noqa: ANN401 - a decorator of click
    """Add the arguments NSQD and TOPIC, and the time limit."""
    return click.argument("nsqd", metavar="NSQD")(click.argument("topic", type=TOPIC)(_TIMEOUT(call)))


@node.command()
@_of_one_topic
@click.option(
    "--delete",
    is_flag=True,
    help="Then delete the topic with its messages at this nsqd. Only on a plain (upstream) cluster.",
)
@yes_option
@cluster_options
def tombstone(nsqd: str, topic: str, cluster: Cluster, *, timeout: float, delete: bool, yes: bool) -> None:
    """Hide NSQD from those who look TOPIC up, for example before it goes out of service.

    On a partitioned cluster, producers no longer find what it leads of the topic, until `node restore`; consumers do,
    and empty it. On a plain one, new consumers do not find it for nsqlookupd's -tombstone-lifetime, by default 45
    seconds.
    """
    also = f", and delete {topic} there with all its messages" if delete else ""
    reason = "this cannot be undone" if delete else "this takes the nsqd away from clients"
    confirm(f"Hide nsqd {clean(nsqd)} from those who look {topic} up{also}?", yes=yes, reason=reason)
    run(_tombstone(cluster, nsqd, topic, delete=delete, timeout=timeout))
    click.echo(f"tombstoned {nsqd} for {topic}{f', and deleted {topic} there' if delete else ''}", err=True)


@node.command()
@_of_one_topic
@cluster_options
def restore(nsqd: str, topic: str, cluster: Cluster, *, timeout: float) -> None:
    """Let those who look TOPIC up find NSQD again: the opposite of `tombstone`.

    Only on a partitioned cluster: plain nsqlookupds forget a tombstone after their -tombstone-lifetime.
    """
    run(_restore(cluster, nsqd, topic, timeout=timeout))
    click.echo(f"restored {nsqd} for {topic}", err=True)


async def _tombstone(cluster: Cluster, nsqd: str, topic: str, *, delete: bool, timeout: float) -> None:
    async with cluster.admin() as admin:
        if delete and not any(info.node.is_plain for info in await admin.nodes()):
            raise ConfigError("remove --delete: only a plain nsqd can delete its part of a topic")
        await admin.tombstone_node(topic, nsqd, delete=delete, timeout=timeout)


async def _restore(cluster: Cluster, nsqd: str, topic: str, *, timeout: float) -> None:
    async with cluster.admin() as admin:
        await admin.restore_node(topic, nsqd, timeout=timeout)
