"""A scripted cluster, and proof that nothing is left of a client once it is closed."""

from collections.abc import AsyncIterator

import pytest

from tests.support.leaks import nothing_left
from tests.support.stage import Stage


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    async with nothing_left():
        yield


@pytest.fixture
async def stage(nothing_is_left: None) -> AsyncIterator[Stage]:
    async with Stage(3) as stage:
        yield stage


@pytest.fixture
def any_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow ``max_in_flight`` waiting messages before any was handled."""
    monkeypatch.setattr("nsq_ha.policy.pace.FIRST_WAITING", 1_000_000)
