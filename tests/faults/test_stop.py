"""Closing in the middle of a fault, whichever it is: within the limit, and nothing is left."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest

from integration.faults.bench import ORDERED, Bench, Scenario, Stage
from integration.faults.embedded import Embedded
from integration.faults.proxy import Fault, Network
from integration.faults.rows import Row, Target
from integration.faults.scenarios.stopping import TARGET, during
from integration.faults.waiting import lasts
from nsq_ha.devcluster import DevCluster
from tests.faults.test_rows import EXACT

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
