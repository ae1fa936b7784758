"""For the tests of clients: time that does not pass, a scripted cluster, and proof that nothing is left of a client."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.support.leaks import nothing_left, watch
from tests.support.log_lines import whole_log_lines
from tests.support.stage import Stage
from tests.support.virtual import loop_for, one_clock


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loop_for(item)


@pytest.fixture
async def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    with one_clock(monkeypatch):
        async with nothing_left():
            yield


@pytest.fixture(autouse=True)
def watched(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with whole_log_lines(caplog):
        yield from watch(request, "nothing_is_left")


@pytest.fixture
async def stage(nothing_is_left: None) -> AsyncIterator[Stage]:
    async with Stage(3) as stage:
        yield stage
