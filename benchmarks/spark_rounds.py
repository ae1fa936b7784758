"""What the Spark benchmarks share: topics to read, interleaved rounds, and lines to print."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from benchmarks.processes import spent
from nsq_ha import OutgoingMessage, Producer, PublishError
from nsq_ha.admin import AdminClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS: Final = 300_000
BODY_BYTES: Final = 200
PARTITIONS: Final = 2


@contextmanager
def topic(
    lookupd: str, name: str, count: int = 0, size: int = BODY_BYTES, *, lot: int = 1000, ordered: bool = False
) -> Iterator[str]:
    """Make a topic of two partitions that holds ``count`` messages, and delete it in the end."""
    full = f"bench_spark_{name}_{os.getpid()}"

    async def make() -> None:
        async with AdminClient(lookupd) as admin:
            await admin.create_topic(full, PARTITIONS, ordered=ordered)
        await publish(lookupd, full, count, size, lot)

    async def delete() -> None:
        async with AdminClient(lookupd) as admin:
            await admin.delete_topic(full)

    asyncio.run(make())
    try:
        yield full
    finally:
        asyncio.run(delete())


async def publish(lookupd: str, name: str, count: int, size: int, lot: int) -> None:
    """Publish bodies of one size to both partitions in turn, at most ``lot`` at a time."""
    body = b"x" * size
    lot = max(1, min(lot, 2_000_000 // size))
    async with Producer(lookupd=lookupd) as producer:
        for start in range(0, count, lot):
            messages = [OutgoingMessage(body, partition=n % PARTITIONS) for n in range(start, min(start + lot, count))]
            for outcome in await producer.publish_many(name, messages):
                if isinstance(outcome, PublishError):
                    raise outcome


def made_body(_: int) -> bytes:
    """Return a body, as a Python function of Spark does."""
    return b"x" * BODY_BYTES


def summed(frame: DataFrame, rows: int) -> float:
    """Return rows a second of an aggregate that needs every body."""
    began = time.perf_counter()
    (row,) = frame.agg(f.count("*").alias("rows"), f.sum(f.length("value")).alias("bytes")).collect()
    seconds = time.perf_counter() - began
    if (row["rows"], row["bytes"]) != (rows, rows * BODY_BYTES):
        raise RuntimeError(f"read {row} and not {rows} rows")
    return rows / seconds


def interleaved(
    kinds: Mapping[str, Callable[[], float]], rounds: int, cpu: dict[str, list[float]] | None = None
) -> dict[str, list[float]]:
    """Measure each kind once a round, in another order each time; a round before warms up.

    Args:
        kinds: What gives the figure of each.
        rounds: How many.
        cpu: Takes seconds of CPU of Spark and its workers, the server left out.
    """
    found: dict[str, list[float]] = {label: [] for label in kinds}
    for number in range(rounds + 1):
        labels = list(kinds)
        turn = number % len(labels)
        for label in labels[turn:] + labels[:turn]:
            before = spent()
            figure = kinds[label]()
            if number:
                found[label].append(figure)
                if cpu is not None:
                    cpu.setdefault(label, []).append(spent() - before)
    return found


def rates(found: dict[str, list[float]]) -> str:
    """Return a line with the median rates."""
    return "  rows/s: " + ", ".join(f"{label} {statistics.median(figures):,.0f}" for label, figures in found.items())


def used(cpu: dict[str, list[float]], rows: int) -> str:
    """Return a line with the CPU of Spark and its workers by row, the server left out."""
    texts = ", ".join(f"{label} {statistics.median(figures) / rows * 1e6:.1f}" for label, figures in cpu.items())
    return f"  CPU of Spark and its workers, us a row: {texts}"


def ratio(
    label: str, ours: list[float], other: list[float], *, at_least: float | None = None, at_most: float | None = None
) -> str:
    """Return a line with the median of the ratios within a round, and whether it reaches its mark."""
    ratios = [one / another for one, another in zip(ours, other, strict=True)]
    ratio = statistics.median(ratios)
    figures = f"{label}: {ratio:.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
    if at_least is not None:
        return f"{figures}, mark >= {at_least}: {'reached' if ratio >= at_least else 'NOT reached'}"
    if at_most is not None:
        return f"{figures}, mark <= {at_most}: {'reached' if ratio <= at_most else 'NOT reached'}"
    return figures
