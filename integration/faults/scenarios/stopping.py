"""Closing while something is wrong: within the limit, and nothing is left."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

from integration.faults.bench import PARTITIONS, Bench, Scenario, Stage
from integration.faults.load import Load
from integration.faults.pace import REAL
from integration.faults.proxy import TASK
from integration.faults.rows import Row, Target
from integration.faults.waiting import QUESTION, settles, until_true
from nsq_ha import Consumer

GRACE = 0.5
LOOKS = 20
"""Looks at what is left: a second, on a machine that lets the loop run."""
INTO_THE_FAULT = 3.0
ELECTION = 60.0
REST = 5.0


def _during(sig: str, whom: str) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    async def fault(stage: Stage) -> None:
        names = await _names(stage, whom)
        stage.fault(f"{sig} {', '.join(names)}")
        for name in names:
            await stage.cluster.kill(name, sig)
        await stage.bench.lasts(INTO_THE_FAULT, for_clients=True)  # closing begins in the middle of it

    return during(fault, afterwards=_until_all_are_led if sig == "SIGKILL" else None)


async def _until_all_are_led(stage: Stage) -> None:
    """Wait for others to lead: a leader that is back before leads on with a shorter log and cuts its followers'."""

    async def are_led() -> bool:
        led = [await stage.cluster.partitions(topic) for topic in stage.topics.values()]
        return all(len(partitions) == PARTITIONS for partitions in led)

    await until_true(are_led, ELECTION)


def during(
    fault: Callable[[Stage], Awaitable[None]],
    lookupds: tuple[str, ...] | None = None,
    *,
    handled: bool = False,
    afterwards: Callable[[Stage], Awaitable[None]] | None = None,
) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    """Make a ``play`` that closes everything in the middle of a fault.

    Args:
        fault: Begins it.
        lookupds: What producers and consumers are configured with. None for the cluster's own.
        handled: Read with a handler.
        afterwards: What is done before the nodes are started again.
    """

    async def play(bench: Bench, scenario: Scenario) -> Row:
        topics = await bench.ready()
        row = scenario.row()
        before = _inventory(bench)
        async with bench.stage(topics, lookupds=lookupds, handled=handled) as stage:
            await fault(stage)
            row.faults = stage.faults
            await _close(stage, row)
            await stage.probes.stop()
            # Sockets of abandoned tries end in the next turns of the loop.
            await settles(lambda: not any(_left(bench, before)), LOOKS)
            left = _left(bench, before)
            if afterwards is not None:
                await afterwards(stage)
        for name, count in zip(("tasks", "threads", "sockets"), left, strict=True):
            row.extra[f"{name} left"] = float(count)
        for kind, load in stage.loads.items():
            row.broken += load.foreign
            await _read_the_rest(bench, load, row, kind)
        denied = sum(load.audit.denied_and_delivered for load in stage.loads.values())
        if denied:
            row.broken.append(f"{denied} 'not stored' delivered")
        return row

    return play


async def _read_the_rest(bench: Bench, load: Load, row: Row, kind: str) -> None:
    """Read what closing left in the channel: only that tells what became of the publishes under way."""
    cluster, pace = bench.cluster, bench.pace

    async def is_led() -> bool:
        return bool(await cluster.partitions(load.topic))

    if not await until_true(is_led, ELECTION * pace.cluster, QUESTION * pace.cluster):
        row.notes.append(f"{kind}: nobody leads the topic, so that the rest could not be read")
        return
    async with Consumer(load.topic, load.channel, lookupd=cluster.lookupds, **pace.consumer_options) as consumer:

        async def read() -> None:
            async for message in consumer:
                load.take(message)
                message.finish()

        reading = asyncio.create_task(read())
        await load.drain(max(ELECTION * pace.cluster, pace.patience))
        await bench.lasts(REST, for_clients=True)  # what must not come has its chance
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    if load.audit.waiting:
        row.broken.append(f"{kind}: {len(load.audit.waiting)} acknowledged lost")


async def _names(stage: Stage, whom: str) -> list[str]:
    if whom == "lookupds":
        return [stage.cluster.nsqlookupd(url) for url in stage.cluster.lookupds]
    return [stage.cluster.nsqd(await stage.victim())]


async def _close(stage: Stage, row: Row) -> None:
    """Close producers and consumers with everything under way, and measure each."""

    loads = list(stage.loads.values())

    async def timed(closing: Awaitable[None]) -> float:
        """Return how long it took, without the time in which the machine did not let the loop run."""
        began = time.monotonic()
        await closing
        ended = time.monotonic()
        return ended - began - loads[0].hold_ups.machine_between(began, ended)

    for load in loads:
        load.end_new_calls()
    producers = await asyncio.gather(*(timed(load.producer.aclose()) for load in loads))
    if not await settles(lambda: not any(load.under_way for load in loads), LOOKS):
        row.broken.append(f"{sum(load.under_way for load in loads)} publishes did not end with their producer")
    consumers = await asyncio.gather(*(timed(load.consumer.aclose()) for load in loads))
    row.extra["closing a producer"] = max(producers)
    row.extra["closing a consumer"] = max(consumers)
    for load in loads:
        await load.close()


def _left(bench: Bench, before: tuple[int, int, int]) -> list[int]:
    """Count what is more than before."""
    return [max(now - then, 0) for now, then in zip(_inventory(bench), before, strict=True)]


def _inventory(bench: Bench) -> tuple[int, int, int]:
    """Count tasks, threads (the pool of the bench's own questions apart) and sockets."""
    tasks = [one for one in asyncio.all_tasks() if one.get_name() != TASK]
    threads = [one for one in threading.enumerate() if not one.name.startswith("asyncio_")]
    return len(tasks), len(threads), bench.cluster.sockets()


TARGET = Target(
    extra={
        "closing a producer": REAL.close + GRACE,
        "closing a consumer": REAL.close + GRACE,
        "tasks left": 0.0,
        "threads left": 0.0,
        "sockets left": 0.0,
    }
)

SCENARIOS = (
    Scenario("stop-leader-killed", "stop while a leader is dead", TARGET, _during("SIGKILL", "leader")),
    Scenario("stop-leader-frozen", "stop while a leader is frozen", TARGET, _during("SIGSTOP", "leader")),
    Scenario("stop-lookupds-hang", "stop while all nsqlookupds hang", TARGET, _during("SIGSTOP", "lookupds")),
)
