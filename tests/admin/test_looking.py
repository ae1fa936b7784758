"""One look at a scripted cluster: what is read, and what is known of servers that do not answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.admin.scripted import part
from tests.engine.lookups.loopback import LIMIT, hang

if TYPE_CHECKING:
    from nsq_ha.admin import AdminClient
    from tests.admin.scripted import Scripted


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
    assert (now.is_fresh, now.errors.keys()) == (False, {"nsqds", "nodes", "topics", "cluster"})


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
