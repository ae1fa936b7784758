"""asyncnsq 2: messages go straight to a plain function, its fastest documented way."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from asyncnsq import create_reader, create_writer

from benchmarks.peers.clients.asynchronous import Writing, run
from benchmarks.peers.clients.measure import Meter, Task

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


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


@asynccontextmanager
async def writing(job: Task) -> AsyncIterator[Writing]:
    """Publish through its writer."""
    host, _, port = job.address.partition(":")
    writer = await create_writer(host=host, port=int(port))
    await writer.pub(job.topic, job.body)
    yield Writing(writer.pub, lambda topic, bodies: writer.mpub(topic, *bodies))
    writer.close()


if __name__ == "__main__":
    run(drain, latency, writing)
