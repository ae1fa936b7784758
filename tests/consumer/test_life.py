"""What the table of a subscription's life comes to on real connections, where that is easily got wrong."""

import asyncio

from nsq_ha.protocol import Close, Identity, Requeue, Touch
from tests.support.nsqd import Subscribe
from tests.support.stage import Stage
from tests.support.waiting import eventually


async def test_a_leader_that_comes_back_while_another_was_tried_keeps_its_connection(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]})
    stage.nsqds[1].accepts = False
    async with stage.consumer(lookup_interval=0.1) as consumer:
        old = await stage.nsqds[0].subscriber()
        stage.lead({0: stage.nsqds[1]})
        await stage.nsqds[1].until(lambda: len(stage.nsqds[1].peers) > 1)
        stage.lead({0: stage.nsqds[0]})
        asked = stage.lookupd.count("/lookup")
        await eventually(lambda: stage.lookupd.count("/lookup") > asked + 8)
        old.message(b"x")
        (await anext(consumer)).finish()
        assert stage.nsqds[0].peers == [old]


async def test_an_attempt_at_a_silent_node_ends_as_soon_as_another_one_leads(stage: Stage) -> None:
    stage.nsqds[1].is_silent = True
    stage.lead({0: stage.nsqds[1]})
    loop = asyncio.get_running_loop()
    async with stage.consumer(lookup_interval=0.1, connect_timeout=30.0, start_timeout=0.05):
        await stage.nsqds[1].peer()
        began = loop.time()
        stage.lead({0: stage.nsqds[0]})
        await stage.nsqds[0].subscriber()
        assert loop.time() - began < 5.0
        await stage.nsqds[1].until(lambda: not stage.nsqds[1].open_peers)


async def test_while_it_closes_a_lost_subscription_does_not_come_back(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    async with stage.consumer(lookup_interval=0.1) as consumer:
        lost = await stage.nsqds[0].subscriber()
        held = await stage.nsqds[1].subscriber()
        held.message(b"x")
        message = await anext(consumer)
        closing = asyncio.create_task(consumer.aclose())
        await stage.nsqds[0].until(lambda: lost.of(Close))
        lost.abort()
        asked = stage.lookupd.count("/lookup")
        await eventually(lambda: stage.lookupd.count("/lookup") > asked + 3)
        assert len([peer for peer in stage.nsqds[0].peers if peer.of(*Subscribe)]) == 1
        message.finish()
        await closing


async def test_a_message_that_fails_is_touched_at_once(stage: Stage) -> None:
    """Its handler may have used up nearly all of the server's patience."""
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")
        message = await anext(consumer)
        message.requeue(30.0)
        await stage.nsqd.until(lambda: peer.of(Touch))
        assert peer.of(Requeue) == []


async def test_a_back_off_is_cut_short_where_touching_helps_no_more(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    stage.nsqd.identity = Identity(msg_timeout=200, max_msg_timeout=600)
    loop = asyncio.get_running_loop()
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")
        message = await anext(consumer)
        began = loop.time()
        message.requeue(800.0)
        await stage.nsqd.until(lambda: peer.of(Requeue))
        assert loop.time() - began > 0.3
        assert peer.of(Requeue) == [Requeue(message.id, 0)]
