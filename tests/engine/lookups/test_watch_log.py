"""What a watch logs, and when it looks up: over servers that answer what a test sets."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nsq_ha.engine.engine import Engine
from nsq_ha.engine.lookups import Lookups, TopicWatch
from nsq_ha.errors import LookupUnavailableError
from nsq_ha.options.config import ClientConfig
from nsq_ha.policy.lookup_pace import LOOKUPS_AT_ONCE
from nsq_ha.policy.topology import LookupAnswer, Node, Round, TopicMeta
from tests.support.waiting import dawdle, eventually

A, B = "http://10.0.0.1:4161", "http://10.0.0.2:4161"
ONE, TWO = Node("10.0.1.1", 4150, 4151), Node("10.0.1.2", 4150, 4151)


def now() -> float:
    return asyncio.get_running_loop().time()


def led(*nodes: Node, number: int | None = None, **flags: bool) -> LookupAnswer:
    """The answer of a partitioned cluster."""
    meta = TopicMeta(len(nodes) if number is None else number, **flags)
    return LookupAnswer(A, True, meta, dict(enumerate(nodes)), exists=True)


def plain(lookupd: str, *nodes: Node) -> LookupAnswer:
    """The answer of a plain cluster."""
    return LookupAnswer(lookupd, False, None, {}, exists=bool(nodes), nodes=nodes)


NOWHERE = LookupAnswer(A, True, None, {}, exists=False)


class FakeServers:
    """Answers as set, and notes when it was asked."""

    urls = (A, B)

    def __init__(self) -> None:
        self.result = Round((), None)
        self.asked: list[tuple[float, str, str]] = []
        self._is_set = asyncio.Event()

    def answer(self, *answers: LookupAnswer) -> None:
        """Answer like this from now on, and to whoever waits."""
        error = None if answers else LookupUnavailableError("no nsqlookupd gave a usable answer")
        self.result = Round(answers, error)
        self._is_set.set()

    async def look_up(self, topic: str, access: str) -> Round:
        self.asked.append((now(), topic, access))
        await self._is_set.wait()
        return self.result


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    """Servers without chance: each pause is as long as it may be."""
    monkeypatch.setattr("random.random", lambda: 0.0)
    return FakeServers()


def shared(servers: FakeServers, **options: Any) -> tuple[Lookups, Engine]:  # noqa: ANN401 - of the client
    """What the lookups of several topics share; they are answered by ``servers``."""
    config = ClientConfig(nsqd=("127.0.0.1:4150",), **options)
    made = Engine(config, "")
    made.source = made.servers = servers  # type: ignore[assignment]
    return Lookups(config, access="w"), made


@contextlib.asynccontextmanager
async def begun(servers: FakeServers, **options: float) -> AsyncIterator[TopicWatch]:
    """Run a watch with the default intervals, without chance."""
    watch = TopicWatch("orders", *shared(servers, **options))
    yield watch
    end(watch)


def rounds(watch: TopicWatch) -> int:
    return watch._ended


def watches(servers: FakeServers, number: int) -> list[TopicWatch]:
    """Watch topics that share an engine."""
    client, engine = shared(servers)
    return [TopicWatch(f"t{each}", client, engine) for each in range(number)]


def end(*watches: TopicWatch) -> None:
    for watch in watches:
        watch.end()


@pytest.fixture
async def watch(servers: FakeServers) -> AsyncIterator[TopicWatch]:
    async with begun(servers, lookup_interval=60.0) as made:
        yield made


async def logged(
    watch: TopicWatch, caplog: pytest.LogCaptureFixture, servers: FakeServers, *answers: LookupAnswer
) -> list[str]:
    """Return the lines of the next round, which has these answers."""
    caplog.clear()
    servers.answer(*answers)
    await watch.next_round()
    return [record.getMessage() for record in caplog.records]


async def test_each_change_is_one_line(
    watch: TopicWatch, servers: FakeServers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert await logged(watch, caplog, servers, led(ONE, number=2)) == ["orders-0 is led by 10.0.1.1:4150"]
    assert await logged(watch, caplog, servers, led(ONE, number=2)) == []
    assert await logged(watch, caplog, servers, led(TWO, number=2)) == [
        "orders-0 is now led by 10.0.1.2:4150, previously by 10.0.1.1:4150"
    ]
    changed = led(number=2, ordered=True, extend_support=True)
    assert await logged(watch, caplog, servers, changed) == [
        "orders-0 has no leader, previously 10.0.1.2:4150",
        "topic orders changed: extend_support False -> True, ordered False -> True",
    ]
    lines = [line for _ in range(5) for line in await logged(watch, caplog, servers, NOWHERE)]
    assert lines == ["topic orders does not exist"]
    assert not watch.is_nowhere  # its cluster is not a plain one


async def test_the_leaders_of_several_partitions_are_one_line(
    watch: TopicWatch, servers: FakeServers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    nodes = {number: TWO if number in (1, 2, 3, 6) else ONE for number in range(1024)}
    for partitions, line in (
        (nodes, "topic orders: 10.0.1.1:4150 leads partitions 0, 4, 5, 7-1023; 10.0.1.2:4150 leads partitions 1-3, 6"),
        ({}, "topic orders: no leader of partitions 0-1023 any more"),
        ({0: ONE, 1: TWO}, "topic orders: 10.0.1.1:4150 leads partition 0; 10.0.1.2:4150 leads partition 1"),
    ):
        answer = dataclasses.replace(led(number=1024), partitions=partitions)
        assert await logged(watch, caplog, servers, answer) == [line]


async def test_nsqds_of_a_plain_topic_come_and_go(
    watch: TopicWatch, servers: FakeServers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert await logged(watch, caplog, servers, plain(A, ONE), plain(B, ONE)) == [
        "topic orders is on nsqd 10.0.1.1:4150"
    ]
    gone = await logged(watch, caplog, servers, plain(A, TWO), plain(B, TWO))
    assert sorted(gone) == [
        "topic orders is no longer listed for nsqd 10.0.1.1:4150",
        "topic orders is on nsqd 10.0.1.2:4150",
    ]


async def test_a_plain_topic_is_nowhere_once_all_have_said_so(watch: TopicWatch, servers: FakeServers) -> None:
    assert not watch.is_nowhere
    servers.answer(plain(A))
    await watch.next_round()
    assert not watch.is_nowhere
    servers.answer(plain(A), plain(B))
    await watch.next_round()
    assert watch.is_nowhere
    servers.answer(plain(A, ONE), plain(B))
    await watch.next_round()
    assert not watch.is_nowhere


# ---------------------------------------------------------------- when


def times(servers: FakeServers) -> list[float]:
    began = servers.asked[0][0]
    return [round(at - began, 1) for at, _, _ in servers.asked]


@pytest.fixture
async def usual(servers: FakeServers) -> AsyncIterator[TopicWatch]:
    """A watch with the default intervals."""
    servers.answer(led(ONE))
    async with begun(servers) as made:
        yield made


GROWING = [0.0, 5.0, 65.0, 125.0, 185.0]
"""When a topic is looked up in which nothing changes."""


async def until_at_rest(watch: TopicWatch, servers: FakeServers) -> float:
    """Wait for the middle of one of the longest intervals; return the time."""
    await dawdle(GROWING[-1] + 30.0)
    assert rounds(watch) == len(GROWING)
    servers.asked.clear()
    return now()


async def test_a_failure_is_looked_up_at_once_also_at_rest(usual: TopicWatch, servers: FakeServers) -> None:
    began = await until_at_rest(usual, servers)
    usual.refresh_soon()
    await eventually(lambda: rounds(usual) == len(GROWING) + 3, 200.0)
    assert servers.asked[0][0] - began < 0.01
    assert times(servers) == [0.0, 5.0, 65.0]


async def test_a_waiting_caller_ends_the_rest(usual: TopicWatch, servers: FakeServers) -> None:
    began = await until_at_rest(usual, servers)
    usual.look_up_often(is_wanted=True)
    await eventually(lambda: len(servers.asked) == 2, 100.0)
    usual.look_up_often(is_wanted=False)
    before = rounds(usual)
    assert servers.asked[0][0] - began < 0.01
    assert servers.asked[1][0] - began < 0.3
    await eventually(lambda: rounds(usual) == before + 2, 100.0)
    assert servers.asked[2][0] - began < 7.0


async def test_so_many_lookups_are_in_flight_however_many_topics_wait(servers: FakeServers) -> None:
    topics = watches(servers, 100)
    began = now()
    await dawdle(1.0)
    assert [topic for _, topic, _ in servers.asked] == [f"t{number}" for number in range(LOOKUPS_AT_ONCE)]
    gone = [topics.pop(20), topics.pop(3)]
    end(*gone)  # one leaves the queue, another is in flight: the next one begins
    await eventually(lambda: len(servers.asked) == LOOKUPS_AT_ONCE + 1)
    servers.answer(led(ONE))
    await eventually(lambda: all(map(rounds, topics)))
    assert [topic for _, topic, _ in servers.asked] == [f"t{number}" for number in range(100) if number != 20]
    assert now() - began < 1.1  # as fast as the answers
    end(*topics)
