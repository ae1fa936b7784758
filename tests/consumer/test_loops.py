"""A consumer belongs to the event loop that entered it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nsq_ha import ConfigError, Consumer, Message
from nsq_ha.protocol import Finish
from tests.support.inside import consumer_machine_of
from tests.support.nsqd import message_id
from tests.support.stage import Stage
from tests.support.waiting import eventually


async def iterate(consumer: Consumer) -> None:
    async for message in consumer:
        message.finish()


async def slow_down(consumer: Consumer) -> None:
    consumer.set_max_in_flight(1)


CALLS: dict[str, Callable[[Consumer], Coroutine[Any, Any, object]]] = {
    "anext": lambda consumer: consumer.__anext__(),
    "iterating": iterate,
    "run": lambda consumer: consumer.run(print),
    "wait_subscribed": lambda consumer: consumer.wait_subscribed(),
    "set_max_in_flight": slow_down,
    "aclose": lambda consumer: consumer.aclose(),
    "leaving the block": lambda consumer: consumer.__aexit__(None, None, None),
}


@pytest.mark.parametrize("is_filled", [False, True], ids=["nothing arrived", "a message waits"])
@pytest.mark.parametrize("call", CALLS)
async def test_another_event_loop_is_refused_and_changes_nothing(stage: Stage, call: str, is_filled: bool) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        if is_filled:
            peer.message(b"waits", message_id(2))
            await eventually(lambda: consumer_machine_of(consumer).queue)
        with pytest.raises(ConfigError, match="a Consumer belongs to the event loop that entered it"):
            await asyncio.to_thread(lambda: asyncio.run(CALLS[call](consumer)))
        peer.message(b"still", message_id(3))
        async with asyncio.timeout(5):
            bodies = []
            while b"still" not in bodies:
                message = await anext(consumer)
                bodies.append(message.body)
                message.finish()
        assert bodies == [b"waits", b"still"][not is_filled :]


async def test_an_iteration_that_goes_on_elsewhere_is_refused_where_it_would_wait(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        messages = aiter(consumer)

        async def take() -> Message:
            return await anext(messages)

        with pytest.raises(ConfigError, match="belongs to the event loop that entered it"):
            await asyncio.to_thread(lambda: asyncio.run(take()))


def from_no_loop(consumer: Consumer) -> None:
    consumer.set_max_in_flight(1)


async def test_a_thread_without_an_event_loop_is_refused(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        with pytest.raises(ConfigError, match="belongs to the event loop that entered it"):
            await asyncio.to_thread(from_no_loop, consumer)
        assert consumer.max_in_flight == 200


async def test_a_plain_handler_stops_the_consumer_by_way_of_its_loop(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer() as consumer:

        def handle(message: Message) -> None:
            asyncio.run_coroutine_threadsafe(consumer.aclose(), loop)

        peer = await stage.nsqd.subscriber()
        peer.message(b"the last one", message_id(2))
        async with asyncio.timeout(5):
            await consumer.run(handle)
        await stage.nsqd.until(lambda: peer.of(Finish))
        assert peer.of(Finish) == [Finish(message_id(2))]


async def test_what_was_closed_may_be_closed_again_from_anywhere(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        pass
    await asyncio.to_thread(lambda: asyncio.run(consumer.aclose()))


async def test_a_message_may_be_answered_from_any_thread(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        message = await anext(consumer)
        await asyncio.to_thread(message.finish)
        await stage.nsqd.until(lambda: peer.of(Finish))
