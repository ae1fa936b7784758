"""The fixtures that users get."""

from collections.abc import Callable

import httpx

from nsq_ha.devcluster import DevCluster

pytest_plugins = ["nsq_ha.testing.plugin"]


def metas(cluster: DevCluster) -> list[str]:
    names: list[str] = httpx.get(cluster.lookupd[0] + "/topics", trust_env=False).json()["data"]["topics"]
    return names


def test_each_test_has_topics_of_its_own(
    nsq_cluster: DevCluster, nsq_topic: str, nsq_make_topic: Callable[..., str]
) -> None:
    other = nsq_make_topic(1, extended=True)
    assert {nsq_topic, other} <= set(metas(nsq_cluster))
    assert nsq_cluster.leader(nsq_topic, 1) is not None


def test_a_test_may_delete_its_topics(nsq_cluster: DevCluster, nsq_make_topic: Callable[..., str]) -> None:
    deleted, _left = nsq_make_topic(), nsq_make_topic()
    nsq_cluster.delete_topic(deleted)


async def test_they_are_gone_afterwards_and_the_cluster_is_the_same(
    nsq_cluster: DevCluster, nsq_own_cluster: DevCluster
) -> None:
    assert metas(nsq_cluster) == []
    nsq_own_cluster.create_topic("orders")
    leader = nsq_own_cluster.leader("orders")
    assert leader is not None
    nsq_own_cluster.kill(leader)  # from inside a running loop
    assert not nsq_own_cluster.is_up(leader)
    assert nsq_cluster.is_up(leader)
