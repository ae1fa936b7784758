"""Administration against a scripted cluster: who is asked, how long is waited, what is reported."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from nsq_ha.discovery import admin as admin_module
from nsq_ha.discovery import leading as leading_module
from nsq_ha.discovery.admin import AdminClient
from nsq_ha.errors import (
    ClosedError,
    ConfigError,
    DiscoveryError,
    LookupUnavailableError,
    NoLeaderError,
    ServerError,
    TopicNotFoundError,
)
from tests.discovery.loopback import LIMIT, Fake, hang, list_body, lookup_body
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Serve = Callable[[], Awaitable[Fake]]

UNSTABLE = {"message": "the cluster is unstable"}
NO_CHANNEL = {"message": "Topic has no channel, should init at least one for the new topic"}


class Scripted:
    """Two nsqlookupds, the second of which leads, and one nsqd."""

    def __init__(self, follower: Fake, leader: Fake, nsqd: Fake) -> None:
        self.follower, self.leader, self.nsqd = follower, leader, nsqd
        self.led_by(leader)
        for fake in (follower, leader):
            fake.answer("/nodes", {"producers": [self.peer()]})

    def led_by(self, leader: Fake | None) -> None:
        for fake in (self.follower, self.leader):
            url = leader.url if leader is not None else None
            fake.answer("/listlookup", list_body(url, self.follower.url, self.leader.url))

    def peer(self, port: int = 4150) -> dict[str, object]:
        """An nsqd of which only the HTTP is real."""
        return {
            "broadcast_address": "127.0.0.1",
            "tcp_port": port,
            "http_port": self.nsqd.port,
            "distributed_id": f"127.0.0.1:1:{port}:7",
        }

    def body(self, *ports: int, partition_num: int | None = None, **meta: bool) -> dict[str, object]:
        """A look-up in which these ports lead partitions 0, 1, ..."""
        content = lookup_body(dict(enumerate(ports)), partition_num)
        content["partitions"] = {str(partition): self.peer(port) for partition, port in enumerate(ports)}
        content["meta"] = {"partition_num": partition_num or len(ports), "replica": 1} | meta
        return content

    def lookups(self, *contents: object, status: int = 200) -> None:
        """Both say these in turn, for each question of either access."""
        for fake in (self.follower, self.leader):
            fake.answer("/lookup", contents[0], status)
            for content in contents[1:]:
                fake.then("/lookup", content, status)


@pytest.fixture
async def cluster(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    monkeypatch.setattr(leading_module, "PAUSE", 0.01)
    monkeypatch.setattr(admin_module, "PAUSE", 0.01)
    monkeypatch.setattr(admin_module, "_NUDGE_INTERVAL", 0.05)
    return Scripted(await serve(), await serve(), await serve())


@pytest.fixture
async def admin(cluster: Scripted) -> AsyncIterator[AdminClient]:
    async with AdminClient(cluster.follower.url, question_timeout=2.0) as client:
        yield client


# ---------------------------------------------------------------- creating


async def test_a_topic_is_created_at_the_leading_nsqlookupd_and_waited_for(
    cluster: Scripted, admin: AdminClient
) -> None:
    cluster.leader.answer("/topic/create", b"")
    empty, half, whole = cluster.body(partition_num=2), cluster.body(4150, partition_num=2), cluster.body(4150, 4150)
    cluster.lookups(empty, empty, half, half, whole)
    view = await admin.create_topic(
        "orders", 2, 3, ordered=True, retention_days=3, sync_every=100, extended=True, disable_channel_auto_create=True
    )
    assert view.complete
    assert view.partition_num == 2
    assert cluster.follower.count("/topic/create") == 0
    assert cluster.leader.queries("/topic/create") == [
        {
            "topic": "orders",
            "partition_num": "2",
            "replicator": "3",
            "orderedmulti": "true",
            "multipart": "false",
            "extend": "true",
            "disable_channel_auto_create": "true",
            "retention": "3",
            "syncdisk": "100",
        }
    ]


async def test_a_topic_that_exists_with_other_settings_is_told_so(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/create", {"message": "already exist"}, 400)
    with pytest.raises(ConfigError, match=r"topic 'orders' exists already, with other settings"):
        await admin.create_topic("orders", 1)
    cluster.leader.answer("/topic/create", {"message": "INVALID_ARG_TOPIC_REPLICATOR"}, 400)
    with pytest.raises(ServerError, match="INVALID_ARG_TOPIC_REPLICATOR"):
        await admin.create_topic("orders", 1)


async def test_a_topic_is_not_usable_while_its_named_leader_denies_to_lead(
    cluster: Scripted, admin: AdminClient
) -> None:
    cluster.leader.answer("/topic/create", b"")
    cluster.lookups(cluster.body(4150))
    stats = {"topic_name": "orders", "topic_partition": "0", "is_leader": False, "channels": []}
    cluster.nsqd.answer("/stats", {"topics": [stats]})
    cluster.nsqd.then("/stats", {"topics": [stats]})
    cluster.nsqd.then("/stats", {"topics": [stats | {"is_leader": True}]})
    assert (await admin.create_topic("orders", 1)).complete
    assert cluster.nsqd.count("/stats") == 3


@pytest.mark.parametrize(("replicas", "shared"), [(1, "false"), (2, "true")])
async def test_partitions_share_nodes_where_these_are_too_few(
    cluster: Scripted, admin: AdminClient, replicas: int, shared: str
) -> None:
    cluster.leader.answer("/topic/create", b"")
    cluster.lookups(cluster.body(4150))
    await admin.create_topic("orders", 1, replicas)
    assert cluster.leader.queries("/topic/create")[0]["multipart"] == shared


async def test_a_topic_hidden_from_publishers_for_want_of_a_channel_is_usable(
    cluster: Scripted, admin: AdminClient
) -> None:
    cluster.leader.answer("/topic/create", b"")
    for fake in (cluster.follower, cluster.leader):
        fake.answer("/lookup", cluster.body(4150))
        fake.then("/lookup", NO_CHANNEL, 404)
    view = await admin.create_topic("orders", 1)
    assert view.complete


async def test_another_check_is_asked_for_when_leaders_take_long(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/create", b"")
    cluster.lookups(cluster.body(partition_num=1))
    creating = asyncio.create_task(admin.create_topic("orders", 1))
    await eventually(lambda: cluster.leader.count("/topic/meta/update") >= 2)
    cluster.lookups(cluster.body(4150))
    assert (await asyncio.wait_for(creating, LIMIT)).complete
    assert cluster.leader.queries("/topic/meta/update")[0] == {"topic": "orders"}


async def test_a_topic_that_gets_no_leaders_is_reported_in_time(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/create", b"")
    cluster.lookups(cluster.body(4150, partition_num=3))
    began = time.monotonic()
    with pytest.raises(NoLeaderError, match=r"creating topic orders .* within 2 s.*partitions without leader: 1, 2"):
        await admin.create_topic("orders", 3, timeout=2.0)
    assert time.monotonic() - began < 4.0


async def test_a_refusal_is_reported_with_the_servers_words(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/create", {"message": "ErrType:9 ErrCode:1 : No node is available for topic"}, 400)
    with pytest.raises(ServerError, match="No node is available"):
        await admin.create_topic("orders", 4, 3)
    assert cluster.leader.count("/topic/create") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "a b"},
        {"partitions": 0},
        {"partitions": 256},
        {"partitions": True},
        {"replicas": 6},
        {"replicas": "1"},
    ],
)
async def test_bad_arguments_send_nothing(cluster: Scripted, admin: AdminClient, wrong: dict[str, object]) -> None:
    arguments: dict[str, object] = {"topic": "orders", "partitions": 1, "replicas": 1}
    with pytest.raises(ConfigError):
        await admin.create_topic(**(arguments | wrong))  # type: ignore[arg-type]
    assert cluster.leader.requests == []
    assert cluster.follower.requests == []


# ---------------------------------------------------------------- who leads


async def test_while_nobody_leads_a_change_waits(cluster: Scripted, admin: AdminClient) -> None:
    cluster.led_by(None)
    cluster.lookups(cluster.body(4150))
    cluster.follower.answer("/topic/create", b"")
    creating = asyncio.create_task(admin.create_topic("orders", 1))
    await eventually(lambda: cluster.leader.count("/listlookup") >= 3)
    cluster.led_by(cluster.follower)
    assert (await asyncio.wait_for(creating, LIMIT)).complete


async def test_nobody_leads_for_too_long(cluster: Scripted, admin: AdminClient) -> None:
    cluster.led_by(None)
    with pytest.raises(DiscoveryError, match="no nsqlookupd leads"):
        await admin.delete_topic("orders", timeout=1.0)


@pytest.mark.parametrize(
    ("status", "message"),
    [(400, "E_FAILED_ON_NOT_LEADER"), (500, "Not nsqlookup leader"), (400, "The topic is waiting node to join isr")],
)
async def test_one_that_leads_no_more_is_asked_again(
    cluster: Scripted, admin: AdminClient, status: int, message: str
) -> None:
    cluster.leader.answer("/topic/create", {"message": message}, status)
    cluster.leader.then("/topic/create", b"")
    cluster.lookups(cluster.body(4150))
    assert (await admin.create_topic("orders", 1)).complete
    assert cluster.leader.count("/topic/create") == 2


async def test_a_change_without_answer_is_tried_again(cluster: Scripted, admin: AdminClient) -> None:
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        if cluster.leader.count("/topic/delete"):
            cluster.leader.behave = None

    cluster.leader.answer("/topic/delete", {"message": "Key not found"}, 500)
    cluster.lookups({"message": "Key not found"}, status=404)
    deleting = asyncio.create_task(admin.delete_topic("orders"))
    with pytest.raises(TopicNotFoundError):
        await deleting
    asked = cluster.leader.count("/topic/delete")
    cluster.leader.requests.clear()
    cluster.follower.answer("/listlookup", list_body(cluster.leader.url, cluster.follower.url, cluster.leader.url))
    cluster.leader.behave = cut
    # The first try was cut off, the second finds nothing: the first had done it.
    await admin.delete_topic("orders")
    assert asked == 1
    assert cluster.leader.count("/topic/delete") == 2


async def test_a_timeout_without_any_obstacle_says_so(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.behave = hang
    cluster.follower.behave = hang
    with pytest.raises(DiscoveryError, match=r"describing topic orders was not done within 0.05 s"):
        await admin.describe("orders", timeout=0.05)


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
    """A look-up names the leaders of new partitions up to a minute before these take the part."""
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


async def test_an_unstable_cluster_is_reported_in_time(cluster: Scripted, admin: AdminClient) -> None:
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


async def test_a_channel_is_created_on_every_partition(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150, 4150))
    cluster.nsqd.answer("/channel/create", b"")
    await admin.create_channel("orders", "billing")
    assert sorted(query["partition"] for query in cluster.nsqd.queries("/channel/create")) == ["0", "1"]
    cluster.nsqd.answer("/channel/create", {"message": "E_FAILED_ON_NOT_LEADER"}, 400)
    with pytest.raises(ServerError, match="E_FAILED_ON_NOT_LEADER"):
        await admin.create_channel("orders", "billing")
    cluster.lookups(cluster.body(4150, partition_num=2))
    with pytest.raises(NoLeaderError, match="partitions without leader: 1"):
        await admin.create_channel("orders", "billing")


async def test_a_channel_that_must_be_registered_is(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150, disable_channel_auto_create=True))
    cluster.leader.answer("/channel/create", b"")
    cluster.leader.then("/channel/create", {"message": "channel billing already registered"}, 400)
    await admin.create_channel("orders", "billing")
    await admin.create_channel("orders", "billing")
    assert cluster.leader.queries("/channel/create") == [{"topic": "orders", "channel": "billing"}] * 2
    assert cluster.nsqd.requests == []


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


async def test_a_node_without_the_data_is_found_by_what_it_leads(cluster: Scripted, admin: AdminClient) -> None:
    in_sync(cluster, 4150)
    for fake in (cluster.follower, cluster.leader):
        fake.answer("/nodes", {"producers": [cluster.peer(4190) | {"partitions": {"other": ["0"]}}]})
    cluster.leader.answer("/topic/partition/move", b"")
    cluster.lookups(cluster.body(4150), cluster.body(4190))
    assert (await admin.move_leader("orders", 0, "127.0.0.1:4190")).tcp_port == 4190
    assert cluster.leader.queries("/topic/partition/move")[0]["move_to"] == "127.0.0.1:1:4190:7"


async def test_a_destination_that_makes_no_sense_is_refused(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150))
    in_sync(cluster, 4150)
    with pytest.raises(ConfigError, match="no other replica"):
        await admin.move_leader("orders", 0)
    with pytest.raises(ConfigError, match=r"no node 127.0.0.1:1 in the cluster"):
        await admin.move_leader("orders", 0, "127.0.0.1:1")
    for fake in (cluster.follower, cluster.leader):
        fake.answer("/nodes", {"producers": [cluster.peer(4190)]})
    with pytest.raises(ConfigError, match="leads nothing"):
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


async def test_a_node_that_does_not_answer_only_leaves_a_gap(cluster: Scripted, admin: AdminClient) -> None:
    await cluster.nsqd.stop()
    cluster.lookups(cluster.body(4150))
    found = await admin.describe("orders")
    assert found.partitions[0].stats is None
    assert found.partitions[0].replicas == ()
    assert found.channels == ()


async def test_lists_come_from_the_first_that_answers(cluster: Scripted, admin: AdminClient) -> None:
    cluster.follower.answer("/topics", {"topics": ["orders"]})
    assert [info.name for info in await admin.topics()] == ["orders"]
    assert [info.node.tcp_port for info in await admin.nodes()] == [4150]
    cluster.follower.answer("/topics", b"<html>")
    with pytest.raises(LookupUnavailableError) as caught:
        await admin.topics()
    assert [url for url, _ in caught.value.causes] == [cluster.follower.url]


async def test_without_nsqlookupd_a_description_fails_at_once(cluster: Scripted, admin: AdminClient) -> None:
    await cluster.follower.stop()
    began = time.monotonic()
    with pytest.raises(LookupUnavailableError):
        await admin.describe("orders")
    assert time.monotonic() - began < 4.0


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
