"""Servers that end with their test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.discovery.loopback import Fake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[], Awaitable[Fake]]]:
    """Start fake servers, as many as are asked for."""
    started: list[Fake] = []

    async def start() -> Fake:
        fake = await Fake().start()
        started.append(fake)
        return fake

    yield start
    for fake in started:
        await fake.stop()
