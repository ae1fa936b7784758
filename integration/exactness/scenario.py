"""What one run does, drawn from a seed: the same seed gives the same runs.

Each property is dealt from a shuffled deck in which its values are equally frequent, so that a few dozen runs have
every value several times, in random combinations.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

PARTITIONS: Final = 2

KINDS: Final = ("plain", "ordered", "extended")
FETCHES: Final = ("subscribe", "bulk")
FAULTS: Final = ("none", "worker", "driver", "leader")
"""What is killed in the middle of a query."""
LIMITS: Final = ("none", "maxOffsetsPerTrigger", "maxBytesPerTrigger")
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
    # A message of the log has about 40 bytes beside its body.
    return {name: str(most * (40 + largest // 2))} if name == "maxBytesPerTrigger" else {}


def _cut(name: str, chance: random.Random) -> dict[str, str]:
    if name == "minPartitions":
        return {name: str(chance.randrange(3, 7))}
    return {name: str(chance.randrange(150, 1000))} if name == "maxRecordsPerPartition" else {}
