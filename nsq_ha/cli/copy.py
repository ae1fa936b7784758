"""``nsq-ha copy``: copy messages from one topic to another, also to another cluster."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from nsq_ha.cli.cluster import ClusterAccess
from nsq_ha.cli.inputs import key_of
from nsq_ha.cli.lookup import require_topic
from nsq_ha.cli.options import CHANNEL, IN_FLIGHT, SECONDS, TOPIC, Number, cluster_options, metrics_option
from nsq_ha.cli.output import clean
from nsq_ha.cli.reading import Selection, check_read, expanded, losses_reported, selection_options
from nsq_ha.cli.running import Progress, run
from nsq_ha.errors import ConfigError, NsqError, PublishError, RemoteProtocolError
from nsq_ha.message import OutgoingMessage
from nsq_ha.options.checks import lookupd_urls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from nsq_ha import Batch, Message, Producer, Receipt
    from nsq_ha.policy.topology import TopicMeta

CHANNEL_OF_COPIES: Final = "nsq-ha-copy"
_MOST: Final = 500
"""Messages of a batch."""
_MOST_EXPANDED: Final = 16
"""The same where bodies are decompressed, which may become large."""
_AGAIN: Final = 1.0
"""Seconds until a message whose publish failed is delivered again."""
_LAST_ANSWERS: Final = 5.0
"""Seconds to wait for the answers to publishes at the end."""


class CopyOptions(NamedTuple):
    """The options of the command, by their names."""

    rate: float | None
    key_field: str | None
    body_only: bool
    ignore_order: bool
    timeout: float | None


class Route(NamedTuple):
    """How a message of the source becomes one of the target.

    Attributes:
        keeps_partition: It goes to the partition with the same number.
        key_field: The field of its JSON object that is its key. None for no key.
        body_only: Leave out headers, tag and trace id.
    """

    keeps_partition: bool
    key_field: str | None
    body_only: bool

    @classmethod
    def between(cls, source: TopicMeta | None, target: TopicMeta | None, name: str, options: CopyOptions) -> Route:
        """Return the route between two topics; None as a meta stands for a plain cluster.

        Raises:
            ConfigError: The target cannot take the messages, or not in order; the text says what to change.
        """
        was_ordered = source is not None and source.ordered
        if target is None:
            if options.key_field is not None:
                raise ConfigError("remove --key-field: the target is a plain cluster, which has no keys")
            if source is not None and not options.body_only:
                raise ConfigError(
                    "give --body-only: the target is a plain cluster, so its messages have no trace ids, headers and"
                    " tags"
                )
            if was_ordered and not options.ignore_order:
                raise ConfigError(
                    "give --ignore-order: the source is ordered, and a plain cluster, the target, keeps no order"
                )
            return cls(keeps_partition=False, key_field=None, body_only=True)
        is_same = source is not None and source.partition_num == target.partition_num
        if options.key_field is None and not is_same:
            counts = f"the source has {_partitions(source)}, the target {_partitions(target)}"
            cure = f"give --key-field, or create {name} with as many partitions as the source"
            if target.ordered:
                raise ConfigError(f"topic {name!r} is ordered, and {counts}: {cure}")
            if was_ordered and not options.ignore_order:
                raise ConfigError(f"the source is ordered, and {counts}: {cure}, or give --ignore-order")
        extended = source is not None and source.extend_support
        if extended and not target.extend_support and not options.body_only:
            raise ConfigError(
                f"topic {name!r} accepts no headers or tags, but the source has them: create it extended, or give"
                f" --body-only"
            )
        return cls(is_same and options.key_field is None, options.key_field, options.body_only)

    def outgoing(self, message: Message) -> OutgoingMessage:
        """Return the message to publish.

        Raises:
            ConfigError: It cannot be published by this route.
        """
        partition = message.partition if self.keeps_partition else None
        try:
            key = None if self.key_field is None else key_of(message.body, self.key_field)
            if self.body_only:
                return OutgoingMessage(message.body, key, partition)
            headers, tag = message.headers, message.tag
        except ConfigError as error:
            raise ConfigError(f"{_named(message)}: {error}") from error
        except RemoteProtocolError as error:
            raise ConfigError(f"{error}: give --body-only to leave headers, tags and trace ids out") from error
        return OutgoingMessage(message.body, key, partition, message.trace_id or None, headers or None, tag)


def _partitions(meta: TopicMeta | None) -> str:
    return "none" if meta is None else f"{meta.partition_num} partitions"


def _named(message: Message) -> str:
    return f"message {message.internal_id:#x} of {message.topic}-{message.partition}"


@click.command(short_help="Copy messages from topic to topic.")
@click.argument("source", type=TOPIC)
@click.argument("target", type=TOPIC)
@click.option("--to-lookupd", multiple=True, metavar="URL", help="nsqlookupds of the target. Default: the source's.")
@click.option("--channel", type=CHANNEL, default=CHANNEL_OF_COPIES, help="Channel to read.")
@selection_options("Copy", "where the channel is; a new channel starts with new messages")
@click.option("--rate", type=Number(0.001, 1_000_000), help="Copy at most this many messages per second.")
@click.option("--key-field", metavar="FIELD", help="Use this field of each body's JSON object as sharding key.")
@click.option("--body-only", is_flag=True, help="Leave out headers, tags and trace ids.")
@click.option("--ignore-order", is_flag=True, help="Copy from an ordered topic to one that cannot keep the order.")
@click.option(
    "--max-in-flight",
    type=IN_FLIGHT,
    default=_MOST,
    help="Maximum number of messages that the target has not acknowledged yet.",
)
@click.option("--timeout", type=SECONDS, help="Seconds for each publish. Default: the option publish_timeout, 30.")
@cluster_options
@metrics_option
def copy(
    source: str,
    target: str,
    cluster: ClusterAccess,
    chosen: Selection,
    *,
    to_lookupd: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - what CopyOptions takes
) -> None:
    """Copy the messages of the topic SOURCE to the existing topic TARGET, until Ctrl-C.

    A message is finished only after the target has acknowledged it. A publish that fails is reported and repeated; if
    the target may have it anyway, it is then there twice, and the report says so. A message that the target can never
    accept ends the command with exit code 1, and stays in the channel.

    Headers, tags and trace ids are kept. If both topics have the same number of partitions, each message goes to the
    partition with the same number, so the order of each key is kept; otherwise --key-field chooses it.

    For a finished copy: `nsq-ha copy a b --from beginning --idle 10`.
    """
    if options["rate"] is not None and chosen.idle is not None and chosen.idle * options["rate"] <= 1:
        raise click.UsageError(f"at --rate {options['rate']:g}, the next message comes after --idle: give a longer one")
    try:
        to = ClusterAccess.of(lookupd_urls(",".join(to_lookupd))) if to_lookupd else cluster
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    work = _copy(cluster, source, to, target, chosen=chosen, options=CopyOptions(**options))
    run(work, stopped=0, has_end=chosen.has_end)


async def _copy(
    cluster: ClusterAccess, source: str, to: ClusterAccess, target: str, *, chosen: Selection, options: CopyOptions
) -> int:
    found, other = await asyncio.gather(require_topic(cluster, source), require_topic(to, target))
    route = Route.between(found.meta, other.meta, target, options)
    if source == target:
        # The addresses that were given may be those of different nsqlookupds of one cluster.
        here, there = await asyncio.gather(*(each.ask(lambda admin: admin.nodes()) for each in (cluster, to)))
        if {each.node.address for each in here} & {each.node.address for each in there}:
            raise click.UsageError("SOURCE and TARGET are the same topic, which would grow without end")
    kind = await chosen.wait_for(cluster, source)
    if kind is None:
        return 0
    reading = chosen.options()
    reading["auto_touch"] = True
    if options.rate is not None:
        reading["max_rate"] = options.rate
    consumer = cluster.consumer(source, chosen.channel or CHANNEL_OF_COPIES, **reading)
    async with to.producer(options.timeout) as producer, consumer, losses_reported(consumer, kind):
        total = await chosen.total(cluster, consumer)
        expands = route.body_only and found.meta is not None and found.meta.extend_support
        most = min(chosen.max_in_flight or _MOST, _MOST_EXPANDED if expands else _MOST, chosen.count or _MOST)
        # A partition of an ordered topic gives one message at a time: empty ones are waited for.
        wait = 0.002 if found.meta is not None and found.meta.ordered else 0.05
        with Progress(f"{source} to {target}", total) as progress:
            copier = Copier(producer, target, route, progress)
            try:
                is_idle = await copier.run(consumer.batches(most, wait), chosen)
            finally:
                click.echo(copier.summary(), err=True)
        if is_idle:
            await check_read(consumer, kind)
    return 0


class Copier:
    """Publishes batches, and finishes the messages that were acknowledged.

    Args:
        producer: Publishes to the target.
        target: Its topic.
        route: How messages are changed.
        progress: Counts copied messages.

    Attributes:
        failed: Number of publishes that failed and were repeated, or will be.
        uncertain: Number of messages that the target may have twice.
    """

    def __init__(self, producer: Producer, target: str, route: Route, progress: Progress) -> None:
        self.failed: int = 0
        self.uncertain: int = 0
        self._producer = producer
        self._target = target
        self._route = route
        self._progress = progress
        self._began = time.monotonic()

    async def run(self, batches: AsyncIterator[Batch], chosen: Selection) -> bool:
        """Copy all that comes, until the count is reached, or no message comes for the time.

        Returns:
            Whether no message came for that time.

        Raises:
            ConfigError: A message can never be copied.
            PublishError: The target refuses for good.

        If cancelled, it waits a short time for answers. Messages without one may be stored, and are copied again.
        """
        left = math.inf if chosen.count is None else chosen.count
        while left > 0:
            try:
                async with asyncio.timeout(chosen.idle):
                    batch = await anext(batches, None)
            except TimeoutError:
                return True
            if batch is None:
                break
            messages = list(batch)
            most = int(min(left, len(messages)))
            _give_back(messages[most:])
            await self.copy(messages[:most])
            left -= most
        return False

    async def copy(self, messages: Sequence[Message]) -> None:
        """Publish messages, and answer each one as its publish ended.

        Raises:
            ConfigError: A message can never be copied. Nothing was sent.
            PublishError: The target refuses one for good.
        """
        try:
            # Without the headers that say how a body is compressed, nobody could decompress it.
            found = [await expanded(message) for message in messages] if self._route.body_only else messages
            outgoing = [self._route.outgoing(message) for message in found]
        except ConfigError:
            _give_back(messages)
            raise
        publishing = asyncio.ensure_future(self._producer.publish_many(self._target, outgoing))
        try:
            outcomes = await asyncio.shield(publishing)
        except asyncio.CancelledError:
            await asyncio.wait({publishing}, timeout=_LAST_ANSWERS)
            if publishing.done() and publishing.exception() is None:
                with contextlib.suppress(PublishError):  # it is reported, and this is the end anyway
                    self._answer(messages, publishing.result())
            else:
                publishing.cancel()
                self.uncertain += len(messages)
            raise
        except NsqError:  # nothing was sent
            _give_back(messages)
            raise
        self._answer(messages, outcomes)

    def _answer(self, messages: Sequence[Message], outcomes: Sequence[Receipt | PublishError]) -> None:
        final: PublishError | None = None
        for message, outcome in zip(messages, outcomes, strict=True):
            if not isinstance(outcome, PublishError):
                message.finish()
                self._progress.advance()
                continue
            message.requeue(_AGAIN)
            self.failed += 1
            self.uncertain += outcome.maybe_stored
            again = "it is copied again, so the target may have it twice" if outcome.maybe_stored else "it is repeated"
            click.echo(f"{_named(message)}: {clean(str(outcome))}; {again}", err=True)
            if _is_final(outcome):
                final = outcome
        if final is not None:
            raise final

    def summary(self) -> str:
        """Return a readable summary."""
        seconds = time.monotonic() - self._began
        rate = f" ({self._progress.done / seconds:,.0f}/s)" if seconds > 0 else ""
        parts = [f"copied {self._progress.done:,} messages in {seconds:.2f} s{rate}"]
        if self.failed:
            parts.append(f"{self.failed:,} publishes failed and are repeated")
        if self.uncertain:
            parts.append(f"the target may have {self.uncertain:,} messages twice")
        return "; ".join(parts)


def _give_back(messages: Sequence[Message]) -> None:
    for message in messages:
        message.requeue(0)


def _is_final(error: PublishError) -> bool:
    """Return whether repeating the publish cannot help."""
    cause = error.__cause__
    return not error.maybe_stored and isinstance(cause, NsqError) and not cause.retriable
