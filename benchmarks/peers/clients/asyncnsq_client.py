"""asyncnsq 2: messages go straight to a plain function, its fastest documented way."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from asyncnsq import create_reader, create_writer

from benchmarks.peers.clients.measure import Meter, Task, run_async, task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


async def _consume(job: Task, handler: Callable[[Any], None], done: asyncio.Event, meter: Meter) -> None:
    meter.start()
    reader = await create_reader(nsqd_tcp_addresses=[job.address], max_in_flight=job.in_flight)
    reader.set_message_handler(handler, direct=True)
    await reader.subscribe(job.topic, job.channel)
    if job.work == "latency":
        print("ready", flush=True)
    await done.wait()
    await reader.graceful_close(requeue=False)


async def drain(job: Task) -> None:
    """Read and finish ``count`` messages."""
    done = asyncio.Event()
    left = job.count

    def handle(_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    meter = Meter()
    await _consume(job, handle, done, meter)
    meter.stop()


async def latency(job: Task) -> None:
    """Time each message from its publisher's stamp to its arrival."""
    done = asyncio.Event()
    latencies: list[float] = []

    def handle(message: Any) -> None:  # noqa: ANN401 - the peer has no types
        latencies.append(time.time() - float(message.body[:20]))
        if len(latencies) == job.count:
            done.set()

    meter = Meter()
    await _consume(job, handle, done, meter)
    meter.stop(latencies)


async def _writer(job: Task) -> Any:  # noqa: ANN401 - the peer has no types
    host, _, port = job.address.partition(":")
    writer = await create_writer(host=host, port=int(port))
    await writer.pub(job.topic, job.body)
    return writer


async def publish(job: Task) -> None:
    """Publish ``count`` messages, ``in_flight`` at a time."""
    writer = await _writer(job)
    body, topic, left = job.body, job.topic, iter(range(job.count))
    meter = Meter()

    async def worker() -> None:
        for _ in left:
            await writer.pub(topic, body)

    await asyncio.gather(*(worker() for _ in range(job.in_flight)))
    meter.stop()
    writer.close()


async def single(job: Task) -> None:
    """Publish one by one, and time each."""
    writer = await _writer(job)
    meter = Meter()
    latencies = []
    for _ in range(job.count):
        began = time.perf_counter()
        await writer.pub(job.topic, job.body)
        latencies.append(time.perf_counter() - began)
    meter.stop(latencies)
    writer.close()


async def batch(job: Task) -> None:
    """Publish ``count`` messages in batches of ``in_flight``."""
    writer = await _writer(job)
    bodies = [job.body] * job.in_flight
    meter = Meter()
    for _ in range(job.count // job.in_flight):
        await writer.mpub(job.topic, *bodies)
    meter.stop()
    writer.close()


WORKS: dict[str, Callable[[Task], Coroutine[Any, Any, None]]] = {
    "drain": drain,
    "publish": publish,
    "single": single,
    "batch": batch,
    "latency": latency,
}

if __name__ == "__main__":
    given = task()
    run_async(WORKS[given.work](given), given.loop)
