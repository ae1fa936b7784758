"""Closing while something is wrong: within the limit, and nothing is left."""

from __future__ import annotations

import asyncio
import pathlib
import threading
import time
from typing import TYPE_CHECKING

from integration.faults.bench import Bench, Scenario
from integration.faults.rows import Row, Target
from integration.faults.waiting import lasts, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from integration.faults.bench import Stage

CLOSE_LIMIT = 5.0
GRACE = 0.5
INTO_THE_FAULT = 3.0


def _during(sig: str, whom: str) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    async def play(bench: Bench, scenario: Scenario) -> Row:
        topics = await bench.ready()
        row = scenario.row()
        before = _inventory()
        async with bench.stage(topics) as stage:
            names = await _names(stage, whom)
            stage.fault(f"{sig} {', '.join(names)}")
            for name in names:
                await bench.cluster.kill(name, sig)
            await lasts(INTO_THE_FAULT)  # closing begins in the middle of it
            await _close(stage, row)
            await stage.probes.stop()
            # Sockets of abandoned tries end in the next turns of the loop.
            await until(lambda: not any(_left(before)), GRACE)
            left = _left(before)
        for name, count in zip(("tasks", "threads", "sockets"), left, strict=True):
            row.extra[f"{name} left"] = float(count)
        denied = sum(len(load.audit.false_denials) for load in stage.loads.values())
        if denied:
            row.broken.append(f"{denied} 'not stored' delivered")
        return row

    return play


async def _names(stage: Stage, whom: str) -> list[str]:
    if whom == "lookupds":
        return [stage.cluster.nsqlookupd(url) for url in stage.cluster.lookupds]
    return [stage.cluster.nsqd(await stage.victim())]


async def _close(stage: Stage, row: Row) -> None:
    """Close producers and consumers with everything under way, and measure each."""

    async def timed(closing: Awaitable[None]) -> float:
        began = time.monotonic()
        await closing
        return time.monotonic() - began

    loads = list(stage.loads.values())
    for load in loads:
        load.end_new_calls()
    producers = await asyncio.gather(*(timed(load.producer.aclose()) for load in loads))
    consumers = await asyncio.gather(*(timed(load.consumer.aclose()) for load in loads))
    row.extra["closing a producer"] = max(producers)
    row.extra["closing a consumer"] = max(consumers)
    for load in loads:
        await load.close()


def _left(before: tuple[int, int, int]) -> list[int]:
    """Count what is more than before."""
    return [max(now - then, 0) for now, then in zip(_inventory(), before, strict=True)]


def _inventory() -> tuple[int, int, int]:
    """Count tasks, threads (the pool of the bench's own questions apart) and sockets."""
    threads = [one for one in threading.enumerate() if not one.name.startswith("asyncio_")]
    sockets = 0
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        try:
            sockets += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return len(asyncio.all_tasks()), len(threads), sockets


_TARGET = Target(
    extra={
        "closing a producer": CLOSE_LIMIT + GRACE,
        "closing a consumer": CLOSE_LIMIT + GRACE,
        "tasks left": 0.0,
        "threads left": 0.0,
        "sockets left": 0.0,
    }
)

SCENARIOS = (
    Scenario("stop-leader-killed", "stop while a leader is dead", _TARGET, _during("SIGKILL", "leader")),
    Scenario("stop-leader-frozen", "stop while a leader is frozen", _TARGET, _during("SIGSTOP", "leader")),
    Scenario("stop-lookupds-hang", "stop while all nsqlookupds hang", _TARGET, _during("SIGSTOP", "lookupds")),
)
