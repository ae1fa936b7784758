"""The client that is flooded, in a process of its own: ``python -m integration.floods.client KIND ADDRESS``.

It prints a line of JSON when it is ready, ``{"idle": bytes}``, and one when its standard input ends,
``{"peak": bytes}``: the resident memory of the process before the flood, and the most since then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pathlib
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from nsq_ha import Compression, Consumer, Message, NsqError, Producer
from nsq_ha.admin.nsqd_http import NsqdHttp
from nsq_ha.engine.lookupd import LookupClient
from nsq_ha.policy.topology import Node

TOPIC: Final = "orders"
BODY: Final = b"\x07" * 1_000_000
QUESTIONS: Final = 30
"""Asked of HTTP one after the other; every error is kept, as a program that counts its failures would."""
LOOK: Final = 0.02

Handler = Callable[[Message], Awaitable[None]]
Client = Callable[[str, asyncio.Event], Awaitable[None]]


def _memory(field: str) -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


def _say(**figures: int) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def ready() -> None:
    """Report the memory so far, and count the peak from now on."""
    _say(idle=_memory("VmRSS"))
    pathlib.Path("/proc/self/clear_refs").write_text("5")


async def _consume(
    address: str, over: asyncio.Event, handler: Callable[[Message], Awaitable[None]], **options: object
) -> None:
    async with Consumer(TOPIC, "ch", nsqd=address, start_timeout=5.0, **options) as consumer:  # type: ignore[arg-type]
        running = asyncio.create_task(consumer.run(handler))
        ready()
        await over.wait()
        running.cancel()
        await asyncio.wait({running})
        if not running.cancelled():
            running.result()  # a flood must not end it


async def handle(_: Message) -> None:
    """Finish at once."""


async def stall(message: Message) -> None:
    """Handle small messages at once, so that RDY rises, and large ones never."""
    if len(message.body) > 1000:
        await asyncio.Event().wait()


async def consumer(address: str, over: asyncio.Event) -> None:
    """Consume with default options; handlers are quick until a large body comes."""
    await _consume(address, over, stall)


async def quick_consumer(address: str, over: asyncio.Event) -> None:
    """Consume with default options and finish everything."""
    await _consume(address, over, handle)


async def wide_consumer(address: str, over: asyncio.Event) -> None:
    """Consume with the largest RDY that nsqd accepts."""
    await _consume(address, over, stall, max_in_flight=2500)


async def deflate_consumer(address: str, over: asyncio.Event) -> None:
    """Consume with deflate."""
    await _consume(address, over, stall, compression=Compression.DEFLATE, connect_timeout=5.0)


async def snappy_consumer(address: str, over: asyncio.Event) -> None:
    """Consume with snappy."""
    await _consume(address, over, stall, compression=Compression.SNAPPY, connect_timeout=5.0)


async def producer(address: str, over: asyncio.Event) -> None:
    """Publish bodies of 1 MB without end."""
    async with Producer(nsqd=address, publish_timeout=60.0, close_timeout=0.1) as one:
        await one.publish(TOPIC, b"first")
        ready()
        publishing = [asyncio.create_task(one.publish(TOPIC, BODY)) for _ in range(200)]
        await over.wait()
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)


async def _ask(question: Callable[[], Awaitable[object]], over: asyncio.Event) -> None:
    kept: list[NsqError] = []
    ready()
    for _ in range(QUESTIONS):
        try:
            await question()
        except NsqError as error:
            kept.append(error)
    _say(errors=len(kept))
    await over.wait()


async def lookup(address: str, over: asyncio.Event) -> None:
    """Ask a nsqlookupd for a topic."""
    async with LookupClient(address, timeout=10.0) as client:
        await _ask(lambda: client.lookup(TOPIC), over)


async def stats(address: str, over: asyncio.Event) -> None:
    """Ask a nsqd for its numbers."""
    host, _, port = address.rpartition(":")
    async with NsqdHttp(Node(host, 1, int(port)), timeout=10.0) as client:
        await _ask(lambda: client.stats(TOPIC), over)


async def message(address: str, over: asyncio.Event) -> None:
    """Ask a nsqd for a stored message."""
    host, _, port = address.rpartition(":")
    async with NsqdHttp(Node(host, 1, int(port)), timeout=10.0) as client:
        await _ask(lambda: client.message_get(TOPIC, 0, "count", 1), over)


CLIENTS: Final[dict[str, Client]] = {
    each.__name__: each
    for each in (
        consumer,
        quick_consumer,
        wide_consumer,
        deflate_consumer,
        snappy_consumer,
        producer,
        lookup,
        stats,
        message,
    )
}


async def main(kind: str, address: str) -> None:
    """Be flooded until the standard input ends."""
    over = asyncio.Event()
    running = asyncio.ensure_future(CLIENTS[kind](address, over))
    reading = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait({running, reading}, return_when=asyncio.FIRST_COMPLETED)
    _say(peak=_memory("VmHWM"))
    over.set()
    await running


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main(*sys.argv[1:]))
