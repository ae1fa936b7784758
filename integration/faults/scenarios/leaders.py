"""Faults of the node that leads a partition."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from integration.faults.bench import PARTITIONS, Scenario, Stage, staged
from integration.faults.cluster import NotReadyError
from integration.faults.rows import Target
from integration.faults.waiting import QUESTION, until_true
from nsq_ha.admin import AdminClient

FREEZE: Final = 45.0
DOWN: Final = 2.0
MISSED_LIMIT: Final = 10.0
REJOIN_LIMIT: Final = 90.0


async def _leader(stage: Stage, sig: str) -> str:
    """Send a signal to a leader, whose end or sleep is the fault; return its name."""
    name = stage.cluster.nsqd(await stage.victim())
    stage.fault(f"{sig} {name}")
    await stage.cluster.kill(name, sig)
    return name


def gone(sig: str) -> Callable[[Stage], Awaitable[None]]:
    """Make the fault of a leader that is ended by ``sig`` and stays away."""

    async def fault(stage: Stage) -> None:
        await _leader(stage, sig)
        await stage.recovered()

    return fault


async def restarted(stage: Stage) -> None:
    """SIGTERM, started after 2 s, and watched until it has joined again."""
    name = await _leader(stage, "SIGTERM")
    await stage.bench.lasts(DOWN)  # the fault: a restart takes so long
    stage.bench.say(f"start {name}")
    await stage.cluster.start(name)
    await _rejoined(stage)


async def returned(stage: Stage) -> None:
    """A killed leader comes back after the cluster has gone on without it: only the return is measured."""
    name = await _leader(stage, "SIGKILL")
    await stage.recovered()
    stage.fault_again(f"start {name}")
    await stage.cluster.start(name)
    await _rejoined(stage)


async def _rejoined(stage: Stage) -> None:
    """Wait until the node holds its replicas in sync again, which stops the leaders for a moment; and some more."""
    topics = dict.fromkeys(stage.topics.values(), PARTITIONS)

    async def is_missed() -> bool:
        return bool(await stage.cluster.obstacle(topics, stable=False))

    # The cluster takes a moment to notice: a question asked too early gets the old answer.
    pace = stage.bench.pace.cluster
    await until_true(is_missed, MISSED_LIMIT * pace, QUESTION * pace)
    with contextlib.suppress(NotReadyError):
        await stage.cluster.wait_whole(topics, stage.bench.say, stable=False, limit=REJOIN_LIMIT)
    await stage.recovered()


async def frozen(stage: Stage) -> None:
    """SIGSTOP for 45 s; the figures are those of the time while it sleeps."""
    name = await _leader(stage, "SIGSTOP")
    await stage.bench.lasts(FREEZE)  # the fault
    stage.bench.say(f"SIGCONT {name}")
    await stage.cluster.kill(name, "SIGCONT")
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
    async with AdminClient(stage.cluster.lookupds, question_timeout=10.0) as admin:
        for topic, port in moves:
            stage.bench.say(f"move {topic}-0 to {stage.cluster.nsqd(port)}")
            await admin.move_leader(topic, 0, stage.cluster.name_of(port), timeout=60.0)
            stage.bench.say("moved")
    await stage.recovered()


SCENARIOS = (
    Scenario("leader-sigkill", "leader SIGKILL", Target(1.0, 1.5), staged(gone("SIGKILL"))),
    Scenario("leader-sigterm", "leader SIGTERM", Target(0.5, 1.0), staged(gone("SIGTERM"))),
    Scenario("move-within", "leader moved within the replicas", Target(0.5, 1.0), staged(moved_within, stable=True)),
    Scenario("move-new", "leader moved to a new node", Target(0.5, 1.0), staged(moved_to_new, stable=True)),
    Scenario("node-restart", "node restarted, and rejoins", Target(0.5, 1.5), staged(restarted)),
    Scenario("node-returns", "killed node comes back", Target(0.5, 1.5), staged(returned)),
    Scenario("leader-frozen", "leader frozen 45 s", Target(1.5, 2.0), staged(frozen)),
)
