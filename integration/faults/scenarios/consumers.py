"""Consumers of one ordered channel that fail, die or stall."""

import asyncio
import itertools
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable

from integration.faults.audit import Delivered
from integration.faults.bench import ORDERED, Bench, Scenario
from integration.faults.cluster import NotReadyError
from integration.faults.load import Load
from integration.faults.pace import REAL
from integration.faults.probing import MARK
from integration.faults.rows import Row, Target
from integration.faults.waiting import until
from nsq_ha import Message
from nsq_ha.policy.redelivery import requeue_delay

FAILURES = 3
ENOUGH = 300
"""Deliveries to the second consumer before its fault."""
STARTED = 30.0
LEFT = 15.0


class Neighbour:
    """The second consumer's process; its deliveries go into the load's audit.

    Attributes:
        trouble: What went wrong with the process; empty if nothing did.
    """

    def __init__(self, load: Load) -> None:
        self.load = load
        self.deliveries = 0
        self.trouble = ""
        self._is_told = False
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()

    async def start(self) -> None:
        """Start it, and return when it is subscribed."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "integration.faults.reader",
            self.load.topic,
            self.load.channel,
            json.dumps(self.load.pace.reader_options),
            *self.load.lookupds,
            stdout=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read(self._process))
        async with asyncio.timeout(60):
            await self._subscribed.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.send_signal(number)
        elif not self._is_told:
            self.trouble = f"ended by itself with exit code {self._process.returncode}"
        self._is_told = True

    async def leave(self) -> int | None:
        """Have it close its consumer and end; return its exit code."""
        self.signal(signal.SIGTERM)
        if self._process is None:
            return None
        try:
            async with asyncio.timeout(LEFT):
                await self._process.wait()
        except TimeoutError:
            self.trouble = f"did not leave within {LEFT:g} s"
        await self.stop()
        code = self._process.returncode
        if code not in (0, -signal.SIGTERM):  # it may not listen yet
            self.trouble = self.trouble or f"left with exit code {code}"
        return code

    async def stop(self) -> None:
        """End it in any state."""
        self.signal(signal.SIGKILL)
        if self._process is not None and self._reading is not None:
            await self._process.wait()
            await self._reading

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            try:
                report = json.loads(line)
            except ValueError:
                continue  # it was killed in the middle of a line; the message comes again
            if "subscribed" in report:
                self._subscribed.set()
            elif report["body"] != MARK.decode():
                key, _, seq = report["body"].partition(":")
                delivery = Delivered(report["t"], int(seq), report["partition"], report["id"], report["nsqd"])
                self.load.enter(key, delivery)
                self.deliveries += 1


def _neighbour(number: signal.Signals) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    async def play(bench: Bench, scenario: Scenario) -> Row:
        topic = (await bench.ready())[ORDERED]
        row = scenario.row()
        async with bench.stage({ORDERED: topic}) as stage:
            load = stage.loads[ORDERED]
            neighbour = Neighbour(load)
            try:
                await neighbour.start()
                await until(lambda: neighbour.deliveries >= ENOUGH * bench.pace.cluster, STARTED)
                if not neighbour.deliveries:
                    raise NotReadyError("the second consumer gets no message, so that its fault would meet nobody")
                stage.fault(f"{number.name} of the second consumer, after {neighbour.deliveries} deliveries to it")
                neighbour.signal(number)
                await stage.recovered()
                for key in load.audit.keys:
                    load.audit.deliveries[key].sort(key=lambda one: one.at)
                await stage.finish(row)
            finally:
                await neighbour.stop()
        if neighbour.trouble:
            row.broken.append(f"the second consumer {neighbour.trouble}")
        row.notes.append(f"the second consumer had {neighbour.deliveries} deliveries")
        return row

    return play


async def handler_fails(bench: Bench, scenario: Scenario) -> Row:
    """The handler fails three times on one message of partition 0."""
    topic = (await bench.ready())[ORDERED]
    row = scenario.row()
    attempts: list[float] = []
    chosen: list[bytes] = []
    async with bench.stage({ORDERED: topic}, handled=True) as stage:
        load = stage.loads[ORDERED]

        def fails(message: Message) -> bool:
            if message.partition == 0 and not chosen and stage.since and message.body != MARK:
                chosen.append(message.body)
            if [message.body] != chosen or len(attempts) > FAILURES:
                return False
            attempts.append(time.monotonic())
            bench.say(f"attempt {message.attempts} of {message.body!r}")
            return len(attempts) <= FAILURES

        load.fails = fails
        stage.fault("the handler fails three times")
        await until(lambda: len(attempts) > FAILURES, STARTED)
        await stage.recovered()
        ended = time.monotonic()
        await stage.finish(row)
    config = load.consumer.config
    planned = [requeue_delay(config, attempts, is_ordered=True) for attempts in range(1, FAILURES + 1)]
    waited = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    row.notes.append(f"waited {[round(one, 2) for one in waited]} s, planned {planned}")
    late = [one - plan for one, plan in zip(waited, planned, strict=False)]
    row.extra["later than planned"] = max(late) if len(waited) == FAILURES else float("inf")
    others = [key for key in load.audit.keys if load.audit.partition_of(key, 0.0) != 0]
    spans = [span for key in others for span in load.audit.consume_gaps(key, stage.since, ended)]
    row.extra["stall of the other partition"] = max(end - begin for begin, end in spans)
    return row


SCENARIOS = (
    Scenario(
        "handler-fails",
        "handler fails three times on an ordered topic",
        Target(extra={"later than planned": 0.3, "stall of the other partition": 0.5}),
        handler_fails,
    ),
    Scenario("consumer-killed", "one of two consumers killed", Target(0.5, 0.5), _neighbour(signal.SIGKILL)),
    Scenario(
        "consumer-frozen",
        "one of two consumers frozen",
        Target(0.5, 3 * REAL.heartbeat + 1.0),
        _neighbour(signal.SIGSTOP),
    ),
)
