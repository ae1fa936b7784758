"""What only the HA server has: ``NSQ_HA_TEST_LOOKUPD=http://host:port python -m benchmarks.ha``.

*Ordered* consuming of one partition, against raw loops that do the same, one
message, one FIN, a round trip each: on asyncio, as ours, in the callback that
reads; and on a blocking socket. *Keyed* publishing
(1,000 keys, 100 in flight, 4 partitions) against unkeyed. Rounds are
interleaved; the figures are medians of the ratios within a round.
"""

import argparse
import asyncio
import os
import socket
import statistics
import struct
import time
from pathlib import Path
from typing import Final, Self, cast

from benchmarks.record import Record, load
from nsq_ha import Consumer, OutgoingMessage, Producer, PublishError
from nsq_ha.admin import AdminClient
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import SubOrdered
from nsq_ha.protocol.commands import Identify
from nsq_ha.protocol.encoding import MAGIC, NOP, encode_fin, encode_ready
from nsq_ha.protocol.frames import HEARTBEAT

LOOKUPD_VARIABLE: Final = "NSQ_HA_TEST_LOOKUPD"
SLICE: Final = 500
SLICES_A_ROUND: Final = 10
PUBLISHES: Final = 5_000
KEYS: Final = 1_000
IN_FLIGHT: Final = 100
_IDENTIFY: Final = b'{"feature_negotiation":true,"output_buffer_size":16384,"output_buffer_timeout":10}'


async def ordered(lookupd: str, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Return messages a second of our consumer and of the raw loops, asyncio's and the blocking one, round by round.

    All stay connected; in a round each takes ``SLICE`` messages in its turn, so that what else the machine does meets
    all alike.
    """
    topic = f"bench_ordered_{os.getpid()}"
    found: tuple[list[float], list[float], list[float]] = ([], [], [])
    async with AdminClient(lookupd) as admin:
        view = await admin.create_topic(topic, 1, 1, ordered=True)
        try:
            for channel in ("ours", "raw", "blocking"):
                await admin.create_channel(topic, channel)
            await _fill(lookupd, topic, (rounds + 2) * SLICE)
            async with Consumer(topic, "ours", lookupd=lookupd) as consumer:
                raw = await _Raw.connected(view.leaders[0], topic, "raw")
                blocking = await asyncio.to_thread(_Blocking, view.leaders[0], topic, "blocking")
                for number in range(rounds + 1):
                    rates = (await _ours(consumer), await raw.rate(), await asyncio.to_thread(blocking.rate))
                    if number:  # the first warms up
                        for one, rate in zip(found, rates, strict=True):
                            one.append(rate)
                raw.close()
                blocking.close()
        finally:
            await admin.delete_topic(topic)
    return found


async def _fill(lookupd: str, topic: str, count: int) -> None:
    async with Producer(lookupd=lookupd) as producer:
        messages = [OutgoingMessage(b"x" * 100, partition=0)] * count
        for outcome in await producer.publish_many(topic, messages):
            if isinstance(outcome, PublishError):
                raise outcome


async def _ours(consumer: Consumer) -> float:
    began = time.perf_counter()
    for _ in range(SLICE):
        message = await anext(consumer)
        message.finish()
    return SLICE / (time.perf_counter() - began)


class _Raw(asyncio.Protocol):
    """The least that an asyncio client can do: a FIN for each message, in the callback that reads."""

    def __init__(self, topic: str, channel: str) -> None:
        self._subscribe = SubOrdered(topic, channel, 0).encode() + encode_ready(1)
        self._left = 0
        self._tail = b""
        self._next = b""
        self._here = asyncio.Event()
        self._ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connected(cls, node: Node, topic: str, channel: str) -> Self:
        """Connect; the first message comes when it comes."""
        loop = asyncio.get_running_loop()
        _, raw = await loop.create_connection(lambda: cls(topic, channel), node.host, node.tcp_port)
        return raw

    async def rate(self) -> float:
        """Take ``SLICE`` messages, beginning with the one that lies here."""
        await self._here.wait()
        self._here.clear()
        self._ended.clear()
        self._left = SLICE
        began = time.perf_counter()
        self._take(self._next)
        await self._ended.wait()
        return SLICE / (time.perf_counter() - began)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

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
        if kind == 2:
            self._take(data[10:26])
        elif self._transport is None:
            return
        elif data.startswith(b"{"):
            self._transport.write(self._subscribe)
        elif data == HEARTBEAT:
            self._transport.write(NOP)

    def _take(self, message_id: bytes) -> None:
        if self._left and self._transport is not None:
            self._transport.write(encode_fin(message_id))
            self._left -= 1
            if not self._left:
                self._ended.set()
        else:
            self._next = message_id
            self._here.set()


class _Blocking:
    """The same on a blocking socket."""

    def __init__(self, node: Node, topic: str, channel: str) -> None:
        self._socket = socket.create_connection((node.host, node.tcp_port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb", buffering=65536)
        self._socket.sendall(MAGIC + Identify(_IDENTIFY).encode())
        self._frame()
        self._socket.sendall(SubOrdered(topic, channel, 0).encode())
        self._frame()
        self._socket.sendall(encode_ready(1))

    def _frame(self) -> bytes:
        while True:
            (size,) = struct.unpack(">i", self._stream.read(4))
            data = bytes(self._stream.read(size)[4:])
            if data != HEARTBEAT:
                return data
            self._socket.sendall(NOP)

    def rate(self) -> float:
        """Take ``SLICE`` messages."""
        began = time.perf_counter()
        for _ in range(SLICE):
            self._socket.sendall(encode_fin(self._frame()[10:26]))
        return SLICE / (time.perf_counter() - began)

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()


async def keyed(lookupd: str, rounds: int) -> tuple[list[float], list[float]]:
    """Return publishes a second with keys and without, round by round."""
    topic = f"bench_keyed_{os.getpid()}"
    found: tuple[list[float], list[float]] = ([], [])
    async with AdminClient(lookupd) as admin:
        await admin.create_topic(topic, 4, 1)
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
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    chosen = parser.parse_args(arguments)
    rounds, before = chosen.rounds, load()
    lookupd = os.environ.get(LOOKUPD_VARIABLE)
    if not lookupd:
        print(f"ordered, keyed: skipped, {LOOKUPD_VARIABLE} names no cluster")
        return
    ours, raw, blocking = asyncio.run(ordered(lookupd, SLICES_A_ROUND * rounds))
    rows = {
        "ordered consume against a raw loop on asyncio": (ours, raw, 0.8),
        "ordered consume against a raw loop on a blocking socket": (ours, blocking, 0.8),
        "keyed publish against unkeyed": (*asyncio.run(keyed(lookupd, rounds)), 0.7),
    }
    for name, figures in rows.items():
        print(report(name, *figures))
    Record(chosen.json).keep("ha", rows, before)


if __name__ == "__main__":
    main()
