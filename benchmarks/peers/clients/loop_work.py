"""What this library does to its event loop and its threads, on any of its versions.

``python -m benchmarks.peers.clients.loop_work WORK LOOKUPD`` prints one line of JSON. *hold*: the longest time that one
``publish_many`` of 200,000 messages with different keys keeps other tasks waiting, as CPU of the loop's thread, so that
what else the machine does makes no difference. *threads*: messages per second of plain handlers that sleep for 1 ms at
``concurrency=8``, over calls per second of a bare pool of 8 threads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from nsq_ha import Consumer, OutgoingMessage, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nsq_ha import Message

MESSAGES: Final = 200_000
CALLS: Final = 3_000
THREADS: Final = 8
_WARM: Final = 100
_PAUSE: Final = 0.001


async def hold(lookupd: str) -> dict[str, float]:
    """Publish the batch, and look how long other tasks wait."""
    longest, is_over = 0.0, False

    async def tick() -> None:
        nonlocal longest
        last = time.thread_time()
        while not is_over:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    async with Producer(lookupd=lookupd) as producer:
        for partition in range(4):
            await producer.publish("bench", b"x", partition=partition)
        messages = [OutgoingMessage(b"x" * 100, key=f"key {number}") for number in range(MESSAGES)]
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0.01)
        longest, began = 0.0, time.process_time()
        outcomes = await producer.publish_many("bench", messages)
        spent, is_over = time.process_time() - began, True
        await ticking
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if errors:
        raise errors[0]
    return {"hold": longest, "cpu": spent / MESSAGES}


async def threads(lookupd: str) -> dict[str, float]:
    """Handle messages, after a bare pool made as many calls."""
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(time.sleep, [_PAUSE] * _WARM))
        began = time.perf_counter()
        list(pool.map(time.sleep, [_PAUSE] * CALLS))
        bare = CALLS / (time.perf_counter() - began)
    loop, lock = asyncio.get_running_loop(), threading.Lock()
    count, began, ended = 0, 0.0, 0.0
    done = asyncio.Event()

    def handle(_: Message) -> None:
        nonlocal count, began, ended
        time.sleep(_PAUSE)
        with lock:
            count += 1
            if count == _WARM:
                began = time.perf_counter()
            elif count == _WARM + CALLS:
                ended = time.perf_counter()
                loop.call_soon_threadsafe(done.set)

    async with Consumer("bench", "bench", lookupd=lookupd) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=THREADS))
        await done.wait()
        await consumer.aclose()
        await running
    ours = CALLS / (ended - began)
    return {"ratio": ours / bare, "rate": ours}


WORKS: Final[dict[str, Callable[[str], Coroutine[object, object, dict[str, float]]]]] = {
    "hold": hold,
    "threads": threads,
}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(WORKS[sys.argv[1]](sys.argv[2]))))
