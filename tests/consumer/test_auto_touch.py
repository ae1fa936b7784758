"""``auto_touch``: what is being worked on is touched in time, and nothing else."""

import asyncio
import itertools
import logging
from typing import Any

import pytest

from nsq_ha import ConfigError, Message
from nsq_ha.options.config import ConsumerConfig
from nsq_ha.protocol import Command, Finish, Identity, Touch
from tests.support.nsqd import Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually, turn

SHORT = Identity(msg_timeout=4000, max_msg_timeout=20_000)


class Touched:
    """Notes when each message is touched."""

    def __init__(self, stage: Stage) -> None:
        self.times: dict[bytes, list[float]] = {}
        self._loop = asyncio.get_running_loop()
        for nsqd in stage.nsqds:
            nsqd.identity = SHORT
            nsqd.script = self

    def __call__(self, peer: Peer, command: Command) -> bool:
        if isinstance(command, Touch):
            self.times.setdefault(command.message_id, []).append(self._loop.time())
        return False

    def longest_gap(self, number: int, since: float) -> float:
        times = [since, *self.times[message_id(number)]]
        return max(after - before for before, after in itertools.pairwise(times))


@pytest.fixture
async def touched(stage: Stage) -> Touched:
    return Touched(stage)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_the_message_of_a_running_handler_is_touched_in_time(stage: Stage, touched: Touched, kind: str) -> None:
    loop = asyncio.get_running_loop()
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        await gate.wait()

    def handle_in_a_thread(message: Message) -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

    if kind == "thread":  # in real time
        stage.nsqd.identity = Identity(msg_timeout=1000)
    async with stage.consumer(auto_touch=True) as consumer:
        running = asyncio.create_task(consumer.run(handle if kind == "coroutine" else handle_in_a_thread))
        peer = await stage.nsqd.subscriber()
        began = loop.time()
        peer.message(b"long", message_id(2))
        if kind == "coroutine":
            await dawdle(15.0)
            assert touched.longest_gap(2, began) < 3.3
            assert len(touched.times[message_id(2)]) >= 5
        else:
            await stage.nsqd.until(lambda: len(peer.of(Touch)) == 2)
        gate.set()
        await stage.nsqd.until(lambda: peer.of(Finish))
        count = len(peer.of(Touch))
        await dawdle(4.0 if kind == "coroutine" else 0.6)
        assert len(peer.of(Touch)) == count
        await consumer.aclose()
        await running


async def test_without_the_option_nothing_is_touched(stage: Stage, touched: Touched) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"long", message_id(2))
        message = await anext(consumer)
        await dawdle(10.0)
        message.finish()
    assert touched.times == {}


async def test_messages_of_an_iterating_task_are_touched_until_they_are_answered(
    stage: Stage, touched: Touched
) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer(auto_touch=True) as consumer:
        peer = await stage.nsqd.subscriber()
        began = loop.time()
        for number in range(3):
            peer.message(b"x", message_id(number + 2))
        messages = [await anext(consumer) for _ in range(3)]
        await dawdle(6.0)
        messages[1].finish()
        answered = loop.time()
        await dawdle(6.0)
        assert touched.longest_gap(2, began) < 3.3
        assert touched.longest_gap(4, began) < 3.3
        assert max(touched.times[message_id(3)]) <= answered
        messages[0].finish()
        messages[2].requeue(0)


async def test_messages_of_a_task_that_has_ended_are_left_alone(stage: Stage, touched: Touched) -> None:
    async with stage.consumer(auto_touch=True) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))

        async def take() -> Message:
            return await anext(consumer)

        await asyncio.create_task(take())
        await dawdle(8.0)
    assert touched.times == {}


async def test_messages_that_nobody_works_on_are_not_touched(stage: Stage, touched: Touched) -> None:
    async with stage.consumer(auto_touch=True):
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        await dawdle(8.0)
    assert touched.times == {}


async def test_no_message_is_touched_beyond_what_the_server_allows(
    stage: Stage, touched: Touched, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer(auto_touch=True) as consumer:
        peer = await stage.nsqd.subscriber()
        began = loop.time()
        for number in (2, 3):
            peer.message(b"x", message_id(number))
        for _ in range(2):
            await anext(consumer)
        await dawdle(40.0)
        last = max(touched.times[message_id(2)])
        assert began + 14.0 < last < began + 20.0
    lines = [record for record in caplog.records if "-max-msg-timeout" in record.getMessage()]
    assert [record.levelname for record in lines if record.levelno >= logging.INFO] == ["WARNING"]
    assert "orders/ch: handling <Message orders-0 id=0x2" in lines[0].getMessage()


async def test_an_interval_of_seconds(stage: Stage, touched: Touched) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer(auto_touch=0.5) as consumer:
        peer = await stage.nsqd.subscriber()
        began = loop.time()
        peer.message(b"x", message_id(2))
        (await anext(consumer)).source  # noqa: B018 - held
        await dawdle(5.0)
        assert touched.longest_gap(2, began) < 0.8
        assert 8 <= len(touched.times[message_id(2)]) <= 11


async def test_after_a_lost_connection_its_messages_are_no_longer_touched(stage: Stage, touched: Touched) -> None:
    async with stage.consumer(auto_touch=True) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        message = await anext(consumer)
        peer.abort()
        again = await stage.nsqd.subscriber()
        await dawdle(8.0)
        assert not again.of(Touch)
        message.finish()


async def test_after_a_lost_connection_the_copy_of_what_is_handled_is_touched(stage: Stage, touched: Touched) -> None:
    loop = asyncio.get_running_loop()
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        await gate.wait()

    async with stage.consumer(auto_touch=True, heartbeat_interval=60.0) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        await eventually(lambda: consumer.stats().in_flight == 1 and not consumer.stats().queued)
        peer.abort()
        again = await stage.nsqd.subscriber(1)
        began = loop.time()
        again.message(b"x", message_id(2))
        await dawdle(8.0)
        assert touched.longest_gap(2, began) < 3.3
        gate.set()
        await stage.nsqd.until(lambda: again.of(Finish))
    await running


async def test_a_shorter_timeout_of_a_later_connection_counts_at_once(stage: Stage, touched: Touched) -> None:
    loop = asyncio.get_running_loop()
    stage.nsqd.identity = Identity(msg_timeout=900_000)
    async with stage.consumer(auto_touch=True, lookup_interval=0.1) as consumer:
        await stage.nsqd.subscriber()
        stage.lead({0: stage.nsqd, 1: stage.nsqds[1]})
        peer = await stage.nsqds[1].subscriber()
        began = loop.time()
        peer.message(b"x", message_id(2))
        message = await anext(consumer)
        await dawdle(5.0)
        assert touched.longest_gap(2, began) < 3.3
        message.finish()


async def test_a_message_that_waited_is_touched_when_it_is_handed_out(stage: Stage, touched: Touched) -> None:
    """The first handler is so slow that the next message is nearly out of time."""
    gate = asyncio.Event()
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if len(seen) == 1:
            await dawdle(2.5)
        else:
            await gate.wait()

    async with stage.consumer(auto_touch=3.0) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(handle))
        for number in (2, 3):
            peer.message(b"%d" % number, message_id(number))
        await eventually(lambda: len(seen) == 2)
        await turn(5)
        await stage.nsqd.until(lambda: any(touch.message_id == message_id(3) for touch in peer.of(Touch)))  # type: ignore[attr-defined]
        gate.set()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 2)
        await consumer.aclose()
        await running


async def test_handling_that_takes_longer_than_the_timeout_is_reported_once(
    stage: Stage, touched: Touched, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: Message) -> None:
        await dawdle(10.0)

    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        for number in (2, 3):
            peer.message(b"x", message_id(number))
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 2, 20.0)
        await consumer.aclose()
        await running
    assert caplog.text.count("orders/ch: handling a message takes longer than msg_timeout=") == 1


async def test_a_touched_message_is_not_reported_as_too_slow(
    stage: Stage, touched: Touched, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: Message) -> None:
        await dawdle(10.0)

    async with stage.consumer(auto_touch=True) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(handle))
        peer.message(b"x", message_id(2))
        await stage.nsqd.until(lambda: peer.of(Finish), 20.0)
        await consumer.aclose()
        await running
    assert "takes longer than" not in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"auto_touch": 60.0, "msg_timeout": 60.0}, "auto_touch=60 must be less than msg_timeout=60"),
        ({"auto_touch": 0}, "auto_touch must be True, False or 0.1..864000 seconds, not 0"),
        ({"auto_touch": None}, "auto_touch must be True, False"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ConsumerConfig(**options)
