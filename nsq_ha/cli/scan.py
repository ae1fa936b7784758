"""Read what a topic holds now, without taking messages from its consumers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from typing import TYPE_CHECKING, Final

import click

from nsq_ha import StartFrom
from nsq_ha.cli.output import clean
from nsq_ha.cli.reading import depth_of, losses_reported, reading_options
from nsq_ha.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nsq_ha import Consumer, Message
    from nsq_ha.cli.cluster import Cluster
    from nsq_ha.cli.views import Found

QUIET: Final = 5.0
"""Seconds without a message after which a topic counts as read, if its end was not reached."""
_SHORT: Final = 1.0
"""The same after all expected messages came."""
_IN_FLIGHT: Final = 1000


def own_channel(word: str) -> str:
    """Return the name of a channel that nobody else has, and that is deleted at the end."""
    return f"{word}{secrets.token_hex(4)}#ephemeral"


async def scan(
    cluster: Cluster, topic: str, found: Found, *, channel: str | None = None, start: StartFrom | None = None
) -> AsyncGenerator[Message, None]:
    """Yield the messages that a topic holds now, up to its end at the time of the call.

    On a partitioned cluster they are read through a channel of their own, which is deleted at the end. On a plain one,
    messages exist only in channels: they are read from ``channel``, and go back to it unless the caller finishes them.

    Args:
        cluster: The cluster.
        topic: The topic.
        found: What is known about it.
        channel: The channel to read on a plain cluster.
        start: Where to begin on a partitioned cluster. None for the oldest message.

    Raises:
        ConfigError: The cluster is a plain one, and ``channel`` is missing.
    """
    if found.meta is not None:
        async for message in _scan_log(cluster, topic, start or StartFrom.beginning()):
            yield message
        return
    if channel is None:
        raise ConfigError(
            f"give --channel: a plain cluster keeps messages of {topic!r} only in its channels, and another channel"
            f" would take those that wait for the first one"
        )
    reading = reading_options((), None, _IN_FLIGHT)
    expected = await depth_of(cluster, topic, channel)
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
    if count < _IN_FLIGHT:
        return
    click.echo(f"warning: only the first {_IN_FLIGHT:,} messages of the channel were read", err=True)


async def _scan_log(cluster: Cluster, topic: str, start: StartFrom) -> AsyncGenerator[Message, None]:
    ends = await _ends(cluster, topic)
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


async def _ends(cluster: Cluster, topic: str) -> dict[int, int]:
    """Return the positions after the newest messages of the partitions that hold some."""
    async with cluster.admin() as admin:
        described = await admin.describe(topic)
    ends = {}
    for entry in described.partitions:
        if entry.stats is None:
            reason = f" ({clean(entry.error)})" if entry.error else ""
            click.echo(
                f"warning: {topic}-{entry.partition} has no leader that answers{reason}, and is left out", err=True
            )
        elif entry.stats.end_offset > entry.stats.begin_offset:
            ends[entry.partition] = entry.stats.end_offset
    return ends
