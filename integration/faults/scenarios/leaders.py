"""Faults of the node that leads a partition."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from integration.faults.bench import PARTITIONS, Scenario, staged
from integration.faults.cluster import NotReadyError
from integration.faults.rows import Target
from nsq_ha.discovery.admin import AdminClient

if TYPE_CHECKING:
    from integration.faults.bench import Stage

FREEZE: Final = 45.0
REJOIN_LIMIT: Final = 90.0


async def killed(stage: Stage) -> None:
    """SIGKILL."""
    name = stage.cluster.nsqd(await stage.victim())
    stage.fault(f"SIGKILL {name}")
    await stage.cluster.kill(name, "SIGKILL")
    await stage.bench.pause(2.0)
    await stage.recovered()


async def stopped(stage: Stage) -> None:
    """SIGTERM."""
    name = stage.cluster.nsqd(await stage.victim())
    stage.fault(f"SIGTERM {name}")
    await stage.cluster.kill(name, "SIGTERM")
    await stage.bench.pause(2.0)
    await stage.recovered()


async def restarted(stage: Stage) -> None:
    """SIGTERM, started after 2 s, and watched until it has joined again."""
    name = stage.cluster.nsqd(await stage.victim())
    stage.fault(f"SIGTERM {name}")
    await stage.cluster.kill(name, "SIGTERM")
    await stage.bench.pause(2.0)
    stage.bench.say(f"start {name}")
    await stage.cluster.start(name)
    await _rejoined(stage)


async def returned(stage: Stage) -> None:
    """A killed leader comes back after the cluster has gone on without it: only the return is measured."""
    name = stage.cluster.nsqd(await stage.victim())
    stage.bench.say(f"SIGKILL {name}")
    await stage.cluster.kill(name, "SIGKILL")
    await stage.bench.pause(2.0)
    await stage.recovered()
    stage.fault(f"start {name}")
    await stage.cluster.start(name)
    await _rejoined(stage)


async def _rejoined(stage: Stage) -> None:
    """Wait until the node holds its replicas in sync again, which stops the leaders for a moment; and some more."""
    await stage.bench.pause(10.0)
    with contextlib.suppress(NotReadyError):
        topics = dict.fromkeys(stage.topics.values(), PARTITIONS)
        await stage.cluster.wait_whole(topics, stage.bench.say, stable=False, limit=REJOIN_LIMIT)
    await stage.recovered()


async def frozen(stage: Stage) -> None:
    """SIGSTOP for 45 s; the figures are those of the time while it sleeps."""
    name = stage.cluster.nsqd(await stage.victim())
    stage.fault(f"SIGSTOP {name}")
    await stage.cluster.kill(name, "SIGSTOP")
    await stage.bench.pause(FREEZE)
    stage.bench.say(f"SIGCONT {name}")
    await stage.cluster.kill(name, "SIGCONT")
    await stage.bench.pause(3.0)
    await stage.recovered()


async def moved_within(stage: Stage) -> None:
    """The operator moves both topics' partition 0 to another replica."""
    await _move(stage, within=True)


async def moved_to_new(stage: Stage) -> None:
    """The operator moves both topics' partition 0 to a node that has no replica."""
    await _move(stage, within=False)


async def _move(stage: Stage, *, within: bool) -> None:
    moves = []
    nodes = await stage.cluster.nodes()
    for kind in stage.topics:
        partition = await stage.partition(kind)
        others = [port for port in nodes if (port in partition.replicas) == within and port != partition.leader]
        if not others:
            raise NotReadyError(f"no node to move {stage.topics[kind]}-0 to")
        moves.append((stage.topics[kind], others[0]))
    stage.fault("moving")
    async with AdminClient(stage.cluster.lookupds) as admin:
        for topic, port in moves:
            stage.bench.say(f"move {topic}-0 to {stage.cluster.nsqd(port)}")
            await admin.move_leader(topic, 0, stage.cluster.name_of(port), timeout=60.0)
            stage.bench.say("moved")
    await stage.bench.pause(2.0)
    await stage.recovered()


SCENARIOS = (
    Scenario("leader-sigkill", "leader SIGKILL", Target(1.0, 1.5), staged(killed)),
    Scenario("leader-sigterm", "leader SIGTERM", Target(0.5, 1.0), staged(stopped)),
    Scenario("move-within", "leader moved within the replicas", Target(0.5, 1.0), staged(moved_within, stable=True)),
    Scenario("move-new", "leader moved to a new node", Target(0.5, 1.0), staged(moved_to_new, stable=True)),
    Scenario("node-restart", "node restarted, and rejoins", Target(0.5, 1.5), staged(restarted)),
    Scenario("node-returns", "killed node comes back", Target(0.5, 1.5), staged(returned)),
    Scenario("leader-frozen", "leader frozen 45 s", Target(1.5, 2.0), staged(frozen)),
)
