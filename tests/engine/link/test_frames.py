"""Streams that are damaged, cut, absurd or silent: the connection ends, once, with a reason."""

import asyncio
import struct
from contextlib import AsyncExitStack

import pytest

from nsq_ha import ClientConfig
from nsq_ha.engine.tcp import TcpStream
from nsq_ha.errors import RemoteProtocolError, ResponseTimeoutError, ServerError
from nsq_ha.protocol.encoding import encode_pub
from nsq_ha.protocol.frames import FrameType, encode_frame
from tests.support.nsqd import FakeNsqd, error, message_data, response
from tests.support.recorder import linked, subscribed
from tests.support.waiting import dawdle, stop_process


def frame(size: int, kind: int, data: bytes = b"") -> bytes:
    """Return a frame whose size word says what it likes."""
    return struct.pack(">ii", size, kind) + data


async def test_a_frame_cut_by_silence_ends_within_two_heartbeats(nsqd: FakeNsqd) -> None:
    loop = asyncio.get_running_loop()
    config = ClientConfig(heartbeat_interval=1.0)
    async with AsyncExitStack() as stack:
        links = [await stack.enter_async_context(subscribed(nsqd, config)) for _ in range(5)]
        silent_since = loop.time()
        for link, cut in zip(links, (1, 4, 7, 9, 30), strict=True):
            link.peer.stop_heartbeats()
            link.peer.write(encode_frame(FrameType.MESSAGE, message_data(b"x" * 100))[:cut])
        for link in links:
            reason = await link.lost()
            assert isinstance(reason, ResponseTimeoutError)
            assert "sent nothing" in str(reason)
        assert 1.9 < loop.time() - silent_since < 3 * 3.0


async def test_a_false_size_that_swallows_the_heartbeats_ends_within_two_of_them(nsqd: FakeNsqd) -> None:
    loop = asyncio.get_running_loop()
    async with subscribed(nsqd, ClientConfig(heartbeat_interval=1.0)) as link:
        link.peer.write(frame(8 * 1024 * 1024, 2, b"x"))
        began = loop.time()
        reason = await link.lost()
        waited = loop.time() - began
    assert isinstance(reason, RemoteProtocolError)
    assert "wrong size" in str(reason)
    assert 1.0 < waited < 3 * 3.0


async def test_a_large_frame_may_take_longer_than_two_heartbeats(nsqd: FakeNsqd) -> None:
    async with subscribed(nsqd, ClientConfig(heartbeat_interval=1.0)) as link:
        link.peer.stop_heartbeats()
        whole = encode_frame(FrameType.MESSAGE, message_data(b"x" * 100))
        for place in range(len(whole)):
            link.peer.write(whole[place : place + 1])
            await dawdle(3.0 / len(whole))
        await nsqd.until(lambda: link.recorder.messages)
        assert link.connection.is_open


async def test_a_loop_that_was_held_up_does_not_call_its_peer_silent(nsqd: FakeNsqd) -> None:
    async with linked(nsqd, ClientConfig(heartbeat_interval=1.0)) as link:
        stream = link.connection._stream
        assert isinstance(stream, TcpStream)
        stream.last_received -= 100.0
        # The check comes five seconds late: what the peer said may still lie in the socket.
        link.connection.look(asyncio.get_running_loop().time() - 5.0)
        assert link.connection.is_open
        link.connection.look(asyncio.get_running_loop().time())
        assert isinstance(await link.lost(), ResponseTimeoutError)


@pytest.mark.real_time
async def test_a_heartbeat_that_came_while_the_process_was_stopped_counts(nsqd: FakeNsqd) -> None:
    async with linked(nsqd, ClientConfig(heartbeat_interval=1.0)) as link:
        stop_process(2.2, lambda: link.peer.write(response(b"_heartbeat_")))
        await nsqd.until(lambda: link.peer.nops)
        assert link.connection.is_open


async def test_a_megabyte_of_error_text_is_cut(nsqd: FakeNsqd) -> None:
    async with linked(nsqd) as link:
        nsqd.script = lambda *_: True
        link.connection.write_publishes(encode_pub("orders", 0, b"x"), 1)
        link.peer.write(error(b"E_PUB_FAILED " + b"\xff\xfe" * 500_000))
        await link.recorder.until(lambda: link.recorder.answers)
        answer = link.recorder.answers[0]
        assert isinstance(answer, ServerError)
        assert answer.code == "E_PUB_FAILED"
        assert len(str(answer)) < 10_000
        assert link.connection.is_open


async def test_a_frame_above_the_limit_is_refused_before_it_comes(nsqd: FakeNsqd) -> None:
    async with subscribed(nsqd, ClientConfig(max_frame_bytes=1024)) as link:
        link.peer.message(b"x" * 900)
        await link.recorder.until(lambda: link.recorder.messages)
        link.peer.write(frame(1025, 2))
        assert "1025" in str(await link.lost())
