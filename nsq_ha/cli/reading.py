"""What commands that consume a topic share: options, the wait for a plain topic, reports of outages, and scans.

A scan reads what a topic holds now, without taking messages from its consumers.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import math
import secrets
from typing import TYPE_CHECKING, Any, Final, cast

import click

from nsq_ha import StartFrom
from nsq_ha.admin.words import counted
from nsq_ha.base.threads import in_thread
from nsq_ha.cli.lookup import NO_NSQD, describe_topic, needs_partitions, require_topic, wait_for_nsqd
from nsq_ha.cli.options import PARTITION, SECONDS
from nsq_ha.cli.output import explained, warn
from nsq_ha.cli.start import from_option
from nsq_ha.errors import ConfigError, NsqError
from nsq_ha.protocol.body_codec import AT_ONCE_BYTES, packed_body

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from nsq_ha import Consumer, Message
    from nsq_ha.admin import PartitionDescription, TopicDescription
    from nsq_ha.cli.cluster import ClusterAccess
    from nsq_ha.options.keywords import ConsumerOptions
    from nsq_ha.policy.topology import TopicView


_MOST_EXPANDED: Final = 16 * 1024 * 1024
"""Largest body after decompression; a larger one stays as it is stored."""

_LOSS: Final = 1.0
"""Seconds before an outage is reported; finding a moved leader takes less and is not reported."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a command reads of a topic, and until when; see :func:`selection_options`.

    Attributes:
        channel: The channel. None for one of its own.
        count: It ends after this many messages. None for no end.
        idle: It ends after this many seconds without a message. None for no end.
        partitions: The partitions; empty for all.
        start: Where to start. None for where the channel is.
        max_in_flight: Maximum number of unanswered messages. None for the option's default.
    """

    channel: str | None
    count: int | None
    idle: float | None
    partitions: tuple[int, ...]
    start: StartFrom | None
    max_in_flight: int | None

    @property
    def has_end(self) -> bool:
        """Whether it ends by itself."""
        return self.count is not None or self.idle is not None

    async def wait_for(self, cluster: ClusterAccess, topic: str) -> str | None:
        """Wait until a topic can be read: on a plain cluster an nsqd must have it.

        Returns:
            What the topic consists of: ``partitions`` or ``nsqds``. None if no nsqd has it within the idle time.

        Raises:
            ConfigError: The cluster is a plain one, which has no partitions and start positions.
            TopicNotFoundError: There is no such topic.
        """
        found = await require_topic(cluster, topic)
        if found.meta is not None:
            return "partitions"
        if self.partitions:
            raise needs_partitions("--partition", "has no partitions")
        if self.start is not None:
            raise needs_partitions("--from", "has no start positions")
        if not found.leaders:
            click.echo(f"waiting for {topic}: {NO_NSQD}", err=True)
            if not await wait_for_nsqd(cluster, topic, self.idle):
                return None
        return "nsqds"

    def options(self) -> ConsumerOptions:
        """Return the options of the consumer that the environment must not change."""
        return reading_options(self.partitions, self.start, self.max_in_flight)

    async def total(self, cluster: ClusterAccess, consumer: Consumer) -> int | None:
        """Return how many messages it will take, for its progress. None if that is unknown."""
        waiting = None if self.idle is None else await depth_of(cluster, consumer.topic, consumer.channel)
        return min((each for each in (waiting, self.count) if each is not None), default=None)


def taken_from(described: TopicDescription, *, even_none: bool) -> str:
    """Return why a new channel would take messages away: on a plain cluster, an nsqd may have no other one.

    Args:
        described: The topic.
        even_none: Whether no message may wait now: those that come while the channel is there would be taken, too.

    Returns:
        The reason; empty if it gets copies only.
    """
    if not described.view.is_plain:
        return ""
    topic = described.view.topic
    for entry in described.partitions:
        nsqd = entry.leader.address if entry.leader is not None else "unknown"
        if entry.stats is None:
            return f"nsqd {nsqd} does not say whether topic {topic!r} has a channel there ({entry.error})"
        if not entry.stats.channels and (even_none or entry.stats.unrouted):
            waiting = f"{counted(entry.stats.unrouted, 'message')} wait{'s' if entry.stats.unrouted == 1 else ''}"
            return f"topic {topic!r} has no channel at nsqd {nsqd}: {waiting} there for the first one"
    return ""


def selection_options(verb: str, start: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of a :class:`Selection` to a command that has ``--channel`` and ``--max-in-flight``.

    The command gets all of them as ``chosen``.

    Args:
        verb: What it does with a partition, such as "Read".
        start: Where it starts by default, for the help.
    """
    partitions = click.option(
        "-p",
        "--partition",
        "partitions",
        type=PARTITION,
        multiple=True,
        help=f"{verb} only this partition. May be repeated.",
    )
    count = click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many messages.")
    idle = click.option(
        "--idle",
        type=SECONDS,
        help="Stop after this many seconds without a message. A partitioned cluster may deliver the latest messages up"
        " to 7 s late: give at least 10 there to get all.",
    )

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - the command's own
            chosen = Selection(**{each.name: options.pop(each.name) for each in dataclasses.fields(Selection)})
            return command(*arguments, chosen=chosen, **options)

        return count(idle(partitions(from_option(start)(call))))

    return decorated


def reading_options(partitions: tuple[int, ...], start: StartFrom | None, max_in_flight: int | None) -> ConsumerOptions:
    """Return the options that the environment must not change."""
    given = {"partitions": partitions or None, "start_from": start, "max_in_flight": max_in_flight}
    # Every message is finished, so none is given up.
    fixed = {"max_attempts": None, "on_give_up": None, "dead_letter_topic": None}
    return cast("ConsumerOptions", fixed | {name: value for name, value in given.items() if value is not None})


@contextlib.asynccontextmanager
async def losses_reported(consumer: Consumer, sources: str) -> AsyncIterator[None]:
    """Report on standard error when partitions, or nsqds, cannot be read, and when all are read again."""
    telling = asyncio.create_task(_tell_losses(consumer, sources))
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait({telling})


async def check_read(consumer: Consumer, sources: str) -> None:
    """Check, after the idle time, that all partitions, or nsqds, are read: otherwise messages may be left.

    Raises:
        click.ClickException: One is not; the text says why.
    """
    try:
        async with asyncio.timeout(0):
            await consumer.wait_subscribed()
    except TimeoutError:
        reason = explained(consumer.health().reason)
        raise click.ClickException(
            f"stopped after the idle time, although not all {sources} of {consumer.topic} can be read: {reason}"
        ) from None


async def _tell_losses(consumer: Consumer, sources: str) -> None:
    # An error that ends the consumer is also raised to its reader.
    with contextlib.suppress(NsqError):
        while True:
            try:
                async with asyncio.timeout(_LOSS):
                    await consumer.wait_subscribed()
            except TimeoutError:
                warn(f"{sources} of {consumer.topic} cannot be read now; waiting")
                await consumer.wait_subscribed()
                warn(f"all {sources} of {consumer.topic} are read again")
            await asyncio.sleep(_LOSS)


async def expanded(message: Message) -> Message:
    """Return a copy of a message to show, with its body decompressed; the message itself if that is not possible.

    The message keeps its body as it is stored: many may wait for their answers.
    """
    try:
        packed = packed_body(message.body, message.ext or b"", _MOST_EXPANDED)
        if packed is None:
            return message
        shown = copy.copy(message)
        large = packed.bound > AT_ONCE_BYTES
        shown.body, shown.ext = await in_thread(packed.expand) if large else packed.expand(), packed.ext
    except ValueError:
        return message
    return shown


async def depth_of(cluster: ClusterAccess, topic: str, channel: str) -> int | None:
    """Return the number of messages that wait in a channel, for progress. None if it is unknown."""
    try:
        found = await cluster.ask(lambda admin: admin.describe(topic))
    except NsqError:
        return None
    return found.depth.get(channel)


QUIET: Final = 5.0
"""Seconds without a message after which a topic counts as read, if its end was not reached."""
_SHORT: Final = 1.0
"""The same after all expected messages came."""
_IN_FLIGHT: Final = 1000


def own_channel(word: str) -> str:
    """Return the name of a channel that nobody else has, and that is deleted at the end."""
    return f"{word}{secrets.token_hex(4)}#ephemeral"


async def scan(
    cluster: ClusterAccess,
    topic: str,
    found: TopicView,
    unread: set[int],
    *,
    channel: str | None = None,
    start: StartFrom | None = None,
) -> AsyncGenerator[Message, None]:
    """Yield the messages that a topic holds now, up to its end at the time of the call.

    On a partitioned cluster they are read through a channel of their own, which is deleted at the end. On a plain one,
    messages exist only in channels: they are read from ``channel``, and go back to it unless the caller finishes them.

    Args:
        cluster: The cluster.
        topic: The topic.
        found: What is known about it.
        unread: Gets the partitions that were not read to their end, with a warning; all of a plain cluster's.
        channel: The channel to read on a plain cluster.
        start: Where to begin on a partitioned cluster. None for the oldest message.

    Raises:
        ConfigError: The cluster is a plain one, and ``channel`` is missing, or an nsqd does not have it.
    """
    if found.meta is not None:
        log = _scan_log(cluster, topic, start or StartFrom.beginning(), unread)
        async with contextlib.aclosing(log) as messages:
            async for message in messages:
                yield message
        return
    if channel is None:
        raise ConfigError(
            f"give --channel: a plain cluster keeps messages of {topic!r} only in its channels, and another channel"
            f" would take those that wait for the first one"
        )
    described = await cluster.ask(lambda admin: admin.describe(topic), topic)
    for entry in described.partitions:
        check_channel_of(entry, topic, channel)
    expected, reading = described.depth.get(channel), reading_options((), None, _IN_FLIGHT)
    count = 0
    async with (
        cluster.consumer(topic, channel, **reading) as consumer,
        losses_reported(consumer, "nsqds"),
        contextlib.aclosing(until_quiet(consumer, expected)) as messages,
    ):
        async for message in messages:
            yield message
            count += 1
            if count == _IN_FLIGHT:
                break
    if count < _IN_FLIGHT if expected is None else count >= expected:
        return
    unread.update(entry.partition for entry in described.partitions)
    warn(f"only {count:,} messages of the channel were read, and more are there")


def check_channel_of(entry: PartitionDescription, topic: str, channel: str) -> None:
    """Check that an nsqd of a plain topic has a channel: a consumer would create it, and take what waits there.

    Raises:
        ConfigError: It has not, or does not answer.
    """
    nsqd = entry.leader.address if entry.leader is not None else "unknown"
    if entry.error:
        raise ConfigError(
            f"nsqd {nsqd} does not say whether topic {topic!r} has channel {channel!r} there ({entry.error})"
        )
    names = [] if entry.stats is None else [each.name for each in entry.stats.channels]
    if channel not in names:
        known = ", ".join(names) or "none"
        raise ConfigError(
            f"topic {topic!r} has no channel {channel!r} at nsqd {nsqd}, and reading would create it; it has {known}."
            f" If the name is right: nsq-ha channel create {topic} {channel}"
        )


async def _scan_log(
    cluster: ClusterAccess, topic: str, start: StartFrom, unread: set[int]
) -> AsyncGenerator[Message, None]:
    ends = await _ends(cluster, topic, unread)
    if not ends:
        return
    reading = reading_options(tuple(sorted(ends)), start, _IN_FLIGHT)
    async with (
        cluster.consumer(topic, own_channel("scan"), **reading) as consumer,
        losses_reported(consumer, "partitions"),
        contextlib.aclosing(until_quiet(consumer)) as messages,
    ):
        async for message in messages:
            # Finished at once, so that the own channel goes on; the topic keeps the message.
            message.finish()
            after = (message.offset or 0) + (message.raw_size or 0)
            if message.partition in ends and after <= ends[message.partition]:
                yield message
            if after >= ends.get(message.partition, math.inf):
                del ends[message.partition]
                if not ends:
                    return
    if start == StartFrom.beginning():  # from a later one, there may be no message
        unread.update(ends)
        places = ", ".join(f"{topic}-{partition}" for partition in sorted(ends))
        warn(f"no more came of {places}, though newer messages are there")


async def until_quiet(consumer: Consumer, expected: int | None = None) -> AsyncGenerator[Message, None]:
    """Yield messages until none comes for a while, or the consumer is closed.

    Args:
        consumer: Where they come from.
        expected: How many should come; after these, the wait is shorter. None if that is unknown.
    """
    count = 0
    while True:
        try:
            async with asyncio.timeout(QUIET if expected is None or count < expected else _SHORT):
                message = await anext(consumer)
        except (TimeoutError, StopAsyncIteration):
            return
        yield message
        count += 1


async def _ends(cluster: ClusterAccess, topic: str, unread: set[int]) -> dict[int, int]:
    """Return the positions after the newest messages of partitions that hold some; ``unread`` gets the silent ones."""
    ends = {}
    for entry in (await describe_topic(cluster, topic)).partitions:
        if entry.stats is None:
            unread.add(entry.partition)
            reason = f" ({entry.error})" if entry.error else ""
            warn(f"{topic}-{entry.partition} has no leader that answers{reason}, and is left out")
        elif entry.stats.end_offset > entry.stats.begin_offset:
            ends[entry.partition] = entry.stats.end_offset
    return ends
