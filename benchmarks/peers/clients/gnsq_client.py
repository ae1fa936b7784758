"""gnsq, on gevent."""

from __future__ import annotations

import time
from typing import Any

import gevent
from gnsq import Consumer, Producer

from benchmarks.peers.clients.measure import Meter, Task, task


def drain(job: Task) -> None:
    """Read and finish ``count`` messages; gnsq finishes what its handler returned from."""
    left = job.count
    latencies: list[float] = []
    is_timed = job.work == "latency"

    def handle(consumer: Any, message: Any) -> None:  # noqa: ANN401 - the peer has no types
        nonlocal left
        if is_timed:
            latencies.append(time.time() - float(message.body[:20]))
        left -= 1
        if not left:
            gevent.spawn_later(0.05, consumer.close)

    meter = Meter()
    consumer = Consumer(
        job.topic, job.channel, nsqd_tcp_addresses=job.address, max_in_flight=job.in_flight, message_handler=handle
    )
    if is_timed:
        print("ready", flush=True)
    consumer.start()
    meter.stop(latencies)


def _producer(job: Task) -> Any:  # noqa: ANN401 - the peer has no types
    producer = Producer(job.address)
    producer.start()
    producer.publish(job.topic, job.body)
    return producer


def publish(job: Task) -> None:
    """Publish ``count`` messages, ``in_flight`` at a time, each from its own greenlet."""
    producer = _producer(job)
    body, topic, left = job.body, job.topic, iter(range(job.count))
    meter = Meter()

    def worker() -> None:
        for _ in left:
            producer.publish(topic, body)

    gevent.joinall([gevent.spawn(worker) for _ in range(job.in_flight)])
    meter.stop()
    producer.close()


def single(job: Task) -> None:
    """Publish one by one, and time each."""
    producer = _producer(job)
    meter = Meter()
    latencies = []
    for _ in range(job.count):
        began = time.perf_counter()
        producer.publish(job.topic, job.body)
        latencies.append(time.perf_counter() - began)
    meter.stop(latencies)
    producer.close()


def batch(job: Task) -> None:
    """Publish ``count`` messages in batches of ``in_flight``."""
    producer = _producer(job)
    bodies = [job.body] * job.in_flight
    meter = Meter()
    for _ in range(job.count // job.in_flight):
        producer.multipublish(job.topic, bodies)
    meter.stop()
    producer.close()


WORKS = {"drain": drain, "latency": drain, "publish": publish, "single": single, "batch": batch}

if __name__ == "__main__":
    given = task()
    WORKS[given.work](given)
