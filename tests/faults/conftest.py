"""A cluster of its own for each scenario, and a look at what it leaves behind."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from integration.faults.bench import Bench
from integration.faults.embedded import NODES, TIME_SCALE, Embedded
from nsq_ha.devcluster import DevCluster
from nsq_ha.process import loop_thread
from tests.support.leaks import nothing_left


@pytest.fixture
def bench() -> Iterator[Bench]:
    with DevCluster(nsqds=NODES, time_scale=TIME_SCALE) as cluster:
        yield Bench(Embedded(cluster), verbose=True)


@pytest.fixture(scope="session", autouse=True)
def shared_loop() -> None:
    """Start the loop of ``nsq_ha.sync``, whose thread stays."""
    loop_thread.shared()


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    # The loop's debug mode takes more of the processor than the loads do.
    asyncio.get_running_loop().set_debug(False)
    async with nothing_left():
        yield
