"""nsqlookupds of 2 clusters among the given addresses: noticed by what they answer, and never without proof."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from nsq_ha import Consumer, Producer
from nsq_ha.engine import servers as servers_module
from nsq_ha.engine.http import new_client
from nsq_ha.engine.lookups import Lookups
from nsq_ha.engine.servers import Servers
from nsq_ha.errors import ConfigError
from nsq_ha.options.config import ClientConfig
from tests.engine.lookups.loopback import Fake, hang, list_body, lookup_body, peer
from tests.engine.lookups.scripted import until
from tests.support.waiting import eventually

Serve = Callable[[], Awaitable[Fake]]
Known = Callable[..., Servers]


@pytest.fixture
async def known() -> AsyncIterator[Known]:
    client = new_client()
    made: list[Servers] = []

    def make(*fakes: Fake) -> Servers:
        made.append(Servers([fake.url for fake in fakes], timeout=1.0, client=client))
        return made[-1]

    yield make
    for servers in made:
        await servers.aclose()
    await client.aclose()


async def cluster(serve: Serve, port: int, number: int = 2) -> list[Fake]:
    """The nsqlookupds of a cluster with one nsqd."""
    fakes = [await serve() for _ in range(number)]
    for fake in fakes:
        fake.answer("/listlookup", list_body(fakes[0].url, *(each.url for each in fakes)))
        fake.answer("/lookup", lookup_body({0: port}))
        fake.answer("/nodes", {"producers": [{**peer(port), "partitions": {}}]})
    return fakes


async def test_one_cluster_is_no_conflict_and_costs_nothing_more(serve: Serve, known: Known) -> None:
    a, b = await cluster(serve, 4150)
    for given in ((a,), (a, b)):
        servers = known(*given)
        await servers.refresh_lists()
        assert servers.conflict is None
    assert a.count("/nodes") == b.count("/nodes") == 0


async def test_one_that_was_given_by_another_name_is_no_stranger(serve: Serve, known: Known) -> None:
    """Behind NAT no list has the address that was given; the lists are equal nevertheless."""
    a, b = await cluster(serve, 4150)
    for fake in (a, b):
        fake.answer("/listlookup", list_body(None, "http://10.9.8.7:4161", "http://10.9.8.6:4161"))
    servers = known(a, b)
    await servers.refresh_lists()
    assert servers.conflict is None


async def test_what_was_seen_stays_until_both_answer_otherwise(serve: Serve, known: Known) -> None:
    (a, _), (b, _) = await cluster(serve, 4150), await cluster(serve, 4250)
    servers = known(a, b)
    await servers.refresh_lists()
    b.answer("/listlookup", b"no", 500)
    await servers.refresh_lists()
    assert servers.conflict is not None
    b.answer("/listlookup", list_body(b.url, b.url))
    b.answer("/nodes", {"producers": [peer(4150)]})
    await servers.refresh_lists()
    assert servers.conflict is None


async def test_an_old_list_is_not_compared_with_a_new_one(serve: Serve, known: Known) -> None:
    """All nsqlookupds of a cluster were replaced, one of them at an address that was given."""
    (a, _), (b, _) = await cluster(serve, 4150), await cluster(serve, 4250)
    b.answer("/listlookup", b"no", 500)
    servers = known(a, b)
    await servers.refresh_lists()
    a.answer("/listlookup", b"no", 500)
    b.answer("/listlookup", list_body(b.url, b.url))
    await servers.refresh_lists()
    assert servers.conflict is None


# ---------------------------------------------------------------- who is told


async def test_clients_refuse_to_start(serve: Serve) -> None:
    (a, _), (b, _) = await cluster(serve, 4150), await cluster(serve, 4250)
    for client in (
        Producer(lookupd=[a.url, b.url]),
        Consumer("orders", "ch", lookupd=[a.url, b.url], start_timeout=60.0),
    ):
        with pytest.raises(ConfigError, match="of 2 clusters") as caught:
            await client.__aenter__()
        assert a.url in str(caught.value)
        assert b.url in str(caught.value)
    assert a.count("/lookup") == b.count("/lookup") == 0


async def test_a_slow_one_is_waited_for_but_a_hanging_one_not_for_long(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a, _), (b, _) = await cluster(serve, 4150), await cluster(serve, 4250)
    b.delay = servers_module.COMPARE_LIMIT * 0.4
    lookups = Lookups(ClientConfig(lookupd=(a.url, b.url)), access="r")
    with pytest.raises(ConfigError):
        await lookups.start()
    await lookups.aclose()
    b.behave = hang
    lookups = Lookups(ClientConfig(lookupd=(a.url, b.url)), access="r")
    began = asyncio.get_running_loop().time()
    await lookups.start()
    ended = asyncio.get_running_loop().time()
    assert ended - began < servers_module.COMPARE_LIMIT + 0.2
    later = Lookups(ClientConfig(lookupd=(a.url, b.url)), access="w")
    await later.start()
    assert asyncio.get_running_loop().time() - ended < 0.2  # the engine has waited
    await later.aclose()
    await lookups.aclose()


async def test_one_that_answers_later_ends_the_lookups_and_leaves_the_known_leaders(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(servers_module, "LIST_GAP", 0.01)
    (a, _), (b, _) = await cluster(serve, 4150), await cluster(serve, 4250)
    await b.stop()
    lookups = Lookups(ClientConfig(lookupd=(a.url, b.url), lookup_interval=3600.0), access="r")
    await lookups.start()
    watch = lookups.watch("orders")
    await until(watch, lambda view: view.complete)
    await b.start()
    await eventually(lambda: [record.levelname for record in caplog.records].count("ERROR") == 1)
    await watch.next_round()
    assert "of 2 clusters" in str(watch.error)
    assert watch.view.complete
    await lookups.aclose()
