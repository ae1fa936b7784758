"""One look at a scripted cluster: what is read, and what is known of servers that do not answer."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nsq_ha.admin import AdminClient
from nsq_ha.engine import http
from tests.admin.conftest import quicken
from tests.admin.scripted import Plain, Scripted, part
from tests.engine.lookups.loopback import LIMIT, Fake, hang


async def stop_lookupds(cluster: Scripted) -> None:
    for fake in (cluster.follower, cluster.leader):
        await fake.stop()


async def test_clients_are_read_though_no_nsqlookupd_answers(cluster: Scripted, admin: AdminClient) -> None:
    """`stat --clients` said that no connection consumes."""
    cluster.nsqd.answer("/stats", {"topics": [part(0, "billing", client_num=1)]})
    before = await asyncio.wait_for(admin.look(), LIMIT)
    await stop_lookupds(cluster)
    now = await asyncio.wait_for(admin.look(before, clients=True), LIMIT)
    assert (bool(now.unanswered), now.is_fresh, now.has_clients) == (True, True, True)
    assert cluster.nsqd.queries("/stats")[-1]["needClients"] == "true"


@pytest.mark.parametrize("topic", ["nsqds", "nodes", "topics", "cluster"])
async def test_a_topic_may_have_the_name_of_a_part(cluster: Scripted, admin: AdminClient, topic: str) -> None:
    """While its page was open, old figures seemed to be new ones."""
    cluster.nsqd.answer("/stats", {"topics": [part(0)]})
    before = await asyncio.wait_for(admin.look(), LIMIT)
    await stop_lookupds(cluster)
    await cluster.nsqd.stop()
    now = await asyncio.wait_for(admin.look(before, topics=[topic]), LIMIT)
    assert (now.is_fresh, set(now.errors)) == (False, {"nsqds", "nodes", "topics", "cluster"})


@pytest.mark.parametrize("name", ["follower", "leader"])
async def test_an_nsqlookupd_that_hangs_is_named_within_the_limit_of_a_dashboard(
    cluster: Scripted, admin: AdminClient, name: str
) -> None:
    """Its silence was waited for twice or three times, so that nobody knew which one was silent."""
    cluster.nsqd.answer("/stats", {"topics": [part(0)]})
    for fake in (cluster.follower, cluster.leader):
        fake.answer("/topics", {"topics": ["orders"]})
    before = await asyncio.wait_for(admin.look(), LIMIT)
    hanging = getattr(cluster, name)
    hanging.behave = hang
    now = await admin.look(before, timeout=5.0)
    assert (now.errors, [each.url for each in now.lookupds if each.error]) == ({}, [hanging.url])


async def test_a_host_that_hangs_takes_no_other_with_it(
    serve: Callable[[], Awaitable[Fake]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an nsqlookupd and an nsqd of one host, a dashboard said that the whole cluster does not answer."""
    quicken(monkeypatch)
    cluster = Plain([await serve(), await serve()], [await serve(), await serve()])
    for lookupd in cluster.lookupds:
        lookupd.answer("/nodes", {"producers": [cluster.peer(nsqd) for nsqd in cluster.nsqds]})
    for lookupd in cluster.lookupds:
        lookupd.answer("/topics", {"topics": ["orders"]})
    cluster.nsqds[0].answer("/stats", {"topics": [part(None)]})
    async with AdminClient([lookupd.url for lookupd in cluster.lookupds]) as admin:
        before = await asyncio.wait_for(admin.look(), LIMIT)
        for fake in (cluster.lookupds[1], cluster.nsqds[1]):
            fake.behave = hang
        now = await admin.look(before, timeout=5.0)
    assert (now.errors, set(now.silent)) == ({}, {f"127.0.0.1:{cluster.nsqds[1].port + 1}"})
    assert (now.names, [each.said.hangs for each in now.nsqds.values() if each.said.error]) == (["orders"], [True])


async def test_a_topic_is_described_though_its_nsqd_hangs(cluster: Scripted, admin: AdminClient) -> None:
    """The look ended its description just before that would have said which nsqd does not answer."""
    cluster.lookups(cluster.body(4150))
    cluster.nsqd.answer("/stats", {"topics": [part(0)]})
    before = await asyncio.wait_for(admin.look(), LIMIT)
    cluster.nsqd.behave = hang
    now = await admin.look(before, topics=["orders"], timeout=1.5)
    assert [(entry.stats, bool(entry.error)) for entry in now.details["orders"].partitions] == [(None, True)]


async def test_an_nsqd_that_waited_behind_others_that_hang_is_not_said_to_hang(
    cluster: Scripted, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq_ha.admin.bounded.AT_ONCE", 1)
    for fake in (cluster.follower, cluster.leader):
        fake.answer("/nodes", {"producers": [cluster.peer(4150), cluster.peer(4160)]})
    cluster.nsqd.behave = hang
    found = await admin.stats(timeout=1.0)
    assert [(each.hangs, "in time, since others hang" in each.error) for each in found.silent] == [
        (True, False),
        (False, True),
    ]


async def test_an_nsqd_with_too_many_clients_to_list_is_not_silent(
    cluster: Scripted, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opened the page of a channel made such nsqds look dead."""
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 4000)
    for clients in ([{"client_id": "worker"}] * 1000, []):
        cluster.nsqd.then("/stats", {"topics": [part(0, "billing", client_num=1000, clients=clients)]})
    found = await asyncio.wait_for(admin.stats(clients=True), LIMIT)
    assert [(each.clients, each.connections) for each in found.topics[0].channels] == [(1000, ())]
    assert [query["needClients"] for query in cluster.nsqd.queries("/stats")] == ["true", "false"]
