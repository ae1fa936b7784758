"""A new ordered channel, which nsqd loses with the partition's leader unless its replicas know it."""

import asyncio
import logging

import httpx
import pytest

from nsq_ha import Consumer, Producer
from nsq_ha.devcluster import DevCluster
from tests.support.nsqd import LIMIT
from tests.support.stage import Stage

SCALE = 0.05


async def move_leader(cluster: DevCluster) -> None:
    former = cluster.leader("orders")
    await asyncio.to_thread(cluster.move_leader, "orders")
    assert cluster.leader("orders") != former


@pytest.mark.parametrize("paused", [False, True])
async def test_its_messages_survive_a_new_leader(paused: bool) -> None:
    """nsqd reports an ordered channel to the replicas when its first message is finished, and none is here."""
    with DevCluster(nsqlookupds=1, nsqds=2, time_scale=SCALE) as cluster:
        await asyncio.to_thread(cluster.create_topic, "orders", 1, 2, ordered=True)
        if paused:
            await operate(cluster, "create")
            await operate(cluster, "pause")
        async with (
            asyncio.timeout(LIMIT),
            Producer(lookupd=cluster.lookupd) as producer,
            Consumer("orders", "billing", lookupd=cluster.lookupd) as consumer,
        ):
            await producer.publish("orders", b"first", key="a")
            if not paused:
                assert (await anext(consumer)).body == b"first"
            await move_leader(cluster)
            if paused:
                await operate(cluster, "unpause")
            again = await anext(consumer)
            assert again.body == b"first"
            again.finish()


async def test_an_operators_pause_stays() -> None:
    with DevCluster(nsqlookupds=1, nsqds=1) as cluster:
        await asyncio.to_thread(cluster.create_topic, "orders", 1, 1, ordered=True)
        await operate(cluster, "create")
        await operate(cluster, "pause")
        async with asyncio.timeout(LIMIT), Consumer("orders", "billing", lookupd=cluster.lookupd):
            assert (await channel(cluster))["paused"] is True


async def test_it_is_used_where_its_replicas_cannot_be_reached(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer():
        await stage.nsqd.subscriber()
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "may be unknown to the partition's replicas" in warning.getMessage()


async def operate(cluster: DevCluster, verb: str) -> None:
    leader = cluster.leader("orders")
    assert leader is not None
    asked = {"topic": "orders", "partition": "0", "channel": "billing"}
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{cluster.http_address(leader)}/channel/{verb}", params=asked)
    assert answer.status_code == 200


async def channel(cluster: DevCluster) -> dict[str, object]:
    leader = cluster.leader("orders")
    assert leader is not None
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{cluster.http_address(leader)}/stats", params={"format": "json", "topic": "orders"})
    (found,) = answer.json()["data"]["topics"][0]["channels"]
    return dict(found)
