"""Addresses of two clusters in ``lookupd``: refused by every client, naming both; and no cluster looks like two."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import eventually
from nsq_ha import Consumer, Producer
from nsq_ha.admin import AdminClient
from nsq_ha.devcluster import DevCluster
from nsq_ha.engine.http import new_client
from nsq_ha.engine.servers import Servers
from nsq_ha.errors import ConfigError
from nsq_ha.spark.cluster import BlockingCluster
from tests.support.waiting import dawdle

pytestmark = pytest.mark.plain


@pytest.fixture(scope="module")
def other() -> Iterator[DevCluster]:
    """A partitioned cluster."""
    with DevCluster(nsqlookupds=2, nsqds=1) as cluster:
        yield cluster


async def test_each_client_refuses_two_clusters(cluster: ClusterUnderTest, other: DevCluster) -> None:
    both = [cluster.lookupd[0], other.lookupd[1]]
    for client in (Producer(lookupd=both), Consumer("orders", "ch", lookupd=both), AdminClient(both)):
        with pytest.raises(ConfigError, match="of 2 clusters") as caught:
            await client.__aenter__()
        assert f"{both[0]} and {both[1]}" in str(caught.value)


async def test_spark_refuses_two_clusters(cluster: ClusterUnderTest, other: DevCluster) -> None:
    def look_up() -> None:
        with BlockingCluster((cluster.lookupd[0], other.lookupd[0])) as both:
            both.view("orders")

    with pytest.raises(ConfigError, match="of 2 clusters"):
        await asyncio.to_thread(look_up)


async def test_all_addresses_of_one_cluster_are_accepted(cluster: ClusterUnderTest, ordinary: str) -> None:
    async with Producer(lookupd=cluster.lookupd) as producer, AdminClient(cluster.lookupd) as admin:
        await producer.wait_ready(ordinary)
        assert (await admin.cluster()).lookupds


@asynccontextmanager
async def compared(cluster: DevCluster) -> AsyncIterator[Servers]:
    """Compare the nsqlookupds over and over inside the block; fail if they ever look like two clusters."""
    async with new_client() as client:
        servers = Servers(cluster.lookupd, timeout=0.3, client=client)

        async def compare() -> None:
            while True:
                await servers.refresh_lists()
                servers.check()
                await dawdle(0.01)  # each fail-over takes dozens of them

        task = asyncio.create_task(compare())
        yield servers
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await servers.aclose()


async def test_a_fail_over_of_nsqlookupds_does_not_look_like_two_clusters() -> None:
    with DevCluster(nsqlookupds=3, nsqds=2, time_scale=0.02) as cluster:
        async with compared(cluster) as servers:
            for fault, repair in (("kill", "start"), ("freeze", "thaw")):
                for name in cluster.lookupds:
                    getattr(cluster, fault)(name)
                    await eventually(lambda: servers.leader not in (None, cluster.http_address(name)))  # noqa: B023
                    getattr(cluster, repair)(name)
