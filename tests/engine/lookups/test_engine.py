"""What the clients of one event loop share for their lookups, and when they do not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from nsq_ha import events
from nsq_ha.config import ClientConfig
from nsq_ha.engine.engine import Engine
from nsq_ha.engine.http import new_client
from nsq_ha.engine.servers import MANY_TOPICS, Servers
from nsq_ha.engine.watcher import Directory
from nsq_ha.errors import ClosedError
from nsq_ha.observe import Observer
from tests.engine.lookups.loopback import Fake, list_body, lookup_body
from tests.support.waiting import turn

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

A = "http://127.0.0.1:1"


@pytest.fixture
async def fake() -> AsyncIterator[Fake]:
    made = await Fake().start()
    made.answer("/lookup", lookup_body({0: 4150}))
    yield made
    await made.stop()


def config(*lookupd: str, **options: Any) -> ClientConfig:  # noqa: ANN401 - ClientConfig's fields
    return ClientConfig(lookupd=lookupd, **options)


def ignore(_: Exception) -> None: ...


def other(_: Exception) -> None: ...


async def test_clients_of_one_loop_ask_for_one_list_over_one_connection(fake: Fake) -> None:
    fake.answer("/listlookup", list_body(fake.url))
    directories = [Directory(config(fake.url), access=access) for access in ("r", "w", "r")]
    for directory in directories:
        await directory.start()
    for number, directory in enumerate(directories):
        watch = directory.watch(f"t{number}")
        await watch.wait_until(lambda view: view.complete)
    assert fake.count("/listlookup") == 1
    assert len({id(directory._servers) for directory in directories}) == 1  # noqa: SLF001 - what is shared
    await directories[0].aclose()
    with pytest.raises(ClosedError):
        directories[0].watch("t0")
    await directories[1].watch("again").wait_until(lambda view: view.complete)
    for directory in directories:
        await directory.aclose()


async def test_the_last_one_ends_it_and_the_next_one_starts_another() -> None:
    first = Engine.join(config(A), Observer(), ignore)
    assert Engine.join(config(A), Observer(), other) is first
    await first.leave(ignore)
    await first.leave(ignore)
    third = Engine.join(config(A), Observer(), ignore)
    assert third is first
    await first.leave(other)
    await first.leave(ignore)
    again = Engine.join(config(A), Observer(), ignore)
    assert again is not first
    await again.leave(ignore)


@pytest.mark.parametrize(
    "options", [{"lookup_timeout": 2.0}, {"local_addr": "127.0.0.1"}, {"lookup_jitter": 0.1}, {"lookupd": (A, A + "2")}]
)
async def test_other_options_do_not_share(options: dict[str, Any]) -> None:
    first = Engine.join(config(A), Observer(), ignore)
    second = Engine.join(ClientConfig(**({"lookupd": (A,)} | options)), Observer(), ignore)
    assert second is not first
    await first.leave(ignore)
    await second.leave(ignore)


def test_other_loops_do_not_share() -> None:
    async def join() -> Engine:
        engine = Engine.join(config(A), Observer(), ignore)
        await engine.leave(ignore)
        return engine

    assert asyncio.run(join()) is not asyncio.run(join())


async def test_all_clients_hear_of_an_nsqlookupd_that_fails(fake: Fake) -> None:
    fake.answer("/listlookup", list_body(fake.url))
    heard: list[list[events.Event]] = [[], []]
    directories = [Directory(config(fake.url), access="r", observer=Observer(each.append)) for each in heard]
    for directory in directories:
        await directory.start()
    watch = directories[0].watch("orders")
    await watch.wait_until(lambda view: view.complete)
    await fake.stop()
    await watch.next_round()
    await turn()
    failed = [[type(event) for event in each if isinstance(event, events.LookupdFailed)] for each in heard]
    assert failed == [[events.LookupdFailed]] * 2
    for directory in directories:
        await directory.aclose()


async def test_a_bug_in_it_closes_all_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    may_fail = asyncio.Event()

    async def broken(*_: object) -> None:
        await may_fail.wait()
        raise ZeroDivisionError("bug")

    monkeypatch.setattr(Servers, "keep_lists", broken)
    directories = [Directory(config(A), access="r") for _ in range(2)]
    for directory in directories:
        await directory.start()
    may_fail.set()
    await turn(5)
    for directory in directories:
        with pytest.raises(ClosedError, match="internal error") as caught:
            directory.watch("orders")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        await directory.aclose()


# ---------------------------------------------------------------- many topics of a plain cluster


def peer(port: int, *topics: str, tombstoned: tuple[str, ...] = ()) -> dict[str, object]:
    marks = [topic in tombstoned for topic in topics]
    return {"broadcast_address": "127.0.0.1", "tcp_port": port, "topics": list(topics), "tombstones": marks}


@pytest.fixture
async def plain(fake: Fake) -> AsyncIterator[Servers]:
    topics = [f"t{number}" for number in range(100)]
    fake.answer("/lookup", {"channels": [], "producers": [peer(4150)]})
    fake.answer("/nodes", {"producers": [peer(4150, *topics, "gone", tombstoned=("gone",)), peer(4160, "t1")]})
    client = new_client()
    servers = Servers((fake.url,), timeout=1.0, client=client)
    servers.topics = MANY_TOPICS + 1
    await servers.look_up("t0", "r")  # its answer shows that the nsqlookupd is a plain one
    assert (fake.count("/lookup"), fake.count("/nodes")) == (1, 0)
    yield servers
    await servers.aclose()
    await client.aclose()


async def test_many_topics_are_answered_by_one_request(fake: Fake, plain: Servers) -> None:
    rounds = await asyncio.gather(*(plain.look_up(f"t{number}", "r") for number in range(100)))
    ports = [[node.tcp_port for node in result.answers[0].nodes or ()] for result in rounds]
    assert ports == [[4150], [4150, 4160]] + [[4150]] * 98
    assert all(node.is_plain for result in rounds for node in result.answers[0].nodes or ())
    assert (fake.count("/lookup"), fake.count("/nodes")) == (1, 1)


async def test_a_caller_gets_no_older_answer_a_periodic_lookup_may(fake: Fake, plain: Servers) -> None:
    await plain.look_up("t1", "r")
    await plain.look_up("t2", "r", max_age=5.0)
    assert fake.count("/nodes") == 1
    await plain.look_up("t2", "r")
    assert fake.count("/nodes") == 2


async def test_few_topics_are_looked_up_one_by_one(fake: Fake, plain: Servers) -> None:
    plain.topics = MANY_TOPICS
    await plain.look_up("t1", "r")
    assert (fake.count("/lookup"), fake.count("/nodes")) == (2, 0)


async def test_a_topic_that_no_nsqd_has_is_created_by_those_that_may(fake: Fake, plain: Servers) -> None:
    (new,) = (await plain.look_up("new", "w")).answers
    assert (new.nodes, [node.tcp_port for node in new.spare], new.exists) == ((), [4150, 4160], True)
    (gone,) = (await plain.look_up("gone", "w")).answers
    assert (gone.nodes, [node.tcp_port for node in gone.spare]) == ((), [4160])
    assert fake.count("/lookup") == 1
    await plain.look_up("new", "r")  # only the nsqlookupd knows whether it exists
    assert fake.count("/lookup") == 2


async def test_a_listing_that_fails_fails_all_who_wait_for_it(fake: Fake, plain: Servers) -> None:
    fake.answer("/nodes", b"no JSON", 200)
    rounds = await asyncio.gather(*(plain.look_up(f"t{number}", "r") for number in range(20)))
    assert all(result.error is not None and fake.url in str(result.error) for result in rounds)
    assert fake.count("/nodes") <= 2
    fake.answer("/nodes", {"producers": [peer(4150, "t1")]})
    (answer,) = (await plain.look_up("t1", "r")).answers
    assert answer.nodes
