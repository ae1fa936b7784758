"""What one process holds: ``python -m benchmarks.many [SECTION ...]``.

Topics of one worker, first publishes of one producer, and topics with partitions that share few connections. Each is
measured in a process of its own against an embedded cluster in another one. Time of the processor counts, so that what
else runs disturbs little.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from benchmarks.descriptors import allow_descriptors
from benchmarks.peers.clients.measure import peak_bytes
from benchmarks.processes import in_a_process, serving_process
from benchmarks.record import Record, load
from nsq_ha import Message, Producer, PublishError, Worker
from nsq_ha.events import Connected, Event

if TYPE_CHECKING:
    from collections.abc import Callable

WORKER_TOPICS: Final = 500
FIRST_PUBLISHES: Final = 2_000
SHARED_TOPICS: Final = 1_000
PARTITIONS: Final = 4
MAX_CONNECTIONS: Final = 64
RESTS: Final = (25.0, 55.0, 115.0)
"""Seconds after the last subscription at which the rest is measured."""

_WINDOW: Final = 10.0
_LIMIT: Final = 120.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value.

    Attributes:
        name: What it is.
        value: The value.
        most: The largest value that is good enough. None if there is no mark.
    """

    name: str
    value: float
    most: float | None = None


def _serve(pipe: Any, plain: bool, topics: int, partitions: int) -> None:  # noqa: ANN401 - one end of a pipe
    from nsq_ha.devcluster import DevCluster  # noqa: PLC0415 - the measured process does without its memory

    allow_descriptors()
    with DevCluster(nsqlookupds=1, nsqds=1 if plain else 3, plain=plain, time_scale=0.05) as cluster:
        for number in range(topics):
            if plain:
                cluster.create_topic(f"many{number}")
            else:
                cluster.create_topic(f"many{number}", partitions, replicas=1, wait=number == topics - 1)
        pipe.send(cluster.lookupd[0])
        time.sleep(3600)


def _connections(lookupd: str) -> int:
    """Return how many TCP connections this process has, those to the nsqlookupd left out."""
    ours = set()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own descriptor is closed meanwhile
            ours.add(str(file.readlink()))
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    peers = [int(row[2].rpartition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in ours]
    return sum(port != urlsplit(lookupd).port for port in peers)


def _present_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _hush() -> None:
    """Log errors only: thousands of lines would be measured, too."""
    logging.getLogger("nsq_ha").setLevel(logging.ERROR)


def _subscribe(pipe: Any, lookupd: str, topics: int) -> None:  # noqa: ANN401 - one end of a pipe
    async def handle(message: Message) -> None:
        del message

    async def work() -> list[Figure]:
        subscribed: set[str] = set()
        is_whole = asyncio.Event()

        def on_event(event: Event) -> None:
            if isinstance(event, Connected):
                subscribed.add(event.topic)
                if len(subscribed) == topics:
                    is_whole.set()

        worker = Worker(lookupd=lookupd, on_event=on_event, start_timeout=_LIMIT)
        for number in range(topics):
            worker.add(f"many{number}", "bench", handle)
        before, began = time.process_time(), time.perf_counter()
        task = asyncio.create_task(worker.run())
        await asyncio.wait_for(is_whole.wait(), _LIMIT)
        await asyncio.sleep(1.0)
        figures = [
            Figure("CPU until subscribed, s", time.process_time() - before, 3.0),
            Figure("seconds until subscribed", time.perf_counter() - began - 1.0),
        ]
        whole_at = time.perf_counter()
        for rest in RESTS:
            await asyncio.sleep(max(0.0, whole_at + rest - time.perf_counter()))
            before, began = time.process_time(), time.perf_counter()
            await asyncio.sleep(_WINDOW)
            share = (time.process_time() - before) / (time.perf_counter() - began)
            figures.append(Figure(f"CPU at rest after {rest:g} s, % of a core", 100 * share, 2.0))
        figures.append(Figure("memory, MB", _present_bytes() / 1e6, 60.0))
        figures.append(Figure("peak memory, MB", peak_bytes() / 1e6))
        figures.append(Figure("connections to nsqds", _connections(lookupd)))
        worker.stop()
        await task
        return figures

    allow_descriptors()
    _hush()
    pipe.send(asyncio.run(work()))


def _publish(pipe: Any, lookupd: str, topics: int, partitions: int, options: dict[str, Any]) -> None:  # noqa: ANN401
    async def publish() -> list[Figure]:
        async with Producer(lookupd=lookupd, publish_timeout=_LIMIT, **options) as producer:
            before, began = time.process_time(), time.perf_counter()
            calls = [
                producer.publish(f"many{number}", b"x" * 100, partition=partition)
                for number in range(topics)
                for partition in (range(partitions) or (None,))
            ]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            for error in failed[:3]:
                print(f"failed: {error}")
            if any(not isinstance(error, PublishError) for error in failed):
                raise BaseExceptionGroup("not a failed publish", failed[:3])
            return [
                Figure("failed", len(failed), 0),
                Figure("seconds until published", time.perf_counter() - began, None if partitions else 10.0),
                Figure("CPU until published, s", time.process_time() - before),
                Figure("connections to nsqds", _connections(lookupd), options.get("max_connections", 1)),
                Figure("peak memory, MB", peak_bytes() / 1e6),
            ]

    allow_descriptors()
    _hush()
    pipe.send(asyncio.run(publish()))


def worker(topics: int = WORKER_TOPICS) -> list[Figure]:
    """Subscribe one worker to many topics of a plain cluster, and let it rest."""
    with serving_process(_serve, True, topics, 0) as lookupd:
        return _ran(_subscribe, lookupd, topics)


def first_publishes(topics: int = FIRST_PUBLISHES) -> list[Figure]:
    """Publish to many new topics of a plain cluster at once."""
    with serving_process(_serve, True, 0, 0) as lookupd:
        return _ran(_publish, lookupd, topics, 0, {})


def shared(topics: int = SHARED_TOPICS) -> list[Figure]:
    """Publish to each partition of many topics over few connections."""
    with serving_process(_serve, False, topics, PARTITIONS) as lookupd:
        return _ran(_publish, lookupd, topics, PARTITIONS, {"max_connections": MAX_CONNECTIONS})


def _ran(measure: Callable[..., None], *arguments: object) -> list[Figure]:
    found: list[Figure] = in_a_process(measure, *arguments, join_timeout=30)
    return found


SECTIONS: Final[dict[str, tuple[str, Callable[[], list[Figure]]]]] = {
    "worker": (f"{WORKER_TOPICS} topics of one worker, plain", worker),
    "first_publishes": (f"{FIRST_PUBLISHES:,} first publishes at once, plain", first_publishes),
    "shared": (
        f"{SHARED_TOPICS:,} topics with {PARTITIONS} partitions each, max_connections={MAX_CONNECTIONS}",
        shared,
    ),
}
"""What is measured: the title, and how."""


def table(figures: list[Figure]) -> str:
    """Return the figures as a Markdown table."""
    rows = [f"| {one.name} | {one.value:.4g} | {'' if one.most is None else f'{one.most:g}'} |" for one in figures]
    return "\n".join(["| | measured | mark |", "|---|---|---|", *rows])


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.sections if name not in SECTIONS]:
        parser.error(f"unknown: {', '.join(unknown)}")
    for name in chosen.sections or SECTIONS:
        before = load()
        title, measure = SECTIONS[name]
        figures = measure()
        Record(chosen.json).keep(f"many/{name}", [[*dataclasses.astuple(one)] for one in figures], before)
        print(f"{title}\n\n{table(figures)}\n", flush=True)


if __name__ == "__main__":
    main()
