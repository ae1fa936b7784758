"""A scripted nsqd, and proof that nothing is left of a connection to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.support.leaks import nothing_left, watch
from tests.support.nsqd import FakeNsqd
from tests.support.virtual import loop_for, one_clock


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loop_for(item)


@pytest.fixture
async def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    with one_clock(monkeypatch):
        async with nothing_left():
            yield


@pytest.fixture(autouse=True)
def watched(request: pytest.FixtureRequest) -> Iterator[None]:
    yield from watch(request, "nothing_is_left")


@pytest.fixture
async def nsqd(nothing_is_left: None) -> AsyncIterator[FakeNsqd]:
    async with FakeNsqd() as nsqd:
        yield nsqd
