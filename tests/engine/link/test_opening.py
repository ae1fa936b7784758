"""Opening a connection leaves no socket behind, wherever and however often it is cancelled."""

import asyncio

import pytest

from nsq_ha import ClientConfig
from nsq_ha.engine.connection import Connection
from tests.support.cancellation import every_suspension
from tests.support.nsqd import LIMIT, FakeNsqd
from tests.support.recorder import Recorder
from tests.support.waiting import turn


async def opening(nsqd: FakeNsqd) -> Connection:
    return await Connection.open(ClientConfig(), nsqd.node, Recorder().callbacks)


async def nobody_is_connected(nsqd: FakeNsqd) -> None:
    await nsqd.until(lambda: not nsqd.open_peers)


async def test_no_cancellation_leaves_a_connection(nsqd: FakeNsqd) -> None:
    for cut in every_suspension():
        outcome = await cut(opening(nsqd))
        if isinstance(outcome, Connection):
            await outcome.aclose(LIMIT)
        else:
            assert isinstance(outcome, asyncio.CancelledError)
        await nobody_is_connected(nsqd)


@pytest.mark.parametrize("turns", range(4))
async def test_two_cancellations_of_a_handshake_leave_no_connection(nsqd: FakeNsqd, turns: int) -> None:
    nsqd.is_silent = True
    task = asyncio.create_task(opening(nsqd))
    await nsqd.until(lambda: nsqd.commands)
    task.cancel()
    await turn(turns)
    task.cancel()
    await asyncio.wait({task}, timeout=LIMIT)
    assert task.cancelled()
    await nobody_is_connected(nsqd)
