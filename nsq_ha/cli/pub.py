"""``nsq-ha pub``: publish standard input, one message per line."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, Final

import click
import msgspec

from nsq_ha.cli.inputs import PubOptions, check_usage, csv_rows, message_of, parse_byte, parse_bytes, parse_headers
from nsq_ha.cli.lines import Line, read_lines
from nsq_ha.cli.lookup import needs_partitions, require_topic
from nsq_ha.cli.options import PARTITION, SECONDS, TOPIC, Number, cluster_options, metrics_option
from nsq_ha.cli.output import explained, print_json
from nsq_ha.cli.running import Progress, run
from nsq_ha.errors import AuthError, ConfigError, NsqError, PublishError, TopicNotFoundError
from nsq_ha.protocol.encoding import MAX_DELAY_MS

if TYPE_CHECKING:
    from nsq_ha import Producer
    from nsq_ha.cli.cluster import ClusterAccess
    from nsq_ha.message import OutgoingMessage, Receipt
    from nsq_ha.options.keywords import ProducerOptions
    from nsq_ha.policy.topology import TopicMeta, TopicView

_TAIL_GROWTH: Final = 8
"""How much longer a line of tail may be than its message; control characters take six bytes."""


@click.command(short_help="Publish standard input, line by line.")
@click.argument("topic", type=TOPIC)
@click.option("--jsonl", is_flag=True, help="Reject lines that are not JSON. The others are published unchanged.")
@click.option(
    "--from-tail",
    is_flag=True,
    help="Each line is a message as `tail --json` writes it: body or body_base64, and key, partition,"
    " headers, tag and trace_id if it has them.",
)
@click.option("--body-only", is_flag=True, help="With --from-tail: leave out headers, tag and trace id.")
@click.option("--csv", is_flag=True, help="Publish each row of CSV as a JSON object; the first row names its fields.")
@click.option(
    "--csv-separator",
    default=",",
    show_default=False,
    metavar="BYTE",
    callback=parse_byte,
    help="Character between the fields of CSV. Default: a comma.",
)
@click.option("--whole", is_flag=True, help="Publish the whole standard input as one message.")
@click.option(
    "--delimiter",
    default="\\n",
    show_default=False,
    metavar="BYTE",
    callback=parse_byte,
    help="Byte that ends a message, such as \\\\0. Default: a newline.",
)
@click.option("--key", help="Sharding key of all messages.")
@click.option(
    "-K",
    "--key-delimiter",
    metavar="TEXT",
    callback=parse_bytes,
    help="The key of a line is what stands before the first TEXT, its body what follows.",
)
@click.option("--key-field", metavar="FIELD", help="Use this field of each line's JSON object as sharding key.")
@click.option("-p", "--partition", type=PARTITION, help="Publish to this partition.")
@click.option("--trace", is_flag=True, help="Publish each message with a trace id.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="KEY=VALUE",
    callback=parse_headers,
    help="Header of all messages. May be repeated.",
)
@click.option("--tag", help="Dispatch tag of all messages.")
@click.option(
    "--defer",
    type=Number(0, MAX_DELAY_MS // 1000),
    metavar="SECONDS",
    help="Deliver each message this many seconds later. Only for a plain (upstream) cluster.",
)
@click.option(
    "--timeout",
    type=SECONDS,
    help="Seconds for each message, including retries. Default: the option publish_timeout, 30.",
)
@click.option("--in-flight", type=click.IntRange(1), default=10_000, help="Maximum number of unanswered publishes.")
@click.option("--receipts", is_flag=True, help="Print a JSON line for each message that is stored.")
@click.option("--stop-on-error", is_flag=True, help="Stop publishing after the first failed line.")
@cluster_options
@metrics_option
def pub(topic: str, cluster: ClusterAccess, **options: object) -> bool:
    """Publish standard input to TOPIC, one message per line; empty lines are skipped.

    On a plain (upstream) cluster this creates the topic; there are no partitions, keys, traces, headers and tags.

    The lines that can be read at once are published together, the next ones after their answers; order is kept. Each
    failed line is reported, with whether it may be stored anyway. Exit code 1 if any failed. If nsqd refuses the
    secret, it stops at once.

    `nsq-ha tail A --json | nsq-ha pub B --from-tail` publishes messages again with their headers, tag and trace id.
    Without a key, messages for an ordered topic go to the partition that they name.
    """
    chosen = PubOptions(**options)  # type: ignore[arg-type]  # click's names and types are the fields'
    check_usage(chosen)
    if sys.stdin is None:
        raise click.ClickException("standard input is closed: there is nothing to publish")
    return run(_pub(topic, cluster, sys.stdin.buffer, chosen)) > 0


async def _pub(topic: str, cluster: ClusterAccess, stream: BinaryIO, options: PubOptions) -> int:
    found = await require_topic(cluster, topic)
    _check(topic, found, options)
    if found.is_plain and not found.leaders and not await cluster.ask(lambda admin: admin.nodes()):
        raise TopicNotFoundError(
            "no nsqlookupd lists an nsqd to publish to: start nsqd with the option -lookupd-tcp-address; one that"
            " already runs registers again within 30 s after nsqlookupd was restarted"
        )
    chosen: ProducerOptions = {"trace": True} if options.trace else {}
    async with cluster.producer(options.timeout, **chosen) as producer:
        publisher = LinePublisher(producer, topic, found.meta, options)
        began = time.monotonic()
        try:
            with Progress("published") as progress:
                async for pieces in _pieces(stream, options, producer.config.max_message_bytes):
                    await publisher.publish(pieces)
                    if not stream.isatty():
                        progress.advance(publisher.stored - progress.done)
                    if publisher.is_stopped:
                        break
        finally:
            click.echo(publisher.summary(time.monotonic() - began), err=True)
    return publisher.failed


def _pieces(stream: BinaryIO, options: PubOptions, most: int) -> AsyncIterator[list[Line]]:
    """Return the pieces of the input that become messages, those of one read together."""
    if options.csv:
        return csv_rows(read_lines(stream, most), options.csv_separator.decode("latin-1"), most)
    # What tail prints of a message is longer than the message: base64, names and escapes.
    limit = most * _TAIL_GROWTH if options.from_tail else most
    return read_lines(stream, limit, None if options.whole else options.delimiter)


def _check(topic: str, found: TopicView, options: PubOptions) -> None:
    """Reject options with which every line would fail."""
    meta = found.meta
    if meta is None:
        _check_plain(options)
        return
    if options.defer is not None:
        raise ConfigError("remove --defer: the partitioned server cannot delay a message")
    if meta.ordered and not options.has_keys:
        raise ConfigError(f"topic {topic!r} is ordered: give --key-field, --key or --partition")
    if options.partition is not None and options.partition >= meta.partition_num:
        raise ConfigError(f"topic {topic!r} has partitions 0..{meta.partition_num - 1}, not {options.partition}")
    if (options.headers or options.tag is not None) and not meta.extend_support:
        raise ConfigError(f"topic {topic!r} is not extended: its messages cannot have headers or a tag")


def _check_plain(options: PubOptions) -> None:
    for option in options.given("key", "key_field", "key_delimiter"):
        raise needs_partitions(option, "has no keys")
    for option in options.given("partition", "tag"):
        raise needs_partitions(option, f"has no {option[2:]}s")
    if options.trace:
        raise needs_partitions("--trace", "has no trace ids")
    if options.headers:
        raise needs_partitions("--header", "has no headers")


class LinePublisher:
    """Publishes lines in batches, one batch after the other.

    Args:
        producer: Keeps the messages of each key in order.
        topic: The topic.
        meta: Its settings. None on a plain cluster: receipts have no partition.
        options: The command's options.

    Attributes:
        lines: Number of lines taken, without empty ones.
        empty: Number of empty lines, which are skipped.
        stored: Number of acknowledged lines.
        failed: Number of lines refused or not acknowledged.
        maybe_stored: Number of failed lines that may be stored.
    """

    def __init__(self, producer: Producer, topic: str, meta: TopicMeta | None, options: PubOptions) -> None:
        self.lines: int = 0
        self.empty: int = 0
        self.stored: int = 0
        self.failed: int = 0
        self.maybe_stored: int = 0
        self._producer = producer
        self._topic = topic
        self._options = options
        self._inputs = dataclasses.replace(options, keeps_partition=meta is not None and meta.ordered)
        self._is_plain = meta is None
        self._has_only_bodies = not (options.has_keys or options.headers or options.tag is not None)
        # The receipts of a batch have no ids if the topic is extended.
        self._is_single = options.defer is not None or (options.receipts and meta is not None and meta.extend_support)
        self._is_refused = False

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is published: nsqd refused the secret, or a line failed and that ends it."""
        return self._is_refused or (self.failed > 0 and self._options.stop_on_error)

    async def publish(self, pieces: Sequence[Line]) -> None:
        """Publish lines; return after the last answer.

        Raises:
            OSError: A receipt cannot be written.

        If cancelled, lines that are being published may be stored.
        """
        batch: list[tuple[Line, OutgoingMessage]] = []
        for piece in pieces:
            if self.is_stopped:
                break
            if piece.data == b"":
                self.empty += 1
                continue
            self.lines += 1
            try:
                batch.append((piece, self._message(piece)))
            except ConfigError as error:
                self._fail(piece, error)
            if len(batch) == self._options.in_flight:
                await self._publish(batch)
                batch = []
        await self._publish(batch)

    async def _publish(self, batch: list[tuple[Line, OutgoingMessage]]) -> None:
        if not batch:
            return
        for (line, _), outcome in zip(batch, await self._outcomes([message for _, message in batch]), strict=True):
            if isinstance(outcome, NsqError):
                self._fail(line, outcome)
                continue
            self.stored += 1
            if self._options.receipts:
                told = msgspec.structs.asdict(outcome) | ({"partition": None} if self._is_plain else {})
                print_json({"line": line.number} | {name: told[name] for name in told if name != "topic"})

    async def _outcomes(self, messages: list[OutgoingMessage]) -> Sequence[Receipt | NsqError]:
        if self._is_single or len(messages) == 1:
            # Tasks start in the order of their creation, so the producer gets the messages in order.
            return await asyncio.gather(*map(self._outcome, messages))
        try:
            chosen = [message.body for message in messages] if self._has_only_bodies else messages
            return await self._producer.publish_many(self._topic, chosen)
        except ConfigError:  # of one of them; nothing was sent
            middle = len(messages) // 2
            return [*await self._outcomes(messages[:middle]), *await self._outcomes(messages[middle:])]
        except NsqError as error:
            return [error] * len(messages)

    async def _outcome(self, message: OutgoingMessage) -> Receipt | NsqError:
        try:
            return await self._producer.publish(
                self._topic, **msgspec.structs.asdict(message), defer=self._options.defer
            )
        except NsqError as error:
            return error

    def _message(self, line: Line) -> OutgoingMessage:
        if line.data is None:
            raise ConfigError(
                line.reason
                or f"longer than {self._producer.config.max_message_bytes} bytes: set NSQ_HA_MAX_MESSAGE_BYTES if nsqd"
                f" accepts more, as its --max-msg-size says"
            )
        return message_of(line.data, self._inputs)

    def _fail(self, line: Line, error: NsqError) -> None:
        self.failed += 1
        doubt = getattr(error, "maybe_stored", False)
        self.maybe_stored += doubt
        if isinstance(error.__cause__, AuthError):
            if self._is_refused:
                return  # reported with the first such line
            self._is_refused = True
        # The error of a failed publish says whether the message may be stored.
        known = "" if isinstance(error, PublishError) else "not stored: "
        click.echo(f"line {line.number}: {known}{explained(error)}", err=True)

    def summary(self, seconds: float) -> str:
        """Return a readable summary."""
        parts = [f"published {self.stored:,} of {self.lines:,} lines in {seconds:.2f} s"]
        if self.stored and seconds > 0:
            parts[0] += f" ({self.stored / seconds:,.0f}/s)"
        if self.failed:
            parts.append(f"{self.failed:,} failed, {self.maybe_stored:,} of them may be stored")
        if unanswered := self.lines - self.stored - self.failed:
            parts.append(f"{unanswered:,} were not answered and may be stored")
        if self.empty:
            parts.append(f"{self.empty:,} empty lines skipped")
        return "; ".join(parts)
