"""A scripted cluster and its administrator, which end with their test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from nsq_ha.admin import AdminClient, bounded, leading, plain, spread, topics
from nsq_ha.admin import cluster as cluster_calls
from tests.admin.scripted import Plain, Scripted
from tests.engine.lookups import conftest as discovery
from tests.engine.lookups.loopback import Fake
from tests.support.virtual import loop_for

serve = discovery.serve
virtual_clock = discovery.virtual_clock  # what it needs


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return loop_for(item)


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an admin client look again soon, and some times within a short limit."""
    for module in (bounded, cluster_calls, leading, plain, spread, topics):
        monkeypatch.setattr(module, "PAUSE", 0.05)


@pytest.fixture
async def cluster(serve: Callable[[], Awaitable[Fake]], monkeypatch: pytest.MonkeyPatch) -> Scripted:
    quicken(monkeypatch)
    monkeypatch.setattr(leading, "NUDGE_INTERVAL", 0.05)
    return Scripted(await serve(), await serve(), await serve())


@pytest.fixture
async def admin(cluster: Scripted) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.follower.url, question_timeout=2.0) as admin:
        yield admin


@pytest.fixture
async def plain_cluster(serve: Callable[[], Awaitable[Fake]], monkeypatch: pytest.MonkeyPatch) -> Plain:
    quicken(monkeypatch)
    return Plain([await serve(), await serve()], [await serve(), await serve()])


@pytest.fixture
async def plain_admin(plain_cluster: Plain) -> AsyncIterator[AdminClient]:
    async with AdminClient([lookupd.url for lookupd in plain_cluster.lookupds], question_timeout=2.0) as admin:
        yield admin
