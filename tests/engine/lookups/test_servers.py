"""Who is asked, who is waited for, who is learnt and who leads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nsq_ha.engine.http import new_client
from nsq_ha.engine.servers import GRACE, INCOMPLETE_GRACE, MAX_LEARNT, PROBE_GAP, Servers
from nsq_ha.errors import LookupUnavailableError
from tests.engine.lookups.loopback import Fake, hang, http_answer, list_body, lookup_body
from tests.support.waiting import dawdle, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nsq_ha.policy.topology import Round

    Serve = Callable[[], Awaitable[Fake]]
    Known = Callable[..., Servers]

WHOLE = lookup_body({0: 4150, 1: 4160})
HALF = lookup_body({0: 4150}, 2)
SLOW = 5.0
"""A delay in seconds that no test waits for."""


@pytest.fixture
async def known() -> AsyncIterator[Known]:
    client = new_client()
    made: list[Servers] = []

    def make(*urls: str, timeout: float = 1.0) -> Servers:
        made.append(Servers(urls, timeout=timeout, client=client))
        return made[-1]

    yield make
    for servers in made:
        await servers.aclose()
    await client.aclose()


def failing(servers: Servers) -> tuple[str, ...]:
    """Return the servers whose last request failed."""
    return tuple(server.url for server in servers._servers if server.error)


async def timed(servers: Servers, topic: str = "orders") -> tuple[Round, float]:
    began = asyncio.get_running_loop().time()
    result = await servers.look_up(topic, "r")
    return result, asyncio.get_running_loop().time() - began


async def test_all_are_asked_at_once(serve: Serve, known: Known) -> None:
    fakes = [await serve() for _ in range(3)]
    for fake in fakes:
        fake.answer("/lookup", WHOLE)
        fake.delay = 0.3
    result = await known(*(fake.url for fake in fakes)).look_up("orders", "r")
    assert {answer.lookupd for answer in result.answers} == {fake.url for fake in fakes}
    assert result.error is None
    asked = [when for fake in fakes for when, _, _ in fake.requests]
    assert len(asked) == 3
    assert max(asked) - min(asked) < 0.3


@pytest.mark.parametrize(("body", "grace"), [(WHOLE, GRACE), (HALF, INCOMPLETE_GRACE)])
async def test_a_hanging_one_holds_nothing_up_beyond_a_grace(
    serve: Serve, known: Known, body: object, grace: float
) -> None:
    hanging, well = await serve(), await serve()
    hanging.behave = hang
    well.answer("/lookup", body)
    result, took = await timed(known(hanging.url, well.url, timeout=SLOW))
    assert [answer.lookupd for answer in result.answers] == [well.url]
    assert grace <= took + 0.01
    assert took < grace + SLOW / 2


async def test_a_straggler_finishes_in_the_background_and_is_not_asked_twice(serve: Serve, known: Known) -> None:
    hanging, well = await serve(), await serve()
    hanging.behave = hang
    well.answer("/lookup", WHOLE)
    servers = known(hanging.url, well.url, timeout=2.0)
    for _ in range(3):
        assert (await servers.look_up("orders", "r")).answers
    assert hanging.count("/lookup") == 1
    assert failing(servers) == ()
    await eventually(lambda: failing(servers) == (hanging.url,))


async def test_the_channels_of_a_partition_come_from_a_working_one(serve: Serve, known: Known) -> None:
    away, odd, well, other = [await serve() for _ in range(4)]
    for fake in (away, odd, well, other):
        fake.answer("/lookup", WHOLE)
        fake.answer("/channels", {"channels": ["billing"]})
    odd.answer("/channels", b"<html>")
    servers = known(away.url, odd.url, well.url, other.url)
    await away.stop()
    await servers.look_up("orders", "r")
    assert failing(servers) == (away.url,)
    assert await servers.channels("orders", 3) == frozenset({"billing"})
    assert well.queries("/channels") == [{"topic": "orders", "partition": "3"}]
    assert (away.count("/channels"), odd.count("/channels")) == (0, 1)
    assert failing(servers) == (away.url,)
    for fake in (well, other):
        await fake.stop()
    assert await servers.channels("orders", 3) is None


async def test_a_failing_one_is_left_alone_until_its_probe_and_then_used_again(serve: Serve, known: Known) -> None:
    sick, well = await serve(), await serve()
    sick.answer("/lookup", b"<html>", 500)
    well.answer("/lookup", WHOLE)
    servers = known(sick.url, well.url, timeout=SLOW)
    await servers.look_up("orders", "r")
    assert failing(servers) == (sick.url,)
    # The first failure is retried at once: it may have been a connection that the server had closed.
    assert sick.count("/lookup") == 2
    for _ in range(3):
        await servers.look_up("orders", "r")
    assert sick.count("/lookup") == 3
    sick.answer("/lookup", WHOLE)
    await dawdle(PROBE_GAP)
    result = await servers.look_up("orders", "r")
    assert len(result.answers) == 2
    assert not failing(servers)


async def test_when_all_fail_all_are_asked_each_time_and_each_cause_is_reported(serve: Serve, known: Known) -> None:
    dead, hanging, sick = await serve(), await serve(), await serve()
    await dead.stop()
    hanging.behave = hang
    sick.answer("/lookup", b"<html>")
    servers = known(dead.url, hanging.url, sick.url)
    for number in (1, 2):
        result, took = await timed(servers)
        assert result.answers == ()
        assert isinstance(result.error, LookupUnavailableError)
        assert {url for url, _ in result.error.causes} == {dead.url, hanging.url, sick.url}
        assert took < SLOW
        assert hanging.count("/lookup") == number
        assert number <= sick.count("/lookup") <= number + 1
        await dawdle(PROBE_GAP)
    hanging.behave = None
    hanging.answer("/lookup", WHOLE)
    assert (await servers.look_up("orders", "r")).error is None


async def test_a_kept_connection_that_the_server_closed_is_no_failure(serve: Serve, known: Known) -> None:
    fake = await serve()
    fake.answer("/lookup", WHOLE)
    answered = 0

    async def once(writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        answered += 1
        if answered == 2:
            writer.transport.abort()
        else:
            writer.write(http_answer(b'{"meta":{"partition_num":1},"partitions":{}}'))

    fake.behave = once
    servers = known(fake.url)
    for _ in range(3):
        assert (await servers.look_up("orders", "r")).error is None
        assert failing(servers) == ()


async def test_what_a_server_provokes_beyond_all_rules_is_its_own_failure(
    serve: Serve, known: Known, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = await serve()
    fake.answer("/lookup", WHOLE)
    fake.answer("/listlookup", list_body(None))
    servers = known(fake.url)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("nsq_ha.engine.answers.decode_lookup", broken)
    monkeypatch.setattr("nsq_ha.engine.answers.decode_lookupd_list", broken)
    result = await servers.look_up("orders", "r")
    assert result.error is not None
    assert "ZeroDivisionError" in str(result.error)
    await servers.refresh_lists()
    assert servers.urls == (fake.url,)
    assert [record.levelname for record in caplog.records].count("ERROR") == 2


async def test_a_cancelled_round_leaves_no_question_behind(serve: Serve, known: Known) -> None:
    fake = await serve()
    fake.behave = hang
    servers = known(fake.url, timeout=SLOW)
    before = asyncio.all_tasks()
    round_ = asyncio.create_task(servers.look_up("orders", "r"))
    await eventually(lambda: fake.count("/lookup") == 1)
    round_.cancel()
    with pytest.raises(asyncio.CancelledError):
        await round_
    await eventually(lambda: {task for task in asyncio.all_tasks() if "lookup" in task.get_name()} == set())
    assert round_ not in before


async def test_closing_ends_a_round_under_way(serve: Serve, known: Known) -> None:
    fake = await serve()
    fake.behave = hang
    servers = known(fake.url, timeout=SLOW)
    round_ = asyncio.create_task(servers.look_up("orders", "r"))
    await eventually(lambda: fake.count("/lookup") == 1)
    await servers.aclose()
    result = await round_
    assert result.error is not None


# ---------------------------------------------------------------- who is known, and who leads


async def test_others_are_learnt_and_the_leading_one_is_marked(serve: Serve, known: Known) -> None:
    first, second = await serve(), await serve()
    for fake in (first, second):
        fake.answer("/listlookup", list_body(second.url, first.url, second.url))
        fake.answer("/lookup", WHOLE)
    servers = known(first.url)
    await servers.refresh_lists()
    assert servers.urls == (first.url, second.url)
    assert servers.leader == second.url
    result = await servers.look_up("orders", "r")
    assert {answer.lookupd: answer.leads for answer in result.answers} == {first.url: False, second.url: True}


async def test_an_old_server_is_used_as_it_is(serve: Serve, known: Known) -> None:
    old = await serve()
    old.answer("/lookup", WHOLE)
    servers = known(old.url)
    await servers.refresh_lists()
    assert (servers.urls, servers.leader, failing(servers)) == ((old.url,), None, ())
    assert (await servers.look_up("orders", "r")).answers


async def test_most_lists_decide_who_leads_and_a_tie_goes_to_one_that_says_so_itself(
    serve: Serve, known: Known
) -> None:
    fakes = [await serve() for _ in range(3)]
    urls = [fake.url for fake in fakes]
    for fake, leader in zip(fakes, (0, 1, 1), strict=True):
        fake.answer("/listlookup", list_body(urls[leader], *urls))
    servers = known(*urls, timeout=SLOW)
    await servers.refresh_lists()
    assert servers.leader == urls[1]
    fakes[1].answer("/listlookup", list_body(urls[2], *urls))
    fakes[2].answer("/listlookup", list_body(None, *urls))
    await servers.refresh_lists()
    assert servers.leader == urls[0]
    # A server's own word counts for more than that of one that is asked before it.
    fakes[0].answer("/listlookup", list_body(urls[2], *urls))
    fakes[1].answer("/listlookup", list_body(urls[1], *urls))
    await servers.refresh_lists()
    assert servers.leader == urls[1]


async def test_learning_has_a_limit_and_those_that_have_gone_are_forgotten(serve: Serve, known: Known) -> None:
    fake = await serve()
    fake.answer("/lookup", WHOLE)
    made_up = [f"http://127.0.0.1:{port}" for port in range(1, 60)]
    fake.answer("/listlookup", list_body(fake.url, fake.url, *made_up))
    servers = known(fake.url, timeout=SLOW)
    await servers.refresh_lists()
    assert len(servers.urls) == 1 + MAX_LEARNT
    await servers.look_up("orders", "r")
    assert len(failing(servers)) == MAX_LEARNT
    fake.answer("/listlookup", list_body(fake.url, fake.url))
    await servers.refresh_lists()
    assert servers.urls == (fake.url,)
