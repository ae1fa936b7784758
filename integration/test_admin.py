"""Every call of an admin client, on clusters of both kinds."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator

import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import LIMIT, Consumers, eventually, next_of
from nsq_ha import Producer, StartFrom
from nsq_ha.admin import AdminClient, ChannelStats
from nsq_ha.errors import ChannelNotFoundError, ConfigError, DiscoveryError, TopicNotFoundError

CREATION = 240.0
"""Seconds within which a real cluster creates a topic right after another one."""


@pytest.fixture
async def admin(cluster: ClusterUnderTest) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.lookupd, question_timeout=10.0) as admin:
        yield admin


async def found(admin: AdminClient, topic: str, channel: str) -> dict[int, ChannelStats]:
    """Return a channel by partition, or by the number of an nsqd."""
    entries = (await admin.describe(topic, timeout=LIMIT)).partitions
    return {
        entry.partition: known
        for entry in entries
        if entry.stats is not None
        for known in entry.stats.channels
        if known.name == channel
    }


async def depths(admin: AdminClient, topic: str, channel: str, *wanted: int) -> None:
    """Wait until the partitions have these depths: servers count a message only after it was flushed."""
    seen: list[int] = []

    async def matches() -> bool:
        seen[:] = [entry.depth for _, entry in sorted((await found(admin, topic, channel)).items())]
        return seen == [*wanted]

    with contextlib.suppress(TimeoutError):
        await eventually(matches, LIMIT)
    assert seen == [*wanted]


# ---------------------------------------------------------------- channels


@pytest.mark.plain
async def test_a_channel_is_created_paused_and_deleted(admin: AdminClient, ordinary: str, channel: str) -> None:
    await admin.create_channel(ordinary, channel)
    await admin.create_channel(ordinary, channel)
    assert channel in await admin.channels(ordinary)
    assert len(await found(admin, ordinary, channel)) == 2
    for _ in range(2):
        await admin.pause_channel(ordinary, channel)
        assert all(entry.paused for entry in (await found(admin, ordinary, channel)).values())
    for _ in range(2):
        await admin.unpause_channel(ordinary, channel)
        assert not any(entry.paused for entry in (await found(admin, ordinary, channel)).values())
    await admin.delete_channel(ordinary, channel)
    assert channel not in await admin.channels(ordinary)
    assert await found(admin, ordinary, channel) == {}
    for call in (admin.delete_channel, admin.pause_channel, admin.unpause_channel, admin.empty_channel):
        with pytest.raises(ChannelNotFoundError):
            await call(ordinary, channel)


async def test_a_skipped_channel_drops_what_comes(
    admin: AdminClient, producer: Producer, single: str, channel: str, mark: bytes
) -> None:
    await admin.create_channel(single, channel)
    await admin.skip_channel(single, channel)
    assert all(entry.skipped for entry in (await found(admin, single, channel)).values())
    await producer.publish(single, mark)
    await depths(admin, single, channel, 0)
    await admin.unskip_channel(single, channel)
    assert not any(entry.skipped for entry in (await found(admin, single, channel)).values())
    await producer.publish(single, mark)
    await depths(admin, single, channel, 1)


async def test_a_channel_is_emptied_and_moved(
    admin: AdminClient, producer: Producer, ordinary: str, channel: str, mark: bytes
) -> None:
    await admin.create_channel(ordinary, channel)
    began = time.time() - 1
    receipts = [
        await producer.publish(ordinary, mark + b"%d" % number, partition=number % 2, trace_id=number + 1)
        for number in range(8)
    ]
    await depths(admin, ordinary, channel, 4, 4)
    await admin.empty_channel(ordinary, channel)
    await depths(admin, ordinary, channel, 0, 0)
    await admin.set_offset(ordinary, channel, StartFrom.timestamp(began))
    state = await found(admin, ordinary, channel)
    assert all(entry.depth >= 4 for entry in state.values())
    await admin.set_offset(ordinary, channel, StartFrom.end())
    await depths(admin, ordinary, channel, 0, 0)
    offset = receipts[6].offset
    assert offset is not None
    await admin.set_offset(ordinary, channel, {0: StartFrom.offset(offset)})
    await depths(admin, ordinary, channel, 1, 0)
    last = await admin.find_message(ordinary, internal_id=receipts[7].internal_id)
    assert last is not None
    assert (last.body.encode(), last.offset, last.trace_id) == (mark + b"7", receipts[7].offset, 8)
    await admin.set_offset(ordinary, channel, {1: StartFrom.count(last.number - 1)})
    await depths(admin, ordinary, channel, 1, 2)
    await admin.set_offset(ordinary, channel, StartFrom.beginning())
    assert all(entry.depth >= 4 for entry in (await found(admin, ordinary, channel)).values())


async def test_one_message_is_found_by_its_place(
    admin: AdminClient, producer: Producer, single: str, channel: str, mark: bytes
) -> None:
    await admin.create_channel(single, channel)
    receipt = await producer.publish(single, mark, trace_id=77)
    await depths(admin, single, channel, 1)
    by_id = await admin.find_message(single, internal_id=receipt.internal_id)
    assert by_id is not None
    assert (by_id.body.encode(), by_id.trace_id) == (mark, 77)
    assert await admin.find_message(single, partition=0, offset=receipt.offset) == by_id
    assert await admin.find_message(single, partition=0, number=by_id.number) == by_id
    assert await admin.find_message(single, partition=0, number=by_id.number + 1000) is None


@pytest.mark.plain
async def test_a_paused_channel_delivers_nothing_until_it_is_unpaused(
    admin: AdminClient, producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    await admin.create_channel(ordinary, consume.channel)
    await admin.pause_channel(ordinary, consume.channel)
    async with consume(ordinary) as consumer:
        await producer.publish(ordinary, mark)
        waiting = asyncio.create_task(next_of(consumer, mark))

        async def waits() -> bool:
            return sum(entry.depth for entry in (await found(admin, ordinary, consume.channel)).values()) == 1

        await eventually(waits, LIMIT)
        assert not waiting.done()
        await admin.unpause_channel(ordinary, consume.channel)
        (await waiting).finish()


@pytest.mark.plain
async def test_two_operators_at_once(admin: AdminClient, ordinary: str, channel: str) -> None:
    await asyncio.gather(*(admin.create_channel(ordinary, channel) for _ in range(3)))
    await asyncio.gather(*(admin.pause_channel(ordinary, channel) for _ in range(3)))
    outcomes = await asyncio.gather(
        admin.pause_channel(ordinary, channel, timeout=2.0),
        admin.unpause_channel(ordinary, channel, timeout=2.0),
        return_exceptions=True,
    )
    assert all(isinstance(outcome, DiscoveryError) for outcome in outcomes if outcome is not None)
    await admin.unpause_channel(ordinary, channel)
    assert not any(entry.paused for entry in (await found(admin, ordinary, channel)).values())


@pytest.mark.plain
async def test_what_does_not_exist_is_named(admin: AdminClient, ordinary: str, channel: str) -> None:
    with pytest.raises(TopicNotFoundError, match="ct_no_such_topic"):
        await admin.pause_channel("ct_no_such_topic", channel)
    with pytest.raises(TopicNotFoundError, match="ct_no_such_topic"):
        await admin.channels("ct_no_such_topic")
    with pytest.raises(TopicNotFoundError, match="ct_no_such_topic"):
        await admin.stats("ct_no_such_topic")
    with pytest.raises(ChannelNotFoundError, match=channel):
        await admin.pause_channel(ordinary, channel)
    with pytest.raises(ConfigError, match=r"the cluster has no nsqd 127\.0\.0\.1:1"):
        await admin.tombstone_node(ordinary, "127.0.0.1:1")


# ---------------------------------------------------------------- topics


async def test_channels_that_must_be_registered(admin: AdminClient) -> None:
    topic = f"ct_{uuid.uuid4().hex[:12]}"
    await admin.create_topic(topic, disable_channel_auto_create=True, timeout=CREATION)
    try:
        await admin.create_channel(topic, "billing")
        await admin.create_channel(topic, "billing")
        assert await admin.channels(topic) == ("billing",)
        await admin.pause_channel(topic, "billing")
        await admin.delete_channel(topic, "billing")
        assert await found(admin, topic, "billing") == {}
        with pytest.raises(ChannelNotFoundError):
            await admin.delete_channel(topic, "billing")
    finally:
        await admin.delete_topic(topic, timeout=CREATION)


@pytest.mark.timeout(480)  # the real server takes over three minutes for these changes
async def test_settings_of_a_topic_change(admin: AdminClient) -> None:
    topic = f"ct_{uuid.uuid4().hex[:12]}"
    await admin.create_topic(topic, 1, 1, timeout=CREATION)
    try:
        await admin.create_channel(topic, "kept")
        view = await admin.update_topic(topic, retention_days=2, sync_every=10, timeout=CREATION)
        assert view.meta is not None
        assert (view.meta.replica, view.meta.extend_support) == (1, False)
        view = await admin.update_topic(topic, replicas=2, timeout=CREATION)
        assert view.meta is not None
        assert view.meta.replica == 2

        async def joined() -> bool:
            return len((await admin.describe(topic, timeout=LIMIT)).partitions[0].replicas) == 2

        await eventually(joined, CREATION)
        view = await admin.update_topic(topic, extended=True, timeout=CREATION)
        assert view.meta is not None
        assert view.meta.extend_support
        assert await admin.channels(topic) == ("kept",)
        view = await admin.update_topic(topic, disable_channel_auto_create=True, timeout=CREATION)
        assert view.meta is not None
        assert view.meta.disable_channel_auto_create

        async def dropped() -> bool:
            return await found(admin, topic, "kept") == {}

        await eventually(dropped, LIMIT)
    finally:
        await admin.delete_topic(topic, timeout=CREATION)


@pytest.mark.only_plain
async def test_a_paused_topic_keeps_its_messages_from_its_channels(
    admin: AdminClient, producer: Producer, ordinary: str, channel: str, mark: bytes
) -> None:
    await admin.create_channel(ordinary, channel)
    await admin.pause_topic(ordinary)
    await admin.pause_topic(ordinary)
    try:
        (topic,) = (await admin.stats(ordinary)).topics
        assert all(entry.paused for entry in topic.partitions)
        await producer.publish(ordinary, mark)
        (topic,) = (await admin.stats(ordinary)).topics
        assert sum(entry.unrouted for entry in topic.partitions) == 1
        await admin.empty_topic(ordinary)
        (topic,) = (await admin.stats(ordinary)).topics
        assert sum(entry.unrouted for entry in topic.partitions) == 0
    finally:
        await admin.unpause_topic(ordinary)
    (topic,) = (await admin.stats(ordinary)).topics
    assert not any(entry.paused for entry in topic.partitions)
    await producer.publish(ordinary, mark)

    async def arrived() -> bool:
        return sum(entry.depth for entry in (await found(admin, ordinary, channel)).values()) == 1

    await eventually(arrived, LIMIT)


async def test_a_partitioned_topic_can_be_neither_paused_nor_emptied(admin: AdminClient, single: str) -> None:
    for call in (admin.pause_topic, admin.unpause_topic, admin.empty_topic):
        with pytest.raises(ConfigError, match="on the partitioned server"):
            await call(single)


@pytest.mark.only_plain
async def test_what_needs_the_partitioned_server_says_so(admin: AdminClient, ordinary: str, channel: str) -> None:
    await admin.create_channel(ordinary, channel)
    for call in (admin.skip_channel, admin.unskip_channel):
        with pytest.raises(ConfigError, match="plain nsqd"):
            await call(ordinary, channel)
    with pytest.raises(ConfigError, match="they need the partitioned server"):
        await admin.update_topic(ordinary, replicas=2)
    with pytest.raises(ConfigError, match="no log to search"):
        await admin.find_message(ordinary, internal_id=1)


# ---------------------------------------------------------------- nodes and statistics


@pytest.mark.plain
async def test_the_state_of_the_cluster(admin: AdminClient, cluster: ClusterUnderTest) -> None:
    state = await admin.cluster()
    assert state.is_plain is cluster.is_plain
    assert {lookupd.url for lookupd in state.lookupds} >= set(cluster.lookupd)
    assert [lookupd.error for lookupd in state.lookupds] == [""] * len(state.lookupds)
    assert sum(lookupd.leads for lookupd in state.lookupds) == (0 if cluster.is_plain else 1)
    assert state.stable is None if cluster.is_plain else state.stable in (True, False)
    assert len(state.loads) == (0 if cluster.is_plain else cluster.nodes)


async def test_a_tombstoned_nsqd_is_hidden_from_publishers_only(admin: AdminClient, single: str) -> None:
    leader = (await admin.describe(single, timeout=LIMIT)).partitions[0].leader
    assert leader is not None
    await admin.tombstone_node(single, leader.address)
    try:
        infos = {info.node.address: info for info in await admin.nodes()}
        assert single in infos[leader.address].tombstoned
        found = (await admin.describe(single, timeout=LIMIT)).partitions[0]
        assert found.leader == leader
        with pytest.raises(ConfigError, match="remove delete="):
            await admin.tombstone_node(single, leader.address, delete=True)
    finally:
        await admin.restore_node(single, leader.address)
    infos = {info.node.address: info for info in await admin.nodes()}
    assert single not in infos[leader.address].tombstoned


@pytest.mark.only_plain
async def test_a_topic_is_deleted_at_one_nsqd(admin: AdminClient, cluster: ClusterUnderTest) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 1)
    (first, second) = sorted(info.node.address for info in await admin.nodes() if topic in info.topics)
    with pytest.raises(ConfigError, match="forget a tombstone"):
        await admin.restore_node(topic, first)
    await admin.tombstone_node(topic, first, delete=True)
    assert [info.node.address for info in await admin.nodes() if topic in info.topics] == [second]
    with pytest.raises(TopicNotFoundError, match=first):
        await admin.tombstone_node(topic, first)
    await admin.tombstone_node(topic, second)
    infos = {info.node.address: info for info in await admin.nodes()}
    assert topic in infos[second].tombstoned


@pytest.mark.plain
async def test_statistics_have_nodes_topics_channels_and_clients(
    admin: AdminClient, producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary, client_id="statistician", max_in_flight=2) as consumer:
        for number in range(6):
            await producer.publish(ordinary, mark + b"%d" % number)
        first = await next_of(consumer, mark)

        async def shows_all() -> bool:
            (topic,) = (await admin.stats(ordinary, channel=consume.channel, clients=True)).topics
            (total,) = topic.channels
            return total.depth + total.in_flight >= 6 and total.in_flight >= 1

        await eventually(shows_all, LIMIT)
        stats = await admin.stats(ordinary, channel=consume.channel, clients=True)
        assert stats.silent == ()
        assert all(node.version and node.health == "OK" and node.started_at for node in stats.nodes)
        (topic,) = stats.topics
        assert (topic.topic, len(topic.partitions)) == (ordinary, 2)
        assert all(entry.is_leader and entry.nsqd for entry in topic.partitions)
        (total,) = topic.channels
        assert (total.name, total.clients, len(total.connections)) == (consume.channel, 2, 2)
        assert {client.client_id for client in total.connections} == {"statistician"}
        assert sum(client.in_flight for client in total.connections) >= 1
        lag = total.lag(time.time())
        assert lag is None or 0 <= lag < 600
        first.finish()
    everything = await admin.stats()
    assert ordinary in {topic.topic for topic in everything.topics}
    assert not any(channel.connections for topic in everything.topics for channel in topic.channels)
