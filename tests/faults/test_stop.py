"""Closing in the middle of a fault, whichever it is: within the limit, and nothing is left."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import TYPE_CHECKING, Literal, Never

import pytest

from integration.faults.bench import ORDERED, Scenario
from integration.faults.embedded import Embedded
from integration.faults.load import Load
from integration.faults.proxy import Network
from integration.faults.rows import Target
from integration.faults.scenarios.stopping import TARGET, during
from integration.faults.waiting import lasts, until
from nsq_ha.errors import PublishError
from tests.faults.test_rows import EXACT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from integration.faults.bench import Bench, Stage
    from integration.faults.proxy import Fault
    from integration.faults.rows import Row
    from nsq_ha import Receipt
    from nsq_ha.devcluster import DevCluster

SHORTLY = 0.3


def cluster(stage: Stage) -> DevCluster:
    assert isinstance(stage.cluster, Embedded)
    return stage.cluster.cluster


async def leader_stops(stage: Stage) -> None:
    await stage.cluster.kill(stage.cluster.nsqd(await stage.victim()), "SIGTERM")


async def follower_hangs(stage: Stage) -> None:
    partition = await stage.partition()
    follower = next(port for port in partition.replicas if port != partition.leader)
    await stage.cluster.kill(stage.cluster.nsqd(follower), "SIGSTOP")


async def node_rejoins(stage: Stage) -> None:
    name = stage.cluster.nsqd(await stage.victim())
    await stage.cluster.kill(name, "SIGTERM")
    await stage.recovered()
    await stage.cluster.start(name)


async def leader_moves(stage: Stage) -> None:
    await asyncio.to_thread(cluster(stage).move_leader, stage.topics[ORDERED])


async def topic_grows(stage: Stage) -> None:
    for topic in stage.topics.values():
        cluster(stage).expand(topic, 4)


async def topic_goes(stage: Stage) -> None:
    for topic in stage.topics.values():
        cluster(stage).delete_topic(topic)


async def lookupds_die(stage: Stage) -> None:
    for name in cluster(stage).lookupds:
        await stage.cluster.kill(name, "SIGKILL")


async def handler_fails(stage: Stage) -> None:
    for load in stage.loads.values():
        load.fails = lambda _: True


FAULTS = (
    leader_stops,
    follower_hangs,
    node_rejoins,
    leader_moves,
    topic_grows,
    topic_goes,
    lookupds_die,
    handler_fails,
)


async def closed_in(
    bench: Bench, fault: Callable[[Stage], Awaitable[None]], lookupds: tuple[str, ...] | None = None
) -> Row:
    async def begin(stage: Stage) -> None:
        stage.fault("and closing")
        await fault(stage)
        await lasts(SHORTLY)  # closing begins in the middle of it

    target = Target(extra={name: EXACT.get(name, most) for name, most in TARGET.extra.items()})
    scenario = Scenario("stop", "stop in the middle of it", target, during(begin, lookupds, handled=True))
    return await scenario.play(bench, scenario)


@pytest.mark.few("leader_stops", "topic_goes")
@pytest.mark.parametrize("fault", FAULTS)
async def test_stop_while(bench: Bench, fault: Callable[[Stage], Awaitable[None]]) -> None:
    row = await closed_in(bench, fault)
    print(row)  # noqa: T201 - shown when it fails
    assert not row.broken
    assert not row.missed()


@pytest.mark.few("silent", "black hole")
@pytest.mark.parametrize("fault", ["cut", "silent", "flip", "lose", "black hole"])
async def test_stop_while_the_network_fails(bench: Bench, fault: Fault | Literal["black hole"]) -> None:
    async with Network(bench.cluster) as network:

        async def begin(_: Stage) -> None:
            for proxy in network.tcp.values():
                if fault == "black hole":
                    proxy.begin_hole("both ways")
                else:
                    proxy.hit(fault)

        row = await closed_in(bench, begin, network.urls)
    if fault == "black hole":
        # The proxies hold their ends as long as the hole lasts; what is left after them is looked at for each test.
        row.extra["sockets left"] = 0.0
    print(row)  # noqa: T201 - shown when it fails
    assert not row.broken
    assert not row.missed()


class Spoilt(Load):
    """A load whose publishes, once it spoils, are stored and end otherwise."""

    spoils = False
    spoilt = False

    async def _send(self, body: bytes, key: str | None) -> Receipt:
        receipt = await super()._send(body, key)
        if self.spoils:
            self.spoilt = True
            await self.end()
        return receipt

    @abstractmethod
    async def end(self) -> Never:
        """End a publish."""


class Abandoned(Spoilt):
    """Its publishes do not end with their producer."""

    async def end(self) -> Never:
        await asyncio.Event().wait()
        raise AssertionError


class Crashing(Spoilt):
    """Its publishes end with an error that is not the library's."""

    async def end(self) -> Never:
        raise KeyError(self.topic)


class Lying(Spoilt):
    """Its publishes are called not stored."""

    async def end(self) -> Never:
        raise PublishError("no", topic=self.topic, partition=None, attempts=1, maybe_stored=False)


async def closed_with(bench: Bench, kind: type[Spoilt]) -> Row:
    """Close while publishes of both topics end so, and nobody handles a message before the consumer is closed."""
    bench.make_load = kind

    async def begin(stage: Stage) -> None:
        loads = [load for load in stage.loads.values() if isinstance(load, Spoilt)]
        for load in loads:
            load.fails, load.spoils = lambda _: True, True
        assert await until(lambda: all(load.spoilt for load in loads), bench.pace.patience)

    return await closed_in(bench, begin)


async def test_a_publish_that_ends_with_a_foreign_error_while_closing_is_told(bench: Bench) -> None:
    row = await closed_with(bench, Crashing)
    assert row.broken
    assert all(" ended with KeyError(" in line for line in row.broken)


async def test_a_publish_that_does_not_end_with_its_producer_is_told(bench: Bench) -> None:
    row = await closed_with(bench, Abandoned)
    assert [line.partition(" ")[2] for line in row.broken] == ["publishes did not end with their producer"]


async def test_what_is_called_not_stored_while_closing_and_is_comes_to_light(bench: Bench) -> None:
    row = await closed_with(bench, Lying)
    assert [line.partition(" ")[2] for line in row.broken] == ["'not stored' delivered"]
