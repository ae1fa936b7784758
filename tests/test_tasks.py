"""Tests of background tasks: they are kept, their errors are reported once, and a close ends them all."""

import asyncio
import gc
import logging

import pytest

from nsq_ha.base.tasks import Tasks

log = logging.getLogger("nsq_ha.test")


async def fail() -> None:
    raise ValueError("broken")


async def wait_for_nothing() -> None:
    await asyncio.get_running_loop().create_future()  # nothing else refers to it, and so to the task


async def test_a_task_is_kept_until_it_ends() -> None:
    tasks = Tasks(log)
    tasks.start(wait_for_nothing(), "works")
    await asyncio.sleep(0)
    gc.collect()
    assert len(tasks) == 1
    await tasks.close()
    assert len(tasks) == 0


async def test_an_error_is_reported_once_under_the_name(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks(log)
    task = tasks.start(fail(), "looks up orders")
    await asyncio.wait({task})
    await tasks.close()
    assert [record.getMessage() for record in caplog.records] == [
        "looks up orders: unexpected error, continuing; please report it as a bug of nsq_ha: ValueError('broken')"
    ]


async def test_an_owner_may_take_errors(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Exception] = []
    tasks = Tasks(log, seen.append)
    await asyncio.wait({tasks.start(fail(), "fails")})
    await asyncio.sleep(0)
    assert [str(error) for error in seen] == ["broken"]
    assert not caplog.records


async def test_close_ends_all_but_the_current_task() -> None:
    tasks, ended = Tasks(log), []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)
            if name == "first":
                tasks.start(work("started while ending"), "late")
                await asyncio.sleep(0)

    async def closer() -> None:
        await tasks.close()
        ended.append("closer")

    tasks.start(work("first"), "first")
    tasks.start(work("second"), "second")
    await asyncio.sleep(0)
    await tasks.start(closer(), "closer")
    assert sorted(ended[:3]) == ["first", "second", "started while ending"]
    assert ended[3:] == ["closer"]
    await asyncio.sleep(0)
    assert len(tasks) == 0
