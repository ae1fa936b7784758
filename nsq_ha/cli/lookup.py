"""``nsq-ha lookup``: the answers of each nsqlookupd about a topic, side by side; commands use them to find a topic."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nsq_ha.admin.reading import FigureRow
from nsq_ha.cli.options import TOPIC, cluster_options, json_option
from nsq_ha.cli.output import clean, picked, print_json, print_table, wants_json, warn
from nsq_ha.cli.running import run
from nsq_ha.errors import ConfigError, LookupUnavailableError, TopicNotFoundError
from nsq_ha.policy.topology import LookupAnswer, TopicView

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsq_ha.admin import AdminClient, LookupdState, TopicDescription
    from nsq_ha.cli.cluster import ClusterAccess
    from nsq_ha.policy.topology import Node


NO_NSQD = "no nsqd has the topic yet: the first publish creates it"

PAUSE = 0.5
"""Seconds between two requests for a topic that no nsqd has."""


class View(NamedTuple):
    """One nsqlookupd's answers.

    Attributes:
        lookupd: Its base URL.
        leads: Whether a list of nsqlookupds names it as the leading one.
        readable: The answer to ``access=r``; an empty one if there is none.
        writable: The answer to ``access=w``; an empty one if there is none.
        error: Why there is no answer. None if there is one.
    """

    lookupd: str
    leads: bool
    readable: LookupAnswer
    writable: LookupAnswer
    error: str | None = None

    @property
    def partition_num(self) -> int:
        """The number of partitions; 0 if it is unknown."""
        return 0 if self.readable.meta is None else self.readable.meta.partition_num

    def partition(self, number: int) -> tuple[str | None, bool]:
        """Return the leader's address (None if there is none), and whether it accepts writes."""
        node = self.readable.partitions.get(number)
        return (None, False) if node is None else (node.address, self.writable.partitions.get(number) == node)


def nsqds_of(views: Iterable[View]) -> tuple[Node, ...]:
    """Return the nsqds that any nsqlookupd of a plain cluster lists, by address."""
    found = {node.address: node for view in views for node in view.readable.nodes or ()}
    return tuple(found[address] for address in sorted(found))


def partitions_of(views: Iterable[View]) -> range:
    """Return all partitions that any nsqlookupd knows."""
    numbers = [view.partition_num for view in views]
    numbers += [number + 1 for view in views for number in view.readable.partitions]
    return range(max(numbers, default=0))


def differing(views: Iterable[View]) -> list[int]:
    """Return the partitions about which the answers differ."""
    answered = [view for view in views if view.error is None]
    return [n for n in partitions_of(answered) if len({view.partition(n) for view in answered}) > 1]


def agree(views: Iterable[View]) -> bool:
    """Return whether all answered and all answers are equal; all may say that there is no such topic."""
    listed = list(views)
    kinds = {(view.readable.exists, view.readable.meta) for view in listed}
    return all(view.error is None for view in listed) and len(kinds) == 1 and not differing(listed)


def is_unknown(views: Iterable[View]) -> bool:
    """Return whether some answered and none of them knows the topic."""
    answered = [view for view in views if view.error is None]
    return bool(answered) and not any(view.readable.exists for view in answered)


def needs_partitions(option: str, reason: str) -> ConfigError:
    """Return the error for an option that a plain cluster does not support.

    Args:
        option: As it is given, such as ``--key``.
        reason: What a plain nsqd lacks, such as "has no partitions".
    """
    return ConfigError(f"remove {option}: it needs the partitioned server, and plain nsqd {reason}")


async def ask_all(cluster: ClusterAccess, lookupds: Iterable[LookupdState], topic: str) -> list[View]:
    """Ask the nsqlookupds that answer; the leading one comes first."""
    views = await asyncio.gather(*(_ask(cluster, each, topic) for each in lookupds))
    return sorted(views, key=lambda view: not view.leads)


async def require_topic(cluster: ClusterAccess, topic: str) -> TopicView:
    """Return a view of an existing topic, or of any topic of a plain cluster, where the first publish creates it.

    On a plain cluster it has no ``meta``, and the ``leaders`` are the nsqds that have the topic.

    Raises:
        TopicNotFoundError: No nsqlookupd that answers knows the topic.
        LookupUnavailableError: No nsqlookupd answers, or they name different numbers of partitions.
    """

    async def ask(admin: AdminClient) -> TopicView:
        try:
            view = await admin.view(topic)
        except TopicNotFoundError:
            if not (await admin.cluster()).is_plain:
                raise
            return TopicView(topic, None, {}, complete=False, exists=False, is_plain=True)
        return dataclasses.replace(view, meta=None) if view.is_plain else view

    found = await cluster.ask(ask, topic)
    _check_number(topic, is_known=found.is_plain or found.meta is not None)
    return found


def _check_number(topic: str, *, is_known: bool) -> None:
    if not is_known:
        text = f"the nsqlookupds do not agree how many partitions topic {topic!r} has: try again in some seconds"
        raise LookupUnavailableError(text)


async def describe_topic(cluster: ClusterAccess, topic: str) -> TopicDescription:
    """Return a description of a topic whose partitions are known.

    Raises:
        TopicNotFoundError: There is no such topic.
        LookupUnavailableError: No nsqlookupd answers, or they name different numbers, as while the topic grows.
    """
    found = await cluster.ask(lambda admin: admin.describe(topic), topic)
    _check_number(topic, is_known=bool(found.partitions) or found.view.is_plain)
    return found


def channel_rows(found: TopicDescription) -> list[FigureRow]:
    """Return the figures of the channels of a topic."""
    now = time.time()
    return [FigureRow(topic=found.view.topic, channel=each, lag=each.lag(now)) for each in found.totals]


def tell_silence(found: TopicDescription) -> bool:
    """Say whose statistics are missing; return whether some are."""
    silent = [entry for entry in found.partitions if entry.stats is None]
    if silent:
        names = ", ".join(entry.leader.address if entry.leader else f"partition {entry.partition}" for entry in silent)
        reason = next((f" ({entry.error})" for entry in silent if entry.error), "")
        warn(f"no statistics of {names}{reason}: what is there is missing below")
    return bool(silent)


async def wait_for_nsqd(cluster: ClusterAccess, topic: str, limit: float | None) -> bool:
    """Wait until an nsqd has a plain topic. Return False if none has it after ``limit`` seconds."""
    loop = asyncio.get_running_loop()
    end = math.inf if limit is None else loop.time() + limit
    while not (await require_topic(cluster, topic)).leaders:
        if loop.time() >= end:
            return False
        await asyncio.sleep(min(PAUSE, max(0.0, end - loop.time())))
    return True


async def _ask(cluster: ClusterAccess, lookupd: LookupdState, topic: str) -> View:
    url, leads, error = lookupd.url, lookupd.leads, lookupd.error
    try:
        if not error:
            async with cluster.lookup_client(url) as client:
                return View(url, leads, *await asyncio.gather(client.lookup(topic, "r"), client.lookup(topic, "w")))
    except LookupUnavailableError as unavailable:
        error = "; ".join(reason for _, reason in unavailable.causes) or str(unavailable)
    nothing = LookupAnswer(url, leads=False, meta=None, partitions={}, exists=False)
    return View(url, leads, nothing, nothing, error)


@click.command(short_help="Compare the answers of all nsqlookupds.")
@click.argument("topic", type=TOPIC)
@cluster_options
@json_option
def lookup(topic: str, cluster: ClusterAccess, as_json: bool | None) -> bool:
    """Show the answers of every nsqlookupd about TOPIC, including those that the given ones list.

    Exit code 1 if one does not answer or does not know the topic, or if the answers differ; within 3 seconds
    of a change they normally do.

    The nsqlookupds of a plain (upstream) cluster are independent: each lists the nsqds that registered at it, and
    none lists other nsqlookupds. There, differences are normal, and exit code 1 means that one does not answer, or
    that none knows the topic.
    """
    state = run(cluster.ask(lambda admin: admin.cluster()))
    views, is_plain = run(ask_all(cluster, state.lookupds, topic)), state.is_plain
    if wants_json(as_json):
        for view in views:
            print_json(_plain_as_dict(view) if is_plain else _as_dict(view, views))
    elif is_plain:
        _print_plain(topic, views)
    else:
        _print(topic, views)
    if is_unknown(views):
        names = [each.name for each in run(cluster.ask(lambda admin: admin.topics()))]
        raise click.ClickException(str(TopicNotFoundError.named(topic, names)))
    return any(view.error is not None for view in views) if is_plain else not agree(views)


def _as_dict(view: View, views: Sequence[View]) -> dict[str, Any]:
    meta = view.readable.meta
    names = ("leader", "writable")
    return {
        **picked(view, "lookupd", "leads", "error"),
        **picked(view.readable, "exists"),
        **picked(view, "partition_num"),
        **picked(meta, "ordered"),
        "replicas": meta.replica if meta is not None else None,
        "partitions": {n: dict(zip(names, view.partition(n), strict=True)) for n in partitions_of(views)},
        "note": view.writable.note or None,
        "agree": agree(views),
        "differing": differing(views),
    }


def _plain_as_dict(view: View) -> dict[str, Any]:
    nsqds = [node.address for node in view.readable.nodes or ()]
    return {**picked(view, "lookupd", "error"), **picked(view.readable, "exists"), "nsqds": nsqds}


def _print_plain(topic: str, views: Sequence[View]) -> None:
    answered = _print_troubles(views)
    nsqds = nsqds_of(views)
    rows = [[node.address, *("listed" if node in nsqds_of([view]) else "-" for view in answered)] for node in nsqds]
    if rows:
        print_table([topic, *map(_name, answered)], rows)
    elif any(view.readable.exists for view in answered):
        click.echo(NO_NSQD)


def _print_troubles(views: Sequence[View]) -> list[View]:
    """Print who does not answer, or does not know the topic; return those that answer."""
    for view in views:
        if view.error is not None:
            click.echo(f"{_name(view)} does not answer: {clean(view.error)}")
        elif not view.readable.exists:
            click.echo(f"{_name(view)} does not know the topic")
    return [view for view in views if view.error is None]


def _print(topic: str, views: Sequence[View]) -> None:
    answered = _print_troubles(views)
    if not any(view.readable.exists for view in answered):
        return
    different = set(differing(views))
    numbers = [view.partition_num for view in answered]
    rows = [["partitions", *map(str, numbers), "differs" if len(set(numbers)) > 1 else ""]]
    rows += [
        [str(number), *(_leader(view, number) for view in answered), "differs" if number in different else ""]
        for number in partitions_of(answered)
    ]
    print_table([topic, *map(_name, answered), ""], rows)
    for view in answered:
        if view.writable.note:
            click.echo(f"{_name(view)}: {clean(view.writable.note)}")


def _name(view: View) -> str:
    return view.lookupd.partition("://")[2] + (" (leads)" if view.leads else "")


def _leader(view: View, number: int) -> str:
    leader, writable = view.partition(number)
    if leader is None:
        return "no leader"
    return leader if writable else f"{leader} (not writable)"
