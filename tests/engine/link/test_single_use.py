"""A close in a task of its own, even if its callers are cancelled."""

import asyncio

import pytest

from nsq_ha.engine.single_use import Closing
from tests.support.cancellation import every_suspension
from tests.support.nsqd import LIMIT
from tests.support.waiting import turn


class Client:
    """Something that takes time to drain, and to end."""

    def __init__(self) -> None:
        self.drained = asyncio.Event()
        self.may_end = asyncio.Event()
        self.log: list[str] = []
        self.closing = Closing(self._drain, self._end, "closing")

    async def _drain(self) -> None:
        try:
            await self.drained.wait()
            self.log.append("drained")
        except asyncio.CancelledError:
            self.log.append("cut short")
            raise

    async def _end(self) -> None:
        self.log.append("ends")
        await self.may_end.wait()
        self.log.append("ended")


async def test_it_ends_wherever_those_who_ask_are_cancelled() -> None:
    for cut in every_suspension():
        client = Client()
        client.may_end.set()
        asyncio.get_running_loop().call_later(0.02, client.drained.set)
        await cut(client.closing.wait())
        await asyncio.wait_for(client.closing.wait(), LIMIT)
        assert client.closing.is_done
        assert client.log[1:] == ["ends", "ended"]


async def test_a_task_that_was_cancelled_is_started_again() -> None:
    client = Client()
    client.drained.set()
    task = client.closing.begin()
    await turn(5)
    task.cancel()
    await asyncio.wait({task})
    client.may_end.set()
    await asyncio.wait_for(client.closing.wait(), LIMIT)
    assert client.log == ["drained", "ends", "ends", "ended"]


async def broken() -> None:
    raise ZeroDivisionError("a bug of ours")


async def nothing() -> None: ...


async def test_what_fails_while_it_ends_is_raised_to_all() -> None:
    closing = Closing(nothing, broken, "closing")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await closing.wait()
