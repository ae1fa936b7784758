"""What the Spark benchmarks share: topics to read, and interleaved rounds."""

import asyncio
import base64
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from benchmarks.processes import Usage, listeners, used
from nsq_ha import OutgoingMessage, Producer, PublishError
from nsq_ha.admin import AdminClient

ROWS: Final = 300_000
BODY_BYTES: Final = 200
PARTITIONS: Final = 2
APART: Final = 7.0
"""Seconds between two topics: one that is created soon after another may stay without leaders for long."""

Headers = Callable[[int], Mapping[str, str]]
"""Returns the headers of the message with this number."""

_created: list[float] = []


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: Interleaved rounds of each part; one more warms up.
        share: The share of the rows. 1 for figures, less to try the program.
        servers: Process ids of the cluster's nsqds on this machine, to measure their CPU as well.
    """

    rounds: int = 5
    share: float = 1.0
    servers: frozenset[int] = frozenset()

    def of(self, rows: int) -> int:
        """Return how many of ``rows`` are measured, the same number in each partition."""
        return max(PARTITIONS, round(rows * self.share) // PARTITIONS * PARTITIONS)


def nsqds(lookupd: str) -> frozenset[int]:
    """Return the process ids of the cluster's nsqds, as far as they run on this machine."""

    async def ports() -> frozenset[int]:
        async with AdminClient(lookupd.split(",")) as admin:
            nodes = [each.node for each in await admin.nodes()]
        return frozenset(node.tcp_port for node in nodes if node.host == "localhost" or node.host.startswith("127."))

    return listeners(asyncio.run(ports()))


@contextmanager
def topic(
    lookupd: str,
    name: str,
    count: int = 0,
    size: int = BODY_BYTES,
    *,
    lot: int = 1000,
    ordered: bool = False,
    headers: Headers | None = None,
) -> Iterator[str]:
    """Make a topic of two partitions that holds ``count`` messages, and delete it in the end."""
    full = f"bench_spark_{name}_{os.getpid()}"

    async def make() -> None:
        await asyncio.sleep(max(0.0, _created[-1] + APART - time.monotonic()) if _created else 0.0)
        async with AdminClient(lookupd.split(",")) as admin:
            await admin.create_topic(full, PARTITIONS, 1, ordered=ordered, extended=headers is not None)
        _created.append(time.monotonic())
        await publish(lookupd, full, count, size, lot, headers=headers)

    async def delete() -> None:
        async with AdminClient(lookupd.split(",")) as admin:
            await admin.delete_topic(full)

    asyncio.run(make())
    try:
        yield full
    finally:
        asyncio.run(delete())


async def publish(lookupd: str, name: str, count: int, size: int, lot: int, *, headers: Headers | None = None) -> None:
    """Publish bodies of one size, all different, to both partitions in turn, at most ``lot`` at a time."""
    lot = max(1, min(lot, 2_000_000 // size))
    async with Producer(lookupd=lookupd.split(",")) as producer:
        for start in range(0, count, lot):
            text = base64.b64encode(os.urandom(lot * size))
            messages = [
                OutgoingMessage(
                    text[(n - start) * size : (n - start + 1) * size],
                    partition=n % PARTITIONS,
                    headers=headers and headers(n),
                )
                for n in range(start, min(start + lot, count))
            ]
            for outcome in await producer.publish_many(name, messages):
                if isinstance(outcome, PublishError):
                    raise outcome


def summed(frame: DataFrame, rows: int, size: int = BODY_BYTES) -> float:
    """Return rows a second of an aggregate that needs every body."""
    began = time.perf_counter()
    (row,) = frame.agg(f.count("*").alias("rows"), f.sum(f.length("value")).alias("bytes")).collect()
    seconds = time.perf_counter() - began
    if (row["rows"], row["bytes"]) != (rows, rows * size):
        raise RuntimeError(f"read {row} and not {rows} rows")
    return rows / seconds


def interleaved(
    kinds: Mapping[str, Callable[[], float]], effort: Effort, cpu: dict[str, list[Usage]] | None = None
) -> dict[str, list[float]]:
    """Measure each kind once a round, in another order each time; a round before warms up.

    Args:
        kinds: What gives the figure of each.
        effort: How many rounds, and which processes are servers.
        cpu: Takes the CPU that each used.
    """
    found: dict[str, list[float]] = {label: [] for label in kinds}
    for number in range(effort.rounds + 1):
        labels = list(kinds)
        turn = number % len(labels)
        for label in labels[turn:] + labels[:turn]:
            before = used(effort.servers)
            figure = kinds[label]()
            if number:
                found[label].append(figure)
                if cpu is not None:
                    cpu.setdefault(label, []).append(used(effort.servers).since(before))
    return found
