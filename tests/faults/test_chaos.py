"""A random fault every few seconds, for three minutes (half of one in the short form), on the embedded cluster.

``NSQ_HA_TEST_CHAOS_SEED`` repeats the faults of another run, ``NSQ_HA_TEST_CHAOS_MINUTES`` makes it longer.
"""

import asyncio
import dataclasses
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from integration.faults.bench import Bench, Stage
from integration.faults.embedded import Embedded
from integration.faults.rows import Target
from integration.faults.scenarios.chaos import SCENARIO, Chaos, chosen, run
from nsq_ha.devcluster import ChangeRefusedError, DevCluster
from tests.faults.test_rows import assert_histories
from tests.support.full import FULL
from tests.support.inside import in_cluster, partition_of

MINUTES: Final = 3.0 if FULL else 0.5
KEPT: Final = 1000
"""Messages of a partition that the cluster keeps behind what was consumed: its memory has to stay flat, too."""
SLOWEST: Final = 15.0
"""Seconds from one fault to the next, at most and on the average."""

MORE_THAN_THE_RUN: Final = 180.0
FLAT: Final = {"memory MiB grown": 15.0, "descriptors grown": 12.0, "tasks grown": 4.0}
"""What may have come since the first fault. A connection has two descriptors here, one of them the cluster's; what is
not closed after a fault would make more than one for each, and there are dozens of faults."""


class EmbeddedChaos(Chaos):
    """What can be done to an embedded cluster at any time, too."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        super().__init__(stage, chance)
        assert isinstance(stage.cluster, Embedded)
        self._embedded: DevCluster = stage.cluster.cluster

    async def once(self) -> None:
        await super().once()
        for topic in self._stage.topics.values():
            for partition in range(2):
                self._clean(topic, partition)

    def faults(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        return *super().faults(), self.killed_shortly, self.cut, self.moved

    async def cut(self) -> None:
        """Reset all connections of a node."""
        name = await self._node()
        self.say(f"--- cut {name}")
        self._embedded.cut(name)

    async def moved(self) -> None:
        """Move a leader within its replicas."""
        topic, partition = self._chance.choice(list(self._stage.topics.values())), self._chance.randrange(2)
        self.say(f"--- move {topic}-{partition}")
        try:
            await asyncio.to_thread(self._embedded.move_leader, topic, partition)
        except (ChangeRefusedError, TimeoutError) as error:
            self.say(f"not moved: {error}")

    def _clean(self, topic: str, partition: int) -> None:
        def consumed() -> int:
            found = partition_of(self._embedded, topic, partition)
            cursors = [cursor for node in found.replicas for cursor in node.replica_of(found).cursors.values()]
            return min((cursor.confirmed for cursor in cursors), default=0)

        self._embedded.clean(topic, partition, max(in_cluster(self._embedded, consumed) - KEPT, 0))


@pytest.mark.timeout(60.0 * chosen(MINUTES)[0] + MORE_THAN_THE_RUN)
async def test_nothing_is_lost_or_reordered_and_nothing_grows(
    bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    minutes, seed = chosen(MINUTES)
    bench.histories = tmp_path
    with capsys.disabled():
        print(f"\nchaos: {minutes:g} minutes, NSQ_HA_TEST_CHAOS_SEED={seed}")  # noqa: T201 - to repeat it
    scenario = dataclasses.replace(SCENARIO, target=Target(extra=FLAT))
    row = await run(bench, scenario, minutes, seed, EmbeddedChaos)
    with capsys.disabled():
        print(row)  # noqa: T201 - for who reads the gate's output
    assert not row.broken
    assert not row.missed()
    assert row.faults > minutes * 60.0 / SLOWEST
    for load in bench.loads:
        # A busy machine publishes less, and elects so late that some publishes reach their limit.
        assert load.audit.errors <= load.audit.started / 10
        assert load.audit.delivered_count >= load.audit.started - load.audit.errors
        assert load.audit.started > minutes * 60.0 * bench.pace.rate / 10
    assert_histories(tmp_path)
