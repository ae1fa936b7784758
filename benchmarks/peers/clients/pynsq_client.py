"""pynsq, on tornado."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import nsq

from benchmarks.peers.clients.asynchronous import run_async
from benchmarks.peers.clients.measure import Meter, Task, task


async def drain(job: Task) -> None:
    """Read and finish ``count`` messages; pynsq finishes what its handler returned True for."""
    done = asyncio.Event()
    left = job.count
    latencies: list[float] = []
    is_timed = job.work == "latency"

    def handle(message: Any) -> bool:  # noqa: ANN401 - the peer has no types
        nonlocal left
        if is_timed:
            latencies.append(time.time() - float(message.body[:20]))
        left -= 1
        if not left:
            asyncio.get_running_loop().call_later(0.05, done.set)
        return True

    meter = Meter()
    reader = nsq.Reader(
        message_handler=handle,
        nsqd_tcp_addresses=[job.address],
        topic=job.topic,
        channel=job.channel,
        max_in_flight=job.in_flight,
    )
    if is_timed:
        print("ready", flush=True)
    await done.wait()
    meter.stop(latencies)
    reader.close()


async def _writer(job: Task) -> Any:  # noqa: ANN401 - the peer has no types
    writer = nsq.Writer([job.address])
    connected = asyncio.Event()
    # It knows no wait: a publish before its connection is up fails.
    asyncio.get_running_loop().call_later(0.5, connected.set)
    await connected.wait()
    return writer


async def publish(job: Task) -> None:
    """Publish ``count`` messages, ``in_flight`` at a time: each answer publishes the next."""
    writer = await _writer(job)
    done = asyncio.Event()
    body, topic = job.body, job.topic
    sent = answered = 0

    def again(_: object, __: object) -> None:
        nonlocal sent, answered
        answered += 1
        if sent < job.count:
            sent += 1
            writer.pub(topic, body, again)
        elif answered == job.count:
            done.set()

    meter = Meter()
    for _ in range(job.in_flight):
        sent += 1
        writer.pub(topic, body, again)
    await done.wait()
    meter.stop()


async def single(job: Task) -> None:
    """Publish one by one, and time each."""
    writer = await _writer(job)
    done = asyncio.Event()
    latencies: list[float] = []
    began = 0.0

    def again(_: object, __: object) -> None:
        nonlocal began
        now = time.perf_counter()
        latencies.append(now - began)
        if len(latencies) == job.count:
            done.set()
            return
        began = time.perf_counter()
        writer.pub(job.topic, job.body, again)

    meter = Meter()
    began = time.perf_counter()
    writer.pub(job.topic, job.body, again)
    await done.wait()
    meter.stop(latencies)


async def batch(job: Task) -> None:
    """Publish ``count`` messages in batches of ``in_flight``."""
    writer = await _writer(job)
    done = asyncio.Event()
    bodies = [job.body] * job.in_flight
    left = job.count // job.in_flight

    def again(_: object, __: object) -> None:
        nonlocal left
        left -= 1
        if left:
            writer.mpub(job.topic, bodies, again)
        else:
            done.set()

    meter = Meter()
    writer.mpub(job.topic, bodies, again)
    await done.wait()
    meter.stop()


WORKS = {"drain": drain, "latency": drain, "publish": publish, "single": single, "batch": batch}

if __name__ == "__main__":
    given = task()
    run_async(WORKS[given.work](given), given.loop)
