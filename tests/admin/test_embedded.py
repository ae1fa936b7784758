"""Every call of an admin client at embedded clusters of both kinds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from nsq_ha import Consumer, Producer, StartFrom
from nsq_ha.admin import AdminClient
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ChannelNotFoundError, ConfigError, DiscoveryError
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nsq_ha.admin import ChannelStats


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nsqlookupds=2, nsqds=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def plain_cluster() -> Iterator[DevCluster]:
    with DevCluster(plain=True, nsqlookupds=2, nsqds=2) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: DevCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.lookupd, question_timeout=10.0) as admin:
        yield admin


@pytest.fixture
async def plain_admin(plain_cluster: DevCluster) -> AsyncIterator[AdminClient]:
    async with AdminClient(plain_cluster.lookupd, question_timeout=10.0) as admin:
        yield admin


async def channel_of(admin: AdminClient, topic: str, name: str = "billing") -> dict[int, ChannelStats]:
    """Return a channel by partition, or by the number of an nsqd."""
    found = (await admin.describe(topic, timeout=30.0)).partitions
    return {
        entry.partition: channel
        for entry in found
        if entry.stats is not None
        for channel in entry.stats.channels
        if channel.name == name
    }


async def depths(admin: AdminClient, topic: str, *wanted: int) -> None:
    """Wait until the partitions have these depths: servers count a message only after it was flushed."""
    found: list[int] = []

    async def matches() -> bool:
        found[:] = [channel.depth for _, channel in sorted((await channel_of(admin, topic)).items())]
        return found == [*wanted]

    with contextlib.suppress(TimeoutError):
        await eventually(matches, 30)
    assert found == [*wanted]


async def test_a_channel_lives_and_dies(cluster: DevCluster, admin: AdminClient) -> None:
    cluster.create_topic("life", 2, 2)
    await admin.create_channel("life", "billing")
    assert await admin.channels("life") == ("billing",)
    assert set(await channel_of(admin, "life")) == {0, 1}
    await admin.pause_channel("life", "billing")
    await admin.pause_channel("life", "billing")
    assert all(channel.paused for channel in (await channel_of(admin, "life")).values())
    await admin.unpause_channel("life", "billing")
    assert not any(channel.paused for channel in (await channel_of(admin, "life")).values())
    await admin.skip_channel("life", "billing")
    assert all(channel.skipped for channel in (await channel_of(admin, "life")).values())
    await admin.unskip_channel("life", "billing")
    assert not any(channel.skipped for channel in (await channel_of(admin, "life")).values())
    await admin.delete_channel("life", "billing")
    assert await admin.channels("life") == ()
    with pytest.raises(ChannelNotFoundError):
        await admin.delete_channel("life", "billing")


async def test_a_channel_is_emptied_and_moved(cluster: DevCluster, admin: AdminClient) -> None:
    cluster.create_topic("moves", 2, 1)
    await admin.create_channel("moves", "billing")
    async with Producer(lookupd=cluster.lookupd) as producer:
        receipts = [await producer.publish("moves", b"%d" % n, partition=n % 2, trace_id=n + 1) for n in range(8)]
    await depths(admin, "moves", 4, 4)
    await admin.empty_channel("moves", "billing")
    await depths(admin, "moves", 0, 0)
    await admin.reset_channel("moves", "billing")
    await depths(admin, "moves", 4, 4)
    await admin.set_offset("moves", "billing", StartFrom.end())
    await depths(admin, "moves", 0, 0)
    await admin.set_offset("moves", "billing", {1: StartFrom.count(3)})
    await depths(admin, "moves", 0, 2)
    offset = receipts[6].offset
    assert offset is not None
    await admin.set_offset("moves", "billing", {0: StartFrom.offset(offset)})
    await depths(admin, "moves", 1, 2)
    await admin.reset_channel("moves", "billing", 0)
    await depths(admin, "moves", 4, 4)


async def test_a_channel_that_must_be_registered(cluster: DevCluster, admin: AdminClient) -> None:
    await admin.create_topic("registered", disable_channel_auto_create=True)
    await admin.create_channel("registered", "billing")
    await admin.create_channel("registered", "billing")
    assert await admin.channels("registered") == ("billing",)
    await admin.pause_channel("registered", "billing")
    await admin.delete_channel("registered", "billing")
    assert await channel_of(admin, "registered") == {}


async def test_two_operators_at_once(cluster: DevCluster, admin: AdminClient) -> None:
    cluster.create_topic("two", 2, 1)
    await asyncio.gather(*(admin.create_channel("two", "billing") for _ in range(4)))
    await asyncio.gather(*(admin.pause_channel("two", "billing") for _ in range(4)))
    outcomes = await asyncio.gather(
        admin.pause_channel("two", "billing", timeout=2.0),
        admin.unpause_channel("two", "billing", timeout=2.0),
        return_exceptions=True,
    )
    assert all(isinstance(outcome, DiscoveryError) for outcome in outcomes if outcome is not None)
    await admin.unpause_channel("two", "billing")
    assert not any(channel.paused for channel in (await channel_of(admin, "two")).values())


async def test_a_paused_channel_delivers_nothing_until_it_is_unpaused(cluster: DevCluster, admin: AdminClient) -> None:
    cluster.create_topic("rest", 1, 1)
    await admin.create_channel("rest", "billing")
    await admin.pause_channel("rest", "billing")
    async with (
        Producer(lookupd=cluster.lookupd) as producer,
        Consumer("rest", "billing", lookupd=cluster.lookupd) as consumer,
    ):
        await producer.publish("rest", b"paid")
        waiting = asyncio.ensure_future(anext(consumer))
        await depths(admin, "rest", 1)
        assert not waiting.done()
        await admin.unpause_channel("rest", "billing")
        message = await asyncio.wait_for(waiting, 30)
        message.finish()
    assert message.body == b"paid"


async def test_a_plain_channel_lives_and_dies(plain_cluster: DevCluster, plain_admin: AdminClient) -> None:
    async with Producer(lookupd=plain_cluster.lookupd) as producer:
        await producer.publish("life", b"first")
    await plain_admin.create_channel("life", "billing")
    assert await plain_admin.channels("life") == ("billing",)
    await plain_admin.pause_channel("life", "billing")
    assert all(channel.paused for channel in (await channel_of(plain_admin, "life")).values())
    await plain_admin.unpause_channel("life", "billing")
    assert sum(channel.depth for channel in (await channel_of(plain_admin, "life")).values()) == 1
    await plain_admin.empty_channel("life", "billing")
    assert sum(channel.depth for channel in (await channel_of(plain_admin, "life")).values()) == 0
    for call in (plain_admin.skip_channel, plain_admin.unskip_channel, plain_admin.reset_channel):
        with pytest.raises(ConfigError):
            await call("life", "billing")
    await plain_admin.delete_channel("life", "billing")
    assert await plain_admin.channels("life") == ()
    with pytest.raises(ChannelNotFoundError):
        await plain_admin.pause_channel("life", "billing")


# ---------------------------------------------------------------- statistics


async def test_statistics_of_a_cluster(cluster: DevCluster, admin: AdminClient) -> None:
    cluster.create_topic("counted", 2, 2)
    async with (
        Consumer("counted", "billing", lookupd=cluster.lookupd, max_in_flight=2, client_id="worker") as consumer,
        Producer(lookupd=cluster.lookupd) as producer,
    ):
        for number in range(6):
            await producer.publish("counted", b"%d" % number, partition=number % 2)
        message = await anext(consumer)
        await depths(admin, "counted", 3, 3)
        found = await admin.stats("counted", clients=True)
        assert found.silent == ()
        assert {entry.partition for node in found.nodes for entry in node.partitions} == {0, 1}
        (topic,) = found.topics
        assert [entry.is_leader for entry in topic.partitions] == [True, True]
        (billing,) = topic.channels
        assert (billing.depth, billing.clients, len(billing.connections)) == (6, 2, 2)
        assert {client.client_id for client in billing.connections} == {"worker"}
        lag = billing.lag(time.time())
        assert lag is not None
        assert 0 <= lag < 300
        message.finish()
    everything = await admin.stats()
    assert {"counted"} <= {topic.topic for topic in everything.topics}
    assert all(not channel.connections for topic in everything.topics for channel in topic.channels)


async def test_statistics_of_a_plain_cluster(plain_cluster: DevCluster, plain_admin: AdminClient) -> None:
    async with Producer(lookupd=plain_cluster.lookupd) as producer:
        await producer.publish("counted", b"first")
        await plain_admin.create_channel("counted", "billing")
        await producer.publish("counted", b"second")
    found = await plain_admin.stats("counted")
    (topic,) = found.topics
    assert topic.messages == 2
    assert [(channel.name, channel.depth) for channel in topic.channels] == [("billing", 2)]
    assert all(node.version and node.started_at for node in found.nodes)
    assert topic.channels[0].lag(0.0) is None
