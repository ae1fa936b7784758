"""Faults of the nsqlookupds."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

from integration.faults.bench import ORDERED, Bench, Scenario, Stage, staged
from integration.faults.cluster import NotReadyError
from integration.faults.probing import MARK
from integration.faults.proxy import Network
from integration.faults.rows import Row, Target
from integration.faults.waiting import until_true
from nsq_ha import Consumer, Producer
from tests.engine.lookups.loopback import Behave, Fake, hang, http_answer

FAULT = 20.0
HANG = 10.0
BACK = 10.0
LEADERLESS = 5.0
ELECTION = 150.0


async def _leading(bench: Bench) -> str:
    leading = await bench.cluster.leading()
    if leading is None:
        raise NotReadyError("no nsqlookupd leads")
    return bench.cluster.nsqlookupd(leading)


async def killed(stage: Stage) -> None:
    """SIGKILL of the leading one."""
    name = await _leading(stage.bench)
    stage.fault(f"SIGKILL {name}")
    await stage.cluster.kill(name, "SIGKILL")
    await stage.bench.lasts(
        FAULT + 5.0, for_clients=True
    )  # the fault, and the election of another leading one at its end


async def all_dead(stage: Stage) -> None:
    """SIGKILL of all for 20 s."""
    # The second half of the fault: answers without the nsqds that have not registered again.
    await _all(stage, "SIGKILL", FAULT)


async def all_hang(stage: Stage) -> None:
    """SIGSTOP of all for 10 s, short of what ends their keys."""
    # Late answers to old questions are part of the fault.
    await _all(stage, "SIGSTOP", HANG)


async def _all(stage: Stage, sig: str, seconds: float) -> None:
    names = [stage.cluster.nsqlookupd(url) for url in stage.cluster.lookupds]
    stage.fault(f"{sig} of all nsqlookupds")
    for name in names:
        await stage.cluster.kill(name, sig)
    await stage.bench.lasts(seconds, for_clients=True)  # the fault
    stage.bench.say("they go on")
    for name in names:
        await (stage.cluster.start(name) if sig == "SIGKILL" else stage.cluster.kill(name, "SIGCONT"))
    await stage.bench.lasts(BACK)


_NONSENSE = itertools.cycle(
    (
        http_answer(b"<html><body>It works!</body></html>"),
        http_answer(b""),
        http_answer(b"null"),
        http_answer(b"[]"),
        http_answer(b'{"partitions":null,"producers":null,"channels":null,"meta":null}'),
        http_answer(
            b'{"partitions":{"0":{"broadcast_address":5,"tcp_port":"x"}},"meta":{"partition_num":"two"}}',
        ),
        http_answer(b'{"partitions":{},"meta":{"partition_num":1,"replica":1}}'),
        http_answer(b'{"channels":[],"producers":[],"partitions":{"-1":{}},"meta":{"partition_num":-5}}'),
        http_answer(b'{"partitions":' + b"[" * 5000),
        http_answer(b"internal error", 500),
        http_answer(b'{"message":"TOPIC_NOT_FOUND"}', 404),
        http_answer(b"", 302, "Location: http://127.0.0.1:1/\r\n"),
        b"\x00\xff\xfe nonsense without HTTP\r\n\r\n",
        b"",
    )
)
"""What an nsqlookupd must not say."""


async def _nonsense(writer: asyncio.StreamWriter) -> None:
    """Say something else that is wrong each time."""
    writer.write(answer := next(_NONSENSE))
    if not answer.startswith(b"HTTP"):
        writer.close()


def beside(behave: Behave) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    """Make a ``play`` in which the first configured nsqlookupd is a rude one."""

    async def play(bench: Bench, scenario: Scenario) -> Row:
        topics = await bench.ready()
        row = scenario.row()
        rude = await Fake().start()
        rude.behave = behave
        lookupds = (rude.url, *bench.cluster.lookupds)
        try:
            row.extra["start-up"] = await _start_up(topics[ORDERED], bench.fresh("ch"), lookupds)
            before = len(rude.requests)
            async with bench.stage(topics, lookupds=lookupds) as stage:
                stage.fault("a rude nsqlookupd is the first one")
                await bench.lasts(FAULT, for_clients=True)  # the fault
                if len(rude.requests) == before:
                    row.broken.append("the rude nsqlookupd was asked nothing")
                await stage.finish(row)
        finally:
            await rude.stop()
        return row

    return play


async def _start_up(topic: str, channel: str, lookupds: tuple[str, ...]) -> float:
    """Return the seconds until a consumer is subscribed, and a producer has published."""
    began = time.monotonic()
    async with Consumer(topic, channel, lookupd=lookupds), Producer(lookupd=lookupds) as producer:
        await producer.publish(topic, MARK, key="k00")  # a channel that is made now may get it
        return time.monotonic() - began


async def _nobody_leads(bench: Bench) -> bool:
    return await bench.cluster.leading() is None


async def leader_lost_meanwhile(bench: Bench, scenario: Scenario) -> Row:
    """SIGKILL of the leading nsqlookupd, and a moment later SIGTERM of a partition leader."""
    topics = await bench.ready()
    row = scenario.row()
    async with (
        Network(bench.cluster, is_tcp=False) as network,
        bench.stage(topics, lookupds=network.urls) as stage,
    ):
        lookupd, nsqd = await _leading(bench), bench.cluster.nsqd(await stage.victim())
        stage.fault(f"SIGKILL {lookupd}, then SIGTERM {nsqd}")
        await bench.cluster.kill(lookupd, "SIGKILL")
        await until_true(lambda: _nobody_leads(bench), LEADERLESS)
        await bench.cluster.kill(nsqd, "SIGTERM")
        await stage.recovered(limit=ELECTION)
        ended = time.monotonic()
        for kind, topic in topics.items():
            asked = [(one, access) for one in network.lookups for access in ("w", "r")]
            row.extra[f"{kind} questions/s"] = max(
                float(one.most_in_a_second(topic, access, stage.since)) for one, access in asked
            )
            mean = max(one.rate(topic, access, stage.since, ended) for one, access in asked)
            row.notes.append(f"{kind}: {mean:.2f} questions a second on average to one nsqlookupd by one client")
        await stage.finish(row)
    for one in row.figures:
        if one.errors:
            # The outage takes longer than a publish's limit: then errors are right.
            row.notes.append(f"{one.topic}: {one.errors} publishes ended by their limit, {one.in_doubt} in doubt")
        one.errors = 0
    return row


_STALL = 0.5

SCENARIOS = (
    Scenario("lookupd-killed", "leading nsqlookupd dead", Target(_STALL, _STALL), staged(killed)),
    Scenario("lookupds-dead", "all nsqlookupds dead 20 s", Target(_STALL, _STALL), staged(all_dead)),
    Scenario("lookupds-hang", "all nsqlookupds hang", Target(_STALL, _STALL), staged(all_hang)),
    Scenario("lookupd-hangs", "first nsqlookupd hangs", Target(_STALL, _STALL, extra={"start-up": 2.0}), beside(hang)),
    Scenario(
        "lookupd-nonsense",
        "first nsqlookupd answers nonsense",
        Target(_STALL, _STALL, extra={"start-up": 2.0}),
        beside(_nonsense),
    ),
    Scenario(
        "leader-lost-no-lookupd",
        "leader lost while nsqlookupds have no leader",
        Target(2.0, 2.0, extra={"ordered questions/s": 5.0, "ordinary questions/s": 5.0}),
        leader_lost_meanwhile,
    ),
)
