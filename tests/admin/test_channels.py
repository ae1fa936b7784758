"""Changes of channels at scripted clusters: who gets them, what is repeated, what is waited for, what is reported."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nsq_ha import StartFrom
from nsq_ha.admin import AdminClient
from nsq_ha.errors import (
    ChangeIncompleteError,
    ChannelNotFoundError,
    ConfigError,
    LookupUnavailableError,
    NoLeaderError,
    TlsRequiredError,
)
from tests.admin.limits import at_its_limit
from tests.admin.scripted import Plain, Scripted, part
from tests.engine.lookups.loopback import LIMIT, Fake
from tests.support.waiting import eventually

ABSENT = {"message": "CHANNEL_NOT_FOUND"}


def places(error: ChangeIncompleteError) -> list[str]:
    return [place for place, _ in error.causes]


async def incomplete(call: Callable[[float], Awaitable[object]], *texts: str) -> ChangeIncompleteError:
    error = await at_its_limit(call, *texts)
    assert isinstance(error, ChangeIncompleteError)
    return error


# ---------------------------------------------------------------- everywhere


async def test_a_channel_is_created_on_every_partition(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150, 4150))
    cluster.nsqd.answer("/channel/create", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0), part(1)]})
    cluster.nsqd.then("/stats", {"topics": [part(0, "billing"), part(1)]})
    cluster.nsqd.then("/stats", {"topics": [part(0, "billing"), part(1, "billing")]})
    cluster.has_channels("billing")
    await asyncio.wait_for(admin.create_channel("orders", "billing"), LIMIT)
    assert sorted(query["partition"] for query in cluster.nsqd.queries("/channel/create")) == ["0", "1"]


async def test_creating_waits_until_the_nsqlookupds_list_the_channel(cluster: Scripted, admin: AdminClient) -> None:
    """They hide a topic without channel from publishers."""
    cluster.lookups(cluster.body(4150))
    cluster.nsqd.answer("/channel/create", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing")]})
    cluster.has_channels()
    creating = asyncio.create_task(admin.create_channel("orders", "billing"))
    await eventually(lambda: cluster.leader.count("/channels") + cluster.follower.count("/channels") >= 4)
    assert not creating.done()
    cluster.has_channels("billing")
    await asyncio.wait_for(creating, LIMIT)


@pytest.mark.parametrize("call", ["pause", "skip"])
async def test_a_state_is_set_on_every_partition_and_waited_for(
    cluster: Scripted, admin: AdminClient, call: str
) -> None:
    state = {"pause": "paused", "skip": "skipped"}[call]
    cluster.lookups(cluster.body(4150, 4150))
    cluster.nsqd.answer(f"/channel/{call}", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing"), part(1, "billing")]})
    change = asyncio.create_task(getattr(admin, f"{call}_channel")("orders", "billing"))
    await eventually(lambda: cluster.nsqd.count("/stats") >= 3)
    assert not change.done()
    cluster.nsqd.answer("/stats", {"topics": [part(n, "billing", **{state: True}) for n in (0, 1)]})
    await asyncio.wait_for(change, LIMIT)
    assert sorted(query["partition"] for query in cluster.nsqd.queries(f"/channel/{call}")) == ["0", "1"]


async def test_only_the_partitions_that_skip_stop_skipping(cluster: Scripted, admin: AdminClient) -> None:
    """Others lost what waited there: those that an expansion added, and all of them if the call was repeated."""
    cluster.lookups(cluster.body(4150, 4150))
    cluster.nsqd.answer("/channel/unskip", b"")
    waits = part(1, "billing", depth=7)
    for _ in range(3):
        cluster.nsqd.then("/stats", {"topics": [part(0, "billing", skipped=True), waits]})
    cluster.nsqd.then("/stats", {"topics": [part(0, "billing"), waits]})
    for _ in range(2):
        await asyncio.wait_for(admin.unskip_channel("orders", "billing"), LIMIT)
    assert [query["partition"] for query in cluster.nsqd.queries("/channel/unskip")] == ["0"]


@pytest.mark.parametrize("refusal", ["E_FAILED_ON_NOT_LEADER", "E_TOPIC_NOT_EXIST", "INTERNAL_ERROR"])
async def test_a_change_follows_a_leader_that_moves(cluster: Scripted, admin: AdminClient, refusal: str) -> None:
    cluster.lookups(cluster.body(4150), cluster.body(4160))
    cluster.nsqd.answer("/channel/pause", {"message": refusal}, 500)
    cluster.nsqd.then("/channel/pause", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing", paused=True)]})
    await asyncio.wait_for(admin.pause_channel("orders", "billing"), LIMIT)
    assert cluster.nsqd.count("/channel/pause") == 2


async def test_a_node_that_does_not_lead_need_not_know_the_channel(cluster: Scripted, admin: AdminClient) -> None:
    """A lookup may be behind: then the channel is not missing, but elsewhere."""
    cluster.lookups(cluster.body(4150))
    cluster.nsqd.answer("/channel/pause", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0) | {"is_leader": False}]})
    text = "partition 0: nsqd 127.0.0.1:4150 does not lead it"
    await incomplete(lambda limit: admin.pause_channel("orders", "billing", timeout=limit), text)
    cluster.nsqd.answer("/stats", {"topics": []})
    await incomplete(lambda limit: admin.pause_channel("orders", "billing", timeout=limit), text)
    assert cluster.nsqd.count("/channel/pause") == 0


async def test_a_confirmed_change_is_not_sent_again(cluster: Scripted, admin: AdminClient) -> None:
    """Two operators who pause and unpause at the same time must not fight until their limits."""
    cluster.lookups(cluster.body(4150))
    cluster.nsqd.answer("/channel/pause", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing")]})
    text = "partition 0: nsqd 127.0.0.1:4150 does not show the change yet"
    await incomplete(lambda limit: admin.pause_channel("orders", "billing", timeout=limit), text)
    before = cluster.nsqd.count("/channel/pause")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing")]})
    for _ in range(5):
        cluster.nsqd.then("/stats", {"topics": [part(0, "billing")]})
    cluster.nsqd.then("/stats", {"topics": [part(0, "billing", paused=True)]})
    await asyncio.wait_for(admin.pause_channel("orders", "billing"), LIMIT)
    assert cluster.nsqd.count("/channel/pause") == before + 1


# ---------------------------------------------------------------- what cannot be reached


async def test_the_partitions_that_were_not_reached_are_named(
    cluster: Scripted, admin: AdminClient, serve: Callable[[], Awaitable[Fake]]
) -> None:
    dead = await serve()
    await dead.stop()
    body = cluster.body(4150, 4160, partition_num=3)
    body["partitions"]["1"]["http_port"] = dead.port  # type: ignore[index]
    cluster.lookups(body)
    cluster.nsqd.answer("/channel/pause", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing", paused=True)]})
    texts = "cannot connect", "; done: partition 0. The change may still happen; repeat the call to complete it"
    error = await incomplete(lambda limit: admin.pause_channel("orders", "billing", timeout=limit), *texts)
    assert places(error) == ["partition 1", "partition 2"]
    assert error.done == ("partition 0",)
    assert f"nsqd {dead.url}: cannot connect" in dict(error.causes)["partition 1"]
    assert dict(error.causes)["partition 2"] == "it has no leader now"
    assert str(error).startswith("pausing channel billing of topic orders did not finish within ")


async def test_a_refusal_for_good_is_passed_on_with_its_place(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150))
    cluster.nsqd.answer("/stats", {"message": "TLS_REQUIRED"}, 403)
    with pytest.raises(TlsRequiredError, match=r"pausing channel billing of topic orders: partition 0 at nsqd 127.0.0"):
        await asyncio.wait_for(admin.pause_channel("orders", "billing"), LIMIT)


@pytest.mark.parametrize("call", ["pause", "unpause", "skip", "unskip", "empty", "delete"])
async def test_a_channel_that_no_partition_has_is_an_error(cluster: Scripted, admin: AdminClient, call: str) -> None:
    cluster.lookups(cluster.body(4150, 4150))
    cluster.nsqd.answer("/stats", {"topics": [part(0, "other"), part(1)]})
    with pytest.raises(ChannelNotFoundError, match=r"topic 'orders' has no channel 'billing'$"):
        await asyncio.wait_for(getattr(admin, f"{call}_channel")("orders", "billing"), LIMIT)


async def test_a_partition_without_the_channel_is_named_where_that_matters(
    cluster: Scripted, admin: AdminClient
) -> None:
    """After an expansion the new partition has no channel: a pause would not hold there."""
    cluster.lookups(cluster.body(4150, 4150))
    for call in ("pause", "unpause", "empty"):
        cluster.nsqd.answer(f"/channel/{call}", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing", paused=True), part(1)]})
    with pytest.raises(ChannelNotFoundError, match="no channel 'billing' in partition 1, so it was changed only else"):
        await asyncio.wait_for(admin.pause_channel("orders", "billing"), LIMIT)
    assert cluster.nsqd.queries("/channel/pause") == [{"topic": "orders", "channel": "billing", "partition": "0"}]
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing"), part(1)]})
    await asyncio.wait_for(admin.unpause_channel("orders", "billing"), LIMIT)
    await asyncio.wait_for(admin.empty_channel("orders", "billing"), LIMIT)


# ---------------------------------------------------------------- emptying, deleting, registered channels


async def test_emptying_waits_until_the_earlier_messages_are_gone(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150))
    cluster.nsqd.answer("/channel/empty", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing", message_count=10, depth=7)]})
    cluster.nsqd.then("/stats", {"topics": [part(0, "billing", message_count=11, depth=8)]})
    cluster.nsqd.then("/stats", {"topics": [part(0, "billing", message_count=14, depth=4)]})  # arrived meanwhile
    await asyncio.wait_for(admin.empty_channel("orders", "billing"), LIMIT)
    assert cluster.nsqd.count("/stats") == 3


async def test_a_channel_that_its_consumers_create_again_says_so(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150))
    cluster.nsqd.answer("/channel/delete", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing")]})
    text = "still has the channel, or has it again: stop its consumers"
    await incomplete(lambda limit: admin.delete_channel("orders", "billing", timeout=limit), text)
    cluster.has_channels("billing")

    async def delete(limit: float) -> None:
        cluster.nsqd.answer("/stats", {"topics": [part(0, "billing")]})
        cluster.nsqd.then("/stats", {"topics": [part(0)]})
        await admin.delete_channel("orders", "billing", timeout=limit)

    await incomplete(delete, "nsqlookupd: still has the channel")


async def test_a_channel_that_must_be_registered_is_and_the_nsqds_are_waited_for(
    cluster: Scripted, admin: AdminClient
) -> None:
    cluster.lookups(cluster.body(4150, disable_channel_auto_create=True))
    cluster.leader.answer("/channel/create", b"")
    cluster.leader.then("/channel/create", {"message": "channel billing already registered"}, 400)
    cluster.nsqd.answer("/stats", {"topics": [part(0)]})
    cluster.nsqd.then("/stats", {"topics": [part(0, "billing")]})
    cluster.has_channels("billing")
    await asyncio.wait_for(admin.create_channel("orders", "billing"), LIMIT)
    await asyncio.wait_for(admin.create_channel("orders", "billing"), LIMIT)
    assert cluster.leader.queries("/channel/create") == [{"topic": "orders", "channel": "billing"}] * 2
    assert cluster.nsqd.count("/channel/create") == 0
    assert cluster.nsqd.count("/stats") == 3


async def test_a_registered_channel_is_deleted_at_the_nsqlookupd(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150, disable_channel_auto_create=True))
    cluster.leader.answer("/channel/delete", b"")
    cluster.leader.then("/channel/delete", {"message": "channel billing not registered"}, 400)
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing")]})
    cluster.nsqd.then("/stats", {"topics": [part(0)]})
    cluster.has_channels()
    await asyncio.wait_for(admin.delete_channel("orders", "billing"), LIMIT)
    assert cluster.nsqd.count("/stats") == 2
    with pytest.raises(ChannelNotFoundError, match="'orders' has no channel 'billing'"):
        await asyncio.wait_for(admin.delete_channel("orders", "billing"), LIMIT)


# ---------------------------------------------------------------- positions


@pytest.mark.parametrize(
    ("start", "wire"),
    [
        (StartFrom.beginning(), b"virtual_queue:0"),
        (StartFrom.offset(90), b"virtual_queue:90"),
        (StartFrom.count(7), b"msgcount:7"),
        (StartFrom.timestamp(1_700_000_000), b"timestamp:1700000000"),
        (StartFrom.end(), b"special:-1"),
    ],
)
async def test_every_form_of_a_position_is_sent(
    cluster: Scripted, admin: AdminClient, start: StartFrom, wire: bytes
) -> None:
    cluster.lookups(cluster.body(4150, 4150))
    cluster.nsqd.answer("/channel/setoffset", b"")
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing"), part(1, "billing")]})
    await asyncio.wait_for(admin.set_offset("orders", "billing", start), LIMIT)
    assert cluster.nsqd.bodies == [wire, wire]


async def test_positions_by_partition_leave_the_others_alone(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150, 4150, partition_num=3))  # partition 2 has no leader, and need not have one
    cluster.nsqd.answer("/channel/setoffset", b"")
    await asyncio.wait_for(admin.set_offset("orders", "billing", {1: StartFrom.count(3)}), LIMIT)
    assert [query["partition"] for query in cluster.nsqd.queries("/channel/setoffset")] == ["1"]
    with pytest.raises(NoLeaderError, match=r"topic 'orders' has 3 partition\(s\), and none with number 3"):
        await asyncio.wait_for(admin.set_offset("orders", "billing", {3: StartFrom.end()}), LIMIT)


async def test_an_empty_partition_is_at_every_position(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150))
    cluster.nsqd.answer("/channel/setoffset", {"message": "commit log end of file"}, 500)
    await asyncio.wait_for(admin.set_offset("orders", "billing", StartFrom.beginning()), LIMIT)


@pytest.mark.few(every=2)
@pytest.mark.parametrize("start", [None, "end", {}, {0: "end"}, {-1: StartFrom.end()}])
async def test_what_is_no_position_sends_nothing(cluster: Scripted, admin: AdminClient, start: Any) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError):
        await admin.set_offset("orders", "billing", start)
    assert cluster.leader.requests == []


# ---------------------------------------------------------------- lists


async def test_channels_are_those_of_any_nsqlookupd(
    cluster: Scripted, admin: AdminClient, plain_cluster: Plain, plain_admin: AdminClient
) -> None:
    cluster.has_channels("b", "a")
    assert await admin.channels("orders") == ("a", "b")
    for lookupd, name in zip(plain_cluster.lookupds, ("d", "c"), strict=True):
        lookupd.answer("/channels", {"channels": [name, "c"]})
    assert await plain_admin.channels("orders") == ("c", "d")
    for lookupd in plain_cluster.lookupds:
        await lookupd.stop()
    with pytest.raises(LookupUnavailableError):
        await plain_admin.channels("orders")


# ---------------------------------------------------------------- plain clusters


def say(cluster: Plain, *channels: str, **state: Any) -> None:  # noqa: ANN401
    """Let both nsqds have these channels of the topic."""
    for nsqd in cluster.nsqds:
        nsqd.answer("/stats", {"topics": [part(None, *channels, **state)]})


async def test_a_plain_channel_is_created_at_every_nsqlookupd_and_nsqd_of_the_topic(
    plain_cluster: Plain, plain_admin: AdminClient
) -> None:
    plain_cluster.has_topic(1)
    say(plain_cluster, "billing")
    plain_cluster.lookupds[0].answer("/channels", {"channels": ["billing"]})
    await asyncio.wait_for(plain_admin.create_channel("orders", "billing"), LIMIT)
    wanted = {"topic": "orders", "channel": "billing"}
    assert plain_cluster.asked("/channel/create") == [[wanted], [wanted], [], [wanted]]


async def test_a_plain_topic_without_nsqd_gets_its_channel_at_the_nsqlookupds(
    plain_cluster: Plain, plain_admin: AdminClient
) -> None:
    for lookupd in plain_cluster.lookupds:
        lookupd.answer("/lookup", {"channels": [], "producers": []})
        lookupd.answer("/channels", {"channels": ["billing"]})
    await asyncio.wait_for(plain_admin.create_channel("orders", "billing"), LIMIT)
    assert [len(queries) for queries in plain_cluster.asked("/channel/create")] == [1, 1, 0, 0]
    with pytest.raises(ChannelNotFoundError):
        await asyncio.wait_for(plain_admin.pause_channel("orders", "billing"), LIMIT)


@pytest.mark.parametrize("down", ["lookupds", "nsqds"])
async def test_every_server_gets_a_channel_though_one_is_down(
    plain_cluster: Plain, plain_admin: AdminClient, down: str
) -> None:
    plain_cluster.has_topic(0, 1)
    say(plain_cluster, "billing")
    server = getattr(plain_cluster, down)[0]
    name = f"nsqlookupd {server.url}" if down == "lookupds" else f"nsqd 127.0.0.1:{server.port + 1}"
    if down == "lookupds":
        answer = {"producers": [plain_cluster.peer(nsqd, "orders") for nsqd in plain_cluster.nsqds]}
        plain_cluster.lookupds[1].answer("/lookup", answer | {"channels": []})
    await server.stop()
    lookupds = [f"nsqlookupd {lookupd.url}" for lookupd in plain_cluster.lookupds]
    nsqds = [f"nsqd 127.0.0.1:{nsqd.port + 1}" for nsqd in plain_cluster.nsqds]
    done = ", ".join(sorted({*lookupds, *nsqds} - {name}))
    error = await incomplete(
        lambda limit: plain_admin.create_channel("orders", "billing", timeout=limit), "cannot connect", f"done: {done}"
    )
    assert places(error) == [name]
    others = [fake for fake in (*plain_cluster.lookupds, *plain_cluster.nsqds) if fake is not server]
    assert all(fake.count("/channel/create") >= 1 for fake in others)


async def test_a_plain_channel_is_not_paused_while_an_nsqlookupd_is_silent(
    plain_cluster: Plain, plain_admin: AdminClient
) -> None:
    """It may be the only one that lists an nsqd, which went on delivering though the channel was said to be paused."""
    plain_cluster.has_topic(0, 1)
    say(plain_cluster, "billing", paused=True)
    silent = plain_cluster.lookupds[1]
    await silent.stop()
    error = await incomplete(
        lambda limit: plain_admin.pause_channel("orders", "billing", timeout=limit), "cannot connect", "; done: nsqd"
    )
    assert places(error) == [f"nsqlookupd {silent.url}"]
    before, never = (nsqd.count("/channel/pause") for nsqd in plain_cluster.nsqds)
    assert (before > 0, never) == (True, 0)
    pausing = asyncio.create_task(plain_admin.pause_channel("orders", "billing"))
    await eventually(lambda: plain_cluster.nsqds[0].count("/channel/pause") > before)
    await silent.start()
    await asyncio.wait_for(pausing, LIMIT)
    assert plain_cluster.nsqds[1].count("/channel/pause") == 1


@pytest.mark.parametrize("change", ["create", "delete", "pause"])
async def test_a_plain_topic_may_be_known_to_a_silent_nsqlookupd_only(
    plain_cluster: Plain, plain_admin: AdminClient, change: str
) -> None:
    """It was said not to exist."""
    plain_cluster.has_topic(1)
    silent = plain_cluster.lookupds[1]
    await silent.stop()
    call = getattr(plain_admin, f"{change}_channel")
    error = await incomplete(lambda limit: call("orders", "billing", timeout=limit), "cannot connect")
    assert places(error) == [f"nsqlookupd {silent.url}"]


async def test_a_plain_channel_is_deleted_at_the_nsqlookupds_and_nsqds(
    plain_cluster: Plain, plain_admin: AdminClient
) -> None:
    plain_cluster.has_topic(0, 1)
    say(plain_cluster, "billing")
    for nsqd in plain_cluster.nsqds:
        nsqd.then("/stats", {"topics": [part(None)]})
    plain_cluster.lookupds[1].answer("/channel/delete", ABSENT, 404)
    await asyncio.wait_for(plain_admin.delete_channel("orders", "billing"), LIMIT)
    assert [len(queries) for queries in plain_cluster.asked("/channel/delete")] == [1, 1, 1, 1]
    plain_cluster.lookupds[0].answer("/channel/delete", ABSENT, 404)
    with pytest.raises(ChannelNotFoundError):
        await asyncio.wait_for(plain_admin.delete_channel("orders", "billing"), LIMIT)


async def test_a_deletion_whose_answer_was_lost_counts(plain_cluster: Plain, plain_admin: AdminClient) -> None:
    plain_cluster.has_topic(0)
    say(plain_cluster, "billing")
    for lookupd in plain_cluster.lookupds:
        lookupd.answer("/channel/delete", ABSENT, 404)
    nsqd = plain_cluster.nsqds[0]
    nsqd.then("/stats", {"topics": [part(None)]})
    nsqd.answer("/channel/delete", {"message": "INTERNAL_ERROR"}, 500)
    nsqd.then("/channel/delete", ABSENT, 404)
    await asyncio.wait_for(plain_admin.delete_channel("orders", "billing"), LIMIT)
    assert nsqd.count("/channel/delete") == 2


async def test_a_plain_channel_that_only_an_nsqlookupd_lists_is_deleted_there(
    plain_cluster: Plain, plain_admin: AdminClient
) -> None:
    plain_cluster.has_topic(0)
    say(plain_cluster)
    await asyncio.wait_for(plain_admin.delete_channel("orders", "billing"), LIMIT)
    assert [len(queries) for queries in plain_cluster.asked("/channel/delete")] == [1, 1, 0, 0]
