"""This library, by its public API with default settings; only what a row names is set."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.peers.clients.asynchronous import Writing, run
from benchmarks.peers.clients.measure import Meter, Task
from nsq_ha import Consumer, Producer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def drain(job: Task) -> None:
    """Read and finish ``count`` messages."""
    options: dict[str, Any] = {} if job.in_flight == 200 else {"max_in_flight": job.in_flight}
    meter = Meter()
    async with Consumer(job.topic, job.channel, nsqd=job.address, **options) as consumer:
        left = job.count
        async for message in consumer:
            message.finish()
            left -= 1
            if not left:
                break
    meter.stop()


async def latency(job: Task) -> None:
    """Time each message from its publisher's stamp to its arrival."""
    latencies: list[float] = []
    async with Consumer(job.topic, job.channel, nsqd=job.address, max_in_flight=job.in_flight) as consumer:
        print("ready", flush=True)
        meter = Meter()
        async for message in consumer:
            latencies.append(time.time() - float(message.body[:20]))
            message.finish()
            if len(latencies) == job.count:
                break
    meter.stop(latencies)


@asynccontextmanager
async def writing(job: Task) -> AsyncIterator[Writing]:
    """Publish through a producer."""
    async with Producer(nsqd=job.address) as producer:
        await producer.publish(job.topic, job.body)
        yield Writing(producer.publish, producer.publish_many)


if __name__ == "__main__":
    run(drain, latency, writing)
