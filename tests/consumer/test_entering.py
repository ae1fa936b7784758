"""Entering that is cancelled leaves nothing: no task, no subscription that takes messages for nobody."""

import asyncio

import pytest

from nsq_ha import Consumer, Producer
from tests.support.stage import Stage
from tests.support.waiting import eventually, turn

MOST_TURNS = 25
"""More than entering takes until it only waits for subscriptions."""


async def was_cancelled(stage: Stage, client: Consumer | Producer, turns: int) -> bool:
    """Enter, cancel after some turns of the loop, and tell whether it was still entering then."""
    before = asyncio.all_tasks()
    entering = asyncio.create_task(client.__aenter__())
    await turn(turns)
    was_entering = entering.cancel()
    if was_entering:
        with pytest.raises(asyncio.CancelledError):
            await entering
    else:
        await client.aclose()
    await eventually(lambda: not (asyncio.all_tasks() - before))
    await eventually(lambda: not stage.nsqd.open_peers)
    return was_entering


@pytest.mark.parametrize("turns", range(MOST_TURNS))
async def test_a_consumer_whose_entering_is_cancelled_leaves_nothing(stage: Stage, turns: int) -> None:
    assert await was_cancelled(stage, stage.consumer(), turns) or turns > 3


@pytest.mark.parametrize("turns", range(8))
async def test_a_producer_whose_entering_is_cancelled_leaves_nothing(stage: Stage, turns: int) -> None:
    assert await was_cancelled(stage, stage.producer(), turns) or turns > 0
