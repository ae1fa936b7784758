"""A new ordered channel, which nsqd loses with the partition's leader unless its replicas know it."""

import asyncio
import logging
from typing import Any

import httpx
import pytest

from nsq_ha import Consumer, Producer
from nsq_ha.devcluster import DevCluster
from nsq_ha.engine import new_partitions
from nsq_ha.engine.body import Body
from nsq_ha.engine.http import ask
from tests.support.nsqd import LIMIT, Refusing, Subscribe
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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that nsqds are asked for."""
    paths: list[str] = []

    async def counted(client: httpx.AsyncClient, method: str, url: str, **options: Any) -> Body:  # noqa: ANN401
        paths.append(httpx.URL(url).path)
        return await ask(client, method, url, **options)

    monkeypatch.setattr(new_partitions, "ask", counted)
    return paths


async def test_all_partitions_of_an_nsqd_share_one_request(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 64 partitions used to ask for the statistics of all 64."""
    # On a busy machine an answer comes late, and the partitions start one after the other.
    monkeypatch.setattr(new_partitions, "PATIENCE", 6 * LIMIT)
    options: dict[str, Any] = {"lookup_timeout": 6 * LIMIT, "connect_timeout": 6 * LIMIT}
    with DevCluster(nsqlookupds=1, nsqds=1) as cluster:
        await asyncio.to_thread(cluster.create_topic, "orders", 16, 1, ordered=True)
        async with (
            asyncio.timeout(6 * LIMIT),
            Consumer("orders", "billing", lookupd=cluster.lookupd, **options) as consumer,
        ):
            await consumer.wait_subscribed()
    assert sorted(set(asked)) == ["/channel/unpause", "/stats"]
    assert asked.count("/stats") == 1
    assert asked.count("/channel/unpause") == 16


async def test_partitions_share_a_failure_too(stage: Stage, asked: list[str], caplog: pytest.LogCaptureFixture) -> None:
    stage.lead(dict.fromkeys(range(4), stage.nsqd), ordered=True)
    async with stage.consumer() as consumer:
        await consumer.wait_subscribed()
    assert asked == ["/stats"]
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sorted(line.partition(" may be unknown")[0] for line in lines) == [
        f"channel ch of orders-{partition}" for partition in range(4)
    ]


async def test_a_channel_is_reported_after_sub_has_created_it(stage: Stage, asked: list[str]) -> None:
    """Before SUB, the channels of 254 partitions waited for each other: half of them were missing after 5 s."""
    stage.lead({0: stage.nsqd}, ordered=True)
    before: list[list[str]] = []
    stage.nsqd.script = lambda _, command: before.append(list(asked)) if isinstance(command, Subscribe) else None
    async with stage.consumer() as consumer:
        await consumer.wait_subscribed()
    assert before == [[]]
    assert asked == ["/stats"]


async def test_a_subscription_that_is_refused_reports_its_channel_once(stage: Stage, asked: list[str]) -> None:
    """Each failed SUB used to be followed by the whole preparation again."""
    stage.lead({0: stage.nsqd}, ordered=True)
    stage.nsqd.script = Refusing(Subscribe, *3 * ["E_FAILED_ON_NOT_WRITABLE "], closes=True)
    async with stage.consumer() as consumer:
        await consumer.wait_subscribed()
    assert len(stage.nsqd.peers) == 4
    assert asked == ["/stats"]


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
