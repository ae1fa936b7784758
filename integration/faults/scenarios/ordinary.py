"""An ordinary topic of which one partition does not answer while another one is well."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from integration.faults.bench import ORDINARY, PARTITIONS, Bench, Scenario
from integration.faults.cluster import NotReadyError
from integration.faults.probes import longest_gap
from integration.faults.proxy import Network
from integration.faults.rows import Row, Target

if TYPE_CHECKING:
    from integration.faults.bench import Stage
    from integration.faults.cluster import Partition

TRIES = 6
ASLEEP = 15.0


def _lone_leader(partitions: dict[int, Partition]) -> int | None:
    """Return a node that leads one partition and holds no replica of the other."""
    for number, partition in partitions.items():
        others = [one for other, one in partitions.items() if other != number]
        if all(partition.leader not in other.replicas for other in others):
            return partition.leader
    return None


async def _topic_with_lone_leader(bench: Bench) -> tuple[str, int]:
    """Return a topic whose one leader can sleep without holding up the other partition's replicas."""
    for _ in range(TRIES):
        topic = await bench.make_topic(ORDINARY)
        await bench.cluster.wait_whole({topic: PARTITIONS}, bench.say, stable=False)
        found = _lone_leader(await bench.cluster.partitions(topic))
        if found is not None:
            return topic, found
        await bench.delete(topic)
    raise NotReadyError(f"none of {TRIES} topics came out with a leader that the other partition does not need")


async def frozen(bench: Bench, scenario: Scenario) -> Row:
    """SIGSTOP of one leader."""
    topic, port = await _topic_with_lone_leader(bench)
    row = scenario.row()
    name = bench.cluster.nsqd(port)
    async with bench.stage({ORDINARY: topic}) as stage:
        stage.fault(f"SIGSTOP {name}")
        await bench.cluster.kill(name, "SIGSTOP")
        await bench.pause(ASLEEP, for_clients=True)
        _judge(stage, row)
        await bench.cluster.kill(name, "SIGCONT")
        await bench.pause(2.0)
        await stage.recovered()
        await stage.finish(row)
    await bench.delete(topic)
    return row


async def black_holed(bench: Bench, scenario: Scenario) -> Row:
    """The network swallows all that goes to one leader."""
    topic = (await bench.ready())[ORDINARY]
    row = scenario.row()
    partitions = await bench.cluster.partitions(topic)
    if partitions[0].leader == partitions[1].leader:
        row.notes.append("both partitions are led by one node: nothing to be seen")
        return row
    async with Network(bench.cluster) as network, bench.stage({ORDINARY: topic}, lookupds=network.urls) as stage:
        stage.fault(f"black hole before {bench.cluster.nsqd(partitions[0].leader)}")
        network.tcp[partitions[0].leader].black_hole()
        await bench.pause(ASLEEP, for_clients=True)
        _judge(stage, row)
        await stage.finish(row, drain=15.0)
        # The cluster sees nothing of it, so what the partition holds is not delivered either.
        row.broken = [one for one in row.broken if "lost" not in one]
    return row


def _judge(stage: Stage, row: Row) -> None:
    """Enter the longest time without any success until now, and the slowest call so far."""
    audit = stage.loads[ORDINARY].audit
    acks = sorted(ack.at for key in audit.keys for ack in audit.acks[key])
    row.extra["without success"] = longest_gap(acks, stage.since, time.monotonic())
    row.extra["slowest call"] = audit.slowest


_TARGET = Target(errors=0, extra={"without success": 1.0, "slowest call": 3.0})

SCENARIOS = (
    Scenario("ordinary-frozen", "ordinary topic, one node frozen", _TARGET, frozen),
    Scenario("ordinary-black-hole", "ordinary topic, one node black-holed", _TARGET, black_holed),
)
