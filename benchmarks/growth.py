"""Cost per message as things grow: ``python -m benchmarks.growth [--svg FILE]``.

Partitions (each has a connection of its own) and bodies are measured on canned
frames; unanswered messages and the backlog on the upstream nsqd that
``UPSTREAM_NSQD_BIN`` names, where there is one. Each point is measured in a
process of its own. The figure is CPU of our process for one message, the
smallest of the rounds: what disturbs only adds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.canned_server import serving
from benchmarks.peers.nsqd import BINARY_VARIABLE, running
from benchmarks.plot import Line, draw
from nsq_ha import Consumer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.peers.nsqd import Nsqd

PARTITIONS: Final = (1, 2, 4, 8, 16, 32, 64)
BODIES: Final = (100, 1024, 16 * 1024, 128 * 1024, 1024 * 1024)
IN_FLIGHT: Final = (1, 10, 100, 1000, 2500)
BACKLOGS: Final = (10_000, 100_000, 1_000_000, 5_000_000)
_SAMPLE: Final = 200_000


@dataclass(frozen=True, slots=True)
class Point:
    """What one measurement told.

    Attributes:
        at: The size of what grows.
        cpu: Seconds of our process for one message.
        peak_bytes: Of its memory.
    """

    at: int
    cpu: float
    peak_bytes: int


def _measure(pipe: Any, topic: str, addresses: list[str], count: int, options: dict[str, Any]) -> None:  # noqa: ANN401
    async def drain() -> float:
        async with Consumer(topic, "bench", nsqd=addresses, start_timeout=30.0, **options) as consumer:
            left = count
            began = resource.getrusage(resource.RUSAGE_SELF)
            async for message in consumer:
                message.finish()
                left -= 1
                if not left:
                    break
            ended = resource.getrusage(resource.RUSAGE_SELF)
        return ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime

    cpu = asyncio.run(drain())
    pipe.send((cpu / count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def measured(at: int, topic: str, addresses: list[str], count: int, **options: Any) -> Point:  # noqa: ANN401
    """Measure once in a new process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(theirs, topic, addresses, count, options))
    process.start()
    theirs.close()
    try:
        cpu, peak = ours.recv()
    finally:
        process.join(30)
    return Point(at, cpu, peak)


def _best(points: list[Point]) -> Point:
    return min(points, key=lambda point: point.cpu)


def partitions(rounds: int) -> list[Point]:
    """Grow the partitions, and so the connections, of one consumer."""
    points = []
    for number in PARTITIONS:
        with serving(_SAMPLE // number + 1, 100, ports=number) as ports:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            points.append(_best([measured(number, "bench", addresses, _SAMPLE) for _ in range(rounds)]))
    return points


def bodies(rounds: int, **options: int) -> list[Point]:
    """Grow the bodies."""
    points = []
    for size in BODIES:
        count = max(200, min(100_000, 200_000_000 // size))
        with serving(count, size) as ports:
            addresses = [f"127.0.0.1:{port}" for port in ports]
            points.append(_best([measured(size, "bench", addresses, count, **options) for _ in range(rounds)]))
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
                tries.append(measured(number, topic, [server.address], count, max_in_flight=number))
        points.append(_best(tries))
    return points


def backlog(server: Nsqd, largest: int) -> list[Point]:
    """Grow what lies in the channel; all of it is drained."""
    points = []
    for number in (size for size in BACKLOGS if size <= largest):
        with _filled(server, number) as topic:
            points.append(measured(number, topic, [server.address], number))
            server.check_finished(topic, "bench", number)
    return points


def large_bodies(server: Nsqd, limits: tuple[int, ...] = (8, 32, 128)) -> list[Point]:
    """Drain bodies of 1 MiB that are answered late, with ``max_in_flight_bytes`` of so many MiB."""
    points = []
    for limit in limits:
        topic = f"bench{os.urandom(6).hex()}"
        server.create(topic, ["bench"])
        server.fill(topic, 400, b"x" * (1024 * 1024))
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_hold, args=(theirs, topic, server.address, limit * 1024 * 1024))
        process.start()
        theirs.close()
        points.append(Point(limit, 0.0, ours.recv()))
        process.join(30)
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
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def table(title: str, unit: str, points: list[Point]) -> str:
    """Return one table as text."""
    lines = [f"{title}", f"{unit:>12}  us/message  peak MB"]
    lines += [f"{point.at:>12,}  {point.cpu * 1e6:10.2f}  {point.peak_bytes / 1e6:7.1f}" for point in points]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print, and draw where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each point; the best counts")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="largest backlog; 5,000,000 takes some GB")
    parser.add_argument("--svg", type=Path, help="where the plot goes")
    parser.add_argument("--json", type=Path, help="where the figures go")
    chosen = parser.parse_args(arguments)
    found: dict[str, tuple[str, list[Point]]] = {
        "partitions": ("partitions", partitions(chosen.rounds)),
        "body size": ("bytes", bodies(chosen.rounds)),
    }
    if os.environ.get(BINARY_VARIABLE):
        with running() as server:
            found["unanswered messages"] = ("max_in_flight", in_flight(server, chosen.rounds))
            found["backlog"] = ("messages", backlog(server, chosen.backlog))
            found["memory, bodies of 1 MiB"] = ("limit in MiB", large_bodies(server))
    else:
        print(f"in-flight, backlog, memory: skipped, {BINARY_VARIABLE} names no upstream nsqd")
    for title, (unit, points) in found.items():
        print(table(title, unit, points))
    if chosen.json:
        chosen.json.write_text(
            json.dumps({t: [[p.at, p.cpu, p.peak_bytes] for p in ps] for t, (_, ps) in found.items()})
        )
    if chosen.svg:
        lines = [
            Line(title, unit, [(point.at, point.cpu * 1e6) for point in points])
            for title, (unit, points) in found.items()
            if points[0].cpu
        ]
        chosen.svg.write_text(draw("CPU for one message, microseconds", lines))


if __name__ == "__main__":
    main()
