"""This library, by its public API with default settings; only what a row names is set."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from benchmarks.peers.clients.measure import Meter, Task, run_async, task
from nsq_ha import Consumer, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


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


async def publish(job: Task) -> None:
    """Publish ``count`` messages, ``in_flight`` at a time, each awaited by its own task."""
    async with Producer(nsqd=job.address) as producer:
        await producer.publish(job.topic, job.body)
        meter = Meter()
        body, topic, publish_one = job.body, job.topic, producer.publish
        left = iter(range(job.count))

        async def worker() -> None:
            for _ in left:
                await publish_one(topic, body)

        await asyncio.gather(*(worker() for _ in range(job.in_flight)))
        meter.stop()


async def single(job: Task) -> None:
    """Publish one by one, and time each."""
    async with Producer(nsqd=job.address) as producer:
        await producer.publish(job.topic, job.body)
        meter = Meter()
        latencies = []
        for _ in range(job.count):
            began = time.perf_counter()
            await producer.publish(job.topic, job.body)
            latencies.append(time.perf_counter() - began)
        meter.stop(latencies)


async def batch(job: Task) -> None:
    """Publish ``count`` messages in batches of ``in_flight``."""
    async with Producer(nsqd=job.address) as producer:
        await producer.publish(job.topic, job.body)
        bodies = [job.body] * job.in_flight
        meter = Meter()
        for _ in range(job.count // job.in_flight):
            await producer.publish_many(job.topic, bodies)
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
