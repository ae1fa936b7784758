"""What only the HA server has: ``NSQ_HA_TEST_LOOKUPD=http://host:port python -m benchmarks.ha``.

*Ordered* consuming of one partition, against raw loops that do the same, one
message, one FIN, a round trip each: on asyncio, as ours, in the callback that
reads; and on a blocking socket. *Keyed* publishing
(1,000 keys, 100 in flight, 4 partitions) against unkeyed. Rounds are
interleaved; the figures are medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import struct
import time
from typing import TYPE_CHECKING, Final, cast

from nsq_ha import Consumer, OutgoingMessage, Producer, PublishError
from nsq_ha.discovery.admin import AdminClient
from nsq_ha.policy.lane import Entry, Lane
from nsq_ha.protocol import HEARTBEAT, MAGIC, NOP, Identify, SubOrdered, encode_fin, encode_ready

if TYPE_CHECKING:
    from nsq_ha.policy.topology import Node

LOOKUPD_VARIABLE: Final = "NSQ_HA_TEST_LOOKUPD"
ORDERED: Final = 2_000
PUBLISHES: Final = 5_000
KEYS: Final = 1_000
IN_FLIGHT: Final = 100
_IDENTIFY: Final = b'{"feature_negotiation":true,"output_buffer_size":16384,"output_buffer_timeout":25}'


async def ordered(lookupd: str, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Return messages a second of our consumer and of the raw loops, asyncio's and the blocking one, round by round."""
    topic = f"bench_ordered_{os.getpid()}"
    found: tuple[list[float], list[float], list[float]] = ([], [], [])
    async with AdminClient(lookupd) as admin:
        view = await admin.create_topic(topic, 1, ordered=True)
        try:
            for number in range(3 * rounds):
                await admin.create_channel(topic, f"c{number}")
            await _fill(lookupd, topic)
            node = view.leaders[0]
            for number in range(0, 3 * rounds, 3):
                found[0].append(await _ours(lookupd, topic, f"c{number}"))
                found[1].append(await _raw_asyncio(node, topic, f"c{number + 1}"))
                found[2].append(await asyncio.to_thread(_raw_blocking, node, topic, f"c{number + 2}"))
        finally:
            await admin.delete_topic(topic)
    return found


async def _fill(lookupd: str, topic: str) -> None:
    async with Producer(lookupd=lookupd) as producer:
        messages = [OutgoingMessage(b"x" * 100, partition=0)] * ORDERED
        for outcome in await producer.publish_many(topic, messages):
            if isinstance(outcome, PublishError):
                raise outcome


async def _ours(lookupd: str, topic: str, channel: str) -> float:
    async with Consumer(topic, channel, lookupd=lookupd) as consumer:
        message = await anext(consumer)
        message.finish()
        began = time.perf_counter()
        for _ in range(ORDERED - 1):
            message = await anext(consumer)
            message.finish()
        return (ORDERED - 1) / (time.perf_counter() - began)


class _Raw(asyncio.Protocol):
    """The least that an asyncio client can do: a FIN for each message, in the callback that reads."""

    def __init__(self, topic: str, channel: str) -> None:
        self.ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._subscribe = SubOrdered(topic, channel, 0).encode() + encode_ready(1)
        self._left = ORDERED
        self._tail = b""
        self._began = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce ourselves."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(MAGIC + Identify(_IDENTIFY).encode())

    def data_received(self, data: bytes) -> None:
        """Answer all frames."""
        data = self._tail + data
        while len(data) >= 8:
            size, kind = struct.unpack_from(">ii", data)
            if len(data) < 4 + size:
                break
            self._frame(kind, data[8 : 4 + size])
            data = data[4 + size :]
        self._tail = data

    def _frame(self, kind: int, data: bytes) -> None:
        if self._transport is None:
            return
        if data.startswith(b"{"):
            self._transport.write(self._subscribe)
        elif kind == 2:
            self._transport.write(encode_fin(data[10:26]))
            self._left -= 1
            if self._left == ORDERED - 1:
                self._began = time.perf_counter()
            if not self._left:
                self.ended.set_result((ORDERED - 1) / (time.perf_counter() - self._began))
        elif data == HEARTBEAT:
            self._transport.write(NOP)


async def _raw_asyncio(node: Node, topic: str, channel: str) -> float:
    loop = asyncio.get_running_loop()
    transport, raw = await loop.create_connection(lambda: _Raw(topic, channel), node.host, node.tcp_port)
    rate = await raw.ended
    transport.close()
    return rate


def _raw_blocking(node: Node, topic: str, channel: str) -> float:
    with socket.create_connection((node.host, node.tcp_port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(MAGIC + Identify(_IDENTIFY).encode())
        stream = connection.makefile("rb", buffering=65536)

        def frame() -> bytes:
            (size,) = struct.unpack(">i", stream.read(4))
            return bytes(stream.read(size)[4:])

        frame()
        connection.sendall(SubOrdered(topic, channel, 0).encode())
        frame()
        connection.sendall(encode_ready(1))
        began = 0.0
        for number in range(ORDERED):
            while (data := frame()) == HEARTBEAT:
                connection.sendall(NOP)
            connection.sendall(encode_fin(data[10:26]))
            if number == 0:
                began = time.perf_counter()
        return (ORDERED - 1) / (time.perf_counter() - began)


async def keyed(lookupd: str, rounds: int) -> tuple[list[float], list[float]]:
    """Return publishes a second with keys and without, round by round."""
    topic = f"bench_keyed_{os.getpid()}"
    found: tuple[list[float], list[float]] = ([], [])
    async with AdminClient(lookupd) as admin:
        await admin.create_topic(topic, 4)
        try:
            async with Producer(lookupd=lookupd) as producer:
                for number in range(8):
                    await producer.publish(topic, b"x", partition=number % 4)
                for _ in range(rounds):
                    found[0].append(await _publish(producer, topic, with_keys=True))
                    found[1].append(await _publish(producer, topic, with_keys=False))
        finally:
            await admin.delete_topic(topic)
    return found


async def _publish(producer: Producer, topic: str, *, with_keys: bool) -> float:
    left = iter(range(PUBLISHES))
    body = b"x" * 100

    async def worker() -> None:
        for number in left:
            await producer.publish(topic, body, key=f"key-{number % KEYS}" if with_keys else None)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return PUBLISHES / (time.perf_counter() - began)


def lane(*, with_keys: bool) -> float:
    """Return seconds that a bare lane takes for one publish, with the same keys and window."""
    queue: Lane[int] = Lane()
    began = time.process_time()
    for start in range(0, 100_000, IN_FLIGHT):
        for number in range(start, start + IN_FLIGHT):
            queue.submit(Entry(number, (number % KEYS,) if with_keys else ()))
        for _ in queue.take(0.0, IN_FLIGHT):
            queue.answered()
    return (time.process_time() - began) / 100_000


def report(name: str, ours: list[float], other: list[float], mark: float) -> str:
    """Return the row as text."""
    found = [a / b for a, b in zip(ours, other, strict=True)]
    ratio = statistics.median(found)
    return (
        f"{name}: {statistics.median(ours):,.0f}/s against {statistics.median(other):,.0f}/s, ratio {ratio:.2f} "
        f"({min(found):.2f}..{max(found):.2f}), mark >= {mark:g}: {'reached' if ratio >= mark else 'NOT reached'}"
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ha", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(arguments).rounds
    plain, with_keys = (min(lane(with_keys=keys) for _ in range(5)) for keys in (False, True))
    print(f"bare lane: {plain * 1e6:.2f} us a publish without keys, {with_keys * 1e6:.2f} us with")
    lookupd = os.environ.get(LOOKUPD_VARIABLE)
    if not lookupd:
        print(f"ordered, keyed: skipped, {LOOKUPD_VARIABLE} names no cluster")
        return
    ours, raw, blocking = asyncio.run(ordered(lookupd, rounds))
    print(report("ordered consume against a raw loop on asyncio", ours, raw, 0.8))
    print(report("ordered consume against a raw loop on a blocking socket", ours, blocking, 0.8))
    print(report("keyed publish against unkeyed", *asyncio.run(keyed(lookupd, rounds)), 0.7))


if __name__ == "__main__":
    main()
