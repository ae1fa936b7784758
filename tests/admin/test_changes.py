"""Deleting, growing, moving and describing topics of a scripted cluster."""

import asyncio
from typing import Any

import pytest

from nsq_ha.admin import AdminClient
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import (
    ClosedError,
    ConfigError,
    DiscoveryError,
    LookupUnavailableError,
    NoLeaderError,
    TopicNotFoundError,
)
from tests.admin.scripted import Plain, Scripted, part
from tests.engine.lookups.loopback import LIMIT, hang
from tests.support.waiting import eventually

UNSTABLE = {"message": "the cluster is unstable"}


# ---------------------------------------------------------------- deleting, growing, channels


async def test_deleting_waits_until_nobody_lists_the_topic(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/delete", b"")
    gone = {"channels": [], "partitions": {}, "producers": [], "meta": {"partition_num": 0}}
    cluster.lookups(cluster.body(4150), cluster.body(4150), gone)
    await admin.delete_topic("orders")
    assert cluster.leader.queries("/topic/delete") == [{"topic": "orders", "partition": "**"}]
    assert cluster.leader.count("/lookup") == 3


async def test_expanding_waits_for_the_new_number(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/partition/expand", UNSTABLE, 500)
    cluster.leader.then("/topic/partition/expand", b"")
    cluster.follower.answer("/lookup", cluster.body(4150))
    cluster.follower.then("/lookup", cluster.body(4150, 4150))
    cluster.leader.answer("/lookup", cluster.body(4150, 4150))
    view = await admin.expand("orders", 2)
    assert view.partition_num == 2
    assert view.complete
    assert cluster.leader.queries("/topic/partition/expand")[0] == {"topic": "orders", "partition_num": "2"}


async def test_expanding_waits_until_the_named_leaders_serve_the_new_partitions(
    cluster: Scripted, admin: AdminClient
) -> None:
    """A lookup names the leaders of new partitions up to a minute before these take the part."""
    cluster.leader.answer("/topic/partition/expand", b"")
    cluster.lookups(cluster.body(4150, 4150))
    old, new = (
        {"topic_name": "orders", "topic_partition": str(number), "is_leader": leads, "channels": []}
        for number, leads in ((0, True), (1, False))
    )
    cluster.nsqd.answer("/stats", {"topics": [old, new]})
    expanding = asyncio.create_task(admin.expand("orders", 2))
    await eventually(lambda: cluster.leader.count("/topic/meta/update") >= 1)
    assert not expanding.done()
    cluster.nsqd.answer("/stats", {"topics": [old, new | {"is_leader": True}]})
    assert (await asyncio.wait_for(expanding, LIMIT)).complete


async def test_expanding_gives_the_new_partitions_the_channels_of_the_others(
    cluster: Scripted, admin: AdminClient
) -> None:
    """A new channel starts at the end: what is published before it is created is never delivered to it."""
    cluster.leader.answer("/topic/partition/expand", b"")
    body = {"channels": ["audit", "billing", "replay#ephemeral"]}
    cluster.lookups(cluster.body(4150) | body, cluster.body(4150, 4150) | body)
    cluster.has_channels()
    cluster.nsqd.answer("/stats", {"topics": [part(0, "audit", "billing", "replay#ephemeral"), part(1, "audit")]})
    cluster.nsqd.answer("/channel/create", b"")
    await admin.expand("orders", 2)
    assert cluster.nsqd.queries("/channel/create") == [{"topic": "orders", "partition": "1", "channel": "billing"}]


async def test_a_second_expansion_completes_the_first(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/partition/expand", b"")
    cluster.lookups(cluster.body(4150, 4150) | {"channels": ["billing"]})
    cluster.has_channels()
    empty = part(1) | {"is_leader": False}
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing"), empty | {"is_leader": True}]})
    cluster.nsqd.then("/stats", {"topics": [part(0, "billing"), empty]})
    cluster.nsqd.then("/stats", {"topics": [part(0, "billing"), empty | {"is_leader": True}]})
    cluster.nsqd.answer("/channel/create", b"")
    await admin.expand("orders", 2)
    assert cluster.nsqd.queries("/channel/create") == [{"topic": "orders", "partition": "1", "channel": "billing"}]


async def test_channels_that_cannot_be_created_are_a_warning(
    cluster: Scripted, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.leader.answer("/topic/partition/expand", b"")
    cluster.lookups(*(cluster.body(*ports) | {"channels": ["billing"]} for ports in ([4150], [4150, 4150])))
    cluster.has_channels()
    cluster.nsqd.answer("/stats", {"message": "TLS_REQUIRED"}, 403)
    assert (await admin.expand("orders", 2)).complete
    assert "lacks channels of the topic's other partitions" in caplog.text


async def test_registered_channels_are_registered_for_the_new_partitions_too(
    cluster: Scripted, admin: AdminClient
) -> None:
    """The server registers them for the old ones only, until another channel is registered."""
    cluster.leader.answer("/topic/partition/expand", b"")
    registered: Any = {"channels": ["billing"]}
    flags = {"disable_channel_auto_create": True}
    cluster.lookups(cluster.body(4150, **flags) | registered, cluster.body(4150, 4150, **flags) | registered)
    cluster.has_channels("billing")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing"), part(1, "billing")]})
    for action in ("create", "delete"):
        cluster.leader.answer(f"/channel/{action}", b"")
    await admin.expand("orders", 2)
    created, deleted = (cluster.leader.queries(f"/channel/{action}") for action in ("create", "delete"))
    assert created == deleted
    assert [query["topic"] for query in created] == ["orders"]
    assert created[0]["channel"].startswith("expanded-")
    assert cluster.nsqd.count("/channel/create") == 0


async def test_an_unstable_cluster_is_reported_in_time(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150))
    cluster.leader.answer("/topic/partition/expand", UNSTABLE, 500)
    with pytest.raises(DiscoveryError, match=r"expanding topic orders .*the cluster is unstable"):
        await admin.expand("orders", 2, timeout=1.0)


async def test_waiting_survives_nsqlookupds_that_are_away(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/partition/expand", b"")
    for fake in (cluster.follower, cluster.leader):
        fake.answer("/lookup", b"<html>", 500)
    expanding = asyncio.create_task(admin.expand("orders", 2))
    await eventually(lambda: cluster.leader.count("/lookup") >= 3)
    cluster.lookups(cluster.body(4150, 4150))
    assert (await asyncio.wait_for(expanding, LIMIT)).complete


async def test_an_unknown_topic_is_said_to_be_so(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups({"message": "Key not found"}, status=404)
    with pytest.raises(TopicNotFoundError):
        await admin.create_channel("orders", "billing")
    with pytest.raises(TopicNotFoundError):
        await admin.describe("orders")
    with pytest.raises(TopicNotFoundError):
        await admin.move_leader("orders", 0)


# ---------------------------------------------------------------- moving leaders


def in_sync(cluster: Scripted, *ports: int) -> None:
    replicas = [{"node_id": f"127.0.0.1:1:{port}:7"} for port in ports]
    stats = {"topic_coord_stats": [{"name": "orders", "partition": 0, "isr_stats": replicas}]}
    cluster.nsqd.answer("/coordinator/stats", stats)


@pytest.mark.parametrize(
    ("to", "wanted"),
    [
        (None, "127.0.0.1:1:4160:7"),
        ("127.0.0.1:4170", "127.0.0.1:1:4170:7"),
        ("10.0.0.9:1:4180:7", "10.0.0.9:1:4180:7"),
    ],
)
async def test_a_leader_is_moved_to_another_replica(
    cluster: Scripted, admin: AdminClient, to: str | None, wanted: str
) -> None:
    in_sync(cluster, 4150, 4160, 4170)
    cluster.leader.answer("/topic/partition/move", UNSTABLE, 400)
    cluster.leader.then("/topic/partition/move", b"")
    cluster.lookups(cluster.body(4150), cluster.body(4150), cluster.body(partition_num=1), cluster.body(4160))
    node = await admin.move_leader("orders", 0, to)
    assert node.tcp_port == 4160
    assert cluster.leader.queries("/topic/partition/move")[0] == {
        "topic": "orders",
        "partition": "0",
        "move_leader": "true",
        "move_from": "127.0.0.1:1:4150:7",
        "move_to": wanted,
    }


def holders(dev: DevCluster, number: int) -> set[str]:
    return {dev.leader("orders", number) or "", *dev.followers("orders", number)}


async def test_nodes_are_named_by_what_they_hold_and_emptied_for_good() -> None:
    with await asyncio.to_thread(DevCluster(nsqds=4, time_scale=0.02).__enter__) as dev:
        dev.create_topic("orders", 2, 3, ordered=True)
        async with AdminClient(dev.lookupd) as admin:
            (other,) = {*dev.nsqds} - holders(dev, 0)  # which holds the other partition
            assert (await admin.move_leader("orders", 0, dev.nsqds[other])).address == dev.nsqds[other]
            leader = dev.leader("orders", 1) or ""
            await admin.remove_node(dev.nsqds[leader])
            assert leader not in holders(dev, 0) | holders(dev, 1)


async def test_a_cluster_is_unstable_during_an_upgrade() -> None:
    with await asyncio.to_thread(DevCluster(time_scale=0.02).__enter__) as dev:
        async with AdminClient(dev.lookupd) as admin:

            async def is_stable() -> bool:
                return (await admin.cluster()).stable is True

            await eventually(is_stable, LIMIT)
            await admin.begin_upgrade()
            assert not await is_stable()
            await admin.end_upgrade()
            assert await is_stable()


async def test_a_plain_cluster_removes_and_upgrades_nothing(plain_admin: AdminClient, plain_cluster: Plain) -> None:
    address = f"127.0.0.1:{plain_cluster.nsqds[0].port + 1}"
    plain_cluster.lookupds[0].answer("/nodes", {"producers": [plain_cluster.peer(plain_cluster.nsqds[0])]})
    for change in (plain_admin.begin_upgrade(), plain_admin.end_upgrade(), plain_admin.remove_node(address)):
        with pytest.raises(ConfigError, match="plain cluster"):
            await change


async def test_a_destination_that_makes_no_sense_is_refused(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150))
    in_sync(cluster, 4150)
    with pytest.raises(ConfigError, match="no other replica"):
        await admin.move_leader("orders", 0)
    with pytest.raises(ConfigError, match=r"the cluster has no nsqd 127.0.0.1:1"):
        await admin.move_leader("orders", 0, "127.0.0.1:1")
    for fake in (cluster.follower, cluster.leader):
        fake.answer("/nodes", {"producers": [cluster.peer(4190)]})
    cluster.nsqd.answer("/stats", {"topics": []})
    with pytest.raises(ConfigError, match="holds no partition"):
        await admin.move_leader("orders", 0, "127.0.0.1:4190")
    with pytest.raises(ConfigError):
        await admin.move_leader("orders", -1)
    with pytest.raises(NoLeaderError):
        await admin.move_leader("orders", 1)


async def test_a_move_that_does_nothing_is_asked_for_again(cluster: Scripted, admin: AdminClient) -> None:
    in_sync(cluster, 4150, 4160)
    cluster.leader.answer("/topic/partition/move", b"")
    cluster.lookups(*[cluster.body(4150)] * 13, cluster.body(4160))
    assert (await admin.move_leader("orders", 0)).tcp_port == 4160
    assert cluster.leader.count("/topic/partition/move") == 2


@pytest.mark.parametrize(("late", "asked"), [(10, 1), (12, 2)])
async def test_a_move_that_the_cluster_shows_late_is_one(
    cluster: Scripted, admin: AdminClient, late: int, asked: int
) -> None:
    """It was an error, or the new leader was moved away again."""
    in_sync(cluster, 4150, 4160)
    cluster.leader.answer("/topic/partition/move", b"")
    cluster.leader.then("/topic/partition/move", {"message": "move from not the topic leader"}, 400)
    cluster.lookups(*[cluster.body(4150)] * late, cluster.body(4160))
    assert (await admin.move_leader("orders", 0)).tcp_port == 4160
    assert cluster.leader.count("/topic/partition/move") == asked


# ---------------------------------------------------------------- describing


async def test_a_description_has_all_there_is(cluster: Scripted, admin: AdminClient) -> None:
    in_sync(cluster, 4150, 4160)
    channels = [{"channel_name": "billing", "depth": 7}, {"channel_name": "audit", "depth": 1}]
    stats = {"topic_name": "orders", "is_leader": True, "channels": channels}
    other = {"topic_name": "orders", "topic_partition": "1", "channels": channels[:1]}
    cluster.nsqd.answer("/stats", {"topics": [stats | {"topic_partition": "0"}, other]})
    for fake in (cluster.follower, cluster.leader):
        fake.answer("/lookup", cluster.body(4150, 4150, partition_num=3))
        fake.then("/lookup", cluster.body(4150, partition_num=3))
    found = await admin.describe("orders")
    assert [(entry.partition, entry.writable) for entry in found.partitions] == [(0, True), (1, False), (2, False)]
    assert found.partitions[0].replicas == ("127.0.0.1:1:4150:7", "127.0.0.1:1:4160:7")
    assert found.partitions[2].leader is None
    assert found.partitions[2].stats is None
    assert found.channels == ("audit", "billing")
    assert found.depth == {"audit": 1, "billing": 14}
    assert found.view.partition_num == 3


async def test_a_node_that_hangs_is_waited_for_once(cluster: Scripted) -> None:
    """Each of its partitions waited in turn: nothing was known of a topic if the node led more than some thirty."""
    cluster.nsqd.behave = hang
    cluster.lookups(cluster.body(*[4150] * 64))
    async with AdminClient(cluster.follower.url, question_timeout=0.5) as admin:
        found = await admin.describe("orders", timeout=1.5)
    assert {("no complete answer within" in entry.error, entry.stats) for entry in found.partitions} == {(True, None)}


async def test_lists_come_from_the_first_that_answers(cluster: Scripted, admin: AdminClient) -> None:
    cluster.follower.answer("/topics", {"topics": ["orders"]})
    assert [info.name for info in await admin.topics()] == ["orders"]
    assert [info.node.tcp_port for info in await admin.nodes()] == [4150]
    cluster.follower.answer("/topics", b"<html>")
    with pytest.raises(LookupUnavailableError) as caught:
        await admin.topics()
    assert [url for url, _ in caught.value.causes] == [cluster.follower.url]


@pytest.mark.parametrize("seconds", [0, -1, "2", None, float("nan")])
def test_the_limit_of_a_question_must_be_seconds(seconds: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError, match="question_timeout must be a number of seconds"):
        AdminClient("127.0.0.1:1", question_timeout=seconds)


async def test_it_must_be_open() -> None:
    with pytest.raises(ConfigError):
        AdminClient(())
    client = AdminClient("127.0.0.1:1")
    with pytest.raises(ClosedError):
        await client.describe("orders")
    async with client:
        pass
    await client.aclose()
    with pytest.raises(ClosedError):
        await client.topics()
