"""A scripted nsqd, and proof that nothing is left of a connection to it."""

from collections.abc import AsyncIterator

import pytest

from tests.support.leaks import nothing_left
from tests.support.nsqd import FakeNsqd


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    async with nothing_left():
        yield


@pytest.fixture
async def nsqd(nothing_is_left: None) -> AsyncIterator[FakeNsqd]:
    async with FakeNsqd() as nsqd:
        yield nsqd
