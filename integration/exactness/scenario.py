"""What one run does, drawn from a seed: the same seed gives the same runs.

Each property is dealt from a shuffled deck in which its values are equally frequent, so that a few dozen runs have
every value several times, in random combinations.
"""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

PARTITIONS: Final = 2

KINDS: Final = ("plain", "ordered", "extended")
FETCHES: Final = ("subscribe", "bulk")
FAULTS: Final = ("none", "worker", "driver", "leader", "follower")
"""What is killed in the middle of a query."""
LIMITS: Final = ("none", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "maxTimePerTrigger")
CUTS: Final = ("none", "none", "minPartitions", "maxRecordsPerPartition")
LOTS: Final = (1, 50, 1000)
"""Messages published at a time to one partition: PUB, and small and large MPUBs."""
FRESH: Final = (0, 1, 40)
"""Messages that are published right before the last query begins, which nsqd cannot find yet."""
SIZES: Final = (60, 400, 20_000)
"""Largest body in bytes."""
READERS: Final = ("tasks", "driver")
"""Who reads a small micro-batch."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """One run.

    Attributes:
        number: Its number, from 1.
        kind: Kind of the topic.
        fetch: Option ``fetch`` of the query.
        fault: What is killed.
        limit: Options that limit a micro-batch.
        cut: Options that cut ranges into several tasks.
        lot: Messages published at a time to one partition.
        fresh: Messages published right before the last query.
        largest: Largest body in bytes.
        reader: Who reads a small micro-batch.
        messages: Messages that are there at the beginning.
        early: Whether a driver or leader is killed in the first micro-batch, and not in a later one.
        seed: For the sizes of bodies.
    """

    number: int
    kind: str
    fetch: str
    fault: str
    limit: Mapping[str, str]
    cut: Mapping[str, str]
    lot: int
    fresh: int
    largest: int
    reader: str
    messages: int
    early: bool
    seed: str

    @property
    def options(self) -> dict[str, str]:
        """The options of its query."""
        who = {} if self.reader == "driver" else {"driverBytes": "0"}
        return {"fetch": self.fetch, **self.limit, **self.cut, **who}

    @property
    def text(self) -> str:
        """What it does, in one line."""
        written = "single" if self.lot == 1 else f"lots of {self.lot}"
        limits = [f"{name}={value}" for name, value in {**self.limit, **self.cut}.items()]
        return ", ".join([self.kind, self.fetch, f"killed: {self.fault}", written, f"{self.fresh} fresh", *limits])


def draw(runs: int, seed: int) -> list[Scenario]:
    """Draw scenarios; the same numbers give the same ones."""
    chance = random.Random(seed)
    kinds, fetches, faults = (_dealt(values, runs, chance) for values in (KINDS, FETCHES, FAULTS))
    limits, cuts, readers = (_dealt(values, runs, chance) for values in (LIMITS, CUTS, READERS))
    lots, fresh, sizes = (_dealt(values, runs, chance) for values in (LOTS, FRESH, SIZES))
    return [
        Scenario(
            number=at + 1,
            kind=kinds[at],
            fetch=fetches[at],
            fault=faults[at],
            limit=_limit(limits[at], sizes[at], chance),
            cut=_cut(cuts[at], chance),
            lot=lots[at],
            fresh=fresh[at],
            largest=sizes[at],
            # A worker can only be killed where one reads.
            reader="tasks" if faults[at] == "worker" else readers[at],
            messages=chance.randrange(1500, 5000),
            early=chance.random() < 0.5,
            seed=f"{seed}/{at + 1}",
        )
        for at in range(runs)
    ]


def _dealt(values: Sequence[T], runs: int, chance: random.Random) -> list[T]:
    """Return ``runs`` values in random order, each value equally often."""
    order = chance.sample(values, len(values))
    dealt = [order[at % len(order)] for at in range(runs)]
    chance.shuffle(dealt)
    return dealt


def _limit(name: str, largest: int, chance: random.Random) -> dict[str, str]:
    most = chance.randrange(300, 1200)
    if name == "maxOffsetsPerTrigger":
        return {name: str(most)}
    if name == "maxTimePerTrigger":
        return {name: f"{2 * most}ms"}
    # A message of the log has about 40 bytes beside its body.
    return {name: str(most * (40 + largest // 2))} if name == "maxBytesPerTrigger" else {}


def _cut(name: str, chance: random.Random) -> dict[str, str]:
    if name == "minPartitions":
        return {name: str(chance.randrange(3, 7))}
    return {name: str(chance.randrange(150, 1000))} if name == "maxRecordsPerPartition" else {}


# ---------------------------------------------------------------- writes

SOURCES: Final = ("nsq", "nsq", "parquet")
"""Where the rows come from that are written."""
TROUBLES: Final = ("repeat", "worker", "driver", "leader")
"""What is killed in the middle of a query that writes; ``repeat``: a micro-batch that was done is done again."""
WAYS: Final = ("stream", "batches")
"""How a query writes: by the sink for streams, or each micro-batch by ``foreachBatch``, scattered and then sorted."""


@dataclasses.dataclass(frozen=True, slots=True)
class SinkScenario:
    """One run that writes to a topic.

    Attributes:
        number: Its number, from 1.
        source: Where the rows come from.
        way: How the query writes.
        kind: Kind of the topic that is written to.
        fault: What is killed.
        limit: Messages, or files, of a micro-batch.
        lot: Messages published at a time to one partition of the source.
        largest: Largest body in bytes.
        messages: Messages that are there at the beginning.
        early: Whether a driver or leader is killed in the first micro-batch, and not in a later one.
        tasks: Among how many tasks ``foreachBatch`` scatters the rows, in the query with the fault and in the next one.
        seed: For the sizes of bodies.
    """

    number: int
    source: str
    way: str
    kind: str
    fault: str
    limit: int
    lot: int
    largest: int
    messages: int
    early: bool
    tasks: tuple[int, int]
    seed: str

    @property
    def text(self) -> str:
        """What it does, in one line."""
        scattered = f", {self.tasks[0]} then {self.tasks[1]} tasks" if self.way == "batches" else ""
        return f"{self.source} to {self.kind}, by {self.way}{scattered}, killed: {self.fault}, {self.limit} a batch"


def draw_sinks(runs: int, seed: int) -> list[SinkScenario]:
    """Draw scenarios of writes; the same numbers give the same ones."""
    chance = random.Random(f"sink {seed}")
    sources, ways, kinds, faults = (_dealt(values, runs, chance) for values in (SOURCES, WAYS, KINDS, TROUBLES))
    lots, sizes = (_dealt(values, runs, chance) for values in (LOTS, SIZES))
    return [
        SinkScenario(
            number=at + 1,
            source=sources[at],
            # What files hold is sorted before it is written, and only a micro-batch can be.
            way="batches" if sources[at] == "parquet" else ways[at],
            kind=kinds[at],
            fault=faults[at],
            limit=chance.randrange(2, 6) if sources[at] == "parquet" else chance.randrange(200, 600),
            lot=lots[at],
            largest=sizes[at],
            # A micro-batch that writes starts Python several times.
            messages=chance.randrange(800, 1600),
            early=chance.random() < 0.5,
            tasks=(chance.randrange(1, 4), chance.randrange(4, 7)),
            seed=f"{seed}/{at + 1}",
        )
        for at in range(runs)
    ]
