"""One random fault after the other, for as long as the environment says: nothing lost, nothing out of order, flat."""

import asyncio
import contextlib
import dataclasses
import gc
import os
import pathlib
import random
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final

from integration.faults.audit import Audit
from integration.faults.bench import ORDERED, ORDINARY, Bench, Scenario, Stage
from integration.faults.cluster import NotReadyError
from integration.faults.load import Load
from integration.faults.pace import REAL
from integration.faults.rows import Row, Target
from integration.faults.waiting import until_true
from nsq_ha.errors import NsqError

PAUSE: Final = (20.0, 60.0)
SETTLED: Final = 120.0
LONG: Final = 120.0
MEMORY_MIB: Final = 15.0
DESCRIPTORS: Final = 4.0
TASKS: Final = 4.0
SHORT_KILLS: Final = "NSQ_HA_TEST_CHAOS_SHORT_KILLS"
"""Not by default: a leader that is killed and is back before its key in etcd ends leads again, without what it had
acknowledged and not yet written, and its followers cut their logs to its own. No client can mend that."""
FAILING: Final = "NSQ_HA_TEST_CHAOS_FAILING"
"""The share of handler calls that fail, such as 0.01. Without it, messages are iterated over."""
FAILING_SHARE: Final = 0.4
"""The share of the usual rate for the ordered topic then: with all of it, its partitions would never catch up."""
ELECTED: Final = 25.0
"""Seconds after which another leader is elected as a rule."""


class Chaos:
    """Chooses and does the faults; one node at a time is in trouble, since more would leave no majority.

    Attributes:
        broken: What must not have happened meanwhile.
    """

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        self.broken: list[str] = []
        self.bench = stage.bench
        self.say = stage.bench.say
        self._stage = stage
        self._chance = chance
        self._cluster = stage.cluster

    async def once(self) -> None:
        """Do one fault and undo it; not before all replicas are in sync again after the last one."""
        topics = dict.fromkeys(self._stage.topics.values(), self.bench.partitions)
        with contextlib.suppress(NotReadyError):
            await self._cluster.wait_whole(topics, self.say, stable=False, limit=LONG)
        fault = self._chance.choice(self.faults())
        await fault()

    def pause(self) -> float:
        """Return the seconds until the next fault, by a real cluster's clock."""
        return self._chance.uniform(*PAUSE)

    async def aclose(self) -> None:
        """End what the faults have started."""

    def faults(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return what it chooses from."""
        always = (
            self.killed,
            self.stopped,
            self.frozen,
            self.frozen_shortly,
            self.lookupd_killed,
            self.lookupd_frozen,
        )
        return (*always, self.killed_shortly) if os.environ.get(SHORT_KILLS) else always

    async def _down(self, name: str, sig: str, seconds: float) -> None:
        self.say(f"--- {sig} {name} for {seconds * self.bench.pace.cluster:.1f} s")
        await self._cluster.kill(name, sig)
        await self.bench.lasts(seconds)  # the fault
        if sig == "SIGKILL" and seconds >= ELECTED:
            # A busy machine elects late, and one that is back before leads again: see SHORT_KILLS.
            await until_true(lambda: self.is_led_by_others(name), LONG)
        self.say(f"{name} goes on")
        if sig == "SIGSTOP":
            await self._cluster.kill(name, "SIGCONT")
        else:
            await self._cluster.start(name)

    async def is_led_by_others(self, name: str) -> bool:
        """Whether each partition has a leader, which is not this node: those that wait for one are not listed."""
        led = [await self._cluster.partitions(topic) for topic in self._stage.topics.values()]
        return all(
            len(one) == self.bench.partitions and name not in {self._cluster.nsqd(each.leader) for each in one.values()}
            for one in led
        )

    async def _node(self) -> str:
        return self._cluster.nsqd(self._chance.choice(await self._cluster.nodes()))

    async def killed_for_long(self, port: int) -> None:
        """SIGKILL of one that leads, past the election."""
        await self._down(self._cluster.nsqd(port), "SIGKILL", REAL.limit)

    async def killed(self) -> None:
        """SIGKILL of a node, past the election."""
        await self._down(await self._node(), "SIGKILL", self._chance.uniform(25.0, 40.0))

    async def killed_shortly(self) -> None:
        """SIGKILL of a node that is back before the election: see :data:`SHORT_KILLS`."""
        await self._down(await self._node(), "SIGKILL", self._chance.uniform(1.0, 18.0))

    async def stopped(self) -> None:
        """SIGTERM of a node."""
        await self._down(await self._node(), "SIGTERM", self._chance.uniform(1.5, 20.0))

    async def frozen(self) -> None:
        """SIGSTOP of a node, around the time of an election."""
        await self._down(await self._node(), "SIGSTOP", self._chance.uniform(10.0, 35.0))

    async def frozen_shortly(self) -> None:
        """SIGSTOP of a node, too short for an election."""
        await self._down(await self._node(), "SIGSTOP", self._chance.uniform(0.5, 8.0))

    def _lookupd(self) -> str:
        return self._cluster.nsqlookupd(self._chance.choice(self._cluster.lookupds))

    async def lookupd_killed(self) -> None:
        """SIGKILL of an nsqlookupd."""
        await self._down(self._lookupd(), "SIGKILL", self._chance.uniform(1.0, 25.0))

    async def lookupd_frozen(self) -> None:
        """SIGSTOP of an nsqlookupd."""
        await self._down(self._lookupd(), "SIGSTOP", self._chance.uniform(1.0, 25.0))


async def play(bench: Bench, scenario: Scenario) -> Row:
    """Run it as the environment says."""
    minutes, seed = chosen(15.0)
    if os.environ.get(FAILING):  # each failure holds up its partition for a second
        bench.pace = dataclasses.replace(bench.pace, ordered_rate=bench.pace.rate * FAILING_SHARE)
    return await run(bench, scenario, minutes, seed)


def chosen(minutes: float) -> tuple[float, int]:
    """Return how many minutes it lasts, and the seed of all chance, where the environment does not say otherwise."""
    seed = os.environ.get("NSQ_HA_TEST_CHAOS_SEED") or random.randrange(10**6)
    return float(os.environ.get("NSQ_HA_TEST_CHAOS_MINUTES") or minutes), int(seed)


async def run(
    bench: Bench,
    scenario: Scenario,
    minutes: float,
    seed: int,
    make: Callable[[Stage, random.Random], Chaos] = Chaos,
    *,
    kinds: tuple[str, ...] = (ORDERED, ORDINARY),
) -> Row:
    """Do one fault of ``make`` after the other."""
    topics = {kind: topic for kind, topic in (await bench.ready()).items() if kind in kinds}
    row = scenario.row()
    row.notes.append(f"{minutes:g} minutes, seed {seed}")
    failing, luck = float(os.environ.get(FAILING) or 0.0), random.Random(seed)
    async with bench.stage(topics, probed=False, handled=failing > 0) as stage:
        for load in stage.loads.values():
            load.audit = Audit(load.audit.keys, bench.pace.limit, slim=True)
            load.fails = lambda _: luck.random() < failing
        stage.fault("chaos")
        chaos = make(stage, random.Random(seed))
        # What the process needs for all that waits during an outage it keeps: no later one makes more wait than this.
        await chaos.killed_for_long(await stage.victim())
        await stage.recovered(limit=SETTLED)
        for load in _loads(stage):
            load.most_at_once = load.most_calls
        before = _used_beside_books(stage)
        end = time.monotonic() + minutes * 60.0
        faults, memory = 1, list[float]()
        while time.monotonic() < end:
            await bench.lasts(chaos.pause())  # the rhythm of the faults
            try:
                await chaos.once()
            except (NsqError, IndexError) as error:
                bench.say(f"no fault this time: {error!r}")
            else:
                faults += 1
            waiting = [len(load.audit.waiting) for load in _loads(stage)]
            now = _used_beside_books(stage)
            memory.append(now["memory MiB"])
            bench.say(f"memory and descriptors: {now}; not delivered yet: {waiting}")
        await chaos.aclose()
        row.broken += chaos.broken + await _stand_still(stage)
        await stage.drain(LONG)
        row.faults = faults
        row.notes.append(f"{faults} faults")
        after = _used_beside_books(stage)
        row.extra = {f"{what} grown": now - before[what] for what, now in after.items()}
        first, second = _halves([before["memory MiB"], *memory, after["memory MiB"]])
        row.extra["memory % grown"] = 100 * (second - first) / first
        row.notes.append(
            f"memory {before['memory MiB']:.1f} MiB after the first fault, {after['memory MiB']:.1f} at the end;"
            f" medians of the halves {first:.1f} and {second:.1f}"
        )
        for kind, load in stage.loads.items():
            _judge(kind, load, row)
            row.notes += await load.story_of_missing(stage.since)
    return row


async def _stand_still(stage: Stage) -> list[str]:
    """Wait until all is well, and say where nothing goes on."""
    healed = time.monotonic()
    if await stage.recovered(limit=SETTLED):
        return []
    return [
        f"{kind}: all keys stand still at the end"
        for kind, load in stage.loads.items()
        if load.standing_still(healed) == load.audit.keys  # a busy machine is late with some
    ]


def _halves(samples: list[float]) -> tuple[float, float]:
    """Return the medians of the first and the second half.

    A process keeps what its largest outage needed, and a later one may need more: only the halves tell of a leak.
    """
    middle = len(samples) // 2
    return statistics.median(samples[:middle]), statistics.median(samples[middle:])


def _used_beside_books(stage: Stage) -> dict[str, float]:
    """Return :func:`used` without what the audits keep of each message."""
    kept = sum(load.audit.kept_bytes for load in _loads(stage))
    figures = used()
    figures["memory MiB"] -= kept / 2**20
    return figures


def _loads(stage: Stage) -> list[Load]:
    return list(stage.loads.values())


def _judge(kind: str, load: Load, row: Row) -> None:
    audit, hold_ups = load.audit, load.hold_ups
    wrong = audit.out_of_order() if kind == ORDERED else 0
    late = audit.doubtful_out_of_order if kind == ORDERED else 0
    doubtful = f" {late} out of order after a publish in doubt," if late else ""
    row.notes.append(
        f"{kind}: {audit.started} published, {load.left_out} left out since {load.most_at_once} waited,"
        f" {audit.delivered_count} deliveries, {audit.repeated} repeats,{doubtful}"
        f" {audit.errors} errors, slowest call {audit.slowest:.2f} s,"
        f" loop held up {hold_ups.worst:.2f} s, at most {hold_ups.worst_own:.2f} by itself"
    )
    row.notes += sorted({f"{kind}: {one.text}" for one in audit.failures})[:3]
    broken = {
        "acknowledged lost": len(audit.waiting),
        "out of order": wrong,
        "'not stored' delivered": audit.denied_and_delivered,
    }
    if kind == ORDERED:
        row.notes += [f"out of order: {text}" for text in audit.examples]
    row.broken += [f"{kind}: {count} {what}" for what, count in broken.items() if count]
    row.broken += [f"{kind}: {text}" for text in load.overdue() + load.foreign]


def used() -> dict[str, float]:
    """Return the process's memory in MiB, and its numbers of descriptors, tasks, threads and objects' blocks."""
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory MiB": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "descriptors": float(len(list(pathlib.Path("/proc/self/fd").iterdir()))),
        "tasks": float(len(asyncio.all_tasks())),
        "threads": float(threading.active_count()),
        "blocks": float(sys.getallocatedblocks()),
    }


SCENARIO = Scenario(
    "chaos",
    "a random fault every 20-60 s",
    Target(extra={"memory MiB grown": MEMORY_MIB, "descriptors grown": DESCRIPTORS, "tasks grown": TASKS}),
    play,
)
