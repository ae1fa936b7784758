"""Move a leader, kill a node and restart it while the job runs on an embedded cluster.

Each step waits for the job's progress, so it happens while messages flow,
whatever the speed of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from examples.flights.job import Job
    from nsq_ha.devcluster import DevCluster


MOVE_AT: Final = 0.3
"""Share of acknowledged messages at which a leader is moved."""
KILL_AT: Final = 0.5
"""Share of acknowledged messages at which a node is killed."""
RESTART_AT: Final = 0.75
"""Share of acknowledged messages at which it is restarted."""
RESTART_LIMIT: Final = 15.0
"""Seconds after which the node is restarted even if the job makes no progress without it."""


class FaultScript:
    """One run of the script.

    Args:
        cluster: The cluster to disturb.
        job: The job whose progress times the steps.
        tell: Called in the event loop with each step, as one line, and the short name of its mark in charts.

    Attributes:
        leader_moves: Number of leaders moved.
        nodes_killed: Number of nodes killed.
        nodes_restarted: Number of nodes restarted.
    """

    def __init__(self, cluster: DevCluster, job: Job, *, tell: Callable[[str, str], None]) -> None:
        self.leader_moves: int = 0
        self.nodes_killed: int = 0
        self.nodes_restarted: int = 0
        self._cluster = cluster
        self._job = job
        self._tell = tell

    async def run(self) -> None:
        """Run the whole script; skip steps that are due after the job has ended, except restarting the node."""
        await self._job.reached(MOVE_AT)
        if not self._job.has_ended:
            await self._move(partition=1)
        await self._job.reached(KILL_AT)
        if not self._job.has_ended:
            await self._kill_leader(partition=0)

    async def _move(self, partition: int) -> None:
        old = await asyncio.to_thread(self._cluster.leader, self._job.topic, partition)
        new = await asyncio.to_thread(self._cluster.move_leader, self._job.topic, partition)
        self.leader_moves += 1
        self._tell(f"moved the leader of partition {partition}: {old} -> {new}", f"leader {partition} moved")

    async def _kill_leader(self, partition: int) -> None:
        victim = await asyncio.to_thread(self._cluster.leader, self._job.topic, partition)
        if victim is None:
            self._tell(f"partition {partition} has no leader to kill", "")
            return
        await asyncio.to_thread(self._cluster.kill, victim)
        self.nodes_killed += 1
        self._tell(f"killed {victim}, which led partition {partition}", f"{victim} killed")
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESTART_LIMIT):
                    await self._job.reached(RESTART_AT)
        finally:
            await asyncio.to_thread(self._cluster.start, victim)
            self.nodes_restarted += 1
            self._tell(f"started {victim} again", f"{victim} started")


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """Something that happened.

    Attributes:
        seconds: Time since the job began; negative for preparations.
        text: One line.
        mark: Its short name in charts; empty if it is not marked there.
        at: When it happened, in Unix seconds.
    """

    seconds: float
    text: str
    mark: str = ""
    at: float = field(default=0.0, compare=False)
