"""What closing does to messages that nobody saw."""

import asyncio
import gc
import logging
import weakref

import pytest

from nsq_ha import Message
from nsq_ha.protocol import Close, Requeue
from tests.support.inside import consumer_machine_of
from tests.support.nsqd import message_id
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually


async def test_messages_that_nobody_saw_are_left_to_the_server_which_counts_no_attempt(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        for number in range(3):
            peer.message(b"unseen", message_id(number + 2))
        seen = await anext(consumer)
        seen.finish()
    assert peer.of(Close)
    assert peer.of(Requeue) == []
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)


async def test_on_an_ordered_channel_they_never_go_back_by_a_requeue(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]}, ordered=True)
    async with stage.consumer() as consumer:
        peers = [await nsqd.subscriber() for nsqd in stage.nsqds[:2]]
        for peer in peers:
            peer.message(b"x", message_id(2))
        handed_out = await anext(consumer)
        closing = asyncio.create_task(consumer.aclose())
        await stage.nsqds[1].until(lambda: all(peer.of(Close) for peer in peers))
        assert not closing.done()
        handed_out.finish()
        await closing
    assert [peer.of(Requeue) for peer in peers] == [[], []]


async def test_a_consumer_that_is_cancelled_while_it_closes_leaves_nothing_in_memory(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]}, ordered=False)
    consumer = stage.consumer()
    await consumer.__aenter__()
    peer = await stage.nsqd.subscriber()
    stage.nsqd.script = lambda _, command: isinstance(command, Close)  # its answer is waited for
    for number in range(3):
        peer.message(b"unseen", message_id(number + 2))
    (await anext(consumer)).finish()
    closing = asyncio.create_task(consumer.aclose())
    await stage.nsqd.until(lambda: peer.of(Close))
    closing.cancel()
    await asyncio.wait({closing})
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    gone = weakref.ref(consumer)
    del consumer, closing

    def is_collected() -> bool:
        gc.collect()
        return gone() is None

    await eventually(is_collected)


async def test_a_close_with_messages_unanswered_is_a_warning(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with stage.consumer(close_timeout=0.5) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")

        async def never(_: Message) -> None:
            await dawdle(1000.0)

        running = asyncio.create_task(consumer.run(never))
        await eventually(lambda: consumer_machine_of(consumer).flow.in_flight == 1)
        await eventually(lambda: not consumer_machine_of(consumer).queue)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.5, abs=0.3)
    await running
    assert "orders/ch: closed with messages unanswered: 1 of 127.0.0.1:" in caplog.text
