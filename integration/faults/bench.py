"""What all scenarios share: topics, a stage with loads and probes, and the way back to a whole cluster."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from integration.faults.cluster import Cluster, NotReadyError, Partition
from integration.faults.load import Load
from integration.faults.rows import Row, Target, broken_by, figures_of
from integration.faults.waiting import lasts, until
from nsq_ha.admin import AdminClient

PARTITIONS: Final = 2
REPLICAS: Final = 3
WARM_UP: Final = 3.0
"""Seconds for which all must have been well before a fault begins."""
STARTED: Final = 60.0
SETTLED: Final = 5.0
"""Seconds for which all must have been well before a fault is over: it may take some of them to be felt."""
PREFIX: Final = "faults_"
"""Of all topics that are made here; those found at the start are deleted."""
ORDERED: Final = "ordered"
ORDINARY: Final = "ordinary"


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """One row of the table.

    Attributes:
        name: For the command line.
        fault: For the table.
        target: What is to be reached.
        play: Does it and returns the row.
    """

    name: str
    fault: str
    target: Target
    play: Callable[[Bench, Scenario], Awaitable[Row]]

    def row(self) -> Row:
        """Return an empty row."""
        return Row(self.name, self.fault, self.target)


class Bench:
    """The cluster and the topics that scenarios share.

    Args:
        cluster: The cluster.
        verbose: Tell what happens, with seconds since the fault.
        histories: Folder for the histories of all loads. None keeps none.

    Attributes:
        pace: The cluster's.
        loads: Those of the last scenario, for who wants to see more than its row.
        make_load: What a load is made of.
        partitions: How many a topic has where a scenario does not say otherwise.
    """

    def __init__(self, cluster: Cluster, *, verbose: bool, histories: Path | None = None) -> None:
        self.cluster = cluster
        self.histories = histories
        self.pace = cluster.pace
        self.verbose = verbose
        self.loads: list[Load] = []
        self.make_load = Load
        self.partitions = PARTITIONS
        self.zero = time.monotonic()
        self.topics: dict[str, str] = {}
        self._stamp = f"{int(time.time()) % 10_000_000}"
        self._made = self._loaded = 0

    def say(self, text: str) -> None:
        """Print with seconds since the fault, when verbose."""
        if self.verbose:
            sys.stdout.write(f"  {time.monotonic() - self.zero:8.3f} {text}\n")
            sys.stdout.flush()

    async def lasts(self, seconds: float, *, for_clients: bool = False) -> None:
        """Let a state last: how long it does is what the scenario is about. The caller says why beside it.

        Args:
            seconds: By a real cluster's clock.
            for_clients: Limits of the library's own have to pass, too, which go by their own clock.
        """
        await lasts(max(seconds * self.pace.cluster, self.pace.least if for_clients else 0.0))

    def load(
        self, topic: str, *, ordered: bool, channel: str, lookupds: tuple[str, ...], handled: bool = False
    ) -> Load:
        """Return a load at the cluster's pace."""
        self._loaded += 1
        history = None if self.histories is None else self.histories / f"{topic}-{self._loaded:03}.jsonl"
        load = self.make_load(
            topic,
            ordered=ordered,
            channel=channel,
            lookupds=lookupds,
            pace=self.pace,
            handled=handled,
            history=history,
            partitioned=not self.cluster.is_plain,
        )
        self.loads.append(load)
        return load

    def fresh(self, what: str) -> str:
        """Return a name that was not used before."""
        self._made += 1
        return f"{PREFIX}{what}_{self._stamp}_{self._made}"

    async def make_topic(self, kind: str, *, partitions: int | None = None, replicas: int = REPLICAS) -> str:
        """Create a topic of its own for a scenario."""
        topic = self.fresh(kind)
        await self.create_topic(topic, kind, partitions=partitions or self.partitions, replicas=replicas)
        return topic

    async def create_topic(self, topic: str, kind: str, *, partitions: int = PARTITIONS, replicas: int = 3) -> None:
        """Create a topic by name."""
        await self.cluster.create_topic(topic, partitions, replicas, is_ordered=kind == ORDERED)

    async def shared_topics(self) -> dict[str, str]:
        """Return the ordered and the ordinary topic, made once; partition 0 of both is led by one node."""
        for kind in (ORDERED, ORDINARY):
            if kind not in self.topics:
                self.topics[kind] = await self.make_topic(kind)
        return self.topics

    async def ready(self, *, stable: bool = False) -> dict[str, str]:
        """Return the shared topics once they have all their replicas; ``stable`` for what the operator does.

        A killed node can fail for ever to repair its copy of a partition; such a topic is given up for a new one.
        """
        await self.shared_topics()
        try:
            await self.wait_whole(stable=stable)
        except NotReadyError as error:
            self.say(f"{error}: new topics")
            given_up = [self.topics.pop(kind) for kind in (ORDERED, ORDINARY)]
            await self.delete(*given_up)
            await self.shared_topics()
            await self.wait_whole(stable=stable)
        return {kind: self.topics[kind] for kind in (ORDERED, ORDINARY)}

    async def wait_whole(self, *, stable: bool = False) -> None:
        """Wait until all topics in use have all their replicas."""
        took = await self.cluster.wait_whole(
            dict.fromkeys(self.topics.values(), self.partitions), self.say, stable=stable
        )
        self.say(f"cluster is whole after {took:.1f} s")

    async def restore(self) -> None:
        """Wake and start all nodes."""
        await self.cluster.start_all()

    async def delete(self, *topics: str) -> None:
        """Delete topics of a scenario; one that cannot be deleted now stays."""
        async with AdminClient(self.cluster.lookupds) as admin:
            for topic in topics:
                with contextlib.suppress(Exception):
                    await admin.delete_topic(topic)

    async def clean(self) -> None:
        """Delete what earlier runs left behind that were ended from outside."""
        async with AdminClient(self.cluster.lookupds) as admin:
            left = [info.name for info in await admin.topics() if info.name.startswith(PREFIX)]
        await self.delete(*left)

    @contextlib.asynccontextmanager
    async def stage(
        self,
        topics: dict[str, str],
        *,
        lookupds: tuple[str, ...] | None = None,
        handled: bool = False,
        probed: bool = True,
    ) -> AsyncIterator[Stage]:
        """Load and probe topics; leaving closes all, restores the nodes and reports nothing."""
        stage = Stage(self, topics, lookupds or self.cluster.lookupds, handled=handled)
        try:
            await stage.start(probed=probed)
            yield stage
        finally:
            await stage.close()
            await self.restore()


class Stage:
    """Loads under way on one or two topics, beside the probes.

    Attributes:
        loads: By kind.
        since: When the fault began; set by :meth:`fault`.
    """

    def __init__(
        self,
        bench: Bench,
        topics: dict[str, str],
        lookupds: tuple[str, ...],
        *,
        handled: bool,
    ) -> None:
        self.bench = bench
        self.cluster = bench.cluster
        self.topics = topics
        self.probes = bench.cluster.probes(bench.say)
        bench.loads.clear()
        channel = bench.fresh("ch")
        self.loads = {
            kind: bench.load(topic, ordered=kind == ORDERED, channel=channel, lookupds=lookupds, handled=handled)
            for kind, topic in topics.items()
        }
        self.since = 0.0
        self.faults = 0

    async def start(self, *, probed: bool = True) -> None:
        """Start, and let it run for a while."""
        await asyncio.gather(*(load.start() for load in self.loads.values()))
        if probed:
            await self.probes.start(
                dict.fromkeys(self.topics.values(), self.bench.partitions), await self.cluster.nodes()
            )
        await self.recovered(limit=STARTED, hold=WARM_UP)
        for load in self.loads.values():
            load.hold_ups.forget()

    async def partition(self, kind: str = ORDERED, number: int = 0) -> Partition:
        """Tell where a partition is."""
        return (await self.cluster.partitions(self.topics[kind]))[number]

    async def victim(self) -> int:
        """Return the node (TCP port) that leads partition 0, and as much else as possible, of the first topic."""
        kinds = list(self.topics)
        leaders = {
            kind: [partition.leader for partition in (await self.cluster.partitions(topic)).values()]
            for kind, topic in self.topics.items()
        }
        best = max(set(leaders[kinds[0]]), key=lambda port: [leaders[kind].count(port) > 0 for kind in kinds])
        for kind in kinds:
            self.bench.say(f"{self.cluster.nsqd(best)} leads {leaders[kind].count(best)} of {self.topics[kind]}")
        return best

    def fault(self, text: str) -> None:
        """Note that the fault begins now, or a further one."""
        self.faults += 1
        now = time.monotonic()
        if not self.since:
            self.since = self.bench.zero = now
        self.bench.say(f"--- {text}")

    def fault_again(self, text: str) -> None:
        """Forget the fault so far, whose figures are another scenario's: it begins now."""
        self.since, self.faults = 0.0, 0
        self.fault(text)

    async def recovered(self, limit: float = 90.0, hold: float = SETTLED) -> bool:
        """Wait until cluster, publishing and consuming have been well for ``hold`` seconds, at most ``limit``.

        Both by a real cluster's clock. Returns whether they have.
        """
        pace = self.bench.pace
        limit, hold = max(limit * pace.cluster, self.bench.pace.patience), hold * pace.cluster
        began = time.monotonic()
        well_since: list[float] = []

        def is_well_for_long() -> bool:
            now = time.monotonic()
            if self.probes.is_taking(now) and all(one.has_recovered(began, now) for one in self.loads.values()):
                well_since.append(now)
                return now - well_since[0] >= hold
            well_since.clear()
            return False

        if await until(is_well_for_long, limit):
            self.bench.say(f"well since {well_since[0] - self.bench.zero:.3f}")
            return True
        self.bench.say(f"not well within {limit:g} s")
        return False

    async def finish(self, row: Row, *, drain: float = 75.0) -> Row:
        """Stop publishing, drain for ``drain`` seconds at most, and fill in the row."""
        ended = time.monotonic()
        loads = list(self.loads.values())
        if self.probes.have_ended:
            # What they do not see counts as the cluster's own outage.
            row.broken.append("the probes ended")
        await self.drain(drain)
        for load in loads:
            figures = figures_of(load, self.probes, self.since, ended)
            row.figures.append(figures)
            row.faults = self.faults
            row.broken += broken_by(figures, load.audit.limit) + load.foreign
            row.notes += [f"{figures.topic}: {line}" for line in await load.story_of_missing(self.since)]
            if (error := load.why_consuming_ended()) is not None:
                row.broken.append(f"{figures.topic}: consuming ended: {error!r}")
            if load.unreadable:
                row.notes.append(f"{figures.topic}: {load.unreadable} unreadable bodies, asked for again")
            if load.ordered and figures.stored_again_worst_key > self.faults:
                row.notes.append(
                    f"a key was stored again {figures.stored_again_worst_key} times in {self.faults} faults"
                )
        return row

    async def drain(self, limit: float) -> None:
        """Stop publishing, and let what is stored be delivered, ``limit`` seconds at most by a real cluster's clock."""
        limit = max(limit * self.bench.pace.cluster, self.bench.pace.patience)
        await asyncio.gather(*(load.end_publishing() for load in self.loads.values()))
        await asyncio.gather(*(load.drain(limit) for load in self.loads.values()))

    async def close(self) -> None:
        """End loads and probes."""
        await asyncio.gather(*(load.close() for load in self.loads.values()), self.probes.stop())


def staged(
    fault: Callable[[Stage], Awaitable[None]], *kinds: str, stable: bool = False
) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    """Make a ``play`` of a function that does a fault on the shared topics and waits for its end."""

    async def play(bench: Bench, scenario: Scenario) -> Row:
        shared = await bench.ready(stable=stable)
        topics = {kind: shared[kind] for kind in kinds or (ORDERED, ORDINARY)}
        async with bench.stage(topics) as stage:
            await fault(stage)
            return await stage.finish(scenario.row())

    return play
