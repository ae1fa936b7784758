"""Creating topics at a scripted cluster: who is asked, how long is waited, what is reported."""

import asyncio
from typing import Any

import pytest

from nsq_ha.admin import AdminClient
from nsq_ha.errors import ConfigError, NoLeaderError, ServerError, TopicNotFoundError
from tests.admin.scripted import Scripted
from tests.engine.lookups.loopback import LIMIT, list_body
from tests.support.waiting import eventually

NO_CHANNEL = {"message": "Topic has no channel, should init at least one for the new topic"}


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


async def test_a_topic_that_exists_with_other_settings_is_reported_with_these(
    cluster: Scripted, admin: AdminClient
) -> None:
    cluster.leader.answer("/topic/create", {"message": "already exist"}, 400)
    cluster.lookups(cluster.body(4150, 4160, replica=3, ordered=True))
    with pytest.raises(ConfigError, match=r"topic 'orders' already exists with other settings: (.*)\. Use") as caught:
        await admin.create_topic("orders", 1, replicas=2, extended=True, multi_part=False)
    assert (
        "partitions is 2, not 1; replicas is 3, not 2; ordered is True, not False; extended is False, not True."
        in str(caught.value)
    )
    assert "multi_part" not in str(caught.value)


@pytest.mark.parametrize("asked", [{"retention_days": 3}, {"sync_every": 9}, {"replicas": None}, {"multi_part": None}])
async def test_a_topic_that_differs_only_in_what_nobody_asked_for_or_sees_is_accepted_with_a_note(
    cluster: Scripted, admin: AdminClient, asked: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    cluster.leader.answer("/topic/create", {"message": "already exist"}, 400)
    cluster.lookups(cluster.body(4150, 4150, replica=2, ordered=True))
    same: dict[str, Any] = {"replicas": 2, "ordered": True, "multi_part": False}
    assert (await admin.create_topic("orders", 2, **same | asked)).complete
    assert "topic orders already exists and keeps its settings: they differ in defaults" in caplog.text


async def test_a_topic_has_three_replicas_unless_there_are_fewer_nodes(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/create", b"")
    cluster.lookups(cluster.body(4150))
    ports = (4150, 4160, 4170, 4180)
    for number, copies in ((1, "1"), (2, "2"), (4, "3")):
        peers = {"producers": [cluster.peer(port) for port in ports[:number]]}
        for fake in (cluster.follower, cluster.leader):
            fake.answer("/nodes", peers)
        await admin.create_topic("orders")
        assert cluster.leader.queries("/topic/create")[-1]["replicator"] == copies


async def test_an_nsqlookupd_that_has_just_started_does_not_say_how_many_nodes_there_are(
    cluster: Scripted, admin: AdminClient
) -> None:
    """It answered first, so that the topic got one copy of its messages for good."""
    cluster.leader.answer("/topic/create", b"")
    cluster.lookups(cluster.body(4150))
    cluster.follower.answer("/nodes", {"producers": []})
    cluster.leader.answer("/nodes", b"<html>")
    cluster.leader.then("/nodes", {"producers": [cluster.peer(port) for port in (4150, 4160, 4170)]})
    await admin.create_topic("orders")
    assert cluster.leader.queries("/topic/create")[-1]["replicator"] == "3"


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
    began = asyncio.get_running_loop().time()
    with pytest.raises(NoLeaderError, match=r"creating topic orders .* within 2 s.*no leader for partition 1, 2"):
        await admin.create_topic("orders", 3, timeout=2.0)
    assert asyncio.get_running_loop().time() - began < 4.0


async def test_a_refusal_is_reported_with_the_servers_words(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/create", {"message": "ErrType:9 ErrCode:1 : No node is available for topic"}, 400)
    with pytest.raises(ServerError, match="No node is available"):
        await admin.create_topic("orders", 4, 3)
    assert cluster.leader.count("/topic/create") == 1


@pytest.mark.few(every=3)
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
