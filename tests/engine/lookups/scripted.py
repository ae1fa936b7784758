"""Nsqlookupds with clients that do what a test says."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from nsq_ha.engine.answers import LookupdList
from nsq_ha.engine.lookups import TopicWatch
from nsq_ha.engine.servers import Servers
from nsq_ha.events import Event, LookupdFailed, LookupdRecovered
from nsq_ha.policy.topology import LookupAnswer, Node, TopicMeta, TopicView
from tests.support.waiting import dawdle

NODE = Node("127.0.0.1", 4150, 4151)


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
        self.number = 1
        self.asked: list[tuple[float, str, str]] = []
        self.listed = LookupdList(None, ())
        self.lists_asked: list[float] = []
        self.list_error: Exception | None = None

    async def lookup(self, topic: str, access: str) -> LookupAnswer:
        self.asked.append((now(), topic, access))
        await dawdle(self.takes)
        if self.error is not None:
            raise self.error
        return LookupAnswer(self.url, False, TopicMeta(self.number), self.partitions, exists=True)

    async def list_lookupd(self) -> LookupdList:
        self.lists_asked.append(now())
        if self.list_error is not None:
            raise self.list_error
        return self.listed


class Stage:
    """Nsqlookupds with clients of the kind above, also those that are learnt.

    Attributes:
        servers: What asks them.
        clients: Their clients, by base URL.
        failing: Those whose last lookup failed, as the events say.
    """

    def __init__(self, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, *urls: str, timeout: float) -> None:
        self.clients: dict[str, Client] = {}
        self.failing: set[str] = set()

        def client(url: str, **_: object) -> Client:
            self.clients[url] = Client(url)
            return self.clients[url]

        monkeypatch.setattr("nsq_ha.engine.servers.LookupClient", client)
        self.servers = Servers(urls, timeout=timeout, client=http, on_event=self._heard)

    def __getitem__(self, url: str) -> Client:
        return self.clients[url]

    def _heard(self, event: Event) -> None:
        if isinstance(event, LookupdFailed):
            self.failing.add(event.lookupd)
        elif isinstance(event, LookupdRecovered):
            self.failing.remove(event.lookupd)

    async def timed(self) -> tuple[list[str], float]:
        """Look up; return who answered, and how long it took."""
        began = now()
        result = await self.servers.look_up("orders", "w")
        assert (result.error is None) is bool(result.answers)
        return sorted(answer.lookupd for answer in result.answers), round(now() - began, 2)


async def until(watch: TopicWatch, predicate: Callable[[TopicView], bool]) -> TopicView:
    """Look up until ``predicate`` is true for the view, and return the view."""
    watch.look_up_often(is_wanted=True)
    while not (watch.view.is_answered and predicate(watch.view)):
        await watch._round_ended.wait()  # noqa: SLF001 - of any round
    watch.look_up_often(is_wanted=False)
    return watch.view
