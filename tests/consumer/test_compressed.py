"""Bodies that other clients have compressed."""

import asyncio
import json
import logging
import threading
from typing import Any

import pytest

from nsq_ha import Backoff, Consumer, Message
from nsq_ha.protocol import Close, Finish, Layout, Ready, Requeue
from nsq_ha.protocol.body_codec import PackedBody, compress_body
from tests.support.nsqd import LIMIT, Peer, message_id
from tests.support.stage import Stage
from tests.support.turns import TURN, Turns, turns
from tests.support.waiting import eventually

EXT = Layout.EXT_DETAIL
BODY = b"the same again, " * 100
GZIP, _ = compress_body(BODY, "gzip")
HEADER = b'{"a":1,"nsq.client.compress":"1","nsq.msg.size":"1600","##client_dispatch_tag":"t"}'


async def test_a_compressed_body_is_handed_out_as_it_was(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"before", message_id(2), layout=EXT, ext=b'{"a":1}')
        peer.message(GZIP, message_id(3), layout=EXT, ext=HEADER)
        peer.message(b"after", message_id(4), layout=EXT)
        found = [await anext(consumer) for _ in range(3)]
    assert [message.body for message in found] == [b"before", BODY, b"after"]
    assert [message.headers for message in found] == [{"a": 1}, {"a": 1}, {}]
    assert (found[1].tag, found[1].compressed) == ("t", (GZIP, HEADER))
    assert (found[0].compressed, found[2].compressed) == (None, None)


async def test_it_can_be_handed_out_as_it_is_stored(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.consumer(decompress=False) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(GZIP, message_id(3), layout=EXT, ext=HEADER)
        message = await anext(consumer)
    assert (message.body, message.compressed) == (GZIP, None)
    assert message.headers == {"a": 1, "nsq.client.compress": "1", "nsq.msg.size": "1600"}


@pytest.mark.parametrize(
    ("body", "header", "said"),
    [
        (GZIP[:-5], HEADER, "cannot be decompressed: it is not valid gzip data: it is cut off"),
        (GZIP, HEADER.replace(b'"1"', b'"9"'), "it has the header nsq.client.compress='9', which is no known compress"),
        (compress_body(bytes(200_000), "gzip")[0], b'{"nsq.client.compress":"1"}', "max_decompressed_bytes=100000"),
    ],
)
async def test_one_that_cannot_be_decompressed_counts_as_failed(
    stage: Stage, caplog: pytest.LogCaptureFixture, body: bytes, header: bytes, said: str
) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    options: dict[str, Any] = {"max_attempts": 2, "max_decompressed_bytes": 100_000, "handler_backoff": None}
    given_up: list[Message] = []
    async with stage.consumer(
        **options, on_give_up=given_up.append, requeue_backoff=Backoff(initial=3.0, maximum=3.0, jitter=0.0)
    ) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(body, message_id(3), layout=EXT, ext=header)
        peer.message(b"good", message_id(4), layout=EXT)
        (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: peer.of(Requeue) and peer.of(Finish))
        assert peer.of(Requeue) == [Requeue(message_id(3), 3000)]
        peer.message(body, message_id(3), layout=EXT, ext=header, attempts=2)
        peer.message(b"good too", message_id(5), layout=EXT)
        (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 3)
    # It is given up as it is stored, so that it can be published again.
    assert [(message.body, message.ext) for message in given_up] == [(body, header)]
    lines = [record for record in caplog.records if "not handing out" in record.getMessage()]
    assert [line.levelno for line in lines] == [logging.WARNING]
    assert lines[0].getMessage().startswith("not handing out <Message orders-0 id=0x3 ")
    assert said in lines[0].getMessage()


async def test_a_publisher_of_such_bodies_makes_no_consumer_pause(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    handled: list[Message] = []
    async with (
        stage.consumer(requeue_backoff=Backoff(initial=3.0, maximum=3.0, jitter=0.0)) as consumer,
        asyncio.TaskGroup() as group,
    ):
        running = group.create_task(consumer.run(handled.append))
        peer = await stage.nsqd.subscriber()
        for number in range(8):
            peer.message(GZIP[:-5], message_id(3 + number), layout=EXT, ext=HEADER)
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 8)
        peer.message(b"good", message_id(20), layout=EXT)
        await stage.nsqd.until(lambda: bool(peer.of(Finish)))
        running.cancel()
    assert [message.body for message in handled] == [b"good"]
    assert Ready(0) not in peer.of(Ready)
    assert peer.of(Requeue)[0] == Requeue(message_id(3), 3000)


async def test_a_publisher_of_such_bodies_fills_no_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Each line has a traceback, and each message comes again and again."""
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.consumer() as consumer, asyncio.TaskGroup() as group:
        running = group.create_task(consumer.run(lambda _: None))
        peer = await stage.nsqd.subscriber()
        for number in range(30):
            peer.message(GZIP[:-5], message_id(3 + number), layout=EXT, ext=HEADER)
            await stage.nsqd.until(lambda: len(peer.of(Requeue)) == number + 1)  # noqa: B023 - awaited here
        running.cancel()
    lines = [record.getMessage() for record in caplog.records if "not handing out" in record.getMessage()]
    assert len(lines) <= 3


LARGE = bytes(12_000_000)
LARGE_GZIP, LARGE_MARKS = compress_body(LARGE, "gzip")
LARGE_EXT = json.dumps(LARGE_MARKS).encode()


async def test_what_expands_to_much_holds_nobody_up(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        tries: list[Turns] = []
        # A turn takes 1 ms. What the host takes from this machine counts as its CPU, so that one try may show more;
        # what the turn itself costs, each try shows.
        while len(tries) < 3 and (not tries or tries[-1].longest >= TURN):
            with turns() as measured:
                peer.message(LARGE_GZIP, message_id(2 + len(tries)), layout=EXT, ext=LARGE_EXT)
                peer.message(b"after", message_id(100 + len(tries)), layout=EXT)
                found = [await anext(consumer) for _ in range(2)]
            assert [len(message.body) for message in found] == [len(LARGE), 5]
            tries.append(measured)
    assert tries[-1].longest < TURN, [each.what for each in tries]


class Expanding:
    """Decompression that waits, in its thread, until the test goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.may_end = threading.Event()
        self.times = 0
        loop, expand = asyncio.get_running_loop(), PackedBody.expand

        def waiting(packed: PackedBody) -> bytes:
            self.times += 1
            loop.call_soon_threadsafe(self.begun.set)
            assert self.may_end.wait(LIMIT)
            return expand(packed)

        monkeypatch.setattr(PackedBody, "expand", waiting)

    async def task(self, consumer: Consumer, peer: Peer) -> asyncio.Future[Message]:
        """Deliver a large body; return the task that asks for it, once its decompression has begun."""
        peer.message(LARGE_GZIP, message_id(2), layout=EXT, ext=LARGE_EXT)
        waiting = asyncio.ensure_future(anext(consumer))
        await self.begun.wait()
        return waiting


async def test_a_cancelled_task_leaves_its_message_to_the_next(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    expanding = Expanding(monkeypatch)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        waiting = await expanding.task(consumer, peer)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        expanding.may_end.set()
        message = await anext(consumer)
        message.finish()
        await stage.nsqd.until(lambda: peer.of(Finish))
        assert (message.id, len(message.body), expanding.times) == (message_id(2), len(LARGE), 2)
        assert peer.of(Requeue) == []


async def test_a_message_that_is_lost_while_it_expands_is_not_handed_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    expanding = Expanding(monkeypatch)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        waiting = await expanding.task(consumer, peer)
        peer.abort()
        again = await stage.nsqd.subscriber(1)
        expanding.may_end.set()
        again.message(b"another", message_id(3), layout=EXT)
        assert (await waiting).body == b"another"


async def test_a_close_gives_back_what_has_been_expanded_meanwhile(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as timed out, and other consumers got it only when the last message was answered."""
    stage.lead({0: stage.nsqd}, extended=True)
    expanding = Expanding(monkeypatch)
    may_end = asyncio.Event()

    async def hold() -> None:
        message = await anext(consumer)
        await may_end.wait()
        message.finish()

    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"held", message_id(3), layout=EXT)
        holding = asyncio.create_task(hold())
        await eventually(lambda: consumer.stats().in_flight and not consumer.stats().queued)
        waiting = await expanding.task(consumer, peer)
        closing = asyncio.create_task(consumer.aclose())
        await stage.nsqd.until(lambda: peer.of(Close))
        expanding.may_end.set()
        with pytest.raises(StopAsyncIteration):
            await waiting
        await stage.nsqd.until(lambda: peer.of(Requeue))
        may_end.set()
        await asyncio.gather(holding, closing)
    await stage.nsqd.until(lambda: peer.of(Finish))
    assert (peer.of(Requeue), peer.of(Finish)) == ([Requeue(message_id(2), 0)], [Finish(message_id(3))])
    assert (consumer.stats().timed_out, consumer.stats().in_flight) == (0, 0)


async def test_expanded_bodies_wait_for_room(stage: Stage) -> None:
    """What 100 handlers hold expanded together stays within ``max_in_flight_bytes``."""
    stage.lead({0: stage.nsqd}, extended=True)
    most, held, waiting = 0, 0, asyncio.Event()
    may_end = asyncio.Event()

    async def handle(message: Message) -> None:
        nonlocal most, held
        held += len(message.body)
        most = max(most, held)
        if held > 2 * len(LARGE):
            waiting.set()
        await may_end.wait()
        held -= len(message.body)

    async with stage.consumer(max_in_flight_bytes=3 * len(LARGE), max_in_flight=8) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.ensure_future(consumer.run(handle, concurrency=8))
        for number in range(8):
            peer.message(LARGE_GZIP, message_id(2 + number), layout=EXT, ext=LARGE_EXT)
        await waiting.wait()
        assert 3 * len(LARGE) <= consumer.stats().held_bytes <= 3 * len(LARGE) + 8 * len(LARGE_GZIP)
        may_end.set()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 8)
        running.cancel()
        await asyncio.wait({running})
    assert most <= 3 * len(LARGE)
    assert consumer.stats().held_bytes == 0


async def test_a_task_that_ends_makes_room(stage: Stage) -> None:
    """Whoever waited for it waited until a connection was lost."""
    stage.lead({0: stage.nsqd}, extended=True)
    has_taken, may_end = asyncio.Event(), asyncio.Event()

    async def take() -> None:
        await anext(consumer)
        has_taken.set()
        await may_end.wait()

    async with stage.consumer(max_in_flight_bytes=1000, max_in_flight=2) as consumer:
        peer = await stage.nsqd.subscriber()
        taking = asyncio.create_task(take())
        peer.message(LARGE_GZIP, message_id(2), layout=EXT, ext=LARGE_EXT)
        await has_taken.wait()
        peer.message(LARGE_GZIP, message_id(3), layout=EXT, ext=LARGE_EXT)
        waiting = asyncio.ensure_future(anext(consumer))
        await eventually(lambda: consumer.stats().in_flight == 2 and not consumer.stats().queued)
        may_end.set()
        await taking
        message = await asyncio.wait_for(waiting, LIMIT)
        assert (message.id, len(message.body)) == (message_id(3), len(LARGE))


async def test_one_body_larger_than_all_room_is_handed_out(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.consumer(max_in_flight_bytes=1000) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(LARGE_GZIP, message_id(2), layout=EXT, ext=LARGE_EXT)
        message = await anext(consumer)
        assert (len(message.body), consumer.stats().held_bytes) == (len(LARGE), len(LARGE))
        message.finish()
        assert consumer.stats().held_bytes == 0


async def test_a_close_does_not_wait_for_room(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.consumer(max_in_flight_bytes=1000, max_in_flight=2, close_timeout=0.5) as consumer:
        peer = await stage.nsqd.subscriber()
        for number in range(2):
            peer.message(LARGE_GZIP, message_id(2 + number), layout=EXT, ext=LARGE_EXT)
        assert len((await anext(consumer)).body) == len(LARGE)
        waiting = asyncio.ensure_future(anext(consumer))
        await stage.nsqd.until(lambda: not consumer.stats().queued)
    with pytest.raises(StopAsyncIteration):
        await waiting
