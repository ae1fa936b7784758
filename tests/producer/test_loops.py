"""A producer belongs to the event loop that entered it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from nsq_ha import Producer
from nsq_ha.errors import ConfigError
from tests.support.stage import TOPIC, Stage

CALLS: dict[str, Callable[[Producer], Coroutine[Any, Any, object]]] = {
    "publish": lambda producer: producer.publish(TOPIC, b"x"),
    "publish_many": lambda producer: producer.publish_many(TOPIC, [b"x"]),
    "aclose": lambda producer: producer.aclose(),
    "leaving the block": lambda producer: producer.__aexit__(None, None, None),
}


@pytest.mark.parametrize("call", CALLS)
async def test_another_event_loop_is_refused(stage: Stage, call: str) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"known")
        with pytest.raises(ConfigError, match="a Producer belongs to the event loop that entered it"):
            await asyncio.to_thread(lambda: asyncio.run(CALLS[call](producer)))
        assert (await producer.publish(TOPIC, b"still")).topic == TOPIC


async def test_what_was_closed_may_be_closed_again_from_anywhere(stage: Stage) -> None:
    async with stage.producer() as producer:
        pass
    await asyncio.to_thread(lambda: asyncio.run(producer.aclose()))
