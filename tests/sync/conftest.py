"""An embedded cluster, topics of a test's own, and proof that nothing is left of clients that were stopped."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.process import loop_thread
from tests.support import web
from tests.support.waiting import eventually

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nsqlookupds=1, nsqds=2) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: DevCluster) -> str:
    """Return a topic of two partitions with the channel ``ch``."""
    name = cluster.create_topic(f"topic{next(_numbers)}", 2, 1)
    for number in range(2):
        url = cluster.http_address(str(cluster.leader(name, number))) + "/channel/create"
        web.post(url, params={"topic": name, "partition": number, "channel": "ch"}).raise_for_status()
    return name


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    portal = loop_thread.shared()
    asyncio.run(eventually(lambda: not tasks_of(portal)))
    assert not portal._closers


def tasks_of(portal: loop_thread.Portal) -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks(portal.loop) if not task.done()}
