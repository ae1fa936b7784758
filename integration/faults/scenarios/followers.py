"""Faults of a node that follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from integration.faults.bench import Scenario, staged
from integration.faults.cluster import NotReadyError
from integration.faults.rows import Target

if TYPE_CHECKING:
    from integration.faults.bench import Stage


async def _follower(stage: Stage) -> str:
    """Name a node that follows in partition 0 of the first topic, and leads as little as possible."""
    first = await stage.partition(next(iter(stage.topics)))
    leaders = [
        partition.leader
        for topic in stage.topics.values()
        for partition in (await stage.cluster.partitions(topic)).values()
    ]
    followers = [port for port in first.replicas if port != first.leader]
    if not followers:
        raise NotReadyError("partition 0 has no follower")
    chosen = min(followers, key=leaders.count)
    stage.bench.say(f"{stage.cluster.nsqd(chosen)} leads {leaders.count(chosen)} of the measured partitions")
    return stage.cluster.nsqd(chosen)


async def killed(stage: Stage) -> None:
    """SIGKILL."""
    name = await _follower(stage)
    stage.fault(f"SIGKILL {name}, a follower")
    await stage.cluster.kill(name, "SIGKILL")
    await stage.bench.pause(2.0)
    await stage.recovered()


async def frozen(stage: Stage) -> None:
    """SIGSTOP for as long as it takes the cluster to go on without it."""
    name = await _follower(stage)
    stage.fault(f"SIGSTOP {name}, a follower")
    await stage.cluster.kill(name, "SIGSTOP")
    await stage.bench.pause(2.0)
    await stage.recovered()


SCENARIOS = (
    Scenario("follower-killed", "follower killed", Target(1.0, 1.5), staged(killed)),
    Scenario("follower-frozen", "follower frozen", Target(1.0, 1.5), staged(frozen)),
)
