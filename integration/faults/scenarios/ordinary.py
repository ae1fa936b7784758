"""An ordinary topic of which one partition does not answer while another one is well."""

import time
from collections.abc import Awaitable, Callable

from integration.faults.bench import ORDINARY, PARTITIONS, Bench, Scenario, Stage
from integration.faults.cluster import NotReadyError, Partition
from integration.faults.probes import longest_gap
from integration.faults.proxy import Hole, Network
from integration.faults.rows import Row, Target

TRIES = 6
ASLEEP = 15.0


def _leader_of_one(partitions: dict[int, Partition]) -> int | None:
    """Return a node that leads one partition, and not the other."""
    leaders = [partition.leader for partition in partitions.values()]
    return leaders[0] if len(set(leaders)) == len(leaders) else None


def _lone_leader(partitions: dict[int, Partition]) -> int | None:
    """Return a node that leads one partition and holds no replica of the other."""
    for number, partition in partitions.items():
        others = [one for other, one in partitions.items() if other != number]
        if all(partition.leader not in other.replicas for other in others):
            return partition.leader
    return None


async def _topic_with(bench: Bench, choose: Callable[[dict[int, Partition]], int | None]) -> tuple[str, int]:
    """Return a new topic with a node that suits; the cluster spreads each topic in another way."""
    for _ in range(TRIES):
        topic = await bench.make_topic(ORDINARY)
        await bench.cluster.wait_whole({topic: PARTITIONS}, bench.say, stable=False)
        found = choose(await bench.cluster.partitions(topic))
        if found is not None:
            return topic, found
        await bench.delete(topic)
    raise NotReadyError(f"none of {TRIES} topics is spread so that one leader can fail alone")


async def frozen(bench: Bench, scenario: Scenario) -> Row:
    """SIGSTOP of one leader that holds up no replica of the other partition."""
    topic, port = await _topic_with(bench, _lone_leader)
    row = scenario.row()
    name = bench.cluster.nsqd(port)
    async with bench.stage({ORDINARY: topic}) as stage:
        stage.fault(f"SIGSTOP {name}")
        await bench.cluster.kill(name, "SIGSTOP")
        await bench.lasts(ASLEEP, for_clients=True)  # the fault
        _judge(stage, row)
        await bench.cluster.kill(name, "SIGCONT")
        await stage.recovered()
        await stage.finish(row)
    await bench.delete(topic)
    return row


def _in_hole(hole: Hole) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    async def play(bench: Bench, scenario: Scenario) -> Row:
        """The network swallows what goes to one leader, or comes from it, for the producer and for the consumer."""
        topic, port = await _topic_with(bench, _leader_of_one)
        row = scenario.row()
        async with Network(bench.cluster) as network, bench.stage({ORDINARY: topic}, lookupds=network.urls) as stage:
            network.check(port)
            stage.fault(f"hole before {bench.cluster.nsqd(port)}: {hole}")
            network.tcp[port].begin_hole(hole)
            await bench.lasts(ASLEEP, for_clients=True)  # the fault
            _judge(stage, row)
            # The cluster sees nothing of it: what the leader has acknowledged, or has sent to the consumer without an
            # answer, stays there until somebody can reach it.
            row.notes.append(
                f"acknowledged and not delivered at the end of the hole: {stage.loads[ORDINARY].kept_back()}"
            )
            network.tcp[port].end_hole()
            bench.say("the hole ends")
            await stage.recovered()
            await stage.finish(row)
        await bench.delete(topic)
        return row

    return play


def _judge(stage: Stage, row: Row) -> None:
    """Enter the longest time without any success until now, and the slowest call so far, ended or not."""
    load = stage.loads[ORDINARY]
    acks = sorted(ack.at for key in load.audit.keys for ack in load.audit.acks[key])
    row.extra["without success"] = longest_gap(acks, stage.since, time.monotonic())
    row.extra["slowest call"] = load.slowest()


_TARGET = Target(errors=0, extra={"without success": 1.0, "slowest call": 3.0})

SCENARIOS = (
    Scenario("ordinary-frozen", "ordinary topic, one node frozen", _TARGET, frozen),
    Scenario("ordinary-black-hole", "ordinary topic, one node black-holed", _TARGET, _in_hole("both ways")),
    Scenario("ordinary-one-way", "ordinary topic, nothing reaches one node", _TARGET, _in_hole("to the server")),
    Scenario("ordinary-no-answer", "ordinary topic, nothing of one node arrives", _TARGET, _in_hole("to the client")),
    Scenario(
        "ordinary-trickle", "ordinary topic, one node reads a byte a second", _TARGET, _in_hole("a byte a second")
    ),
)
