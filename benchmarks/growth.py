"""Cost per message as things grow: ``python -m benchmarks.growth [SECTION ...]``.

Connections and bodies are measured on canned frames; topics, keys and many
partitions on a canned cluster; unanswered messages, the backlog and memory on the
upstream nsqd that ``UPSTREAM_NSQD_BIN`` names, partitions on the cluster whose
nsqlookupd ``NSQ_HA_TEST_LOOKUPD`` names, where there is one. Each point is
measured in a process of its own. The figure is CPU of our process for one message,
the smallest of the rounds: what disturbs only adds. The sections of a canned
cluster have one round, and end within three minutes.
"""

import argparse
import asyncio
import dataclasses
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import markdown
from benchmarks.canned_cluster import Shape, playing
from benchmarks.canned_server import allow_floods, serving
from benchmarks.descriptors import allow_descriptors
from benchmarks.ha import LOOKUPD_VARIABLE
from benchmarks.peers.clients.measure import peak_bytes
from benchmarks.peers.nsqd import BINARY_VARIABLE, Nsqd, running
from benchmarks.processes import in_a_process
from benchmarks.record import Record, load
from nsq_ha import Consumer, OutgoingMessage, Producer, PublishError
from nsq_ha.admin import AdminClient

CONNECTIONS: Final = (1, 2, 4, 8, 16, 32, 64, 500, 5_000)
TOPICS: Final = (10, 100, 1_000, 10_000)
MANY_PARTITIONS: Final = (1, 10, 100, 1_000)
KEYS: Final = (1_000, 10_000, 100_000, 1_000_000)
REAL_PARTITIONS: Final = (1, 4, 16, 64)
BODIES: Final = (100, 1024, 16 * 1024, 128 * 1024, 1024 * 1024)
IN_FLIGHT: Final = (1, 10, 100, 1000, 2500)
BACKLOGS: Final = (10_000, 100_000, 1_000_000, 5_000_000)
_SAMPLE: Final = 200_000
_SPREAD: Final = 50_000
_BODY: Final = b"x" * 100
_START_LIMIT: Final = 120.0
"""Seconds for the first publish to each topic; on a busy machine 10,000 topics need more."""


@dataclass(frozen=True, slots=True)
class Point:
    """The result of one measurement.

    Attributes:
        at: The size of what grows.
        cpu: Seconds of our process for one message.
        peak_bytes: Of its memory.
        start: Seconds until it is ready, where that is measured.
    """

    at: int
    cpu: float
    peak_bytes: int
    start: float = 0.0


def _measure(pipe: Any, topic: str, count: int, options: dict[str, Any]) -> None:  # noqa: ANN401
    start = 0.0

    async def drain() -> float:
        nonlocal start
        opened = time.perf_counter()
        async with Consumer(topic, "bench", start_timeout=60.0, **options) as consumer:
            if "lookupd" in options:
                await consumer.wait_subscribed()
            start = time.perf_counter() - opened
            left = count
            began = resource.getrusage(resource.RUSAGE_SELF)
            async for message in consumer:
                message.finish()
                left -= 1
                if not left:
                    break
            ended = resource.getrusage(resource.RUSAGE_SELF)
        return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime

    allow_descriptors()
    allow_floods()  # canned frames come without regard to RDY
    cpu = asyncio.run(drain())
    pipe.send((cpu / count, peak_bytes(), start))


def measured(at: int, topic: str, count: int, **options: Any) -> Point:  # noqa: ANN401
    """Measure once in a new process."""
    return Point(at, *in_a_process(_measure, topic, count, options, join_timeout=30))


def _best(points: list[Point]) -> Point:
    return min(points, key=lambda point: point.cpu)


def connections(rounds: int) -> list[Point]:
    """Grow the connections of one consumer, each to a server of its own."""
    points = []
    for number in CONNECTIONS:
        with serving(_SAMPLE // number + 1, 100, ports=number) as ports:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            points.append(_best([measured(number, "bench", _SAMPLE, nsqd=addresses) for _ in range(rounds)]))
    return points


def many_partitions() -> list[Point]:
    """Grow the partitions of a topic of a canned cluster, each with a connection of its own."""
    points = []
    for number in MANY_PARTITIONS:
        # Without one message for each partition they take turns, which costs time and not CPU.
        options = {"max_in_flight": max(200, number)}
        with playing(Shape(number, _SPREAD // number + 1)) as cluster:
            points.append(measured(number, "bench", _SPREAD, lookupd=cluster.lookupd, **options))
    return points


def _publish_many_topics(pipe: Any, lookupd: str, number: int) -> None:  # noqa: ANN401 - one end of a pipe
    async def publish() -> tuple[float, float]:
        names = [f"bench{at}" for at in range(number)]
        async with Producer(lookupd=lookupd, connections_per_nsqd=number, publish_timeout=_START_LIMIT) as producer:
            opened = time.perf_counter()
            await asyncio.gather(*(producer.publish(name, _BODY) for name in names))
            start = time.perf_counter() - opened
            left = iter(range(_SPREAD))

            async def worker() -> None:
                for at in left:
                    await producer.publish(names[at % number], _BODY)

            began = time.process_time()
            await asyncio.gather(*(worker() for _ in range(100)))
            return (time.process_time() - began) / _SPREAD, start

    allow_descriptors()
    cpu, start = asyncio.run(publish())
    pipe.send((cpu, peak_bytes(), start))


def topics() -> list[Point]:
    """Grow the topics of one producer, each with a connection of its own."""
    points = []
    with playing(Shape()) as cluster:
        for number in TOPICS:
            try:
                found = in_a_process(_publish_many_topics, cluster.lookupd, number, join_timeout=30)
            except EOFError:  # it has printed why
                print(f"{number:,} topics are left out: not all were published to within {_START_LIMIT:g} s")
                break
            points.append(Point(number, *found))
    return points


def _publish_many_keys(pipe: Any, lookupd: str, number: int) -> None:  # noqa: ANN401 - one end of a pipe
    async def publish() -> tuple[float, float]:
        opened = time.perf_counter()
        async with Producer(lookupd=lookupd) as producer:
            await producer.publish("bench", _BODY, key="first")
            start = time.perf_counter() - opened
            count, spent = 0, 0.0
            while count < max(number, _SAMPLE):
                messages = [OutgoingMessage(_BODY, key=f"key {(count + at) % number}") for at in range(10_000)]
                began = time.process_time()
                for outcome in await producer.publish_many("bench", messages):
                    if isinstance(outcome, PublishError):
                        raise outcome
                spent += time.process_time() - began
                count += len(messages)
            return spent / count, start

    cpu, start = asyncio.run(publish())
    pipe.send((cpu, peak_bytes(), start))


def keys() -> list[Point]:
    """Grow the number of keys, each used as often as the others, in batches of 10,000 to four partitions."""
    points = []
    with playing(Shape(4)) as cluster:
        for number in KEYS:
            found = in_a_process(_publish_many_keys, cluster.lookupd, number, join_timeout=30)
            points.append(Point(number, *found))
    return points


def bodies(rounds: int) -> list[Point]:
    """Grow the bodies."""
    points = []
    for size in BODIES:
        count = max(200, min(100_000, 200_000_000 // size))
        with serving(count, size) as ports:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            points.append(_best([measured(size, "bench", count, nsqd=addresses) for _ in range(rounds)]))
    return points


@contextmanager
def _filled(server: Nsqd, count: int) -> Iterator[str]:
    topic = f"bench{os.urandom(6).hex()}"
    server.create(topic, ["bench"])
    try:
        server.fill(topic, count, b"x" * 100)
        yield topic
    finally:
        server.delete(topic)


def in_flight(server: Nsqd, rounds: int) -> list[Point]:
    """Grow what may be unanswered."""
    points = []
    for number in IN_FLIGHT:
        count = 5_000 if number == 1 else 20_000 if number == 10 else 100_000
        tries = []
        for _ in range(rounds):
            with _filled(server, count) as topic:
                tries.append(measured(number, topic, count, nsqd=server.address, max_in_flight=number))
        points.append(_best(tries))
    return points


def backlog(server: Nsqd, largest: int) -> list[Point]:
    """Grow what lies in the channel; all of it is drained."""
    points = []
    for number in (size for size in BACKLOGS if size <= largest):
        with _filled(server, number) as topic:
            points.append(measured(number, topic, number, nsqd=server.address))
            server.check_finished(topic, "bench", number)
    return points


def large_bodies(server: Nsqd, limits: tuple[int, ...] = (8, 32, 128)) -> list[Point]:
    """Drain bodies of 1 MiB that are answered late, with ``max_in_flight_bytes`` of so many MiB."""
    points = []
    for limit in limits:
        topic = f"bench{os.urandom(6).hex()}"
        server.create(topic, ["bench"])
        server.fill(topic, 400, b"x" * (1024 * 1024))
        peak = in_a_process(_hold, topic, server.address, limit * 1024 * 1024, join_timeout=30)
        points.append(Point(limit, 0.0, peak))
        server.delete(topic)
    return points


def _hold(pipe: Any, topic: str, address: str, limit: int) -> None:  # noqa: ANN401 - one end of a pipe
    async def drain() -> None:
        async with Consumer(topic, "bench", nsqd=address, max_in_flight_bytes=limit) as consumer:
            for _ in range(400):
                message = await anext(consumer)
                await asyncio.sleep(0.002)  # as a handler does that works: meanwhile all that is allowed arrives
                message.finish()

    asyncio.run(drain())
    pipe.send(peak_bytes())


async def _spread(lookupd: str, topic: str, number: int) -> None:
    async with AdminClient(lookupd) as admin:
        await admin.create_topic(topic, number, 1)
        await admin.create_channel(topic, "bench")
    async with Producer(lookupd=lookupd) as producer:
        messages = [OutgoingMessage(b"x" * 100, partition=n % number) for n in range(_SPREAD)]
        for outcome in await producer.publish_many(topic, messages):
            if isinstance(outcome, PublishError):
                raise outcome


async def _deleted(lookupd: str, topic: str) -> None:
    async with AdminClient(lookupd) as admin:
        await admin.delete_topic(topic)


def real_partitions(lookupd: str) -> list[Point]:
    """Grow the partitions of a topic of a real cluster."""
    points = []
    for number in REAL_PARTITIONS:
        topic = f"bench_parts_{os.urandom(4).hex()}"
        try:
            asyncio.run(_spread(lookupd, topic, number))
            points.append(measured(number, topic, _SPREAD, lookupd=lookupd))
        finally:
            asyncio.run(_deleted(lookupd, topic))
    return points


SECTIONS: Final[dict[str, tuple[str, str]]] = {
    "connections": ("connections, each to a server of its own", "connections"),
    "partitions": ("partitions of a topic on a real cluster", "partitions"),
    "topics": ("topics of one producer, each with a connection of its own", "topics"),
    "many_partitions": ("partitions of a topic on a canned cluster", "partitions"),
    "keys": ("keys, published in batches of 10,000", "keys"),
    "bodies": ("size of a body", "bytes"),
    "in_flight": ("messages that may be unanswered", "max_in_flight"),
    "backlog": ("messages that lie in the channel", "messages"),
    "memory": ("memory with bodies of 1 MiB", "max_in_flight_bytes, MiB"),
}
"""What can grow: the title and the unit of each."""


CANNED: Final[dict[str, Callable[[], list[Point]]]] = {
    "topics": topics,
    "many_partitions": many_partitions,
    "keys": keys,
}
"""The sections on a canned cluster, which tell the start and what each unit adds to the memory."""


def section(name: str, rounds: int, largest_backlog: int) -> list[Point] | str:
    """Measure one; or say why it cannot be measured."""
    lookupd = os.environ.get(LOOKUPD_VARIABLE)
    if name == "partitions":
        return real_partitions(lookupd) if lookupd else f"{LOOKUPD_VARIABLE} names no cluster"
    if name in CANNED:
        return CANNED[name]()
    if name in ("connections", "bodies"):
        return {"connections": connections, "bodies": bodies}[name](rounds)
    if not os.environ.get(BINARY_VARIABLE):
        return f"{BINARY_VARIABLE} names no upstream nsqd"
    with running() as server:
        if name == "in_flight":
            return in_flight(server, rounds)
        return backlog(server, largest_backlog) if name == "backlog" else large_bodies(server)


def table(name: str, points: Sequence[Point]) -> str:
    """Return one section as a Markdown table. Memory stands only where the server keeps to RDY, as a real one does."""
    _, unit = SECTIONS[name]
    with_memory, with_cpu = name not in ("connections", "bodies"), name != "memory"
    with_start = name in CANNED
    head = [unit, *["CPU for one message, us"] * with_cpu, *["peak memory, MB"] * with_memory]
    head += ["ready after, s"] * with_start
    rows = []
    for point in points:
        cells = [f"{point.at:,}"]
        cells += [f"{point.cpu * 1e6:.2f}"] * with_cpu + [f"{point.peak_bytes / 1e6:.1f}"] * with_memory
        cells += [f"{point.start:.2f}"] * with_start
        rows.append(cells)
    text = markdown.table(head, rows)
    if with_start:
        least, most = points[0], points[-1]
        kilobytes = (most.peak_bytes - least.peak_bytes) / (most.at - least.at) / 1e3
        text += f"\n\nMemory: {least.peak_bytes / 1e6:.0f} MB + {kilobytes:.2g} KB for each of the {unit}."
    return text


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all by default")
    parser.add_argument("--rounds", type=int, default=3, help="of each point; the best counts")
    parser.add_argument("--backlog", type=int, default=5_000_000, help="largest backlog; nsqd holds it in some 3 GB")
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.sections if name not in SECTIONS]:
        parser.error(f"unknown: {', '.join(unknown)}")
    for name in chosen.sections or SECTIONS:
        before = load()
        points = section(name, chosen.rounds, chosen.backlog)
        if isinstance(points, str):
            print(f"{name}: skipped, {points}")
            continue
        Record(chosen.json).keep(f"growth/{name}", [[*dataclasses.astuple(one)] for one in points], before)
        print(f"{SECTIONS[name][0]}\n{table(name, points)}\n", flush=True)


if __name__ == "__main__":
    main()
