"""Hours of load with a fault each minute, consumers that come, are killed and leave, and secrets that change.

``soak`` is for a partitioned cluster: an ordered topic beside an ordinary one. ``soak-plain`` is for upstream's
servers, ``soak-sync`` for a partitioned cluster read and written through ``nsq_ha.sync``.

The environment says how: ``NSQ_HA_TEST_CHAOS_MINUTES``, ``NSQ_HA_TEST_CHAOS_SEED``, ``NSQ_HA_TEST_SOAK_RATE`` (messages
a second altogether), ``NSQ_HA_TEST_TLS_CA``, ``NSQ_HA_TEST_COMPRESSION`` and, for nsqds whose ``-auth-http-address`` is
that port of the loopback, ``NSQ_HA_TEST_AUTH_PORT``.
"""

import contextlib
import dataclasses
import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from integration.faults.bench import ORDERED, ORDINARY, Bench, Scenario, Stage
from integration.faults.pace import of_environment
from integration.faults.rows import Row, Target
from integration.faults.scenarios.chaos import Chaos, chosen, run
from integration.faults.scenarios.consumers import Neighbour
from integration.faults.secrets import AuthServer, Secrets
from integration.faults.threads import ThreadedLoad

MINUTES: Final = 120.0
RATE: Final = 2000.0
SYNC_RATE: Final = 500.0
ORDERED_SHARE: Final = 0.1
"""Of all messages those on the ordered topic: its partitions have one in flight each, and must catch up."""
PARTITIONS: Final = 4
"""Of each topic: the partitioned nsqd takes about 1,000 single messages a second for each one with three replicas, and
must have time to catch up; each connection costs a handshake every 3 s."""
NSQDS: Final = 2
"""Of upstream's servers."""
RECENT: Final = 5.0
"""The partitioned nsqd stops writing to TLS connections after 5 s: they are replaced all the time."""
MSG_TIMEOUT: Final = 5.0
EACH: Final = 60.0
"""Seconds from the beginning of one fault to that of the next."""
FLAT: Final = Target(
    extra={
        "memory % grown": 10.0,
        "descriptors grown": 8.0,
        "tasks grown": 8.0,
        "threads grown": 2.0,
        "publishes that failed": 0.0,
    }
)
"""A leader waits up to 25 s for a replica that died or froze, 5 s less than a publish may take: on a busy machine a few
fail."""


class Soak(Chaos):
    """A fault each minute, and at each of them a consumer more or less and a new secret."""

    secrets: Secrets | None = None

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        super().__init__(stage, chance)
        self._due = time.monotonic() + EACH * self.bench.pace.cluster
        self._neighbours: dict[str, Neighbour] = {}

    def pause(self) -> float:
        """Return the seconds that are left of this minute."""
        scale = self.bench.pace.cluster
        left = self._due - time.monotonic()
        self._due = max(self._due, time.monotonic()) + EACH * scale
        return max(left / scale, 1.0)

    async def once(self) -> None:
        """Change the secret, let a consumer come or go, and do a fault."""
        if self.secrets is not None:
            self.secrets.rotate()
        await self._change_neighbour(self._chance.choice(list(self._stage.loads)))
        await super().once()

    async def _change_neighbour(self, kind: str) -> None:
        if (neighbour := self._neighbours.pop(kind, None)) is not None:
            self.say(f"the second consumer of {kind} ends after {neighbour.deliveries} deliveries")
            await (neighbour.leave() if self._chance.random() < 0.5 else neighbour.stop())
            self._judge(kind, neighbour)
            return
        self._neighbours[kind] = neighbour = Neighbour(self._stage.loads[kind])
        self.say(f"a second consumer of {kind}")
        try:
            await neighbour.start()
        except TimeoutError:
            self.say("it is not subscribed yet")

    async def aclose(self) -> None:
        """End all second consumers."""
        for kind, neighbour in self._neighbours.items():
            await neighbour.stop()
            self._judge(kind, neighbour)
        self._neighbours.clear()

    def _judge(self, kind: str, neighbour: Neighbour) -> None:
        if neighbour.trouble:
            self.broken.append(f"{kind}: a second consumer {neighbour.trouble}")


class PlainSoak(Soak):
    """What an nsqd without replicas survives with all that it acknowledged: its queue is in its memory."""

    def faults(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the same, without SIGKILL of an nsqd."""
        return self.stopped, self.frozen, self.frozen_shortly, self.lookupd_killed, self.lookupd_frozen

    async def killed_for_long(self, port: int) -> None:
        """SIGTERM instead, for as long."""
        await self._down(self._cluster.nsqd(port), "SIGTERM", self.bench.pace.limit)


async def soak(
    bench: Bench,
    scenario: Scenario,
    make: type[Soak],
    *,
    kinds: tuple[str, ...] = (ORDERED, ORDINARY),
    partitions: int = PARTITIONS,
    rate: float = RATE,
    minutes: float = MINUTES,
    secrets: Secrets | None = None,
) -> Row:
    """Run it for so long, or as long as the environment says."""
    minutes, seed = chosen(minutes)
    before, bench.partitions = bench.pace, partitions
    ordered = rate * ORDERED_SHARE if ORDERED in kinds else 0.0
    with secrets or contextlib.nullcontext():
        options = of_environment()
        clients = {**before.clients, **options}
        bench.pace = dataclasses.replace(
            before,
            rate=rate - ordered,
            ordered_rate=ordered,
            recent=RECENT,
            msg_timeout=MSG_TIMEOUT,
            clients=clients,
        )
        make.secrets = secrets
        try:
            row = await run(bench, scenario, minutes, seed, make, kinds=kinds)
        finally:
            bench.pace, make.secrets = before, None
    row.extra["publishes that failed"] = float(sum(load.audit.errors for load in bench.loads))
    row.notes.append(f"{rate:g} messages a second, options {', '.join(sorted(options)) or 'of none'}")
    return row


async def _of_environment(bench: Bench, scenario: Scenario, make: type[Soak], rate: float, **how: Any) -> Row:  # noqa: ANN401
    rate = float(os.environ.get("NSQ_HA_TEST_SOAK_RATE") or rate)
    if not (port := os.environ.get("NSQ_HA_TEST_AUTH_PORT")):
        return await soak(bench, scenario, make, rate=rate, **how)
    server = await AuthServer(int(port)).start()
    try:
        secrets = Secrets(server.valid.add, server.valid.discard)
        return await soak(bench, scenario, make, rate=rate, secrets=secrets, **how)
    finally:
        await server.stop()


async def _partitioned(bench: Bench, scenario: Scenario) -> Row:
    return await _of_environment(bench, scenario, Soak, RATE)


async def _plain(bench: Bench, scenario: Scenario) -> Row:
    return await _of_environment(bench, scenario, PlainSoak, RATE, kinds=(ORDINARY,), partitions=NSQDS)


async def _sync(bench: Bench, scenario: Scenario) -> Row:
    before, bench.make_load = bench.make_load, ThreadedLoad
    try:
        return await _of_environment(bench, scenario, Soak, SYNC_RATE)
    finally:
        bench.make_load = before


SCENARIOS: Final = (
    Scenario("soak", "a fault each minute, for hours", FLAT, _partitioned),
    Scenario("soak-plain", "the same, upstream's servers", FLAT, _plain),
    Scenario("soak-sync", "the same, through nsq_ha.sync", FLAT, _sync),
)
