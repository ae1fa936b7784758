"""Who is asked and waited for, what a failure changes, who is learnt and who leads.

Most nsqlookupds are clients that do what a test says; where HTTP matters they are servers on the loopback.
"""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from nsq_ha.engine.answers import LookupdList
from nsq_ha.engine.http import new_client
from nsq_ha.engine.servers import GRACE, PROBE_GAP, Servers
from nsq_ha.errors import LookupUnavailableError
from tests.engine.lookups.loopback import Fake, hang, http_answer, list_body, lookup_body
from tests.engine.lookups.scripted import Stage, now
from tests.support.nsqd import LIMIT
from tests.support.waiting import dawdle, eventually

Serve = Callable[[], Awaitable[Fake]]

A, B, C = "http://10.0.0.1:4161", "http://10.0.0.2:4161", "http://10.0.0.3:4161"
SLOW = 5.0
"""A delay in seconds that no test waits for."""


DOWN = LookupUnavailableError("no usable answer", (("one", "first"), ("two", "second")))

# ---------------------------------------------------------------- who is asked, and waited for


async def test_all_are_asked_at_once(make: Callable[..., Stage]) -> None:
    stage = make(A, B, C)
    for client in stage.clients.values():
        client.takes = 0.3
    assert await stage.timed() == ([A, B, C], 0.3)


async def test_a_hanging_one_holds_nothing_up_beyond_a_grace(make: Callable[..., Stage]) -> None:
    stage = make(A, B)
    stage[A].takes = SLOW
    assert await stage.timed() == ([B], GRACE)
    stage[B].takes = 0.3
    assert await stage.timed() == ([B], 0.3 + 0.3)


@pytest.mark.parametrize(("takes", "asked"), [(0.2, 2), (0.3, 1)])
async def test_only_a_quick_failure_is_tried_again_at_once(
    make: Callable[..., Stage], takes: float, asked: int
) -> None:
    stage = make(A, timeout=1.0)
    stage[A].takes, stage[A].error = takes, DOWN
    await stage.timed()
    assert len(stage[A].asked) == asked


async def test_a_failing_one_is_left_alone_until_its_probe_and_then_used_again(make: Callable[..., Stage]) -> None:
    stage = make(A, B)
    stage[A].error = DOWN
    for _ in range(5):
        assert (await stage.timed())[0] == [B]
    # The first failure is retried at once: it may have been a connection that the server had closed.
    assert (len(stage[A].asked), stage.failing) == (3, {A})
    stage[A].error = None
    await dawdle(PROBE_GAP)
    assert (await stage.timed())[0] == [A, B]
    assert stage.failing == set()


async def test_when_all_fail_all_are_asked_and_each_cause_is_reported(make: Callable[..., Stage]) -> None:
    stage = make(A, B)
    stage[A].error, stage[B].error = DOWN, ValueError("nonsense")
    for number in (2, 3, 4):
        result = await stage.servers.look_up("orders", "r")
        assert result.error is not None
        assert result.error.causes == (*DOWN.causes, (B, "ValueError('nonsense')"))
        assert [len(stage[url].asked) for url in (A, B)] == [number, number]
        await dawdle(PROBE_GAP)
    stage[B].error = None
    assert (await stage.timed())[0] == [B]


async def test_a_server_that_fails_is_not_asked_for_each_topic(make: Callable[..., Stage]) -> None:
    """Sixty topics made 270 connections a second to an nsqlookupd that closed them."""
    stage = make(A)
    stage[A].error = DOWN
    for number in range(60):
        result = await stage.servers.look_up(f"topic{number}", "w")
        assert result.error is not None
        assert result.error.causes == DOWN.causes
    assert len(stage[A].asked) == 3, "a quick failure is tried again at once, and so is the first lookup after it"
    await dawdle(PROBE_GAP)
    stage[A].error = None
    for number in range(60):
        assert (await stage.servers.look_up(f"topic{number}", "w")).error is None
    assert len(stage[A].asked) == 63


@pytest.fixture
async def real(serve: Serve) -> AsyncIterator[tuple[Fake, Servers]]:
    """A server on the loopback, and what asks it."""
    fake = await serve()
    fake.answer("/lookup", lookup_body({0: 4150, 1: 4160}))
    async with new_client() as client:
        servers = Servers((fake.url,), timeout=SLOW, client=client)
        yield fake, servers
        await servers.aclose()


async def test_a_kept_connection_that_the_server_closed_is_no_failure(real: tuple[Fake, Servers]) -> None:
    fake, servers = real
    answered = 0

    async def once(writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        answered += 1
        if answered == 2:
            writer.transport.abort()
        else:
            writer.write(http_answer(b'{"meta":{"partition_num":1},"partitions":{}}'))

    fake.behave = once
    for _ in range(3):
        assert (await servers.look_up("orders", "r")).error is None


async def test_closing_ends_a_round_and_a_cancelled_one_ends_in_time(real: tuple[Fake, Servers]) -> None:
    fake, servers = real
    fake.behave = hang
    rounds = [asyncio.create_task(servers.look_up(topic, "r")) for topic in ("orders", "other")]
    await eventually(lambda: fake.count("/lookup") == 2)
    rounds[0].cancel()
    await servers.aclose()
    assert (await rounds[1]).error is not None
    assert not [task for task in asyncio.all_tasks() if "lookup" in task.get_name()]


async def test_the_channels_of_a_partition_come_from_a_working_one(serve: Serve) -> None:
    away, odd, well, other = [await serve() for _ in range(4)]
    for fake in (away, odd, well, other):
        fake.answer("/lookup", lookup_body({0: 4150}))
        fake.answer("/channels", {"channels": ["billing"]})
    odd.answer("/channels", b"<html>")
    client = new_client()
    servers = Servers([away.url, odd.url, well.url, other.url], timeout=1.0, client=client)
    await away.stop()
    await servers.look_up("orders", "r")
    assert await servers.channels("orders", 3) == frozenset({"billing"})
    assert well.queries("/channels") == [{"topic": "orders", "partition": "3"}]
    assert (away.count("/channels"), odd.count("/channels")) == (0, 1)
    for fake in (well, other):
        await fake.stop()
    assert await servers.channels("orders", 3) is None
    await client.aclose()


async def test_the_leading_one_is_asked_for_channels_first(serve: Serve) -> None:
    """The first configured one may hang, and has not failed yet when a producer connects."""
    first, leading = [await serve() for _ in range(2)]
    for fake in (first, leading):
        fake.answer("/listlookup", list_body(leading.url, first.url, leading.url))
        fake.answer("/channels", {"channels": ["billing"]})
    async with new_client() as client:
        servers = Servers([first.url, leading.url], timeout=LIMIT, client=client)
        await servers.refresh_lists()
        first.behave = hang
        assert await servers.channels("orders", 3) == frozenset({"billing"})
    assert first.count("/channels") == 0


# ---------------------------------------------------------------- what is said


async def test_one_that_has_answered_is_asked_for_channels_before_one_that_hangs(serve: Serve) -> None:
    hanging, good = await serve(), await serve()
    hanging.behave = hang
    good.answer("/lookup", lookup_body({0: 4150}))
    good.answer("/channels", {"channels": ["billing"]})
    async with new_client() as client:
        servers = Servers((hanging.url, good.url), timeout=SLOW, client=client)
        await servers.look_up("orders", "r")
        async with asyncio.timeout(SLOW / 2):
            assert await servers.channels("orders", 0) == frozenset({"billing"})
        await servers.aclose()


async def test_one_that_fails_every_other_time_fills_no_log(
    make: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stage = make(A)
    for number in range(80):
        stage[A].error = DOWN if number % 2 else None
        await stage.servers.look_up("orders", "w")
        await dawdle(0.1)
    assert 2 < len(caplog.records) < 6
    caplog.clear()
    stage[A].error = DOWN
    for _ in range(200):  # what lasts is said in any case
        await stage.servers.look_up("orders", "w")
        await dawdle(0.1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    ("urls", "others"),
    [((A,), "retrying; leaders known so far stay in use"), ((A, B), "asking the others")],
)
async def test_the_first_failure_is_a_warning_with_its_causes(
    make: Callable[..., Stage], caplog: pytest.LogCaptureFixture, urls: tuple[str, ...], others: str
) -> None:
    stage = make(*urls)
    for client in stage.clients.values():
        client.error = DOWN
    for _ in range(3):
        result = await stage.servers.look_up("orders", "w")
        assert result.error is not None
        assert str(result.error).startswith("no nsqlookupd gave a usable answer (")
        assert ("two", "second") in result.error.causes
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"nsqlookupd {url} gave no usable answer: first; second; {others}") for url in urls
    ]


async def test_what_a_server_provokes_beyond_all_rules_is_its_own_failure(
    make: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    stage = make(A, B)
    stage[A].error = stage[A].list_error = ZeroDivisionError()
    assert (await stage.timed())[0] == [B]
    await stage.servers.refresh_lists()
    assert stage.servers.urls == (A, B)
    assert {record.getMessage().partition(":")[0] for record in caplog.records if record.levelname == "ERROR"} == {
        "nsqlookupd http"
    }


# ---------------------------------------------------------------- who is known, and who leads


async def test_others_are_learnt_and_the_leading_one_is_marked(make: Callable[..., Stage]) -> None:
    stage = make(A)
    await stage.servers.refresh_lists()
    assert (stage.servers.urls, stage.servers.leader) == ((A,), None)
    stage[A].listed = LookupdList(B, (B, A, B))
    await stage.servers.refresh_lists()
    assert (stage.servers.urls, stage.servers.leader) == ((A, B), B)
    result = await stage.servers.look_up("orders", "r")
    assert {answer.lookupd: answer.leads for answer in result.answers} == {A: False, B: True}


@pytest.mark.parametrize(
    ("named", "leader"),
    [
        pytest.param((A, B, B), B, id="most lists decide"),
        pytest.param((A, C, None), A, id="a tie goes to one that says so itself"),
        pytest.param((C, B, None), B, id="whoever is asked first"),
    ],
)
async def test_who_leads(make: Callable[..., Stage], named: tuple[str | None, ...], leader: str) -> None:
    stage = make(A, B, C)
    for url, names in zip((A, B, C), named, strict=True):
        stage[url].listed = LookupdList(names, (A, B, C))
    await stage.servers.refresh_lists()
    assert stage.servers.leader == leader


async def test_those_that_have_gone_are_forgotten(make: Callable[..., Stage]) -> None:
    """A producer without topics looks nothing up: each address that a server had left was asked for ever."""
    stage = make(A)
    made_up = tuple(f"http://127.0.0.1:{port}" for port in range(1, 9))
    stage[A].listed = LookupdList(A, (A, *made_up))
    await stage.servers.refresh_lists()
    assert stage.servers.urls == (A, *made_up)
    stage[A].listed = LookupdList(A, (A,))
    for url in made_up:
        stage[url].list_error = DOWN
    await stage.servers.refresh_lists()
    assert stage.servers.urls == (A,)


async def test_a_name_is_resolved_with_its_own_port(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        asked.append((host, port))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.9", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    stage = make("http://one:4161", "https://two", A)
    listed = ("http://10.0.0.9:4161", "https://10.0.0.9:443", "http://10.0.0.9:4162")
    stage[A].listed = LookupdList("http://10.0.0.9:4161", listed)
    await stage.servers.refresh_lists()
    assert sorted(asked) == [("one", 4161), ("two", 443)]
    assert stage.servers.urls == ("http://one:4161", "https://two", A, "http://10.0.0.9:4162")
    assert stage.servers.leader == "http://one:4161"


async def test_a_name_of_several_servers_leads_to_each_of_them(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes went to whichever server the name led to, which often does not lead; and only that one was asked."""

    def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        addresses = {"several": ("10.0.0.1", "10.0.0.2"), "both": ("10.0.0.3", "fe80::3")}[host]
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in addresses]
        return [
            (family, socket.SOCK_STREAM, 6, "", (each, port)) for family, each in zip(families, addresses, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    several, both = "http://several:4161", "http://both:4161"
    stage = make(several, both)
    stage[several].listed = LookupdList(B, (A, B, C, "http://[fe80::3]:4161"))
    await stage.servers.refresh_lists()
    assert stage.servers.urls == (several, both, A, B)
    assert stage.servers.leader == B


async def test_a_resolver_that_hangs_has_a_time_limit(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: free.wait(LIMIT))
    stage, began = make("http://one:4161", A, timeout=2.0), now()
    await stage.servers.refresh_lists()
    free.set()
    assert round(now() - began, 1) == 2.0
    assert stage[A].lists_asked == [pytest.approx(began, abs=0.1)]


@pytest.mark.parametrize(("chance", "pause"), [(0.0, 30.0), (0.5, 27.0)])
async def test_lists_are_asked_for_at_intervals_and_soon_after_a_failure(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, chance: float, pause: float
) -> None:
    monkeypatch.setattr("random.random", lambda: chance)
    stage, began = make(A, B), now()
    keeping = asyncio.create_task(stage.servers.keep_lists())
    await eventually(lambda: len(stage[B].lists_asked) == 3, 100.0)
    stage[A].error = DOWN
    await stage.timed()
    await dawdle(4.0)
    assert len(stage[B].lists_asked) == 3
    await dawdle(2.0)
    assert [round(at - began) for at in stage[B].lists_asked] == [0, pause, 2 * pause, 2 * pause + 5]
    stage[A].error = None
    await dawdle(8.0)
    await stage.timed()  # answers again: its list may be needed
    await dawdle(1.0)
    assert [round(at - began) for at in stage[B].lists_asked[4:]] == [2 * pause + 14]
    keeping.cancel()


# ---------------------------------------------------------------- a client without topics


async def test_silence_lasts_from_the_first_failure_until_one_answers(make: Callable[..., Stage]) -> None:
    stage = make(A, B)
    servers = stage.servers
    await servers.refresh_lists()
    stage[A].list_error = DOWN
    await servers.refresh_lists()
    assert servers.silence is None  # B answers
    stage[B].list_error = ValueError("nonsense")
    began = now()
    await servers.refresh_lists()
    await dawdle(7.0)
    await servers.refresh_lists()
    assert servers.silence is not None
    assert servers.silence.since == pytest.approx(began, abs=1.0)
    assert servers.silence.error.causes == ((A, "first; second"), (B, "ValueError('nonsense')"))
    stage[A].list_error = None
    await servers.refresh_lists()
    assert servers.silence is None
    stage[A].list_error = DOWN
    await servers.refresh_lists()
    assert servers.silence is not None
    await stage.timed()  # a lookup is answered
    assert servers.silence is None


async def test_while_all_are_silent_the_lists_are_asked_for_more_often(make: Callable[..., Stage]) -> None:
    stage = make(A)
    stage[A].list_error = DOWN
    running = asyncio.create_task(stage.servers.keep_lists())
    await dawdle(11.0)
    stage[A].list_error = None
    await dawdle(39.0)
    running.cancel()
    await asyncio.wait({running})
    first = stage[A].lists_asked[0]
    assert [round(at - first) for at in stage[A].lists_asked] == [0, 5, 10, 15, 45]
