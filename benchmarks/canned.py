"""The consumer's whole path over canned frames, against a bare loop that does the least.

Needs no server: a process of ours plays an nsqd. *Bare* reads, unpacks each
head, cuts out body and id, builds the FIN and writes the FINs of a read
together; *ours* is the public API with default settings: connection,
protocol, messages, queue, ``async for``, ``message.finish()``.

The figure is CPU per message, ours over bare, in interleaved rounds, by the
median of the ratios. It is the guard against a slower consumer path; the mark
is 1.5.
"""

import asyncio
import socket
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.canned_server import HEAD, OK, allow_floods, serving
from nsq_ha import Consumer

READ_BYTES: Final = 256 * 1024
MARK: Final = 1.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """CPU seconds per message, one entry a round.

    Attributes:
        body_bytes: Size of each body.
        ours: Of the public API.
        bare: Of the bare loop.
    """

    body_bytes: int
    ours: Sequence[float]
    bare: Sequence[float]

    @property
    def ratio(self) -> float:
        """Median of ours over bare, round by round."""
        return statistics.median(a / b for a, b in zip(self.ours, self.bare, strict=True))


def bare(port: int, messages: int) -> None:
    """Do the least that a client can do to take ``messages`` messages and finish them."""
    identify = b'{"feature_negotiation":false}'
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"  V2IDENTIFY\n" + struct.pack(">i", len(identify)) + identify)
        connection.sendall(b"SUB bench bench\nRDY 200\n")
        greeting = b""
        while len(greeting) < 2 * len(OK):
            greeting += connection.recv(2 * len(OK) - len(greeting))
        _drain(connection, messages)


def _drain(connection: socket.socket, messages: int) -> None:
    unpack = HEAD.unpack_from
    tail = b""
    count = 0
    while count < messages:
        read = connection.recv(READ_BYTES)
        data = tail + read if tail else read
        position, end = 0, len(data)
        bodies: list[bytes] = []
        finishes: list[bytes] = []
        while end - position >= HEAD.size:
            size, _, _, _, message_id = unpack(data, position)
            stop = position + 4 + size
            if stop > end:
                break
            bodies.append(data[position + HEAD.size : stop])
            finishes.append(b"FIN %b\n" % message_id)
            position = stop
        tail = data[position:]
        count += len(bodies)
        connection.sendall(b"".join(finishes))


def ours(port: int, messages: int) -> None:
    """Take and finish ``messages`` messages by the public API."""

    async def drain() -> None:
        async with Consumer("bench", "bench", nsqd=f"127.0.0.1:{port}") as consumer:
            count = 0
            async for message in consumer:
                message.finish()
                count += 1
                if count == messages:
                    return

    allow_floods()
    asyncio.run(drain())


def compare(body_bytes: int, messages: int, rounds: int) -> Outcome:
    """Run both in turn ``rounds`` times after one round that does not count."""
    times: dict[Callable[[int, int], None], list[float]] = {ours: [], bare: []}
    with serving(messages, body_bytes) as (port,):
        for number in range(rounds + 1):
            for client in (ours, bare) if number % 2 else (bare, ours):
                began = time.process_time()
                client(port, messages)
                if number:
                    times[client].append((time.process_time() - began) / messages)
    return Outcome(body_bytes, times[ours], times[bare])


def report(outcomes: Sequence[Outcome], mark: float = MARK) -> str:
    """Return the table as text."""
    lines = ["body     bare us  ours us  ours/bare  mark"]
    for outcome in outcomes:
        bare_us, ours_us = (statistics.median(times) * 1e6 for times in (outcome.bare, outcome.ours))
        lines.append(f"{outcome.body_bytes:>6}  {bare_us:8.2f} {ours_us:8.2f}  {outcome.ratio:9.2f}  {mark}")
    return "\n".join(lines)
