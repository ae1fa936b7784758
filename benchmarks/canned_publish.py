"""The producer's whole path with 100 publishes in flight on canned answers, against a bare loop that does the least.

Needs no server: a process of ours plays an nsqd that answers each PUB with
``OK``. *Bare* has one future for each publish and one write for each iteration
of the event loop; *ours* is ``await producer.publish(...)`` with default
settings. Both run 100 tasks.

The figure is CPU per publish, ours over bare, in interleaved rounds, by the
median of the ratios. It is the guard against a slower publish path.
"""

import asyncio
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from benchmarks.canned import Outcome
from benchmarks.canned_cluster import Shape, playing
from benchmarks.canned_server import OK
from nsq_ha import Producer

IN_FLIGHT: Final = 100
MARK: Final = 2.25
_TOPIC: Final = "bench"


def ours(port: int, body_bytes: int, publishes: int) -> float:
    """Return CPU seconds per publish through the public API."""

    async def run() -> float:
        async with Producer(nsqd=f"127.0.0.1:{port}") as producer:
            body = b"x" * body_bytes
            await producer.publish(_TOPIC, body)
            return await _timed(lambda: producer.publish(_TOPIC, body), publishes)

    return asyncio.run(run())


def bare(port: int, body_bytes: int, publishes: int) -> float:
    """Return CPU seconds per publish of the least that a client can do."""

    async def run() -> float:
        loop = asyncio.get_running_loop()
        transport, client = await loop.create_connection(_Bare, "127.0.0.1", port)
        identify = b'{"feature_negotiation":false}'
        client.write(b"  V2IDENTIFY\n" + struct.pack(">i", len(identify)) + identify)
        await client.futures[-1]
        body = b"x" * body_bytes
        seconds = await _timed(lambda: client.publish(body), publishes)
        transport.close()
        return seconds

    return asyncio.run(run())


async def _timed(publish: Callable[[], Awaitable[object]], publishes: int) -> float:
    async def repeat() -> None:
        for _ in range(publishes // IN_FLIGHT):
            await publish()

    began = time.process_time()
    await asyncio.gather(*(repeat() for _ in range(IN_FLIGHT)))
    return (time.process_time() - began) / publishes


class _Bare(asyncio.Protocol):
    """Writes commands, and ends a future for each answer."""

    def __init__(self) -> None:
        self.futures: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._commands: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.WriteTransport):
            raise TypeError(transport)
        self._transport = transport

    def publish(self, body: bytes) -> asyncio.Future[None]:
        return self.write(b"PUB bench\n%b%b" % (struct.pack(">i", len(body)), body))

    def write(self, command: bytes) -> asyncio.Future[None]:
        future = self._loop.create_future()
        self.futures.append(future)
        if not self._commands:
            self._loop.call_soon(self._flush)
        self._commands.append(command)
        return future

    def _flush(self) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(self._commands))
        self._commands.clear()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        count, self._received = divmod(self._received, len(OK))
        for _ in range(count):
            self.futures.popleft().set_result(None)


def compare(body_bytes: int, publishes: int, rounds: int) -> Outcome:
    """Run both in turn ``rounds`` times after one round that does not count."""
    times: dict[Callable[[int, int, int], float], list[float]] = {ours: [], bare: []}
    with playing(Shape()) as cluster:
        port = int(cluster.nsqd.rpartition(":")[2])
        for number in range(rounds + 1):
            for client in (ours, bare) if number % 2 else (bare, ours):
                seconds = client(port, body_bytes, publishes)
                if number:
                    times[client].append(seconds)
    return Outcome(body_bytes, times[ours], times[bare])
