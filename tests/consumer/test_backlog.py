"""Messages that wait for slow handlers, and copies of those whose message timeout has passed."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from nsq_ha import Message
from nsq_ha.protocol import Command, Finish, Identity, Requeue
from tests.support.inside import consumer_machine_of
from tests.support.nsqd import Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually
from tests.support.work import work

TIMEOUT = 0.4


@pytest.fixture
async def stage(nothing_is_left: None) -> AsyncIterator[Stage]:
    async with Stage(2, Identity(version="fake", msg_timeout=int(TIMEOUT * 1000))) as stage:
        yield stage


async def subscriber(stage: Stage, *bodies: bytes) -> Peer:
    peer = await stage.nsqd.subscriber()
    for number, body in enumerate(bodies):
        peer.message(body, message_id(number + 2), timestamp_ns=number)
    return peer


def finished(peer: Peer) -> list[Command]:
    return peer.of(Finish)


# ------------------------------------------------------------ what waited too long


async def test_a_queue_that_nobody_reads_does_not_grow(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Each message timeout added a copy of every message in flight, and nothing was logged."""
    async with stage.consumer() as consumer:
        peer = await subscriber(stage, *[b"1"] * 5)
        for attempts in range(2, 7):
            await eventually(lambda: len(consumer_machine_of(consumer).queue) == 5)
            ready = peer.ready
            await dawdle(TIMEOUT * 1.2)
            for number in range(5):
                peer.message(b"1", message_id(number + 2), attempts=attempts, timestamp_ns=number)
            await eventually(lambda: consumer_machine_of(consumer).queue[0].attempts == attempts)  # noqa: B023 - awaited here
            assert len(consumer_machine_of(consumer).queue) == 5
            assert consumer_machine_of(consumer).flow.in_flight == 5
            assert peer.ready == ready
        assert caplog.text.count("5 messages waited for longer than msg_timeout=0.4 s, since no task takes them") == 1
        message = await anext(consumer)
        assert message.attempts == 6


@pytest.mark.parametrize("iterates", [True, False])
async def test_what_waited_longer_than_its_timeout_is_not_handed_out(
    stage: Stage, caplog: pytest.LogCaptureFixture, *, iterates: bool
) -> None:
    handled = []

    async def handle(message: Message) -> None:
        handled.append(message.body)
        if message.body == b"slow":
            await dawdle(TIMEOUT * 1.2)

    async with stage.consumer() as consumer:
        running = asyncio.create_task(work(consumer, handle, iterates=iterates))
        peer = await subscriber(stage, b"slow", b"old", b"old too")
        await stage.nsqd.until(lambda: finished(peer))
        peer.message(b"young", message_id(9))
        await stage.nsqd.until(lambda: len(finished(peer)) == 2)
        await eventually(lambda: consumer_machine_of(consumer).flow.in_flight == 0)
    await running
    assert handled == [b"slow", b"young"]
    assert caplog.text.count("waited behind slow ones for longer than msg_timeout=0.4 s") == 1


# ------------------------------------------------------------ copies


async def test_a_copy_of_what_is_being_handled_waits_for_the_answer(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    calls, release = [], asyncio.Event()

    async def handle(message: Message) -> None:
        calls.append(message.attempts)
        await release.wait()

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=4))
        peer = await subscriber(stage, b"x")
        await eventually(lambda: calls)
        peer.message(b"x", message_id(2), attempts=2, timestamp_ns=0)
        peer.message(b"y", message_id(3))
        await eventually(lambda: len(calls) == 2)
        assert "longer than msg_timeout" not in caplog.text, "nsqd repeated it by itself"
        await dawdle(0.4)  # until its time has passed
        peer.message(b"x", message_id(2), attempts=3, timestamp_ns=0)
        await eventually(lambda: "longer than msg_timeout" in caplog.text)
        assert consumer_machine_of(consumer).flow.in_flight == 2
        release.set()
        await stage.nsqd.until(lambda: len(finished(peer)) == 2)
        await eventually(lambda: consumer_machine_of(consumer).flow.in_flight == 0)
        assert set(finished(peer)) == {Finish(message_id(2)), Finish(message_id(3))}
    await running
    assert calls == [1, 1]
    assert caplog.text.count("longer than msg_timeout=0.4 s") == 1
    assert "touch()" in caplog.text


@pytest.mark.parametrize("is_read_before", [True, False])
async def test_what_is_finished_late_is_not_handled_again(stage: Stage, *, is_read_before: bool) -> None:
    """The copy is in the queue when the FIN is sent, or comes after it."""
    calls = []

    async with stage.consumer() as consumer:
        peer = await subscriber(stage, b"x")
        message = await anext(consumer)
        await dawdle(TIMEOUT * 1.1)
        if is_read_before:
            peer.message(b"x", message_id(2), attempts=2, timestamp_ns=0)
            await eventually(lambda: consumer_machine_of(consumer).queue)
        message.finish()
        if not is_read_before:
            peer.message(b"x", message_id(2), attempts=2, timestamp_ns=0)
        peer.message(b"y", message_id(3))
        calls.append((await anext(consumer)).body)
        await stage.nsqd.until(lambda: len(finished(peer)) == (1 if is_read_before else 2))
        # The id belongs to another message when the time of its publish is another.
        peer.message(b"z", message_id(2), timestamp_ns=7)
        calls.append((await anext(consumer)).body)
        assert consumer_machine_of(consumer).flow.in_flight == 2
    assert calls == [b"y", b"z"]


@pytest.mark.parametrize("is_lost", [True, False])
async def test_what_fails_late_comes_again_after_its_delay(stage: Stage, *, is_lost: bool) -> None:
    """nsqd takes the REQ for the copy that it has sent meanwhile: handled at once, it would be handled twice."""
    async with stage.consumer() as consumer:
        peer = await subscriber(stage, b"x")
        message = await anext(consumer)
        await dawdle(TIMEOUT * 1.1)
        if is_lost:
            peer.close()
            peer = await stage.nsqd.subscriber(1)
        peer.message(b"x", message_id(2), attempts=2, timestamp_ns=0)
        await eventually(lambda: consumer_machine_of(consumer).queue)
        message.requeue(60.0)
        peer.message(b"y", message_id(3))
        assert (await anext(consumer)).body == b"y"
        await stage.nsqd.until(lambda: peer.of(Requeue))
        assert consumer_machine_of(consumer).flow.in_flight == 1
    assert peer.of(Requeue) == [Requeue(message_id(2), 60_000)]


async def test_a_message_that_is_touched_late_is_late(stage: Stage) -> None:
    """nsqd takes the TOUCH, and the FIN after it, for the copy that it has sent meanwhile."""
    async with stage.consumer() as consumer:
        peer = await subscriber(stage, b"x")
        message = await anext(consumer)
        await dawdle(TIMEOUT * 1.1)
        peer.message(b"x", message_id(2), attempts=2, timestamp_ns=0)
        await eventually(lambda: consumer_machine_of(consumer).queue)
        message.touch()
        message.finish()
        peer.message(b"y", message_id(3))
        assert (await anext(consumer)).body == b"y"


async def test_a_touched_message_is_not_late(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stage.nsqd.identity = Identity(version="fake", msg_timeout=2000)  # a busy machine touches late
    async with stage.consumer() as consumer:
        peer = await subscriber(stage, b"x")
        message = await anext(consumer)
        for _ in range(4):
            await dawdle(0.6)
            message.touch()
        message.finish()
        assert not consumer_machine_of(consumer).finished_before.known
        await stage.nsqd.until(lambda: finished(peer))
    assert "nsq_ha" not in {record.name.partition(".")[0] for record in caplog.records}


# ------------------------------------------------------------ how many are asked for


async def test_who_puts_messages_aside_gets_all_that_may_be_in_flight(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=50) as consumer:
        peer = await stage.nsqd.subscriber()
        held: list[Message] = []
        while len(held) < 50:
            await stage.nsqd.until(lambda: peer.ready > len(held))
            peer.message(b"x", message_id(len(held) + 2))
            held.append(await anext(consumer))
        for message in held:
            message.finish()
        await stage.nsqd.until(lambda: len(finished(peer)) == 50)


@pytest.mark.parametrize("iterates", [True, False])
async def test_slow_handlers_are_given_no_more_than_they_begin_in_time(stage: Stage, *, iterates: bool) -> None:
    async def handle(message: Message) -> None:
        await dawdle(TIMEOUT / 4)

    async with stage.consumer() as consumer:
        running = asyncio.create_task(work(consumer, handle, iterates=iterates))
        peer = await stage.nsqd.subscriber()
        for number in range(4):
            peer.message(b"x", message_id(number + 2))
            await stage.nsqd.until(lambda: len(finished(peer)) == number + 1)  # noqa: B023 - awaited here
        await stage.nsqd.until(lambda: 1 <= peer.ready <= 4)
    await running


async def test_a_message_that_is_still_worked_on_does_not_make_the_iteration_look_quick(stage: Stage) -> None:
    """More messages are read a moment after the first one was handed out."""
    stage.nsqd.identity = Identity(version="fake")  # none of them times out meanwhile, however slow the machine is
    async with stage.consumer() as consumer:
        peer = await subscriber(stage, b"x")
        message = await anext(consumer)
        for number in range(3):
            peer.message(b"x", message_id(number + 3))
            await eventually(lambda: len(consumer_machine_of(consumer).queue) == number + 1)  # noqa: B023 - awaited here
        assert consumer_machine_of(consumer).flow.speed.seconds is None
        await dawdle(TIMEOUT / 4)
        message.finish()
        for _ in range(3):
            (await anext(consumer)).finish()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(consumer), 0.01)
        pace = consumer_machine_of(consumer).flow.speed.seconds
        assert pace is not None
        assert pace >= TIMEOUT / 4 / 4
