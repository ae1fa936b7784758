"""``nsq-ha lookup``: the answers of each nsqlookupd, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from nsq_ha.cli.options import TOPIC, cluster_options, json_option
from nsq_ha.cli.output import cell, clean, print_json, print_table, wants_json
from nsq_ha.cli.running import run
from nsq_ha.cli.views import NO_NSQD, View, agree, are_plain, ask_all, differing, is_unknown, nsqds_of, partitions_of
from nsq_ha.errors import TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsq_ha.cli.cluster import ClusterAccess


@click.command(short_help="Compare the answers of all nsqlookupds.")
@click.argument("topic", type=TOPIC)
@cluster_options
@json_option
def lookup(topic: str, cluster: ClusterAccess, as_json: bool | None) -> None:
    """Show the answers of every nsqlookupd about TOPIC, including those that the given ones list.

    Exit code 1 if one does not answer or does not know the topic, or if the answers differ; within 3 seconds
    of a change they normally do.

    The nsqlookupds of a plain (upstream) cluster are independent: each lists the nsqds that registered at it, and
    none lists other nsqlookupds. There, differences are normal, and exit code 1 means that one does not answer, or
    that none knows the topic.
    """
    views = run(ask_all(cluster, topic))
    is_plain = are_plain(views)
    if wants_json(as_json):
        for view in views:
            print_json(_plain_as_dict(view) if is_plain else _as_dict(view, views))
    elif is_plain:
        _print_plain(topic, views)
    else:
        _print(topic, views)
    if is_unknown(views):
        raise click.ClickException(str(TopicNotFoundError.named(topic)))
    if any(view.error is not None for view in views) if is_plain else not agree(views):
        raise click.exceptions.Exit(1)


def _as_dict(view: View, views: Sequence[View]) -> dict[str, Any]:
    meta = view.readable.meta
    partitions = {}
    for number in partitions_of(views):
        leader, writable = view.partition(number)
        partitions[number] = {"leader": leader, "writable": writable}
    return {
        "lookupd": view.lookupd,
        "leads": view.leads,
        "error": view.error,
        "exists": view.readable.exists,
        "partition_num": view.partition_num,
        "ordered": meta.ordered if meta is not None else None,
        "replicas": meta.replica if meta is not None else None,
        "partitions": partitions,
        "note": view.writable.note or None,
        "agree": agree(views),
        "differing": differing(views),
    }


def _plain_as_dict(view: View) -> dict[str, Any]:
    return {
        "lookupd": view.lookupd,
        "error": view.error,
        "exists": view.readable.exists,
        "nsqds": [node.address for node in view.readable.nodes or ()],
    }


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
    rows = [["partitions", *map(_number, answered), _mark(len({view.partition_num for view in answered}) > 1)]]
    rows += [
        [str(number), *(_leader(view, number) for view in answered), _mark(number in different)]
        for number in partitions_of(answered)
    ]
    print_table([topic, *map(_name, answered), ""], rows)
    for view in answered:
        if view.writable.note:
            click.echo(f"{_name(view)}: {clean(view.writable.note)}")


def _name(view: View) -> str:
    return view.lookupd.partition("://")[2] + (" (leads)" if view.leads else "")


def _number(view: View) -> str:
    return str(view.partition_num)


def _leader(view: View, number: int) -> str:
    leader, writable = view.partition(number)
    if leader is None:
        return "no leader"
    return leader if writable else f"{leader} (not writable)"


def _mark(is_different: bool) -> Any:  # noqa: ANN401 - a cell of rich
    from rich.text import Text

    return Text("differs", style="bold red") if is_different else cell("")
