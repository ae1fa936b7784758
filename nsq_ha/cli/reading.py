"""What commands that consume a topic share: options, the wait for a plain topic, and reports of outages."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import click

from nsq_ha.cli.output import explained
from nsq_ha.cli.views import NO_NSQD, needs_partitions, require_topic, wait_for_nsqd
from nsq_ha.errors import NsqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nsq_ha import Consumer, StartFrom
    from nsq_ha.cli.cluster import Cluster
    from nsq_ha.options import ConsumerOptions

_LOSS: Final = 1.0
"""Seconds before an outage is reported; finding a moved leader takes less and is not reported."""


async def wait_for_topic(
    cluster: Cluster, topic: str, partitions: tuple[int, ...], start: StartFrom | None, *, limit: float | None
) -> str | None:
    """Wait until a topic can be read: on a plain cluster an nsqd must have it.

    Args:
        cluster: The cluster.
        topic: The topic.
        partitions: The partitions to read; empty for all.
        start: Where to start. None for where the channel is.
        limit: Seconds to wait. None waits until it is cancelled.

    Returns:
        What the topic consists of: ``partitions`` or ``nsqds``. None if no nsqd has it within the limit.

    Raises:
        ConfigError: The cluster is a plain one, which has no partitions and start positions.
        TopicNotFoundError: There is no such topic.
    """
    found = await require_topic(cluster, topic)
    if found.meta is not None:
        return "partitions"
    check_plain(partitions, start)
    if not found.nsqds:
        click.echo(f"waiting for {topic}: {NO_NSQD}", err=True)
        if not await wait_for_nsqd(cluster, topic, limit):
            return None
    return "nsqds"


def reading_options(partitions: tuple[int, ...], start: StartFrom | None, max_in_flight: int | None) -> ConsumerOptions:
    """Return the options that the environment must not change."""
    # Every message is finished, so none is given up.
    chosen: ConsumerOptions = {
        "max_attempts": None,
        "on_give_up": None,
        "dead_letter_topic": None,
        "dead_letter_format": "auto",
    }
    if partitions:
        chosen["partitions"] = partitions
    if start is not None:
        chosen["start_from"] = start
    if max_in_flight is not None:
        chosen["max_in_flight"] = max_in_flight
    return chosen


def check_plain(partitions: tuple[int, ...], start: StartFrom | None) -> None:
    """Reject options that a plain cluster does not support."""
    if partitions:
        raise needs_partitions("--partition", "has no partitions")
    if start is not None:
        raise needs_partitions("--from", "has no start positions")


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
                click.echo(f"warning: {sources} of {consumer.topic} cannot be read now; waiting", err=True)
                await consumer.wait_subscribed()
                click.echo(f"warning: all {sources} of {consumer.topic} are read again", err=True)
            await asyncio.sleep(_LOSS)


async def depth_of(cluster: Cluster, topic: str, channel: str) -> int | None:
    """Return the number of messages that wait in a channel, for progress. None if it is unknown."""
    try:
        async with cluster.admin() as admin:
            found = await admin.describe(topic)
    except NsqError:
        return None
    return found.depth.get(channel)
