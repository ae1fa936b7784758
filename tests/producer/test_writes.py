"""How publishes leave: together where they can, at once where nothing is under way."""

import asyncio

import pytest

from nsq_ha.errors import PublishError
from nsq_ha.protocol import Command, Mpub, Pub
from tests.support.inside import machine_of
from tests.support.nsqd import OK, Holding, Peer, error
from tests.support.stage import TOPIC, Stage


async def test_publishes_of_one_turn_leave_in_one_write(stage: Stage) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x")
        peer = stage.nsqd.peers[0]
        before = len(peer.reads)
        receipts = await asyncio.gather(*(producer.publish(TOPIC, b"%d" % n) for n in range(50)))
        # The first finds nothing under way, and does not wait for the others.
        assert len(peer.reads) - before <= 2
        assert [command.body for command in peer.of(Pub)[1:] if isinstance(command, Pub)] == [
            b"%d" % n for n in range(50)
        ]
        assert all(receipt.nsqd == stage.nsqd.node.address for receipt in receipts)


async def test_what_callers_publish_when_they_are_answered_leaves_in_one_write(stage: Stage) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x")
        peer = stage.nsqd.peers[0]
        stage.nsqd.script = holding = Holding()

        async def publish_twice(number: int) -> None:
            await producer.publish(TOPIC, b"%d" % number)
            await producer.publish(TOPIC, b"%d again" % number)

        callers = [asyncio.create_task(publish_twice(n)) for n in range(20)]
        await stage.nsqd.until(lambda: holding.has(20))
        before = len(peer.reads)
        peer.write(OK * 20)
        holding.held.clear()
        await stage.nsqd.until(lambda: holding.has(20))
        assert len(peer.reads) - before <= 2
        peer.write(OK * 20)
        await asyncio.gather(*callers)


async def test_a_batch_that_is_cancelled_leaves_nothing_and_its_answer_is_nobodys(stage: Stage) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x")
        stage.nsqd.script = holding = Holding()
        publishing = asyncio.create_task(producer.publish_many(TOPIC, [b"a", b"bc"]))
        await stage.nsqd.until(lambda: holding.has(1))
        assert producer.stats().pending_bytes == 3
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert not list(machine_of(producer).all_pending())
        following = asyncio.create_task(producer.publish(TOPIC, b"next"))
        await stage.nsqd.until(lambda: holding.has(2))
        holding.release()
        assert not following.done()
        holding.release()
        assert (await following).attempts == 1


async def test_a_batch_that_is_refused_tells_it_for_each_message_and_leaves_nothing(stage: Stage) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x")

        def refuse(peer: Peer, command: Command) -> bool:
            peer.write(error("E_BAD_MESSAGE no"))
            return isinstance(command, Mpub)

        stage.nsqd.script = refuse
        outcomes = await producer.publish_many(TOPIC, [b"a", b"bc"])
        assert [isinstance(outcome, PublishError) for outcome in outcomes] == [True, True]
        assert not list(machine_of(producer).all_pending())
