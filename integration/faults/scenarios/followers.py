"""Faults of a node that follows."""

from collections.abc import Awaitable, Callable

from integration.faults.bench import Scenario, Stage, staged
from integration.faults.cluster import NotReadyError
from integration.faults.rows import Target


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


def hit(sig: str) -> Callable[[Stage], Awaitable[None]]:
    """Make the fault of a follower that gets a signal, and no other until the cluster goes on without it."""

    async def fault(stage: Stage) -> None:
        name = await _follower(stage)
        stage.fault(f"{sig} {name}, a follower")
        await stage.cluster.kill(name, sig)
        await stage.recovered()

    return fault


SCENARIOS = (
    Scenario("follower-killed", "follower killed", Target(1.0, 1.5), staged(hit("SIGKILL"))),
    Scenario("follower-frozen", "follower frozen", Target(1.0, 1.5), staged(hit("SIGSTOP"))),
)
