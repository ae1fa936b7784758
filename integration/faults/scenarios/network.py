"""Faults of the stream between the library and the nsqds."""

from collections.abc import Awaitable, Callable

from integration.faults.bench import Bench, Scenario, Stage
from integration.faults.pace import REAL
from integration.faults.proxy import Fault, Network
from integration.faults.rows import Row, Target
from integration.faults.waiting import until

HIT = 5.0
"""Seconds within which every connection has carried a frame: there is a heartbeat each 2 s."""
SLOW_FOR = 15.0
AGAIN = 3
"""Times that a fault of chance is repeated."""


def _through(fault: Callable[[Stage, Network], Awaitable[None]]) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    """Make a ``play`` of a fault of the network between the library and the cluster."""

    async def play(bench: Bench, scenario: Scenario) -> Row:
        topics = await bench.ready()
        async with Network(bench.cluster) as network, bench.stage(topics, lookupds=network.urls) as stage:
            network.check()
            await fault(stage, network)
            return await stage.finish(scenario.row())

    return play


def _hit(fault: Fault, times: int = 1) -> Callable[[Bench, Scenario], Awaitable[Row]]:
    async def hit(stage: Stage, network: Network) -> None:
        for _ in range(max(1, round(times * stage.bench.pace.cluster))):
            stage.fault(f"{fault}: all connections")
            for proxy in network.tcp.values():
                proxy.hit(fault)
            await until(lambda: all(proxy.has_hit_all() for proxy in network.tcp.values()), HIT)
            await stage.recovered(limit=30.0, hold=REAL.silence)

    return _through(hit)


async def _slow(stage: Stage, network: Network) -> None:
    """All that goes to nsqds and comes from them takes 50 ms, and one packet of a hundred 300 ms more."""
    stage.fault("the network is slow")
    for proxy in network.tcp.values():
        proxy.slow_down()
    await stage.bench.lasts(SLOW_FOR, for_clients=True)  # the fault
    for proxy in network.tcp.values():
        proxy.slow_down(is_slow=False)
    stage.bench.say("the network is fast again")
    await stage.recovered()


_TARGET = Target(REAL.silence, REAL.silence)

SCENARIOS = (
    Scenario("stream-cut", "stream cut mid-frame", _TARGET, _hit("cut")),
    Scenario("stream-silent", "stream silent mid-frame", _TARGET, _hit("silent")),
    Scenario("bit-flipped", "bit flipped", _TARGET, _hit("flip", AGAIN)),
    Scenario("answers-lost", "answers lost", _TARGET, _hit("lose")),
    Scenario("network-slow", "100 ms there and back, 1 % of the packets lost", Target(1.0, 1.5), _through(_slow)),
)
