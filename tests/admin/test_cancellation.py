"""An admin client's calls, cancelled at each of their suspension points."""

import asyncio
import gc
import re
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from nsq_ha.admin import AdminClient
from nsq_ha.errors import NsqError
from tests.admin.scripted import Scripted, part
from tests.support.cancellation import closes_again, every_suspension
from tests.support.inside import watched_sockets
from tests.support.waiting import eventually, turn

CALLS: Final[dict[str, Callable[[AdminClient], Coroutine[Any, Any, object]]]] = {
    "describe": lambda admin: admin.describe("orders", clients=True),
    "stats": lambda admin: admin.stats("orders"),
    "create_channel": lambda admin: admin.create_channel("orders", "billing"),
}


@pytest.fixture
def well(cluster: Scripted) -> Scripted:
    cluster.lookups(cluster.body(4150, 4150))
    cluster.has_channels("billing")
    for fake in (cluster.follower, cluster.leader):
        fake.answer("/topics", {"topics": ["orders"]})
        fake.answer("/channel/create", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(number, "billing", paused=True) for number in (0, 1)]})
    for action in ("create", "pause"):
        cluster.nsqd.answer(f"/channel/{action}", b"")
    return cluster


def others(before: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Return the tasks that came since, but those of the servers."""
    return {task for task in asyncio.all_tasks() - before if "Fake" not in repr(task)}


@pytest.mark.few("describe", "create_channel")
@pytest.mark.parametrize("name", CALLS)
async def test_a_call(well: Scripted, name: str) -> None:
    call = CALLS[name]
    async with AdminClient(well.follower.url, question_timeout=2.0) as admin:
        expected = await _outcome(call(admin))
        before = asyncio.all_tasks()
        for cut in every_suspension():
            await cut(call(admin))
            assert not others(before), cut  # it waits for all that it began
            assert await _outcome(call(admin)) == expected, cut
            assert watched_sockets() < 20
    await closes_again(admin.aclose)


async def _outcome(call: Coroutine[Any, Any, object]) -> str:
    try:
        text = repr(await call)
    except NsqError as error:
        text = repr(error)
    return re.sub(r"took=[0-9.e-]+", "", text)


async def test_entering_and_closing(well: Scripted) -> None:
    before = asyncio.all_tasks()
    for cut in every_suspension():
        admin = AdminClient(well.follower.url)
        entered = await cut(admin.__aenter__())
        assert cut.cancelled or entered is admin
        await closes_again(admin.aclose)
        await eventually(lambda: not others(before))
    for cut in every_suspension():
        admin = await AdminClient(well.follower.url).__aenter__()
        await admin.topics()
        await cut(admin.aclose())
        await closes_again(admin.aclose)
        await eventually(lambda: not others(before))


async def test_a_look_that_is_cancelled_at_any_step_leaves_no_coroutine_without_a_task() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with AdminClient("127.0.0.1:1") as admin:
            for steps in range(30):
                looking = asyncio.create_task(admin.look())
                await turn(steps)
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
        gc.collect()
    assert [str(each.message) for each in caught] == []
