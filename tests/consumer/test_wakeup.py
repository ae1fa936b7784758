"""Tasks that wait for messages go on inside the call that brings them, and nothing else changes for them."""

import asyncio

import pytest

from nsq_ha import Message
from nsq_ha.consumer.inbox import ConsumerInbox
from nsq_ha.protocol import Finish
from tests.support.nsqd import message_id
from tests.support.stage import Stage
from tests.support.waiting import eventually


async def test_a_message_is_handled_and_finished_in_the_turn_that_reads_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    order: list[str] = []
    brings = ConsumerInbox.arrived

    def arrived(inbox: ConsumerInbox, messages: list[Message]) -> None:
        brings(inbox, messages)
        order.append("read")

    monkeypatch.setattr(ConsumerInbox, "arrived", arrived)

    async def handler(_: Message) -> None:
        order.append("handled")

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handler))
        peer = await stage.nsqd.subscriber()
        peer.message(b"one", message_id(2))
        await eventually(lambda: peer.of(Finish) == [Finish(message_id(2))])
        assert order == ["handled", "read"]
    await running


async def test_a_time_limit_around_waiting_loses_no_message(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.01)
        peer.message(b"one", message_id(2))
        async with asyncio.timeout(5):
            message = await anext(consumer)
        message.finish()
        assert message.body == b"one"
