"""A task goes on inside the call that completes what it awaits, if nothing else does, and only if no task runs."""

import asyncio

import pytest

from nsq_ha.base.resuming import detached, may_resume, resume
from tests.support.waiting import turn


def complete(future: "asyncio.Future[None]") -> None:
    waiting = detached(future) if may_resume(future.get_loop()) else None
    future.set_result(None)
    if waiting is not None:
        resume(waiting)


async def _waits(future: "asyncio.Future[None]", notes: list[str], *, fails: bool = False) -> None:
    await future
    notes.append("went on")
    if fails:
        raise ValueError("mine")


async def test_the_only_task_goes_on_at_once_and_keeps_its_error() -> None:
    loop, notes = asyncio.get_running_loop(), list[str]()
    future: asyncio.Future[None] = loop.create_future()
    task = asyncio.create_task(_waits(future, notes, fails=True))
    await turn(3)

    def read() -> None:
        assert may_resume(loop)
        complete(future)
        notes.append("read")

    loop.call_soon(read)
    with pytest.raises(ValueError, match="mine"):
        await task
    assert notes == ["went on", "read"]


async def test_several_tasks_are_resumed_as_usual() -> None:
    loop, notes = asyncio.get_running_loop(), list[str]()
    future: asyncio.Future[None] = loop.create_future()
    assert detached(future) is None  # nobody waits
    tasks = [asyncio.create_task(_waits(future, notes)) for _ in range(2)]
    await turn(3)
    assert detached(future) is None
    loop.call_soon(complete, future)
    await asyncio.gather(*tasks)
    assert notes == ["went on"] * 2


async def test_inside_a_task_the_other_goes_on_in_the_next_turn() -> None:
    loop, notes = asyncio.get_running_loop(), list[str]()
    future: asyncio.Future[None] = loop.create_future()
    task = asyncio.create_task(_waits(future, notes))
    await turn(3)
    assert not may_resume(loop)
    complete(future)
    assert notes == []
    await task
    assert notes == ["went on"]


async def test_a_task_cancelled_between_its_result_and_its_turn_is_cancelled() -> None:
    loop, notes = asyncio.get_running_loop(), list[str]()
    future: asyncio.Future[None] = loop.create_future()
    task = asyncio.create_task(_waits(future, notes))
    await turn(3)

    def read() -> None:
        waiting = detached(future)
        assert waiting is not None
        future.set_result(None)
        task.cancel()
        resume(waiting)

    loop.call_soon(read)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert notes == []
