"""Servers that end with their test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsq_ha.discovery import admin as admin_module
from nsq_ha.discovery import leading as leading_module
from nsq_ha.discovery.admin import AdminClient
from tests.discovery.loopback import Fake
from tests.discovery.scripted import Scripted

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


@pytest.fixture
async def cluster(serve: Callable[[], Awaitable[Fake]], monkeypatch: pytest.MonkeyPatch) -> Scripted:
    monkeypatch.setattr(leading_module, "PAUSE", 0.01)
    monkeypatch.setattr(admin_module, "PAUSE", 0.01)
    monkeypatch.setattr(admin_module, "_NUDGE_INTERVAL", 0.05)
    return Scripted(await serve(), await serve(), await serve())


@pytest.fixture
async def admin(cluster: Scripted) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.follower.url, question_timeout=2.0) as client:
        yield client
