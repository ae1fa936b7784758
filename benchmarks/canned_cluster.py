"""A process that plays a partitioned cluster of any size: one nsqlookupd, and one port that leads each partition.

It stores nothing. A publish is answered by ``OK``; a subscription gets its share of the messages after its first RDY.
"""

import asyncio
import json
import multiprocessing
import multiprocessing.connection
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from benchmarks.canned_server import CLOSE_WAIT, IDENTITY, OK, frames
from benchmarks.descriptors import allow_descriptors
from benchmarks.processes import serving_process
from nsq_ha.protocol.frames import HEARTBEAT

_WITH_BODY: Final = (b"PUB", b"MPUB", b"IDENTIFY", b"AUTH")
_HEARTBEAT: Final = b"\x00\x00\x00\x0f\x00\x00\x00\x00" + HEARTBEAT
_HEARTBEAT_INTERVAL: Final = re.compile(rb'"heartbeat_interval": ?(\d+)')
_FIN: Final = 4 + 16 + 1
"""An id may have any bytes, also that of a line's end."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that runs.

    Attributes:
        lookupd: Its nsqlookupd.
        nsqd: Its one port.
    """

    lookupd: str
    nsqd: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What each topic is like.

    Attributes:
        partitions: Of each topic.
        messages: What each subscription gets.
        body_bytes: Of each of these.
    """

    partitions: int = 1
    messages: int = 0
    body_bytes: int = 100


@contextmanager
def playing(shape: Shape) -> Iterator[Cluster]:
    """Play the cluster on the loopback, in a process of its own."""
    with serving_process(_play, shape) as (lookupd, nsqd):
        yield Cluster(f"http://127.0.0.1:{lookupd}", f"127.0.0.1:{nsqd}")


def _play(pipe: multiprocessing.connection.Connection, shape: Shape) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        block = frames(shape.messages, shape.body_bytes)
        nsqd = await loop.create_server(lambda: _Nsqd(block, shape.messages), "127.0.0.1", 0, backlog=4096)
        port = nsqd.sockets[0].getsockname()[1]
        answers = _answers(shape.partitions, port)
        lookupd = await loop.create_server(lambda: _Lookupd(answers), "127.0.0.1", 0, backlog=4096)
        pipe.send((lookupd.sockets[0].getsockname()[1], port))
        await asyncio.Event().wait()

    allow_descriptors()
    asyncio.run(serve())


def _answers(partitions: int, port: int) -> tuple[bytes, bytes]:
    """Return the answers to a lookup, and to the question for all nsqlookupds."""
    node = {
        "id": f"127.0.0.1:{port}",
        "remote_address": f"127.0.0.1:{port}",
        "hostname": "canned",
        "broadcast_address": "127.0.0.1",
        "tcp_port": port,
        "http_port": port,
        "version": "0.3.7-HA.1.13.0",
        "distributed_id": f"127.0.0.1:{port}:{port}:1",
    }
    meta = {
        "disable_channel_auto_create": False,
        "extend_support": False,
        "multi_part": True,
        "ordered": False,
        "partition_num": partitions,
        "replica": 1,
    }
    leaders = {str(number): node for number in range(partitions)}
    found = {"channels": ["bench"], "meta": meta, "partitions": leaders, "producers": [node]}
    return _http(found), _http({"lookupdleader": None, "lookupdnodes": []})


def _http(content: object) -> bytes:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 200 OK\r\nX-NSQ-Content-Type: nsq; version=1.0\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Peer(asyncio.Protocol):
    def __init__(self) -> None:
        self._data = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.WriteTransport):
            raise TypeError(transport)
        self._transport = transport

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)


class _Lookupd(_Peer):
    """Answers each request of one connection."""

    def __init__(self, answers: tuple[bytes, bytes]) -> None:
        super().__init__()
        self._answers = answers

    def data_received(self, data: bytes) -> None:
        self._data += data
        *requests, rest = bytes(self._data).split(b"\r\n\r\n")
        self._data[:] = rest
        for request in requests:
            self._write(self._answers[request.startswith(b"GET /listlookup")])


class _Nsqd(_Peer):
    """Answers each command of one connection, and sends as many messages as RDY allows."""

    def __init__(self, block: bytes, messages: int) -> None:
        super().__init__()
        self._block = memoryview(block)
        self._frame = len(block) // messages if messages else 0
        self._left = messages
        self._ready = self._in_flight = 0
        self._needed = 0
        self._interval = 0.0

    def _beat_later(self) -> None:
        asyncio.get_running_loop().call_later(self._interval, self._beat)

    def _beat(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._write(_HEARTBEAT)
            self._beat_later()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) < self._needed:
            return
        self._needed = 0
        answers, start, whole = bytearray(), 0, bytes(self._data)
        if whole.startswith(b"  V2"):
            start = 4
        while True:
            if whole.startswith(b"FIN ", start):
                if len(whole) < start + _FIN:
                    break
                self._in_flight -= 1
                start += _FIN
                continue
            end = whole.find(b"\n", start)
            if end < 0:
                break
            word, _, rest = whole[start:end].partition(b" ")
            body, after = end + 5, end + 1
            if word in _WITH_BODY:
                after += 4 + int.from_bytes(whole[after : after + 4])
                if len(whole) < end + 5 or len(whole) < after:
                    self._needed = after - start
                    break
            if word == b"IDENTIFY" and (asked := _HEARTBEAT_INTERVAL.search(whole[body:after])):
                self._interval = int(asked[1]) / 1000
                self._beat_later()
            answers += self._answer(word, rest)
            start = after
        del self._data[:start]
        self._write(bytes(answers) + self._due())

    def _answer(self, word: bytes, rest: bytes) -> bytes:
        if word == b"RDY":
            self._ready = int(rest)
        elif word == b"CLS":
            return CLOSE_WAIT
        if word == b"IDENTIFY":
            return IDENTITY
        return OK if word in _WITH_BODY or word.startswith(b"SUB") else b""

    def _due(self) -> bytes:
        """Return the messages that may be sent now."""
        count = max(0, min(self._left, self._ready - self._in_flight))
        at = len(self._block) - self._left * self._frame
        self._left -= count
        self._in_flight += count
        return bytes(self._block[at : at + count * self._frame])
