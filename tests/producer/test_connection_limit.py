"""``max_connections`` counts each connection from the beginning of the attempt until its socket has closed."""

import asyncio

import pytest

from nsq_ha import ProducerConfig
from nsq_ha.engine.shared import Connections
from nsq_ha.errors import PublishError
from nsq_ha.protocol import Command
from tests.support.nsqd import LIMIT, Holding, Peer
from tests.support.stage import TOPIC, Stage
from tests.support.virtual import VirtualLoop
from tests.support.waiting import turn

PARTITIONS = 24


class Idle:
    """Idle connections that a limit may close."""

    def __init__(self) -> None:
        self.count = 0
        self.asked: list[int] = []
        self.closing = 0

    def close(self, count: int) -> int:
        self.asked.append(count)
        closed = min(count, self.count)
        self.count -= closed
        self.closing += closed
        return closed


def limit_of(most: int, idle: Idle) -> Connections:
    return Connections(ProducerConfig(max_connections=most), idle.close)


@pytest.fixture
def idle() -> Idle:
    return Idle()


async def test_there_are_places_up_to_the_limit(idle: Idle) -> None:
    limit = limit_of(2, idle)
    assert await limit.take()
    assert limit.has_room
    assert await limit.take()
    assert not limit.has_room
    assert not await limit.take()
    limit.give_back()
    assert limit.has_room
    assert await limit.take()
    assert limit.count == 2


async def test_a_place_is_free_when_a_closed_connection_has_ended(idle: Idle) -> None:
    limit = limit_of(2, idle)
    for _ in range(2):
        await limit.take()
    idle.count = 1
    waiting = asyncio.create_task(limit.take())
    await turn(3)
    assert (idle.closing, waiting.done(), limit.count) == (1, False, 2)
    assert not await limit.take()  # the place that comes is another's
    limit.give_back()
    assert await waiting
    assert limit.count == 2


async def test_those_who_wait_are_served_in_their_order(idle: Idle) -> None:
    limit = limit_of(3, idle)
    for _ in range(3):
        await limit.take()
    idle.count = 3
    order: list[int] = []

    async def take(number: int) -> None:
        assert await limit.take()
        order.append(number)

    tasks = [asyncio.create_task(take(number)) for number in range(3)]
    await turn(3)
    assert idle.closing == 3
    for _ in range(3):
        limit.give_back()
    assert not await limit.take()  # none passes those who wait
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]
    assert limit.count == 3


@pytest.mark.parametrize("is_given", [False, True], ids=["still waiting", "place just given"])
async def test_whoever_stops_waiting_leaves_the_place_to_the_next(idle: Idle, is_given: bool) -> None:
    limit = limit_of(2, idle)
    for _ in range(2):
        await limit.take()
    idle.count = 2
    first, second = (asyncio.create_task(limit.take()) for _ in range(2))
    await turn(3)
    if is_given:
        limit.give_back()
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    if not is_given:
        limit.give_back()
    assert await second
    assert limit.count == 2
    limit.give_back()
    assert limit.has_room


async def test_of_many_connections_several_are_closed_at_once(idle: Idle) -> None:
    limit = limit_of(320, idle)
    for _ in range(320):
        await limit.take()
    idle.count = 320
    waiting = asyncio.create_task(limit.take())
    await turn(3)
    assert idle.asked == [11]
    for _ in range(11):
        limit.give_back()
    assert await waiting
    assert limit.has_room


def open_sockets(stage: Stage) -> int:
    """Count the producer's connections to nsqds, those that are being opened or closed included."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    ports = {nsqd.port for nsqd in stage.nsqds}
    peers = (transport.get_extra_info("peername") for transport in loop.transports)
    return sum(peer is not None and peer[1] in ports for peer in peers)


@pytest.mark.parametrize("most", [1, 4, 8])
async def test_many_partitions_at_once(stage: Stage, most: int) -> None:
    stage.lead({partition: stage.nsqds[partition % 3] for partition in range(PARTITIONS)})
    seen: set[int] = set()

    def script(peer: Peer, command: Command) -> bool:
        seen.add(open_sockets(stage))
        return False

    for nsqd in stage.nsqds:
        nsqd.script = script
    async with stage.producer(max_connections=most) as producer:
        for _ in range(3):
            tasks = [producer.publish(TOPIC, b"x", partition=partition) for partition in range(PARTITIONS)]
            receipts = await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
            assert [receipt.partition for receipt in receipts] == list(range(PARTITIONS))
    assert max(seen) == most


async def test_handshakes_without_an_answer_count(stage: Stage) -> None:
    stage.lead(dict.fromkeys(range(PARTITIONS), stage.nsqd))
    stage.nsqd.is_silent = True
    async with stage.producer(max_connections=4) as producer:
        tasks = [
            asyncio.create_task(producer.publish(TOPIC, b"x", partition=partition, timeout=3.0))
            for partition in range(PARTITIONS)
        ]
        seen: set[int] = set()
        while not all(task.done() for task in tasks):
            seen.add(open_sockets(stage))
            await asyncio.wait(tasks, timeout=0.01)
        assert max(seen) == 4
        stage.nsqd.is_silent = False
        assert [isinstance(task.exception(), PublishError) for task in tasks] == [True] * PARTITIONS
        assert (await producer.publish(TOPIC, b"x", partition=0, timeout=LIMIT)).partition == 0
        assert open_sockets(stage) <= 4


async def test_a_connection_in_use_makes_no_room(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    stage.nsqds[0].script = holding = Holding()
    async with stage.producer(max_connections=1) as producer:
        first = asyncio.create_task(producer.publish(TOPIC, b"x", partition=0))
        await stage.nsqd.until(lambda: holding.held)
        second = asyncio.create_task(producer.publish(TOPIC, b"x", partition=1))
        await asyncio.wait({second}, timeout=0.5)
        assert not stage.nsqds[1].peers
        holding.release()
        assert (await first).attempts == 1
        assert (await asyncio.wait_for(second, LIMIT)).attempts == 1
