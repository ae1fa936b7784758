"""What a call from a thread costs: publishing with ``nsq_ha.sync``, against a bare exchange between threads and a loop.

``python -m benchmarks sync``; needs no server: a process of ours plays an nsqd that answers each PUB with ``OK``.
*Bare* is ``asyncio.run_coroutine_threadsafe`` of a coroutine that does nothing, and the wait for its future. *Call* is
the same through the background loop of ``nsq_ha.sync``. *Publish* is ``producer.publish(...)`` with default settings.
Each is done by eight threads at once, in interleaved rounds.

The figure is calls per second over those of bare, by the median of the rounds; the mark for *publish* is 0.7.
``publish_nowait`` is measured in one thread, without a mark.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.canned_publish import answering
from benchmarks.record import Record, load
from nsq_ha import _portal
from nsq_ha.sync import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS: Final = 8
MARK: Final = 0.7
_CALLS: Final = 2_000
_ROUNDS: Final = 7
_BODY: Final = b"x" * 100
_TOPIC: Final = "bench"


class Figure(NamedTuple):
    """One round of one way.

    Attributes:
        rate: Calls per second.
        cpu: CPU seconds of this process per call.
    """

    rate: float
    cpu: float


async def _nothing() -> None:
    pass


def bare() -> Figure:
    """Exchange nothing by the means of the standard library."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        return _by_threads(lambda: asyncio.run_coroutine_threadsafe(_nothing(), loop).result())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def call() -> Figure:
    """Exchange nothing through the background loop."""
    portal = _portal.shared()
    return _by_threads(lambda: portal.wait(_nothing()))


def publish(port: int) -> Figure:
    """Publish."""
    with Producer(nsqd=f"127.0.0.1:{port}") as producer:
        producer.publish(_TOPIC, _BODY)
        return _by_threads(lambda: producer.publish(_TOPIC, _BODY))


def publish_nowait(port: int) -> Figure:
    """Publish without waiting, in one thread."""
    count = THREADS * _CALLS
    with Producer(nsqd=f"127.0.0.1:{port}") as producer:
        producer.publish(_TOPIC, _BODY)
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            producer.publish_nowait(_TOPIC, _BODY)
        producer.flush()
        return Figure(count / (time.perf_counter() - began), (time.process_time() - cpu) / count)


def _by_threads(function: Callable[[], object]) -> Figure:
    ready = threading.Barrier(THREADS + 1)

    def work() -> None:
        ready.wait()
        for _ in range(_CALLS):
            function()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    began, cpu = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.join()
    count = THREADS * _CALLS
    return Figure(count / (time.perf_counter() - began), (time.process_time() - cpu) / count)


def measure(rounds: int = _ROUNDS) -> dict[str, list[Figure]]:
    """Run all ways in turn, after one round that does not count."""
    found: dict[str, list[Figure]] = {"bare": [], "call": [], "publish": [], "publish_nowait": []}
    with answering(len(_BODY)) as port:
        for number in range(rounds + 1):
            figures = bare(), call(), publish(port), publish_nowait(port)
            if number:
                for kept, figure in zip(found.values(), figures, strict=True):
                    kept.append(figure)
    return found


def table(found: dict[str, list[Figure]]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| way | calls/s | CPU, us | rate over bare | bare CPU over it |", "|---" * 5 + "|"]
    reference = found["bare"]
    for name, figures in found.items():
        pairs = list(zip(figures, reference, strict=True))
        rate = statistics.median(one.rate for one in figures)
        cpu = statistics.median(one.cpu for one in figures)
        faster = statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)
        cheaper = statistics.median(theirs.cpu / ours.cpu for ours, theirs in pairs)
        lines.append(f"| {name} | {rate:,.0f} | {cpu * 1e6:.1f} | {faster:.2f} | {cheaper:.2f} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sync", description=__doc__)
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    chosen = parser.parse_args(arguments)
    before = load()
    found = measure()
    print(f"{THREADS} threads; publish must reach {MARK:g} of bare\n{table(found)}")
    Record(chosen.json).keep("sync", found, before)


if __name__ == "__main__":
    main()
