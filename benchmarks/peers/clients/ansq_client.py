"""ansq."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from ansq import ConnectionOptions, create_reader, create_writer

from benchmarks.peers.clients.measure import Meter, Task, run_async, task

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


async def _consume(job: Task, latencies: list[float]) -> None:
    reader = await create_reader(
        topic=job.topic,
        channel=job.channel,
        nsqd_tcp_addresses=[job.address],
        connection_options=ConnectionOptions(auto_reconnect=False),
    )
    for connection in reader._connections.values():  # noqa: SLF001 - its own way to more than RDY 1 is not implemented
        await connection.rdy(job.in_flight)
    if job.work == "latency":
        print("ready", flush=True)
    left = job.count
    async for message in reader.messages():
        if job.work == "latency":
            latencies.append(time.time() - float(message.body[:20]))
        await message.fin()
        left -= 1
        if not left:
            break
    await reader.close()


async def drain(job: Task) -> None:
    """Read and finish ``count`` messages."""
    meter = Meter()
    await _consume(job, [])
    meter.stop()


async def latency(job: Task) -> None:
    """Time each message from its publisher's stamp to its arrival."""
    latencies: list[float] = []
    meter = Meter()
    await _consume(job, latencies)
    meter.stop(latencies)


async def _writer(job: Task) -> Any:  # noqa: ANN401 - loosely typed
    writer = await create_writer(nsqd_tcp_addresses=[job.address])
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
    await writer.close()


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
    await writer.close()


async def batch(job: Task) -> None:
    """Publish ``count`` messages in batches of ``in_flight``."""
    writer = await _writer(job)
    bodies = [job.body] * job.in_flight
    meter = Meter()
    for _ in range(job.count // job.in_flight):
        await writer.mpub(job.topic, *bodies)
    meter.stop()
    await writer.close()


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
