"""``nsq-ha bench``: publish to a topic and consume from it, and measure both."""

from __future__ import annotations

import asyncio
import functools
import itertools
import secrets
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from nsq_ha.admin.findings import is_loopback
from nsq_ha.cli.options import SECONDS, TOPIC, cluster_options, json_option, metrics_option, yes_option
from nsq_ha.cli.output import FigureColumn, clean, print_fitting, print_json, wants_json
from nsq_ha.cli.progress import Progress
from nsq_ha.cli.reading import own_channel, reading_options, taken_by_a_new_channel
from nsq_ha.cli.running import run
from nsq_ha.cli.views import require_topic
from nsq_ha.errors import ConfigError, PublishError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsq_ha import Consumer, Producer
    from nsq_ha.cli.cluster import ClusterAccess

_STAMP: Final = struct.Struct("<8sd")
"""The number of this run, and when the message was published, on this machine's monotonic clock."""
_KEYS: Final = 64
"""Different keys on an ordered topic."""
_SHARES: Final = (50.0, 95.0, 99.0, 99.9)
_QUIET: Final = 10.0
"""Seconds without a message after which the missing ones count as not delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of the command, by their names."""

    count: int
    seconds: float
    size: int
    in_flight: int
    consume: bool


@dataclass(slots=True)
class Measured:
    """One side of a run.

    Attributes:
        seconds: Duration of each message, in seconds.
        took: Seconds from the first to the last.
    """

    seconds: list[float] = field(default_factory=list)
    took: float = 0.0

    @property
    def rate(self) -> float:
        """Messages per second."""
        return len(self.seconds) / self.took if self.took > 0 else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` percent do not exceed; 0 without values."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * share // 100) - 1))]


@click.command(short_help="Measure publishing and consuming.")
@click.argument("topic", type=TOPIC)
@click.option("-n", "--count", type=click.IntRange(1, 10_000_000), default=10_000, help="Number of messages.")
@click.option("--seconds", type=SECONDS, default=30.0, help="Stop publishing after this time.")
@click.option("--size", type=click.IntRange(_STAMP.size, 1 << 20), default=100, help="Size of each body in bytes.")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 10_000),
    default=100,
    help="Number of unanswered publishes. 1 measures the latency of the cluster, many its throughput.",
)
@click.option("--consume/--no-consume", default=True, help="Consume the messages, too.")
@yes_option
@cluster_options
@metrics_option
@json_option
def bench(topic: str, cluster: ClusterAccess, *, yes: bool, as_json: bool | None, **options: Any) -> None:  # noqa: ANN401
    """Publish to TOPIC and consume from it, and print rates and latencies.

    The messages go to all channels of the topic: use a topic of its own. They are consumed through a
    channel of its own, which is deleted at the end; the latencies of consuming count from the call of the publish.
    Refuses a cluster that is not on this machine, unless --yes is given. Exit code 1 if a publish failed, or a message
    was not delivered.
    """
    chosen = BenchOptions(**options)
    result = run(_bench(cluster, topic, chosen, yes=yes))
    if wants_json(as_json):
        print_json(result.as_dict())
    else:
        result.show()
    if result.failed or result.missing:
        raise click.exceptions.Exit(1)


@dataclass(slots=True)
class Result:
    """A run.

    Attributes:
        topic: The topic.
        size: Bytes of each body.
        published: From the call to the acknowledgement.
        consumed: From the call of the publish to the arrival. None if nothing was consumed.
        failed: Number of publishes that were not acknowledged.
        missing: Number of acknowledged messages that did not arrive.
    """

    topic: str
    size: int
    published: Measured
    consumed: Measured | None
    failed: int
    missing: int

    def sides(self) -> dict[str, Measured]:
        """Return both sides by name; what is consumed counts from the call of its publish."""
        return {"publish": self.published} | ({} if self.consumed is None else {"consume": self.consumed})

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as a dict for JSON."""
        counts = {name: getattr(self, name) for name in ("topic", "size", "failed", "missing")}
        return counts | {name: _figures(side) for name, side in self.sides().items()}

    def show(self) -> None:
        """Print the figures as a table."""
        rows = [_Row(name, side, _latencies(side)) for name, side in self.sides().items()]
        print_fitting(_COLUMNS, rows, title=f"{self.topic}: bodies of {self.size} bytes, latencies in ms")
        if self.failed or self.missing:
            click.echo(f"FAILED: {self.failed:,} not acknowledged, {self.missing:,} not delivered")


def _latencies(side: Measured) -> list[float]:
    ordered = sorted(side.seconds)
    return [percentile(ordered, share) * 1e3 for share in (*_SHARES, 100.0)]


class _Row(NamedTuple):
    name: str
    side: Measured
    latencies: list[float]


def _milliseconds(at: int, row: _Row) -> str:
    return f"{row.latencies[at]:,.2f}"


_COLUMNS: Final = (
    FigureColumn("", 0, lambda row: row.name, is_number=False),
    FigureColumn("messages", 2, lambda row: f"{len(row.side.seconds):,}"),
    FigureColumn("rate", 0, lambda row: f"{row.side.rate:,.0f}/s"),
    *(
        FigureColumn(name, need, functools.partial(_milliseconds, at))
        for at, (name, need) in enumerate((("50 %", 0), ("95 %", 5), ("99 %", 1), ("99.9 %", 4), ("max", 3)))
    ),
)


def _figures(side: Measured) -> dict[str, Any]:
    names = [*(f"p{share:g}_ms" for share in _SHARES), "max_ms"]
    return {
        "messages": len(side.seconds),
        "seconds": round(side.took, 6),
        "per_second": round(side.rate, 1),
        **{name: round(value, 3) for name, value in zip(names, _latencies(side), strict=True)},
    }


async def _bench(cluster: ClusterAccess, topic: str, options: BenchOptions, *, yes: bool) -> Result:
    found = await require_topic(cluster, topic)
    nsqds = await cluster.ask(lambda admin: admin.nodes())
    _refuse_others(cluster, [each.node.address for each in nsqds], yes=yes)
    if options.consume and (reason := await taken_by_a_new_channel(cluster, topic, even_none=False)):
        raise ConfigError(f"{reason}, and this would take them away: use a topic of its own, or --no-consume")
    is_ordered = found.meta is not None and found.meta.ordered
    measuring = Measuring(topic, options, is_ordered=is_ordered)
    async with cluster.producer() as producer:
        if not options.consume:
            await measuring.publish(producer)
            return measuring.result()
        if found.meta is None and not found.nsqds:
            await producer.publish(topic, b"-")  # creates the topic, so that the channel gets all of the run
        reading = reading_options((), None, 2000)
        async with cluster.consumer(topic, own_channel("bench"), **reading) as consumer:
            await consumer.wait_subscribed()
            consuming = asyncio.create_task(measuring.consume(consumer))
            try:
                await measuring.publish(producer)
                await consuming
            finally:
                consuming.cancel()
                await asyncio.wait({consuming})
    return measuring.result()


def _refuse_others(cluster: ClusterAccess, nsqds: Sequence[str], *, yes: bool) -> None:
    hosts = {urlsplit(url).hostname or "" for url in cluster.lookupd} | {each.rpartition(":")[0] for each in nsqds}
    others = sorted(host for host in hosts if not is_loopback(host.strip("[]")))
    if others and not yes:
        raise ConfigError(
            f"this cluster is not on this machine ({', '.join(map(clean, others))}), and a benchmark loads it: give"
            f" --yes if that is what you want"
        )


class Measuring:
    """Publishes and consumes messages that carry when they were published.

    Args:
        topic: The topic.
        options: The command's options.
        is_ordered: The topic is ordered, so messages need keys.
    """

    def __init__(self, topic: str, options: BenchOptions, *, is_ordered: bool) -> None:
        self._topic = topic
        self._options = options
        self._is_ordered = is_ordered
        self._run = secrets.token_bytes(8)
        self._published = Measured()
        self._consumed = Measured()
        self._failed = 0
        self._all_sent = asyncio.Event()
        self._seen: set[float] = set()
        self._awaited: set[float] = set()  # acknowledged and not seen

    def result(self) -> Result:
        """Return the figures."""
        consumed = self._consumed if self._options.consume else None
        return Result(self._topic, self._options.size, self._published, consumed, self._failed, len(self._awaited))

    async def publish(self, producer: Producer) -> None:
        """Publish until the count or the time is reached."""
        options = self._options
        began = time.perf_counter()
        end = began + options.seconds
        numbers = iter(range(options.count))
        keys = itertools.cycle(range(_KEYS)) if self._is_ordered else itertools.repeat(None)
        pad = bytes(options.size - _STAMP.size)

        async def work() -> None:
            for _ in numbers:
                called = time.perf_counter()
                if called >= end:
                    return
                try:
                    await producer.publish(self._topic, _STAMP.pack(self._run, called) + pad, key=next(keys))
                except PublishError as error:
                    self._failed += 1
                    click.echo(clean(str(error)), err=True)
                    continue
                self._published.seconds.append(time.perf_counter() - called)
                if options.consume and called not in self._seen:
                    self._awaited.add(called)
                progress.advance()

        with Progress("published", options.count) as progress:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(options.in_flight, options.count)):
                    group.create_task(work())
        self._published.took = time.perf_counter() - began
        self._all_sent.set()

    async def consume(self, consumer: Consumer) -> None:
        """Consume until all acknowledged messages arrived, or none comes any more."""
        first = 0.0
        while not self._all_sent.is_set() or self._awaited:
            try:
                async with asyncio.timeout(0.5 if not self._all_sent.is_set() else _QUIET):
                    message = await anext(consumer, None)
            except TimeoutError:
                if self._all_sent.is_set():
                    return
                continue
            if message is None:
                return
            now = time.perf_counter()
            message.finish()
            if len(message.body) < _STAMP.size:
                continue
            run_id, called = _STAMP.unpack_from(message.body)
            if run_id != self._run or called in self._seen:
                continue  # of another program, or delivered again
            self._seen.add(called)
            self._awaited.discard(called)
            first = min(first or called, called)
            self._consumed.seconds.append(now - called)
            self._consumed.took = now - first
