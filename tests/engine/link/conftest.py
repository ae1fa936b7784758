from collections.abc import AsyncIterator

import pytest

from tests.support.clients import nothing_is_left, pytest_asyncio_loop_factories, watched
from tests.support.nsqd import FakeNsqd

__all__ = ["nothing_is_left", "pytest_asyncio_loop_factories", "watched"]


@pytest.fixture
async def nsqd(nothing_is_left: None) -> AsyncIterator[FakeNsqd]:
    async with FakeNsqd() as nsqd:
        yield nsqd
