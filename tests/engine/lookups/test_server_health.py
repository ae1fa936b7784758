"""What a failure of one nsqlookupd changes, and when each is asked: with clients that do what a test says."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from nsq_ha.engine.answers import LookupdList
from nsq_ha.engine.http import new_client
from nsq_ha.engine.servers import PROBE_GAP, Servers
from nsq_ha.errors import ConnectError, LookupUnavailableError
from nsq_ha.policy.topology import LookupAnswer, Node, TopicMeta
from tests.support.nsqd import LIMIT
from tests.support.waiting import dawdle, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

NODE = Node("127.0.0.1", 4150, 4151)
FOREVER = 1000.0
A, B, C = "http://10.0.0.1:4161", "http://10.0.0.2:4161", "http://10.0.0.3:4161"


def now() -> float:
    return asyncio.get_running_loop().time()


class Client:
    """Stands for the client of one nsqlookupd.

    Attributes:
        takes: Seconds until its answer.
        error: What it raises; None for an answer.
        asked: The loop's time, topic and access of each lookup.
        listed: Its list.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.takes = 0.0
        self.error: Exception | None = None
        self.partitions = {0: NODE}
        self.asked: list[tuple[float, str, str]] = []
        self.listed = LookupdList(None, ())
        self.lists_asked: list[float] = []
        self.list_error: Exception | None = None

    async def lookup(self, topic: str, access: str) -> LookupAnswer:
        self.asked.append((now(), topic, access))
        await dawdle(self.takes)
        if self.error is not None:
            raise self.error
        return LookupAnswer(self.url, False, TopicMeta(1), self.partitions, exists=True)

    async def list_lookupd(self) -> LookupdList:
        self.lists_asked.append(now())
        if self.list_error is not None:
            raise self.list_error
        return self.listed


class Stage:
    """Nsqlookupds with clients of the kind above, also those that are learnt."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.clients: dict[str, Client] = {}
        add = servers._add

        def added(url: str, *, configured: bool) -> Any:  # noqa: ANN401 - a Server
            server = add(url, configured=configured)
            self.dress(server)
            return server

        servers._add = added  # type: ignore[method-assign]
        for server in servers._servers:
            self.dress(server)

    def dress(self, server: Any) -> None:  # noqa: ANN401 - a Server
        server.client = self.clients[server.url] = Client(server.url)

    def __getitem__(self, url: str) -> Client:
        return self.clients[url]

    async def timed(self) -> tuple[list[str], float]:
        """Look up; return who answered, and how long it took."""
        began = now()
        result = await self.servers.look_up("orders", "w")
        return sorted(answer.lookupd for answer in result.answers), round(now() - began, 2)


@pytest.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Stage]]:
    """Make stages, without chance: each pause is as long as it may be."""
    monkeypatch.setattr("random.random", lambda: 0.0)
    made: list[Servers] = []
    async with new_client() as http:

        def make(*urls: str, timeout: float = 1.0) -> Stage:
            made.append(Servers(urls, timeout=timeout, client=http))
            return Stage(made[-1])

        yield make
        for servers in made:
            await servers.aclose()


DOWN = LookupUnavailableError("no usable answer", (("one", "first"), ("two", "second")))


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


@pytest.mark.parametrize(("takes", "asked"), [(0.2, 2), (0.3, 1)])
async def test_only_a_quick_failure_is_tried_again_at_once(
    make: Callable[..., Stage], takes: float, asked: int
) -> None:
    stage = make(A, timeout=1.0)
    stage[A].takes, stage[A].error = takes, DOWN
    await stage.timed()
    assert len(stage[A].asked) == asked


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


@pytest.mark.parametrize(
    ("urls", "others"),
    [((A,), "retrying; leaders known so far stay in use"), ((A, B), "asking the others")],
)
@pytest.mark.parametrize(
    ("error", "said", "cause"),
    [
        (DOWN, "first; second", ("two", "second")),
        (ConnectError("refused"), "refused", (A, "refused")),
    ],
)
async def test_the_first_failure_is_a_warning_with_its_causes(  # noqa: PLR0917 - two lists of cases
    make: Callable[..., Stage],
    caplog: pytest.LogCaptureFixture,
    urls: tuple[str, ...],
    others: str,
    error: Exception,
    said: str,
    cause: tuple[str, str],
) -> None:
    stage = make(*urls)
    for client in stage.clients.values():
        client.error = error
    for _ in range(3):
        result = await stage.servers.look_up("orders", "w")
        assert result.error is not None
        assert str(result.error).startswith("no nsqlookupd gave a usable answer (")
        assert cause in result.error.causes
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"nsqlookupd {url} gave no usable answer: {said}; {others}") for url in urls
    ]


# ---------------------------------------------------------------- lists


async def test_so_is_one_that_only_lists_were_asked_of(make: Callable[..., Stage]) -> None:
    """A producer without topics looks nothing up: each address that a server had left was asked for ever."""
    stage = make(A)
    stage[A].listed = LookupdList(None, (A, C))
    await stage.servers.refresh_lists()
    stage[A].listed, stage[C].list_error = LookupdList(None, (A,)), DOWN
    await stage.servers.refresh_lists()
    assert stage.servers.urls == (A,)


async def test_a_name_is_resolved_with_its_own_port(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        asked.append((host, port))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.9", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    stage = make("http://one:4161", "https://two", A)
    listed = ("http://10.0.0.9:4161", "https://10.0.0.9:443", "http://10.0.0.9:4162")
    stage[A].listed = LookupdList("http://10.0.0.9:4161", listed)
    await stage.servers.refresh_lists()
    assert asked == [("one", 4161), ("two", 443)]
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
    keeping = asyncio.create_task(stage.servers.keep_lists(30.0))
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
    running = asyncio.create_task(stage.servers.keep_lists(30.0))
    await dawdle(11.0)
    stage[A].list_error = None
    await dawdle(39.0)
    running.cancel()
    await asyncio.wait({running})
    first = stage[A].lists_asked[0]
    assert [round(at - first) for at in stage[A].lists_asked] == [0, 5, 10, 15, 45]
