"""Addresses of two clusters in ``lookupd``: refused by every client, naming both; and no cluster looks like two."""

import asyncio
from collections.abc import Iterator

import pytest

from integration.cluster import ClusterUnderTest
from nsq_ha import Consumer, Producer
from nsq_ha.admin import AdminClient
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ConfigError
from nsq_ha.spark.cluster import BlockingCluster

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
