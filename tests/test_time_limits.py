"""Time limits that do not count our own pauses."""

import asyncio
import itertools

import pytest

from nsq_ha.base.time_limits import time_limit
from tests.support.nsqd import LIMIT
from tests.support.stage import Stage
from tests.support.waiting import block, dawdle, turn

SECONDS = 0.2


async def test_our_own_pause_does_not_count() -> None:
    async with time_limit(SECONDS):
        block(3 * SECONDS)
        await dawdle(SECONDS / 20)


async def test_a_loop_that_is_blocked_all_the_time_ends_the_wait_some_day() -> None:
    async def be_busy() -> None:
        for _ in itertools.count():
            block(0.02)
            await turn()

    with pytest.raises(TimeoutError):
        async with time_limit(0.04):
            await be_busy()


async def test_a_blocked_loop_is_not_taken_for_a_silent_nsqlookupd_or_nsqd(caplog: pytest.LogCaptureFixture) -> None:
    """The loop is blocked for longer than every limit, again and again, while a consumer looks up and subscribes."""
    async with Stage() as stage:
        stop = asyncio.Event()

        async def block_again_and_again() -> None:
            while not stop.is_set():
                block(0.6)
                await dawdle(0.05)

        blocking = asyncio.create_task(block_again_and_again())
        async with asyncio.timeout(6 * LIMIT):
            async with stage.consumer(connect_timeout=0.5, lookup_timeout=0.5, start_timeout=5 * LIMIT) as consumer:
                await consumer.wait_subscribed()
                assert len(stage.nsqd.peers) == 1
        stop.set()
        await blocking
    assert "gave no usable answer" not in caplog.text
