"""Servers that end with their test, and a clock that waits for nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from nsq_ha.engine.http import new_client
from tests.engine.lookups.loopback import Fake
from tests.engine.lookups.scripted import Stage
from tests.support.leaks import watch
from tests.support.log_lines import whole_log_lines
from tests.support.virtual import loop_for, one_clock


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loop_for(item)


@pytest.fixture
async def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    with one_clock(monkeypatch):
        yield


@pytest.fixture(autouse=True)
def watched(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with whole_log_lines(caplog):
        yield from watch(request, "virtual_clock")


@pytest.fixture
async def serve(virtual_clock: None) -> AsyncIterator[Callable[[], Awaitable[Fake]]]:
    """Start fake servers, as many as are asked for."""
    started: list[Fake] = []

    async def start() -> Fake:
        fake = await Fake().start()
        started.append(fake)
        return fake

    yield start
    for fake in started:
        await fake.stop()


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Stage]]:
    """Make stages, without chance: each pause is as long as it may be."""
    monkeypatch.setattr("random.random", lambda: 0.0)
    made: list[Stage] = []
    async with new_client() as http:

        def make(*urls: str, timeout: float = 1.0) -> Stage:
            made.append(Stage(http, monkeypatch, *urls, timeout=timeout))
            return made[-1]

        yield make
        for stage in made:
            await stage.servers.aclose()
