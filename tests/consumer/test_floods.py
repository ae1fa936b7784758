"""Peers that send or withhold without limit: their cost is bounded, and their connections are closed."""

import asyncio
import gc
import re
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator

import pytest

from nsq_ha import Compression
from nsq_ha.consumer import machine
from nsq_ha.engine.tcp import MAX_UNREAD_BYTES
from nsq_ha.errors import ConnectionLostError
from nsq_ha.protocol import Command, Finish, Identity, Ready
from nsq_ha.protocol.commands import Identify
from nsq_ha.protocol.compression import SnappyCodec
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.server.answers import encode_identity
from tests.support.nsqd import LIMIT, OK, Peer, message_data, message_id, response
from tests.support.recorder import subscribed
from tests.support.stage import Stage
from tests.support.waiting import eventually

MEBI = 1024 * 1024
BODY = b"\x07" * 100_000


@pytest.fixture
def memory() -> Iterator[None]:
    gc.collect()
    tracemalloc.start(1)
    yield
    tracemalloc.stop()


def frames(first: int, count: int, body: bytes = BODY) -> bytes:
    return b"".join(
        encode_frame(FrameType.MESSAGE, message_data(body, message_id(first + number))) for number in range(count)
    )


class Flood:
    """A script of an nsqd that delivers without end once it was given an RDY."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self.chunks = chunks
        self.task: asyncio.Task[None] | None = None
        self.sent = 0
        self.flooded: list[Peer] = []

    def __call__(self, peer: Peer, command: Command) -> None:
        if isinstance(command, Ready) and command.count and self.task is None:
            self.flooded.append(peer)
            self.task = asyncio.create_task(self._pour(peer))

    async def _pour(self, peer: Peer) -> None:
        async for chunk in self.chunks:
            if not peer.is_open:
                return
            peer.write(chunk)
            self.sent += len(chunk)
            try:
                await peer.drain()
            except ConnectionError:
                return


async def messages(body: bytes) -> AsyncIterator[bytes]:
    for number in range(100_000):
        yield frames(2 + 8 * number, 8, body)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.usefixtures("memory")
async def test_a_server_that_ignores_rdy_is_left_and_costs_little(
    stage: Stage, caplog: pytest.LogCaptureFixture, *, ordered: bool
) -> None:
    stage.lead({0: stage.nsqd}, ordered=ordered)
    stage.nsqd.script = flood = Flood(messages(BODY))
    async with stage.consumer() as consumer:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        await eventually(lambda: flood.flooded)
        flooded = flood.flooded[0]
        await stage.nsqd.until(lambda: not flooded.is_open)
        assert flood.task is not None
        await flood.task
        peak = tracemalloc.get_traced_memory()[1] - before
        allowed = (1 + 16 if ordered else 250) * len(BODY)
        assert peak < allowed + 16 * MEBI, peak / MEBI
        # It comes back, and reads on.
        peer = await stage.nsqd.subscriber(1)
        peer.message(b"good", message_id(7))
        async with asyncio.timeout(LIMIT):
            message = await anext(consumer)
        assert message.body == b"good"
        message.finish()
    assert "ignores RDY" in caplog.text


@pytest.mark.usefixtures("any_may_wait")
async def test_large_bodies_beyond_a_lowered_rdy_are_weighed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """RDY was high for small messages and is lowered when a large one comes: a flood within the old RDY is one, too."""
    monkeypatch.setattr(machine, "MARGIN_BYTES", MEBI)
    async with stage.consumer(max_in_flight=1000, max_in_flight_bytes=MEBI) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"small", message_id(1))
        (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: peer.ready == 1000)
        for number in range(100):
            peer.write(frames(2 + 8 * number, 8))
        await stage.nsqd.until(lambda: not peer.is_open)
    found = re.search(r"ignores RDY: (\d+) messages are in flight, RDY is 10 and was 1000 at most", caplog.text)
    assert found is not None
    assert 10 + MEBI // len(BODY) < int(found[1]) < 30


async def test_as_much_as_was_ever_granted_is_no_flood(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=100) as consumer:
        peer = await stage.nsqd.subscriber()
        most = peer.ready
        assert most > 1
        consumer.set_max_in_flight(1)
        await stage.nsqd.until(lambda: peer.ready == 1)
        peer.write(frames(2, most, b"late"))
        async with asyncio.timeout(LIMIT):
            for _ in range(most):
                (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == most)
    assert len(stage.nsqd.peers) == 1


# ------------------------------------------------------------ compression


def packed(codec: str, data: bytes) -> bytes:
    """Return data compressed so that it may be repeated in a stream."""
    if codec == "snappy":
        return SnappyCodec().compress(data).removeprefix(b"\xff\x06\x00\x00sNaPpY")
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(data) + deflate.flush(zlib.Z_FULL_FLUSH)


@pytest.mark.parametrize("codec", ["deflate", "snappy"])
@pytest.mark.usefixtures("memory")
async def test_what_expands_without_end_is_left_and_costs_little(
    stage: Stage, codec: str, caplog: pytest.LogCaptureFixture
) -> None:
    bombs = b"".join(packed(codec, frames(2 + 8 * number, 8)) for number in range(100))  # 76 MiB

    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Identify):
            stage.nsqd.is_silent = True  # it does not read compressed commands, and must not complain of them
            is_snappy = codec == "snappy"
            begin = b"\xff\x06\x00\x00sNaPpY" if is_snappy else b""
            # The OK of the layer, the one to SUB that is sent meanwhile, and all the rest in one go.
            peer.write(response(encode_identity(Identity(snappy=is_snappy, deflate=not is_snappy))))
            peer.write(begin + packed(codec, OK))
            asyncio.get_running_loop().call_later(0.3, peer.write, packed(codec, OK) + bombs)
        return True

    stage.nsqd.script = script
    async with stage.consumer(compression=Compression(codec), start_timeout=0.0, connect_timeout=5.0):
        peer = await stage.nsqd.peer()
        await eventually(lambda: peer.malformed or peer.reads)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        await stage.nsqd.until(lambda: not peer.is_open)
        peak = tracemalloc.get_traced_memory()[1] - before
        figures = f"{codec}: peak {peak / MEBI:.1f} MiB, {len(bombs) / 1024:.0f} KiB sent"
        assert peak < 64 * MEBI, figures
    assert "ignores RDY" in caplog.text, figures


# ------------------------------------------------------------ what is not read


async def test_a_peer_that_never_reads_is_left(stage: Stage) -> None:
    async with subscribed(stage.nsqd) as link:
        link.peer.pause()
        fin = b"FIN " + bytes(16) + b"\n"
        written = 0
        while link.has_space and written < 64 * MEBI:
            link.connection.write_now(fin * 1000)
            written += 21_000
        assert not link.has_space
        for _ in range(MAX_UNREAD_BYTES // 21_000 + 2):
            link.connection.write_now(fin * 1000)
        reason = await link.lost()
        assert isinstance(reason, ConnectionLostError)
        assert "does not read" in str(reason)


async def test_what_is_read_in_time_may_be_any_amount(stage: Stage) -> None:
    async with subscribed(stage.nsqd) as link:
        fin = b"FIN " + bytes(8) + message_id(9)[:8] + b"\n"
        for _ in range(4):
            link.peer.pause()
            while link.has_space:
                link.connection.write_now(fin * 1000)
            for _ in range(MAX_UNREAD_BYTES // 21_000 - 1):
                link.connection.write(fin * 1000)
            link.peer.resume()
            await eventually(lambda: link.has_space)
        assert link.connection.is_open


@pytest.mark.usefixtures("memory")
async def test_a_finished_message_is_forgotten(stage: Stage) -> None:
    """A task may answer a message after it has taken the next one."""
    stage.lead({0: stage.nsqd})
    async with stage.consumer(max_in_flight=200) as consumer:
        peer = await stage.nsqd.subscriber()
        before = tracemalloc.get_traced_memory()[0]
        peer.write(frames(2, 24, bytes(MEBI)))
        await eventually(lambda: consumer.stats().queued == 24)
        previous = await anext(consumer)
        for _ in range(23):
            message = await anext(consumer)
            previous.finish()
            previous = message
        assert tracemalloc.get_traced_memory()[0] - before < 8 * MEBI
