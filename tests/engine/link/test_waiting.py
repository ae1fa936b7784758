"""Opening a connection leaves no socket behind, wherever and however often it is cancelled."""

import asyncio

import pytest

from nsq_ha import ClientConfig
from nsq_ha.engine.connection import Connection
from nsq_ha.engine.waiting import open_while
from nsq_ha.errors import ConnectError
from tests.support.cancellation import every_suspension
from tests.support.nsqd import LIMIT, FakeNsqd
from tests.support.recorder import Recorder
from tests.support.waiting import turn


async def opening(nsqd: FakeNsqd, news: asyncio.Event | None = None, *, is_wanted: bool = True) -> Connection:
    opened = Connection.open(ClientConfig(), nsqd.node, Recorder().callbacks)
    return await open_while(opened, nsqd.node, news=news or asyncio.Event(), is_wanted=lambda: is_wanted)


def attempts() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") == "Connection.open"]


async def nobody_is_connected(nsqd: FakeNsqd) -> None:
    await nsqd.until(lambda: not nsqd.open_peers)
    assert not attempts()


async def test_no_cancellation_leaves_a_connection(nsqd: FakeNsqd) -> None:
    for cut in every_suspension():
        outcome = await cut(opening(nsqd))
        if isinstance(outcome, Connection):
            await outcome.aclose(LIMIT)
        else:
            assert isinstance(outcome, asyncio.CancelledError)
        await nobody_is_connected(nsqd)


@pytest.mark.parametrize("more", [0, 1, 2])
async def test_a_second_cancellation_leaves_no_connection(nsqd: FakeNsqd, more: int) -> None:
    """The first one comes with the finished connection, the others while that is given up."""
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(opening(nsqd))
    await nsqd.peer()
    (attempt,) = attempts()

    def opened(_: object) -> None:
        task.cancel()
        for _ in range(more):
            loop.call_soon(task.cancel)

    attempt.add_done_callback(opened)
    await asyncio.wait({task}, timeout=LIMIT)
    assert task.cancelled()
    assert not attempt.cancelled()
    assert attempt.exception() is None
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


async def test_one_that_is_not_wanted_any_more_is_given_up(nsqd: FakeNsqd) -> None:
    nsqd.is_silent = True
    news = asyncio.Event()
    task = asyncio.create_task(opening(nsqd, news, is_wanted=False))
    await nsqd.until(lambda: nsqd.commands)
    news.set()
    with pytest.raises(ConnectError, match="the connection is no longer needed"):
        await asyncio.wait_for(task, LIMIT)
    await nobody_is_connected(nsqd)
