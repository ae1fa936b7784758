"""``nsq-ha channel``: list, create, change and delete channels."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import click

from nsq_ha.admin import AdminClient, ChannelStats
from nsq_ha.admin.browsing import check_start
from nsq_ha.admin.reading import FigureRow
from nsq_ha.admin.words import some
from nsq_ha.cli.lookup import channel_rows, describe_topic, require_topic, tell_silence
from nsq_ha.cli.options import CHANNEL, PARTITION, TOPIC, command_of, confirm, timeout_option, yes_option
from nsq_ha.cli.output import columns_of, picked, print_rows
from nsq_ha.cli.running import run
from nsq_ha.cli.start import HELP, described, position
from nsq_ha.errors import ChannelNotFoundError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsq_ha.cli.cluster import ClusterAccess
    from nsq_ha.options.start_from import StartFrom

_TIMEOUT = timeout_option()


@click.group(short_help="List, create, change and delete channels.")
def channel() -> None:
    """List, create, pause, resume, skip, empty, move and delete channels.

    A change goes to all partitions, or to all nsqds of a plain (upstream) topic, and the command waits until all show
    it. If some do not, it names them; exit code 1. It may be repeated.
    """


_ARGUMENTS = click.argument("topic", type=TOPIC), click.argument("name", metavar="CHANNEL", type=CHANNEL)
_command = partial(command_of, channel, *_ARGUMENTS)


@command_of(channel, _ARGUMENTS[0], name="list", shows=True)
def list_channels(topic: str, cluster: ClusterAccess, as_json: bool | None) -> bool:
    """List the channels of TOPIC, with what waits in them. Exit code 1 if an nsqd does not say what it has."""
    found = run(describe_topic(cluster, topic))
    is_lacking = tell_silence(found)
    rows = channel_rows(found)
    if found.view.is_plain and not found.partitions:  # the first nsqd that gets the topic creates what is listed
        names = run(cluster.ask(lambda admin: admin.channels(topic), topic))
        new = (ChannelStats(each, 0, 0, 0, 0, 0, 0, 0, paused=False, skipped=False) for each in names)
        rows = [FigureRow(topic=topic, channel=each) for each in new]
    columns = columns_of(rows, by_partition=False, rates=False)
    print_rows(rows, _as_dict, columns, as_json=as_json, empty=f"{topic} has no channels")
    return is_lacking


@_command(_TIMEOUT)
def create(topic: str, name: str, cluster: ClusterAccess, *, timeout: float) -> None:
    """Create CHANNEL on every partition of TOPIC; an existing one is not changed.

    It gets all messages that are published from then on. Where channels must be registered, this registers it.
    """
    _change(cluster, AdminClient.create_channel, topic, name, timeout=timeout, done="created")


@_command(_TIMEOUT)
def pause(topic: str, name: str, cluster: ClusterAccess, *, timeout: float) -> None:
    """Stop the delivery of CHANNEL until `resume`. Nothing is lost; messages wait."""
    _change(cluster, AdminClient.pause_channel, topic, name, timeout=timeout, done="paused")


@_command(_TIMEOUT)
def resume(topic: str, name: str, cluster: ClusterAccess, *, timeout: float) -> None:
    """Deliver the messages of CHANNEL again: the opposite of `pause` and of `skip`."""
    if run(require_topic(cluster, topic)).meta is not None:  # plain nsqds skip no messages
        _change(cluster, AdminClient.unskip_channel, topic, name, timeout=timeout)
    _change(cluster, AdminClient.unpause_channel, topic, name, timeout=timeout, done="resumed")


@_command(_TIMEOUT, yes_option)
def skip(topic: str, name: str, cluster: ClusterAccess, *, timeout: float, yes: bool) -> None:
    """Drop all messages of CHANNEL, waiting ones and new ones, until `resume`.

    Only the partitioned server can do that.
    """
    confirm(f"Drop all messages of channel {name} of {topic}, new ones too, until it is resumed?", yes=yes)
    _change(cluster, AdminClient.skip_channel, topic, name, timeout=timeout, done="skipping")


@_command(_TIMEOUT, yes_option)
def empty(topic: str, name: str, cluster: ClusterAccess, *, timeout: float, yes: bool) -> None:
    """Drop all messages of CHANNEL that are not finished. Other channels keep theirs.

    A partitioned nsqd may still deliver one message of each partition, that it had read ahead, and those of the last
    7 s.
    """
    confirm(f"Drop all messages that wait in channel {name} of {topic}?", yes=yes)
    _change(cluster, AdminClient.empty_channel, topic, name, timeout=timeout, done="emptied")


@_command(
    click.option("--partition", type=PARTITION, required=True, help="The partition that has the message."),
    click.option("--number", type=click.IntRange(1), required=True, help="Its number there; the first one has 1."),
    _TIMEOUT,
    yes_option,
)
def finish(
    topic: str, name: str, cluster: ClusterAccess, *, partition: int, number: int, timeout: float, yes: bool
) -> None:
    """Finish one message for CHANNEL, which does not get it again: one that blocks an ordered partition.

    `doctor` names it. It must be in flight, so a consumer must run. Only the partitioned server can do that.
    """
    confirm(f"Drop message {number} of {topic}-{partition} for channel {name}?", yes=yes)
    finish = AdminClient.finish_message
    _change(cluster, finish, topic, name, partition, number, timeout=timeout, done=f"finished message {number} for")


@_command(_TIMEOUT, yes_option)
def delete(topic: str, name: str, cluster: ClusterAccess, *, timeout: float, yes: bool) -> None:
    """Delete CHANNEL with all that it has not delivered. Stop its consumers first: they would create it again."""
    confirm(f"Delete channel {name} of {topic} with all its messages?", yes=yes)
    _change(cluster, AdminClient.delete_channel, topic, name, timeout=timeout, done="deleted")


@_command(
    click.option(
        "--to",
        "start",
        required=True,
        callback=lambda _, __, value: position(value, time.time()),
        metavar="WHERE",
        help=f"{HELP} With --partition also offset:BYTES, count:NUMBER.",
    ),
    click.option("-p", "--partition", "only", type=PARTITION, multiple=True, help="Only this one. May be repeated."),
    _TIMEOUT,
    yes_option,
    name="set-offset",
)
def set_offset(
    topic: str, name: str, cluster: ClusterAccess, *, start: StartFrom, only: tuple[int, ...], timeout: float, yes: bool
) -> None:
    """Move CHANNEL to another position: its consumers get the messages from there on.

    Going back delivers messages again, going forward drops those between. Only the partitioned server keeps finished
    messages.
    """
    try:
        check_start(start, only)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    where = f" to {described(start)}{f' in partition {some(map(str, only))}' if only else ''}"
    confirm(f"Move channel {name} of {topic}{where}? Messages are delivered again, or dropped.", yes=yes)
    to = dict.fromkeys(only, start) if only else start
    _change(cluster, AdminClient.set_offset, topic, name, to, timeout=timeout, done="moved", to=where)


def _change(
    cluster: ClusterAccess,
    change: Callable[..., Awaitable[object]],
    topic: str,
    name: str,
    *start: object,
    timeout: float,
    done: str = "",
    to: str = "",
) -> None:
    """Call a method of an admin client; then say what is done, if anything."""

    async def explained(admin: AdminClient) -> None:
        try:
            await change(admin, topic, name, *start, timeout=timeout)
        except ChannelNotFoundError as error:
            raise ChannelNotFoundError(f"{error} (see nsq-ha channel list {topic})") from error

    run(cluster.ask(explained, topic))
    if done:
        click.echo(f"{done} {name} of {topic}{to}", err=True)


def _as_dict(row: FigureRow) -> dict[str, object]:
    counts = picked(row.channel, "depth", "in_flight", "deferred", "clients")
    return {"channel": row.name, **counts, "lag": row.lag, **picked(row.channel, "paused", "skipped")}
