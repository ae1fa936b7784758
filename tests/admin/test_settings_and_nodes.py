"""Settings of topics, tombstones, the state of a cluster and single messages, at scripted clusters."""

import asyncio
from typing import Any

import pytest

from nsq_ha.admin import AdminClient
from nsq_ha.admin.cluster import NodeLoad
from nsq_ha.errors import (
    ChangeIncompleteError,
    ConfigError,
    LookupUnavailableError,
    NoLeaderError,
    ServerError,
    TopicNotFoundError,
    TransportError,
)
from tests.admin.limits import at_its_limit
from tests.admin.scripted import Plain, Scripted, part
from tests.engine.lookups.loopback import LIMIT
from tests.support.waiting import eventually

# ---------------------------------------------------------------- settings


async def test_settings_are_changed_at_the_leading_nsqlookupd_and_waited_for(
    cluster: Scripted, admin: AdminClient
) -> None:
    cluster.leader.answer("/topic/meta/update", b"")
    new = cluster.body(4150, replica=3, extend_support=True)
    cluster.lookups(cluster.body(4150), new)
    cluster.nsqd.answer("/stats", {"topics": [part(0)]})
    cluster.nsqd.then("/stats", {"topics": [part(0) | {"is_ext": True}]})
    view = await asyncio.wait_for(
        admin.update_topic("orders", replicas=3, extended=True, retention_days=0, sync_every=7), LIMIT
    )
    assert view.meta is not None
    assert (view.meta.replica, view.meta.extend_support) == (3, True)
    assert cluster.leader.queries("/topic/meta/update") == [
        {"topic": "orders", "replicator": "3", "retention": "0", "syncdisk": "7", "upgradeext": "true"}
    ]
    assert cluster.nsqd.count("/stats") == 2


async def test_settings_that_are_not_shown_are_named(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/meta/update", b"")
    cluster.lookups(cluster.body(4150))
    error = await at_its_limit(
        lambda limit: admin.update_topic("orders", replicas=2, timeout=limit),
        "the nsqlookupds do not show the new replicas. The change may still happen",
    )
    assert str(error).startswith("updating topic orders did not finish within ")
    cluster.lookups(cluster.body(4150, extend_support=True))
    cluster.nsqd.answer("/stats", {"topics": []})  # it does not lead the partition yet
    await at_its_limit(
        lambda limit: admin.update_topic("orders", extended=True, timeout=limit),
        "a leader does not show the new setting, or does not answer",
    )


@pytest.mark.few(every=4)
@pytest.mark.parametrize(
    "settings",
    [{}, {"replicas": 0}, {"replicas": True}, {"retention_days": 61}, {"extended": False}, {"sync_every": 4001}],
)
async def test_settings_that_make_no_sense_send_nothing(
    cluster: Scripted, admin: AdminClient, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        await admin.update_topic("orders", **settings)
    assert cluster.leader.requests == []


async def test_settings_of_a_topic_that_is_not_there(cluster: Scripted, admin: AdminClient) -> None:
    cluster.leader.answer("/topic/meta/update", {"message": "topic is not created"}, 400)
    with pytest.raises(TopicNotFoundError):
        await asyncio.wait_for(admin.update_topic("orders", replicas=2), LIMIT)
    cluster.leader.answer("/topic/meta/update", b"")
    cluster.lookups({"message": "Key not found"}, status=404)
    with pytest.raises(TopicNotFoundError):
        await asyncio.wait_for(admin.update_topic("orders", replicas=2), LIMIT)
    cluster.leader.answer("/topic/meta/update", {"message": "No node is available for topic"}, 400)
    with pytest.raises(ServerError, match="No node is available"):
        await asyncio.wait_for(admin.update_topic("orders", replicas=2), LIMIT)


# ---------------------------------------------------------------- nodes


async def test_a_cluster_says_who_leads_and_whether_it_is_stable(cluster: Scripted, admin: AdminClient) -> None:
    loads = [
        {"broadcast_address": "127.0.0.1", "tcp_port": port, "leader_load_factor": 1.5, "node_load_factor": 2.5}
        for port in (4160, 4150)
    ]
    cluster.leader.answer("/cluster/stats", {"stable": True, "node_stat_list": loads})
    state = await asyncio.wait_for(admin.cluster(), LIMIT)
    assert (state.is_plain, state.stable) == (False, True)
    assert {lookupd.url: lookupd.leads for lookupd in state.lookupds} == {
        cluster.follower.url: False,
        cluster.leader.url: True,
    }
    assert state.loads == tuple(NodeLoad("127.0.0.1", port, 1.5, 2.5) for port in (4150, 4160))
    cluster.leader.answer("/cluster/stats", {"message": "E_FAILED_ON_NOT_LEADER"}, 400)
    assert (await admin.cluster()).stable is None
    cluster.leader.answer("/cluster/stats", b"<html>")
    assert (await admin.cluster()).stable is None


async def test_the_load_of_an_nsqd_has_the_address_by_which_others_name_it(
    cluster: Scripted, admin: AdminClient
) -> None:
    """For IPv6 it lacked the brackets, so that the dashboard showed no load."""
    loads = [{"broadcast_address": "fd00::1", "tcp_port": 4150}]
    cluster.leader.answer("/cluster/stats", {"stable": True, "node_stat_list": loads})
    assert [load.nsqd for load in (await asyncio.wait_for(admin.cluster(), LIMIT)).loads] == ["[fd00::1]:4150"]


async def test_an_nsqlookupd_that_does_not_answer_is_shown(cluster: Scripted, admin: AdminClient) -> None:
    await admin.cluster()
    await cluster.leader.stop()
    state = await asyncio.wait_for(admin.cluster(), LIMIT)
    errors = {lookupd.url: lookupd.error for lookupd in state.lookupds}
    assert errors[cluster.follower.url] == ""
    assert "cannot connect" in errors[cluster.leader.url]
    await cluster.follower.stop()
    with pytest.raises(LookupUnavailableError, match="cannot connect"):
        await asyncio.wait_for(admin.cluster(), LIMIT)


async def test_a_tombstone_is_set_at_every_nsqlookupd(plain_cluster: Plain, plain_admin: AdminClient) -> None:
    nsqd = plain_cluster.nsqds[0]
    listed = plain_cluster.peer(nsqd, "orders")
    for lookupd in plain_cluster.lookupds:
        lookupd.answer("/topic/tombstone", b"")
        lookupd.answer("/nodes", {"producers": [listed]})
    marking = asyncio.create_task(plain_admin.tombstone_node("orders", f"127.0.0.1:{nsqd.port + 1}"))
    await eventually(lambda: all(lookupd.count("/topic/tombstone") for lookupd in plain_cluster.lookupds))
    assert not marking.done()
    plain_cluster.lookupds[0].answer("/nodes", {"producers": []})  # it never knew the nsqd
    plain_cluster.lookupds[1].answer("/nodes", {"producers": [listed | {"tombstones": [True]}]})
    await asyncio.wait_for(marking, LIMIT)
    wanted = {"topic": "orders", "node": f"127.0.0.1:{nsqd.port}"}
    assert all(lookupd.queries("/topic/tombstone")[0] == wanted for lookupd in plain_cluster.lookupds)


async def test_an_nsqd_with_an_ipv6_address_is_tombstoned(plain_cluster: Plain, plain_admin: AdminClient) -> None:
    """nsqlookupd compares the text ``broadcast_address:port``: it did not know the address in brackets."""
    nsqd = plain_cluster.nsqds[0]
    listed = plain_cluster.peer(nsqd, "orders", tombstones=[True]) | {"broadcast_address": "::1"}
    for lookupd in plain_cluster.lookupds:
        lookupd.answer("/topic/tombstone", b"")
        lookupd.answer("/nodes", {"producers": [listed]})
    await asyncio.wait_for(plain_admin.tombstone_node("orders", f"[::1]:{nsqd.port + 1}"), LIMIT)
    wanted = {"topic": "orders", "node": f"::1:{nsqd.port}"}
    assert all(lookupd.queries("/topic/tombstone")[0] == wanted for lookupd in plain_cluster.lookupds)


async def test_an_nsqlookupd_that_got_no_tombstone_is_named(plain_cluster: Plain, plain_admin: AdminClient) -> None:
    nsqd = plain_cluster.nsqds[0]
    marked = plain_cluster.peer(nsqd, "orders", tombstones=[True])
    for lookupd in plain_cluster.lookupds:
        lookupd.answer("/nodes", {"producers": [marked]})
    plain_cluster.lookupds[0].answer("/topic/tombstone", b"")
    plain_cluster.lookupds[1].answer("/topic/tombstone", {"message": "INTERNAL_ERROR"}, 500)
    address = f"127.0.0.1:{nsqd.port + 1}"
    error = await at_its_limit(
        lambda limit: plain_admin.tombstone_node("orders", address, timeout=limit), "INTERNAL_ERROR", "; done: "
    )
    assert isinstance(error, ChangeIncompleteError)
    assert error.causes == ((f"nsqlookupd {plain_cluster.lookupds[1].url}", "INTERNAL_ERROR"),)
    assert error.done == (f"nsqlookupd {plain_cluster.lookupds[0].url}",)


async def test_a_topic_that_comes_back_at_an_nsqd_says_why(plain_cluster: Plain, plain_admin: AdminClient) -> None:
    plain_cluster.has_topic(0)
    nsqd = plain_cluster.nsqds[0]
    for lookupd in plain_cluster.lookupds:
        lookupd.answer("/topic/tombstone", b"")
    marked = plain_cluster.peer(nsqd, "orders", tombstones=[True])
    plain_cluster.lookupds[0].answer("/nodes", {"producers": [marked]})
    address = f"127.0.0.1:{nsqd.port + 1}"

    async def delete(limit: float) -> None:
        await plain_admin.tombstone_node("orders", address, delete=True, timeout=limit)

    error = await at_its_limit(delete, "has the topic again: stop the producers")
    assert isinstance(error, ChangeIncompleteError)
    assert [place for place, _ in error.causes] == [f"nsqd {address}"]
    await nsqd.stop()
    await at_its_limit(delete, "cannot connect")


@pytest.mark.parametrize("nsqd", ["127.0.0.1:1", "", 7])
async def test_an_nsqd_that_is_not_there(plain_cluster: Plain, plain_admin: AdminClient, nsqd: Any) -> None:  # noqa: ANN401
    plain_cluster.has_topic(0)
    for call in (plain_admin.tombstone_node, plain_admin.restore_node):
        with pytest.raises(ConfigError):
            await asyncio.wait_for(call("orders", nsqd), LIMIT)
    with pytest.raises(TopicNotFoundError, match="does not have topic 'other'"):
        await plain_admin.tombstone_node("other", f"127.0.0.1:{plain_cluster.nsqds[0].port + 1}")


# ---------------------------------------------------------------- messages


@pytest.mark.few(every=4)
@pytest.mark.parametrize(
    "place",
    [
        {},
        {"partition": 0},
        {"offset": 1},
        {"internal_id": 1, "partition": 0},
        {"internal_id": 0},
        {"internal_id": 1 << 63},
        {"partition": 0, "offset": -1},
        {"partition": 0, "number": 0},
        {"partition": 0, "number": "1"},
        {"partition": -1, "number": 1},
        {"partition": 0, "number": 1, "offset": 1},
    ],
)
async def test_a_place_that_is_none_sends_nothing(cluster: Scripted, admin: AdminClient, place: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        await admin.find_message("orders", **place)
    assert cluster.leader.requests == []


async def test_a_message_that_cannot_be_searched(cluster: Scripted, admin: AdminClient, plain_cluster: Plain) -> None:
    cluster.lookups(cluster.body(4150))
    with pytest.raises(NoLeaderError, match="orders-1 has no leader now, or does not exist"):
        await admin.find_message("orders", partition=1, number=1)
    await cluster.nsqd.stop()
    with pytest.raises(TransportError, match="cannot connect"):
        await admin.find_message("orders", partition=0, number=1)
    plain_cluster.has_topic(0)
    async with AdminClient(plain_cluster.lookupds[0].url) as plain_admin:
        with pytest.raises(ConfigError, match="no log to search"):
            await asyncio.wait_for(plain_admin.find_message("orders", partition=0, number=1), LIMIT)
