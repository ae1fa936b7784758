"""``nsq-ha browse``: look at the messages of a partitioned topic in its logs, without touching any channel."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from typing import TYPE_CHECKING, Any, Final

import click

from nsq_ha.admin import browsing
from nsq_ha.admin.browsing import (
    FORMS,
    LATEST,
    MAX_COUNT,
    Browsed,
    LogLook,
    LogPlace,
    LogStart,
    MessageFilter,
    check_start,
    decoded,
    going_on,
    with_plugin,
)
from nsq_ha.admin.words import counted
from nsq_ha.cli.options import PARTITION, TOPIC, cluster_options, json_option
from nsq_ha.cli.output import clean, local_time, picked, print_json, wants_json, warn
from nsq_ha.cli.running import run
from nsq_ha.cli.start import HELP, position
from nsq_ha.errors import ConfigError, DiscoveryError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nsq_ha.cli.cluster import ClusterAccess

    Decode = Callable[[str], str]
    Show = Callable[[Browsed], None]
    Look = Callable[..., Awaitable[LogLook]]

NOT_YET: Final = 3
"""The exit code of a look that ended before it found anything, or all was looked at."""

_AGAIN: Final = 1.0
"""Seconds between two looks with ``--follow``."""


class BodyForm(click.ParamType["Decode"]):
    """How bodies are shown: a name of :data:`nsq_ha.admin.browsing.FORMS`, or a function of the user's."""

    name = "form"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Decode:
        """Return the function, or fail with the reason."""
        text = str(value)
        for form in FORMS:
            if text == form:
                return functools.partial(decoded, form=form)
        if ":" not in text:
            self.fail(f"give one of {', '.join(FORMS)}, or MODULE:FUNCTION, not {text!r}", param, ctx)
        try:
            return with_plugin(text)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


@click.command(short_help="Look at stored messages; takes none.")
@click.argument("topic", type=TOPIC)
@click.option("-n", "--count", type=click.IntRange(1, MAX_COUNT), default=20, help="Approximate number of messages.")
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help=f"{HELP} With --partition also offset:BYTES, count:NUMBER. Default: the latest.",
)
@click.option("-p", "--partition", "partitions", type=PARTITION, multiple=True, help="Only this one. May be repeated.")
@click.option("--key", help="Only the partition to which publishers with murmur3, the default, send this key.")
@click.option("--contains", "text", default="", help="Only bodies with this text.")
@click.option("--header", default="", metavar="NAME[=VALUE]", help="Only messages with this header.")
@click.option("--tag", default="", help="Only messages with this tag.")
@click.option("--trace-id", type=click.IntRange(0), help="Only the messages with this trace id.")
@click.option(
    "--decode", type=BodyForm(), default="text", help="text, json, hex, or MODULE:FUNCTION, which gets bytes."
)
@click.option("-f", "--follow", is_flag=True, help="Then show new messages, until Ctrl-C.")
@cluster_options
@json_option
def browse(
    topic: str,
    cluster: ClusterAccess,
    *,
    count: int,
    start: str | None,
    partitions: tuple[int, ...],
    key: str | None,
    decode: Decode,
    follow: bool,
    as_json: bool | None,
    **wanted: Any,  # noqa: ANN401 - the fields of MessageFilter
) -> int:
    """Show messages that TOPIC holds: the latest, the oldest, or those at a time or an offset.

    They are read from the logs of the partitions. No channel is created, moved or changed, and nobody misses a message.
    The latest messages may be shown some seconds late, when nsqd has flushed them. Bytes that are not
    valid UTF-8 are shown damaged; `tail --from` has them whole.

    The search stops after 8 seconds, or 5,000 messages, and says how to continue: exit code 3 if it found none, or if
    no partition could be read.

    Only for a partitioned cluster: a plain (upstream) one shows a message only to a consumer, which takes it away.
    """
    begin = LATEST if start is None else going_on(start) or position(start, time.time())
    show = functools.partial(_print_json if wants_json(as_json) else _print_text, topic, decode=decode)
    try:
        check_start(begin, partitions)
        which = {"partitions": partitions, "key": key, "wanted": MessageFilter(**wanted)}
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    work = _browse(cluster, topic, begin, show, which, count=count, follow=follow)
    return NOT_YET if run(work, stopped=0 if follow else None) else 0


async def _browse(
    cluster: ClusterAccess, topic: str, start: LogStart, show: Show, which: dict[str, Any], *, count: int, follow: bool
) -> bool:
    """Show messages; return whether the look ended before it found any, or all was looked at."""
    async with cluster.admin() as admin:
        look: Look = functools.partial(browsing.browse, admin, topic, **which)
        is_backward = start.is_backward if isinstance(start, LogPlace) else start == LATEST
        found = await look(start, count=count)
        for each in found.messages:
            show(each)
        shown = len(found.messages)
        _tell(topic, found.notes, found.read, shown, is_all=which["wanted"] == MessageFilter())
        is_cut = shown < count and found.left > 0
        if is_cut and not follow:
            on = LogPlace(found.older if is_backward else found.newer, is_backward)
            click.echo(f"go on with --from {on}", err=True)
        if follow:
            await _follow(look, show, found.newer, found.notes)
        is_unread = bool(found.notes) and not found.read
        return (is_cut or is_unread) and not shown


async def _follow(look: Look, show: Show, newer: Mapping[int, int], notes: tuple[str, ...]) -> None:
    """Show new messages, from the numbers ``newer`` on, until cancelled; repeat none of the last ``notes``."""
    behind = 0
    while True:
        await asyncio.sleep(0.0 if behind else _AGAIN)
        before, behind = notes, 0
        try:
            found = await look(LogPlace(newer), count=MAX_COUNT)
        except TopicNotFoundError:
            raise
        except DiscoveryError as error:
            notes = (str(error),)
        else:
            for each in found.messages:
                show(each)
            newer, behind, notes = {**newer, **found.newer}, found.left, found.notes
        for note in notes:
            if note not in before:
                warn(note)


def _tell(topic: str, notes: tuple[str, ...], read: int, shown: int, *, is_all: bool) -> None:
    for note in notes:
        warn(note)
    if not is_all:
        click.echo(f"looked at {counted(read, 'message')} of {topic}, {shown:,} of them match", err=True)
    elif not shown and not notes:
        click.echo(f"{topic} has no messages there", err=True)


def _print_text(_: str, each: Browsed, *, decode: Decode) -> None:
    stored = each.message
    when = local_time(stored.timestamp_ns)
    trace = f" trace {stored.trace_id}" if stored.trace_id else ""
    tag = f" tag {each.tag}" if each.tag else ""
    headers = f" {json.dumps(each.headers, ensure_ascii=False)}" if each.headers else ""
    damaged = " (damaged: not UTF-8)" if each.is_damaged else ""
    lines = decode(stored.body).split("\n")
    click.echo(clean(f"{when} [{each.partition}:{stored.number}{trace}{tag}]{headers}{damaged} {lines[0]}"))
    for line in lines[1:]:
        click.echo(f"    {clean(line)}")


def _print_json(topic: str, each: Browsed, *, decode: Decode) -> None:
    entry = {"topic": topic, "partition": each.partition}
    entry |= picked(each.message, "number", "offset", "internal_id", "trace_id", "timestamp_ns")
    print_json(entry | picked(each, "tag", "headers", "is_damaged") | {"body": decode(each.message.body)})
