"""``python -m integration.floods.heavy [NAME ...]``: measure what hostile peers cost a client.

The client runs in a process of its own (``integration.floods.client``), the peers run here, on the loopback. A peer
that breaks the rules must cost at most 64 MiB above idle, and its connection must be closed within 2 s. A peer within
its rights costs what an option allows. Each flood ends after 512 MiB or 6 s (one of them 30 s). The peak comes
from ``/proc``, so this needs Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import Final

from nsq_ha import Compression
from nsq_ha.protocol import Command, Finish, Identity, Layout
from nsq_ha.protocol.commands import Identify
from nsq_ha.protocol.compression import SnappyCodec
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.server.answers import encode_identity
from tests.engine.lookups.loopback import Fake, http_answer
from tests.support.nsqd import OK, FakeNsqd, Peer, Script, message_data, message_id, response

MEBI: Final = 1024 * 1024
MOST_BYTES: Final = 512 * MEBI
MOST_SECONDS: Final = 6.0
GOAL_BYTES: Final = 64 * MEBI
GOAL_SECONDS: Final = 2.0

Play = Callable[["Nsqd"], Awaitable[None]]


@dataclasses.dataclass
class Row:
    """What one flood cost.

    Attributes:
        above_idle: Bytes of the client's peak above what it had before.
        sent: Bytes that the peer sent.
        closed_after: Seconds from the first byte of the flood. None if the connection was still open at the end.
        has_died: Whether the client failed or had to be killed.
    """

    above_idle: int = 0
    sent: int = 0
    closed_after: float | None = None
    has_died: bool = False


class Nsqd:
    """A hostile nsqd and the connection that it floods."""

    def __init__(self, fake: FakeNsqd, peer: Peer, seconds: float) -> None:
        """Flood ``peer`` for so many seconds at most."""
        self.fake = fake
        self.peer = peer
        self.seconds = seconds
        self.row = Row()
        self._began: float | None = None

    async def pour(self, chunks: Callable[[int], bytes]) -> None:
        """Write chunks, made of their number, until the connection ends or it is enough."""
        self.begin()
        number = 0
        while not self.is_over:
            chunk = chunks(number)
            number += 1
            self.peer.write(chunk)
            self.row.sent += len(chunk)
            try:
                async with asyncio.timeout(0.1):
                    await self.peer.drain()
            except TimeoutError:
                continue
            except ConnectionError:
                break

    def begin(self) -> None:
        """The flood begins now."""
        self._began = time.monotonic()

    @property
    def is_over(self) -> bool:
        """The connection has ended, or it is enough."""
        began = self._began or time.monotonic()
        return self.peer.has_gone or self.row.sent > MOST_BYTES or time.monotonic() - began > self.seconds

    async def until_closed(self) -> None:
        """Wait for the end of the connection, and take its time."""
        began = self._began or time.monotonic()
        while time.monotonic() - began < self.seconds:
            if self.peer.has_gone:
                self.row.closed_after = time.monotonic() - began
                return
            await asyncio.sleep(0.01)


def frames(first: int, count: int, body: bytes) -> bytes:
    """Return message frames of a nsqd without partitions."""
    return b"".join(
        encode_frame(FrameType.MESSAGE, message_data(body, message_id(first + number), layout=Layout.PLAIN))
        for number in range(count)
    )


def messages(body_bytes: int) -> Play:
    """Deliver without regard to RDY."""
    body, count = b"\x07" * body_bytes, max(1, 100_000 // body_bytes)

    async def play(nsqd: Nsqd) -> None:
        await nsqd.pour(lambda number: frames(2 + count * number, count, body))

    return play


async def behave_until_ready(nsqd: Nsqd, ready: int) -> None:
    """Deliver small messages, one after the other, until RDY has risen to ``ready``."""
    peer, number = nsqd.peer, 0
    while peer.ready < ready and not peer.has_gone:
        number += 1
        peer.write(frames(10**9 + number, 1, b"small"))
        await nsqd.fake.until(lambda: len(peer.of(Finish)) >= number)  # noqa: B023 - awaited here


def messages_when_ready(ready: int, body_bytes: int) -> Play:
    """Behave until RDY has risen to ``ready``, then deliver large bodies without regard to RDY."""
    pouring = messages(body_bytes)

    async def play(nsqd: Nsqd) -> None:
        await behave_until_ready(nsqd, ready)
        await pouring(nsqd)

    return play


async def never_reads(nsqd: Nsqd) -> None:
    """Deliver as fast as small messages are finished, so within RDY, and read none of the answers."""
    await behave_until_ready(nsqd, 200)
    nsqd.peer.pause()
    nsqd.begin()
    number = 0
    while not nsqd.is_over:
        chunk = frames(2 + 100 * number, 100, b"x")
        number += 1
        nsqd.peer.write(chunk)
        nsqd.row.sent += len(chunk)
        await asyncio.sleep(0.002)


async def never_reads_publishes(nsqd: Nsqd) -> None:
    """Read nothing, and write heartbeats alone."""
    nsqd.peer.pause()
    nsqd.begin()


def packed(codec: Compression, data: bytes) -> bytes:
    """Return data compressed so that it may be repeated in a stream."""
    if codec is Compression.SNAPPY:
        return SnappyCodec().compress(data).removeprefix(_SNAPPY_BEGIN)
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(data) + deflate.flush(zlib.Z_FULL_FLUSH)


def bomb(codec: Compression) -> Play:
    """Deliver what expands a thousandfold (deflate) or twentyfold (snappy)."""
    chunk = packed(codec, frames(2, 8, bytes(100_000)))

    async def play(nsqd: Nsqd) -> None:
        await nsqd.pour(lambda _: chunk)

    return play


def answers_identify(codec: Compression) -> Script:
    """Return a script that agrees on compression and answers what follows without reading it."""
    identity = Identity(snappy=codec is Compression.SNAPPY, deflate=codec is Compression.DEFLATE)
    begin = _SNAPPY_BEGIN if codec is Compression.SNAPPY else b""

    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Identify):
            peer.nsqd.is_silent = True  # what it reads from now on is compressed
            peer.write(response(encode_identity(identity)))
            peer.write(begin + packed(codec, OK))
            asyncio.get_running_loop().call_later(0.3, peer.write, packed(codec, OK))  # to SUB, sent meanwhile
        return True

    return script


def frame_of(size: int) -> Play:
    """Announce a frame of ``size`` bytes and send as many."""
    head = size.to_bytes(4, "big") + FrameType.MESSAGE.value.to_bytes(4, "big")

    async def play(nsqd: Nsqd) -> None:
        await nsqd.pour(lambda number: head if number == 0 else bytes(100_000) if number * 100_000 < size else b"")

    return play


@dataclasses.dataclass(frozen=True)
class Flood:
    """One flood.

    Attributes:
        name: Its name in the table.
        client: The function of ``integration.floods.client`` that is flooded.
        play: What the peer does. None for a server of HTTP.
        allowed: Bytes above idle that are right.
        closes: The connection must be closed within 2 s.
        seconds: How long it lasts at most.
        bound: What bounds the cost of a peer within its rights.
        codec: Compression that the peer agrees to.
        answer: What a server of HTTP answers each question with, and its status.
    """

    name: str
    client: str
    play: Play | None = None
    allowed: int = GOAL_BYTES
    closes: bool = True
    seconds: float = MOST_SECONDS
    bound: str = ""
    codec: Compression = Compression.NONE
    answer: tuple[bytes, int] = (b"", 200)


_SNAPPY_BEGIN: Final = b"\xff\x06\x00\x00sNaPpY"
_BODY: Final = 1_000_000
_EIGHT: Final = 8 * MEBI
_LONG: Final = (b" " * (_EIGHT + 1), 200)
_SHAPE: Final = (b"[" + b"1," * (_EIGHT // 2 - 2) + b"1]", 200)
_TEXT: Final = (b"x" * _EIGHT, 500)
_BUDGET: Final = 272 * MEBI

FLOODS: Final = (
    Flood("ignores RDY, 100 B", "consumer", messages(100)),
    Flood("ignores RDY, 100 KB", "consumer", messages(100_000)),
    Flood("ignores RDY, 1 MB", "consumer", messages(_BODY)),
    Flood(
        "RDY 200 on small ones, then 1 MB",
        "consumer",
        messages_when_ready(200, _BODY),
        allowed=_BUDGET + GOAL_BYTES,
        closes=False,  # it is, but most of it is within its rights, and takes as long as the machine needs
        bound="max_in_flight_bytes",
    ),
    Flood(
        "RDY 2500 on small ones, then 1 MB",
        "wide_consumer",
        messages_when_ready(2500, _BODY),
        allowed=_BUDGET + GOAL_BYTES,
        closes=False,  # it is, but most of it is within its rights, and takes as long as the machine needs
        bound="max_in_flight_bytes",
    ),
    Flood("deflate bomb", "deflate_consumer", bomb(Compression.DEFLATE), codec=Compression.DEFLATE),
    Flood("snappy bomb", "snappy_consumer", bomb(Compression.SNAPPY), codec=Compression.SNAPPY),
    Flood("never reads FIN", "quick_consumer", never_reads, closes=False, seconds=30.0),
    Flood(
        "never reads PUB of 1 MB",
        "producer",
        never_reads_publishes,
        allowed=2 * GOAL_BYTES,
        closes=False,
        bound="the number of calls",
    ),
    Flood("frame of 2 GB", "consumer", frame_of(2**31 - 1)),
    Flood(
        "frame of 15 MB that never ends", "consumer", frame_of(15 * 1000 * 1000), closes=False, bound="max_frame_bytes"
    ),
    *(
        Flood(f"{client}: {name}", client, answer=answer, closes=False)
        for client in ("lookup", "stats", "message")
        for name, answer in (("8 MB and more", _LONG), ("8 MB of another shape", _SHAPE), ("refusal of 8 MB", _TEXT))
    ),
)


class Child:
    """The client's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Talk to ``process``."""
        self._process = process

    async def figure(self, name: str) -> int:
        """Return a figure that it reports."""
        stdout = self._process.stdout
        assert stdout is not None
        async with asyncio.timeout(60.0):
            while line := await stdout.readline():
                said = json.loads(line)
                if name in said:
                    return int(said[name])
        raise EOFError(f"the client ended without saying {name}")

    async def peak(self) -> int:
        """Tell it that the flood is over, and return what it cost."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self.figure("peak")

    async def has_died(self) -> bool:
        """Wait until it has closed; tell whether it failed, or has not ended."""
        try:
            async with asyncio.timeout(60.0):
                return await self._process.wait() != 0
        except TimeoutError:
            return True

    async def end(self) -> None:
        """End it."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def _start(client: str, address: str) -> Child:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "integration.floods.client", client, address)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    return Child(process)


async def _flood_nsqd(flood: Flood, play: Play) -> Row:
    async with FakeNsqd() as fake:
        if flood.codec is not Compression.NONE:
            fake.script = answers_identify(flood.codec)
        child = await _start(flood.client, f"127.0.0.1:{fake.port}")
        try:
            idle = await child.figure("idle")
            has_rdy = "consumer" in flood.client and flood.codec is Compression.NONE
            nsqd = Nsqd(fake, await fake.subscriber() if has_rdy else fake.peers[-1], flood.seconds)
            await play(nsqd)
            await nsqd.until_closed()
            nsqd.row.above_idle = await child.peak() - idle
            nsqd.row.has_died = await child.has_died()
        finally:
            await child.end()
        return nsqd.row


async def _flood_http(flood: Flood) -> Row:
    fake = await Fake().start()
    content, status = flood.answer

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(http_answer(content, status))
        await writer.drain()

    fake.behave = answer
    child = await _start(flood.client, fake.url.removeprefix("http://"))
    try:
        idle = await child.figure("idle")
        errors = await child.figure("errors")
        return Row(await child.peak() - idle, errors * len(content), has_died=await child.has_died())
    finally:
        await child.end()
        await fake.stop()


def line_of(flood: Flood, row: Row) -> tuple[str, bool]:
    """Return a line of the table, and whether the flood cost no more than it may."""
    closed = "" if row.closed_after is None else f"{row.closed_after:.2f}"
    is_late = flood.closes and (row.closed_after is None or row.closed_after > GOAL_SECONDS)
    verdict = "COSTS TOO MUCH" if row.above_idle > flood.allowed else "OPEN TOO LONG" if is_late else "ok"
    verdict = "DIED" if row.has_died else verdict
    bound = f" (within {flood.bound})" if flood.bound else ""
    figures = f"{row.above_idle / MEBI:9.1f} {row.sent / MEBI:9.1f} {closed:>9}"
    return f"{flood.name:36} {figures}  {verdict}{bound}", verdict == "ok"


async def main(names: list[str]) -> bool:
    """Run the floods whose names contain one of ``names``, all without any; tell whether all went well."""
    is_good = True
    sys.stdout.write(f"{'flood':36} {'MiB above':>9} {'MiB sent':>9} {'closed s':>9}\n")
    for flood in FLOODS:
        if names and not any(name in flood.name for name in names):
            continue
        row = await (_flood_http(flood) if flood.play is None else _flood_nsqd(flood, flood.play))
        line, is_right = line_of(flood, row)
        is_good = is_good and is_right
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return is_good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m integration.floods.heavy", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of floods; all without any")
    sys.exit(0 if asyncio.run(main(parser.parse_args().names)) else 1)
