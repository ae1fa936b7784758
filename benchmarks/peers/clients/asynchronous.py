"""What the clients on asyncio share: the works that publish, given how one publishes, and the loop that runs all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from benchmarks.peers.clients.measure import Meter, Task, task

Work = Callable[[Task], Coroutine[Any, Any, None]]


class Writing(NamedTuple):
    """How a client publishes one body, and several, to a topic; it is connected."""

    pub: Callable[[str, bytes], Awaitable[object]]
    mpub: Callable[[str, Sequence[bytes]], Awaitable[object]]


async def publish(job: Task, writing: Writing) -> None:
    """Publish ``count`` messages, ``in_flight`` at a time, each awaited by its own task."""
    body, topic, pub, left = job.body, job.topic, writing.pub, iter(range(job.count))
    meter = Meter()

    async def worker() -> None:
        for _ in left:
            await pub(topic, body)

    await asyncio.gather(*(worker() for _ in range(job.in_flight)))
    meter.stop()


async def single(job: Task, writing: Writing) -> None:
    """Publish one by one, and time each."""
    body, topic, pub = job.body, job.topic, writing.pub
    meter = Meter()
    latencies = []
    for _ in range(job.count):
        began = time.perf_counter()
        await pub(topic, body)
        latencies.append(time.perf_counter() - began)
    meter.stop(latencies)


async def batch(job: Task, writing: Writing) -> None:
    """Publish ``count`` messages in batches of ``in_flight``."""
    bodies, topic, mpub = [job.body] * job.in_flight, job.topic, writing.mpub
    meter = Meter()
    for _ in range(job.count // job.in_flight):
        await mpub(topic, bodies)
    meter.stop()


def run(drain: Work, latency: Work, writing: Callable[[Task], AbstractAsyncContextManager[Writing]]) -> None:
    """Do the work that this process was given."""

    async def publishing(job: Task) -> None:
        async with writing(job) as way:
            await {"publish": publish, "single": single, "batch": batch}[job.work](job, way)

    given = task()
    run_async({"drain": drain, "latency": latency}.get(given.work, publishing)(given), given.loop)


def run_async(main: Coroutine[Any, Any, None], loop: str) -> None:
    """Run a coroutine on the loop that the task asks for."""
    if loop == "uvloop":
        import uvloop  # noqa: PLC0415 - only where it is installed

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)
    else:
        asyncio.run(main)
