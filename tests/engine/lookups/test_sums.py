"""What many answers take together, if one nsqlookupd lists itself again and again, or a client has many topics."""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from typing import TYPE_CHECKING, cast

import pytest

from nsq_ha.engine import servers as servers_module
from nsq_ha.engine.answers import NodeInfo
from nsq_ha.engine.http import LARGE_BYTES, new_client
from nsq_ha.engine.lookupd import LookupClient
from nsq_ha.engine.servers import Listing, Servers
from nsq_ha.policy.topology import Node
from tests.engine.lookups.loopback import LIMIT, Fake, hang, http_answer, list_body, lookup_body
from tests.support.waiting import eventually, turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Serve = Callable[[], Awaitable[Fake]]

WHOLE = lookup_body({0: 4150, 1: 4160})
PADDED = json.dumps(WHOLE).encode() + b" " * (4 * LARGE_BYTES)


@pytest.fixture
async def fake(serve: Serve) -> Fake:
    fake = await serve()
    fake.answer("/lookup", WHOLE)
    return fake


@pytest.fixture
async def servers(fake: Fake) -> AsyncIterator[Servers]:
    client = new_client()
    servers = Servers((fake.url,), timeout=LIMIT, client=client)
    yield servers
    await servers.aclose()
    await client.aclose()


async def test_learnt_ones_together_are_asked_little_and_delay_no_configured_one(
    serve: Serve, fake: Fake, servers: Servers
) -> None:
    servers._learnt = asyncio.Semaphore(10)
    learnt = [await serve() for _ in range(4)]
    fake.answer("/listlookup", list_body(fake.url, *(each.url for each in learnt)))
    await servers.refresh_lists()
    for each in learnt:
        each.behave = hang
    rounds = await asyncio.gather(*(servers.look_up(f"t{number}", "r") for number in range(30)))
    assert all([answer.lookupd for answer in result.answers] == [fake.url] for result in rounds)
    asked = [each.count("/lookup") for each in learnt]
    assert sum(asked) == 10
    assert max(asked) <= 8  # so that one that hangs leaves room for the others


async def test_large_answers_are_read_one_after_the_other_and_small_ones_at_once(serve: Serve) -> None:
    slow, quick, small = await serve(), await serve(), await serve()
    goes_on = asyncio.Event()

    async def halt(writer: asyncio.StreamWriter) -> None:
        whole = http_answer(PADDED)
        writer.write(whole[: len(whole) // 2])
        await goes_on.wait()
        writer.write(whole[len(whole) // 2 :])

    slow.behave = halt
    quick.answer("/lookup", PADDED)
    small.answer("/lookup", WHOLE)
    ended: list[str] = []

    async def look_up(lookupd: LookupClient) -> None:
        assert (await lookupd.lookup("orders")).partitions
        ended.append(lookupd.lookupd)

    async with new_client() as http, asyncio.TaskGroup() as group:
        first, second, third = (LookupClient(each.url, client=http, timeout=LIMIT) for each in (slow, quick, small))
        second.large = third.large = first.large
        group.create_task(look_up(first))
        await eventually(first.large.locked)
        group.create_task(look_up(second))
        await eventually(lambda: quick.count("/lookup"))
        group.create_task(look_up(third))
        await eventually(lambda: ended)
        goes_on.set()
    assert ended == [small.url, slow.url, quick.url]
    assert not first.large.locked()


async def test_a_large_answer_that_fails_leaves_room_for_the_next(fake: Fake, servers: Servers) -> None:
    fake.answer("/lookup", b"[" + b" " * (4 * LARGE_BYTES))
    assert (await servers.look_up("orders", "r")).error is not None
    fake.answer("/lookup", PADDED)
    assert (await servers.look_up("orders", "r")).error is None


async def test_all_learnt_ones_share_the_room_for_large_answers(fake: Fake, servers: Servers) -> None:
    fake.answer("/listlookup", list_body(fake.url, *(f"http://127.0.0.1:{port}" for port in range(1, 5))))
    await servers.refresh_lists()
    own, *others = (server.client.large for server in servers._servers)
    assert len(others) == 4
    assert len(set(others)) == 1
    assert own not in others


async def test_an_nsqd_that_leads_partitions_of_many_topics_is_kept_once(servers: Servers) -> None:
    rounds = [await servers.look_up(topic, "r") for topic in ("orders", "payments")]
    first, second = (result.answers[0].partitions for result in rounds)
    assert len(first) == 2
    assert all(first[number] is second[number] for number in first)


async def test_nsqlookupds_cannot_name_more_and_more_nsqds(
    fake: Fake, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "MOST_NSQDS", 3)
    kept = await servers.look_up("orders", "r")
    fake.answer("/lookup", lookup_body({0: 4170, 1: 4180}))
    refused = await servers.look_up("payments", "r")
    assert "for all topics together name more than 3 nsqds" in str(refused.error)
    assert kept.answers[0].partitions
    del kept
    gc.collect()
    await turn()
    assert (await servers.look_up("payments", "r")).error is None


async def test_channels_of_many_topics_are_kept_in_part(
    fake: Fake, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "_MOST_CHANNELS", 200)
    monkeypatch.setattr(servers_module, "_LEAST_CHANNELS", 10)
    fake.answer("/lookup", {**WHOLE, "channels": [f"c{number:03}" for number in range(100)]})
    for topics, kept in ((1, 100), (2, 100), (4, 50), (1000, 10)):
        servers.topics = topics
        assert len((await servers.look_up("orders", "r")).answers[0].channels) == kept


def test_a_listing_of_many_topics_takes_little_more_than_their_names() -> None:
    topics = tuple(f"topic{number:07}" for number in range(100_000))
    info = NodeInfo(Node("127.0.0.1", 4150, 4151, is_plain=True), "", "", {}, topics)
    tracemalloc.start(1)
    try:
        listing = Listing(0.0, "", [info])
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    answer = listing.answer(topics[-1], "r")
    assert answer is not None
    assert answer.nodes == (info.node,)
    assert taken < 100 * len(topics)


async def test_a_listing_is_not_kept_while_the_next_one_is_asked_for(fake: Fake, servers: Servers) -> None:
    fake.answer("/lookup", {"channels": [], "producers": [{"broadcast_address": "127.0.0.1", "tcp_port": 4150}]})
    fake.answer("/nodes", {"producers": [{"broadcast_address": "a", "tcp_port": 4150, "topics": ["orders"]}]})
    servers.topics = 100
    for _ in range(2):
        await servers.look_up("orders", "r")
    (server,) = servers._servers
    assert server.listing is not None
    fake.behave = hang
    looking = asyncio.create_task(servers.look_up("orders", "r"))
    await eventually(lambda: fake.count("/nodes") == 2)
    assert cast("Listing | None", server.listing) is None
    looking.cancel()
    await asyncio.wait({looking})
