"""ansq."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ansq import ConnectionOptions, create_reader, create_writer

from benchmarks.peers.clients.asynchronous import Writing, run
from benchmarks.peers.clients.measure import Meter, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


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


@asynccontextmanager
async def writing(job: Task) -> AsyncIterator[Writing]:
    """Publish through its writer."""
    writer = await create_writer(nsqd_tcp_addresses=[job.address])
    await writer.pub(job.topic, job.body)
    yield Writing(writer.pub, lambda topic, bodies: writer.mpub(topic, *bodies))
    await writer.close()


if __name__ == "__main__":
    run(drain, latency, writing)
