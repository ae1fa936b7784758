"""``nsq-ha tail``: print messages as they arrive."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from nsq_ha.admin.words import counted
from nsq_ha.base.identity import is_upstream_id
from nsq_ha.cli.options import CHANNEL, IN_FLIGHT, TOPIC, cluster_options, json_option, metrics_option
from nsq_ha.cli.output import clean, local_time, picked, print_json, wants_json, warn
from nsq_ha.cli.reading import (
    Selection,
    check_read,
    depth_of,
    expanded,
    losses_reported,
    own_channel,
    selection_options,
    taken_from,
)
from nsq_ha.cli.running import run
from nsq_ha.dead_letters import DeadLetter
from nsq_ha.dead_letters.provenance import fields_of
from nsq_ha.errors import ConfigError, DeadLetterError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha import Consumer
    from nsq_ha.admin import TopicDescription
    from nsq_ha.cli.cluster import ClusterAccess
    from nsq_ha.message import Message


@click.command(short_help="Print messages as they arrive.")
@click.argument("topic", type=TOPIC)
@click.option("--channel", type=CHANNEL, help="Take messages out of this channel; needs --consume.")
@selection_options("Read", "new messages")
@click.option("--max-in-flight", type=IN_FLIGHT, help="Default: the option max_in_flight, 200.")
@click.option("--raw", is_flag=True, help="Print only the bodies, unchanged, each with a newline.")
@click.option(
    "--dead-letters",
    is_flag=True,
    help="Decode dead letters: print the messages that were given up, with where they come from and why they failed.",
)
@click.option("--consume", is_flag=True, help="Take the printed messages out of --channel; the others stay in it.")
@cluster_options
@metrics_option
@json_option
def tail(
    topic: str,
    cluster: ClusterAccess,
    chosen: Selection,
    *,
    raw: bool,
    dead_letters: bool,
    consume: bool,
    as_json: bool | None,
) -> None:
    """Print the messages of TOPIC as they arrive, until Ctrl-C or until the reader of a pipe ends.

    It removes no messages: it uses a new channel, which gets copies of all new messages and is deleted at the end. With
    --consume it takes messages out of --channel, which it shares with its consumers, or creates.

    On a plain (upstream) cluster, the messages of a topic without channels wait for the first channel, which would take
    them away: without --consume, such a topic is refused. If no nsqd has the topic yet, the command waits for it, and
    refuses it if it has no channel then.
    """
    _check_consume(chosen.channel, consume=consume)
    if raw:
        show: Callable[[Message, DeadLetter | None], None] = _print_raw
    else:
        show = _print_json if wants_json(as_json) else _print_text
    work = _tail(topic, cluster, chosen, lambda message: show(message, letter_of(message) if dead_letters else None))
    run(work, stopped=0, has_end=chosen.has_end)


async def _tail(topic: str, cluster: ClusterAccess, chosen: Selection, show: Callable[[Message], None]) -> int:
    kind = await chosen.wait_for(cluster, topic)
    if kind is None:
        return 0
    if chosen.channel is None and kind == "nsqds":
        _check_copies(await cluster.ask(lambda admin: admin.describe(topic)))
    printed = await _print(topic, cluster, chosen, show, kind)
    if chosen.channel is not None:
        left = await depth_of(cluster, topic, chosen.channel)
        rest = "" if left is None else f"; {counted(left, 'message')} still wait{'s' if left == 1 else ''} there"
        click.echo(f"took {counted(printed, 'message')} out of channel {chosen.channel}{rest}", err=True)
    return printed


def _check_copies(found: TopicDescription) -> None:
    """Check that a channel of its own takes no message away."""
    topic = found.view.topic
    if reason := taken_from(found, even_none=True):
        raise ConfigError(
            f"{reason}, and a look would take them away. Create the channel that shall get them (nsq-ha channel create"
            f" {topic} CHANNEL) and look again, to see copies of new messages; or take them: --consume --channel NAME"
        )


async def _print(
    topic: str, cluster: ClusterAccess, chosen: Selection, show: Callable[[Message], None], kind: str
) -> int:
    printed = 0
    consumer = cluster.consumer(topic, chosen.channel or own_channel("tail"), **chosen.options())
    _want(consumer, chosen.count)
    async with consumer, losses_reported(consumer, kind):
        while printed != chosen.count:
            try:
                async with asyncio.timeout(chosen.idle):
                    message = await anext(consumer, None)
            except TimeoutError:
                await check_read(consumer, kind)
                break
            if message is None:
                break
            try:
                show(await expanded(message))
            except BaseException:
                message.requeue(0)
                raise
            printed += 1
            _want(consumer, None if chosen.count is None else chosen.count - printed)
            message.finish()
    return printed


def _want(consumer: Consumer, count: int | None) -> None:
    """Ask for no more than is printed: the others would go back to the channel, each with one attempt more."""
    if count is not None and count < consumer.max_in_flight:
        consumer.set_max_in_flight(count)


def _check_consume(channel: str | None, *, consume: bool) -> None:
    """Check that messages are only taken away if that is said."""
    if channel is not None and not consume:
        raise click.UsageError(
            f"--channel {channel} takes messages away from its consumers: add --consume if you mean that, or leave"
            " --channel out to get copies of new messages"
        )
    if consume and channel is None:
        raise click.UsageError("--consume needs --channel, the channel to take messages from")


def letter_of(message: Message) -> DeadLetter | None:
    """Return the dead letter in a message. If there is none, report that and return None."""
    try:
        return DeadLetter.of(message)
    except DeadLetterError as error:
        warn(str(error))
        return None


def _print_raw(message: Message, letter: DeadLetter | None) -> None:
    sys.stdout.buffer.write((message if letter is None else letter).body + b"\n")
    sys.stdout.buffer.flush()


def _print_json(message: Message, letter: DeadLetter | None) -> None:
    print_json(as_dict(message) if letter is None else letter_as_dict(message, letter))


def letter_as_dict(message: Message, letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as a dict for JSON: the message that was given up, and where it comes from."""
    replaced = ("body", "body_base64", "header_error")
    entry = {name: value for name, value in as_dict(message).items() if name not in replaced}
    entry |= {"headers": letter.headers, "tag": letter.tag} | _body(letter.body)
    if letter.ext is not None:
        entry["ext_base64"] = base64.b64encode(letter.ext).decode()
    origin = letter.provenance
    entry["dead_letter"] = dataclasses.asdict(origin) | {
        "id": fields_of(origin)["id"],
        "given_up_at": origin.given_up_at.isoformat(),
    }
    return entry


def _print_text(message: Message, letter: DeadLetter | None) -> None:
    when = local_time(message.timestamp_ns)
    trace = f" trace {message.trace_id}" if message.trace_id else ""
    again = f" attempt {message.attempts}" if message.attempts > 1 else ""
    place = message.nsqd if is_upstream_id(message.id) else message.partition
    body = message.body
    story = ""
    if letter is not None:
        body, origin = letter.body, letter.provenance
        where = origin.topic if origin.partition is None else f"{origin.topic}-{origin.partition}"
        why = origin.reason if origin.error_type is None else f"{origin.error_type}: {origin.error or ''}"
        story = f"[{where}/{origin.channel} attempts {origin.attempts}, {why}] "
    click.echo(f"{when} [{place}{trace}{again}] {clean(story + body.decode('utf-8', 'backslashreplace'))}")


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def as_dict(message: Message) -> dict[str, Any]:
    """Return a message as a dict for JSON; a body that is not UTF-8 is encoded as base64.

    The number that the consumer gave to a plain nsqd has no meaning, so it is left out.
    """
    entry: dict[str, Any] = {"topic": message.topic}
    entry["partition"] = None if is_upstream_id(message.id) else message.partition
    entry |= picked(message, "offset", "internal_id", "trace_id", "attempts", "timestamp_ns", "nsqd")
    try:
        entry |= {"headers": message.headers, "tag": message.tag}
    except RemoteProtocolError as error:
        entry |= {"headers": None, "tag": None, "header_error": str(error)}
    return entry | _body(message.body)
