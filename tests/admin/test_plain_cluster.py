"""Administering a plain cluster: two independent nsqlookupds and two nsqds, scripted."""

import asyncio
from typing import Any

import pytest

from nsq_ha.admin import AdminClient, ChannelStats, PartitionStats
from nsq_ha.errors import ConfigError, ConnectError, DiscoveryError, LookupUnavailableError, TopicNotFoundError
from tests.admin.limits import at_its_limit
from tests.admin.scripted import Plain
from tests.engine.lookups.loopback import LIMIT


@pytest.fixture
def cluster(plain_cluster: Plain) -> Plain:
    return plain_cluster


@pytest.fixture
def admin(plain_admin: AdminClient) -> AdminClient:
    return plain_admin


# ---------------------------------------------------------------- creating


async def test_a_topic_is_created_at_every_nsqlookupd(cluster: Plain, admin: AdminClient) -> None:
    view = await asyncio.wait_for(admin.create_topic("orders"), LIMIT)
    assert cluster.asked("/topic/create") == [[{"topic": "orders"}], [{"topic": "orders"}], [], []]
    assert view.is_plain
    assert {node.http_port for node in view.leaders.values()} == {nsqd.port for nsqd in cluster.nsqds}


@pytest.mark.few(every=3)
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"partitions": 2}, "has no partitions"),
        ({"replicas": 2}, "keeps one copy of each message"),
        ({"ordered": True}, "keeps no order"),
        ({"multi_part": False}, "has no partitions"),
        ({"extended": True}, "has no headers"),
        ({"retention_days": 3}, "keeps no finished messages"),
        ({"sync_every": 9}, "has it as an option of its own, -sync-every"),
        ({"disable_channel_auto_create": True}, "creates every channel that a consumer names"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_options_of_the_partitioned_server_create_nothing(
    cluster: Plain, admin: AdminClient, option: dict[str, Any], reason: str
) -> None:
    text = f"remove {next(iter(option))}=: it needs the partitioned server, and plain nsqd {reason}"
    with pytest.raises(ConfigError, match=text):
        await admin.create_topic("orders", **option)
    assert cluster.asked("/topic/create") == [[], [], [], []]


async def test_an_nsqlookupd_that_is_down_is_named_and_the_other_one_gets_the_topic(
    cluster: Plain, admin: AdminClient
) -> None:
    await cluster.lookupds[0].stop()
    text = "not every nsqlookupd confirmed /topic/create for topic 'orders': repeat the call"
    with pytest.raises(LookupUnavailableError, match=text) as caught:
        await asyncio.wait_for(admin.create_topic("orders"), LIMIT)
    assert [url for url, _ in caught.value.causes] == [cluster.lookupds[0].url]
    assert cluster.lookupds[1].count("/topic/create") == 1


async def test_a_server_that_only_lists_nothing_is_not_a_plain_one(cluster: Plain, admin: AdminClient) -> None:
    """A partitioned nsqlookupd without coordinator has no list of nsqlookupds; none leads, so a change waits."""
    for lookupd in cluster.lookupds:
        lookupd.answer("/lookup", {"partitions": {}, "producers": [], "meta": {"partition_num": 0}})
    await at_its_limit(lambda limit: admin.create_topic("orders", timeout=limit), "s: no nsqlookupd leads")
    assert cluster.asked("/topic/create") == [[], [], [], []]


# ---------------------------------------------------------------- deleting


async def test_a_topic_is_deleted_at_every_nsqlookupd_and_nsqd(cluster: Plain, admin: AdminClient) -> None:
    cluster.has_topic(0)
    cluster.then_deleted()
    await asyncio.wait_for(admin.delete_topic("orders"), LIMIT)
    assert cluster.asked("/topic/delete") == [[{"topic": "orders"}]] * 4


async def test_a_topic_that_nobody_has_cannot_be_deleted(cluster: Plain, admin: AdminClient) -> None:
    with pytest.raises(TopicNotFoundError, match="topic 'orders' does not exist"):
        await admin.delete_topic("orders")
    assert [len(queries) for queries in cluster.asked("/topic/delete")] == [0, 0, 1, 1]


async def test_a_topic_that_a_silent_nsqlookupd_may_list_is_not_said_to_be_gone(
    cluster: Plain, admin: AdminClient
) -> None:
    """The first call deletes what it can; the second said that there is nothing, though an nsqd still has it."""
    cluster.has_topic(1)
    await cluster.lookupds[1].stop()
    with pytest.raises(LookupUnavailableError) as caught:
        await asyncio.wait_for(admin.delete_topic("orders"), LIMIT)
    assert [url for url, _ in caught.value.causes] == [cluster.lookupds[1].url]


async def test_nor_is_it_when_it_is_described(cluster: Plain, admin: AdminClient) -> None:
    cluster.has_topic(1)
    await cluster.lookupds[1].stop()
    for call in (admin.describe, admin.channels):
        with pytest.raises(LookupUnavailableError) as caught:
            await asyncio.wait_for(call("orders"), LIMIT)
        assert [url for url, _ in caught.value.causes] == [cluster.lookupds[1].url]
    await cluster.lookupds[1].start()
    cluster.lookupds[1].delay = 0.6  # longer than the first answers wait for others
    described = await asyncio.wait_for(admin.describe("orders"), LIMIT)
    assert [entry.leader.http_port for entry in described.partitions if entry.leader] == [cluster.nsqds[1].port]


async def test_an_nsqd_that_only_a_slow_nsqlookupd_lists_is_described(cluster: Plain, admin: AdminClient) -> None:
    """Its messages were missing in what was said to be the whole topic."""
    cluster.has_topic(0, 1)
    cluster.lookupds[1].delay = 0.6
    described = await asyncio.wait_for(admin.describe("orders"), LIMIT)
    found = {entry.leader.http_port for entry in described.partitions if entry.leader}
    assert found == {nsqd.port for nsqd in cluster.nsqds}


async def test_a_topic_that_only_nsqds_have_is_deleted_there(cluster: Plain, admin: AdminClient) -> None:
    """An earlier call failed at this nsqd, after the nsqlookupds had deleted the topic."""
    cluster.nsqds[1].answer("/topic/delete", b"")
    await asyncio.wait_for(admin.delete_topic("orders"), LIMIT)
    assert [len(queries) for queries in cluster.asked("/topic/delete")] == [0, 0, 1, 1]


async def test_a_topic_that_all_have_tombstoned_is_deleted_too(cluster: Plain, admin: AdminClient) -> None:
    cluster.has_topic(0)
    cluster.lookupds[0].answer("/lookup", {"channels": [], "producers": []})
    cluster.lookupds[0].answer("/nodes", {"producers": [cluster.peer(cluster.nsqds[0], "orders", tombstones=[True])]})
    cluster.then_deleted()
    await asyncio.wait_for(admin.delete_topic("orders"), LIMIT)
    assert cluster.nsqds[0].count("/topic/delete") == 1


async def test_an_nsqd_that_does_not_answer_is_named_and_the_others_delete(cluster: Plain, admin: AdminClient) -> None:
    cluster.has_topic(0, 1)
    await cluster.nsqds[0].stop()
    with pytest.raises(ConnectError, match=f"nsqd {cluster.nsqds[0].url}: cannot connect"):
        await admin.delete_topic("orders")
    assert [len(queries) for queries in cluster.asked("/topic/delete")] == [1, 1, 0, 1]


async def test_an_nsqd_without_the_topic_need_not_answer(cluster: Plain, admin: AdminClient) -> None:
    cluster.has_topic(0)
    cluster.then_deleted()
    await cluster.nsqds[1].stop()
    await asyncio.wait_for(admin.delete_topic("orders"), LIMIT)
    assert cluster.nsqds[0].count("/topic/delete") == 1


async def test_without_any_trace_of_the_topic_all_nsqds_must_answer(cluster: Plain, admin: AdminClient) -> None:
    await cluster.nsqds[1].stop()
    with pytest.raises(ConnectError, match=f"nsqd {cluster.nsqds[1].url}"):
        await admin.delete_topic("orders")


async def test_a_topic_that_comes_back_says_why(cluster: Plain, admin: AdminClient) -> None:
    cluster.has_topic(0)
    await at_its_limit(
        lambda limit: admin.delete_topic("orders", timeout=limit),
        "topic 'orders' is listed again: stop its producers and consumers",
    )
    deletions = 0
    for limit in (0.3, 5.0, 30.0):  # a busy machine may need a longer one to ask twice
        if deletions < 2:
            before = cluster.nsqds[0].count("/topic/delete")
            with pytest.raises(DiscoveryError):
                await admin.delete_topic("orders", timeout=limit)
            deletions = cluster.nsqds[0].count("/topic/delete") - before
    assert deletions > 1


# ---------------------------------------------------------------- what needs partitions


async def test_a_plain_topic_gets_no_partitions(admin: AdminClient) -> None:
    with pytest.raises(ConfigError, match=r"'orders' cannot get partitions: plain nsqd has none. To use another nsqd"):
        await asyncio.wait_for(admin.expand("orders", 2), LIMIT)


async def test_a_plain_topic_has_no_leader_to_move(cluster: Plain, admin: AdminClient) -> None:
    cluster.has_topic(0)
    with pytest.raises(ConfigError, match="'orders' has no leader to move: plain nsqd has no partitions"):
        await asyncio.wait_for(admin.move_leader("orders", 0), LIMIT)


# ---------------------------------------------------------------- reading


async def test_a_description_has_channels_and_depths_of_each_nsqd(cluster: Plain, admin: AdminClient) -> None:
    cluster.has_topic(0, 1)
    channel = {
        "channel_name": "billing",
        "depth": 4,
        "backend_depth": 1,
        "in_flight_count": 2,
        "deferred_count": 3,
        "message_count": 90,
        "requeue_count": 5,
        "timeout_count": 6,
        "client_count": 7,
        "clients": [],
        "paused": True,
    }
    topic = {"topic_name": "orders", "channels": [channel], "depth": 8, "backend_depth": 1, "message_count": 100}
    other = {"topic_name": "other", "channels": [channel], "depth": 1}
    cluster.nsqds[0].answer("/stats", {"version": "1.3.0", "topics": [other, topic]})
    await cluster.nsqds[1].stop()
    found = await admin.describe("orders")
    by_port = {entry.leader.http_port: entry for entry in found.partitions if entry.leader is not None}
    answered, silent = (by_port[nsqd.port] for nsqd in cluster.nsqds)
    billing = ChannelStats("billing", 4, 0, 2, 3, 5, 6, 7, paused=True, skipped=False, messages=90, on_disk=1)
    assert answered.stats == PartitionStats(
        "orders",
        answered.partition,
        True,
        0,
        0,
        100,
        ordered=False,
        extended=False,
        channels=(billing,),
        unrouted=8,
        nsqd=f"127.0.0.1:{cluster.nsqds[0].port + 1}",
        on_disk=1,
    )
    assert (answered.writable, silent.writable, silent.stats) == (True, True, None)
    assert found.view.is_plain
    assert (found.channels, found.depth) == (("billing",), {"billing": 4})


async def test_a_topic_that_no_nsqd_has_yet_has_an_empty_description(cluster: Plain, admin: AdminClient) -> None:
    cluster.lookupds[0].answer("/lookup", {"channels": [], "producers": []})
    found = await admin.describe("orders")
    assert (found.partitions, found.depth) == ((), {})


async def test_topics_and_nodes_are_those_of_all_nsqlookupds(cluster: Plain, admin: AdminClient) -> None:
    for lookupd, topics in zip(cluster.lookupds, (["b", "a"], ["c", "b"]), strict=True):
        lookupd.answer("/topics", {"topics": topics})
    one, two = cluster.nsqds
    here = cluster.peer(one, "a", "b", tombstones=[True, True])
    there = cluster.peer(one, "b", "c", tombstones=[False, True])
    cluster.lookupds[0].answer("/nodes", {"producers": [here]})
    cluster.lookupds[1].answer("/nodes", {"producers": [cluster.peer(two, "c"), there]})
    assert [info.name for info in await admin.topics()] == ["a", "b", "c"]
    nodes = {info.node.http_port: info for info in await admin.nodes()}
    assert set(nodes) == {one.port, two.port}
    assert set(nodes[one.port].topics) == {"a", "b", "c"}
    assert nodes[one.port].tombstoned == {"a", "c"}
