"""``max_connections`` counts each connection from the beginning of the attempt until its socket has closed."""

import asyncio
from typing import Any

import pytest

from nsq_ha import ProducerConfig
from nsq_ha.engine.connection import Callbacks
from nsq_ha.engine.shared import TURN, Connections, Trunk
from nsq_ha.errors import ConnectionLostError, PublishError
from nsq_ha.protocol import Command
from tests.support.nsqd import LIMIT, Holding, Peer
from tests.support.stage import TOPIC, Stage
from tests.support.virtual import VirtualLoop
from tests.support.waiting import dawdle, turn

PARTITIONS = 24


class Recalls:
    """What was asked to make room: the number of connections, and since when one in use must be used."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []

    def __call__(self, count: int, used_since: float) -> None:
        self.asked.append((count, used_since))


@pytest.fixture
def recalls() -> Recalls:
    return Recalls()


async def limit_of(most: int, recalls: Recalls) -> Connections:
    """Connections whose places are all taken."""
    limit = Connections(ProducerConfig(max_connections=most), recalls)
    for number in range(most):
        assert (limit.has_room, limit.count) == (True, number)
        await limit.take()
    assert (limit.has_room, limit.count) == (False, most)
    return limit


async def test_a_free_place_is_taken_at_once(recalls: Recalls) -> None:
    limit = await limit_of(2, recalls)
    limit.give_back()
    assert limit.has_room
    await limit.take()
    assert (limit.count, recalls.asked) == (2, [])


async def test_a_place_is_free_when_a_recalled_connection_has_ended(recalls: Recalls) -> None:
    limit = await limit_of(2, recalls)
    now = asyncio.get_running_loop().time()
    waiting = asyncio.create_task(limit.take())
    await turn(3)
    assert (waiting.done(), limit.count, limit.is_waited_for) == (False, 2, True)
    (asked,) = recalls.asked
    assert asked == pytest.approx((1, now - TURN), abs=0.01)
    limit.give_back()
    await waiting
    assert (limit.count, limit.is_waited_for) == (2, False)


async def test_connections_are_recalled_until_nobody_waits(recalls: Recalls) -> None:
    limit = await limit_of(2, recalls)
    waiting = [asyncio.create_task(limit.take()) for _ in range(2)]
    await turn(3)
    recalls.asked.clear()
    await dawdle(TURN * 1.5)
    now = asyncio.get_running_loop().time()
    (asked,) = recalls.asked
    assert asked == pytest.approx((2, now - 1.5 * TURN), abs=0.01)
    limit.give_back()
    await dawdle(TURN)
    assert [count for count, _ in recalls.asked] == [2, 1]
    limit.give_back()
    await asyncio.gather(*waiting)
    await dawdle(TURN * 3)
    assert len(recalls.asked) == 2


async def test_those_who_wait_are_served_in_their_order(recalls: Recalls) -> None:
    limit = await limit_of(3, recalls)
    order: list[int] = []

    async def take(number: int) -> None:
        await limit.take()
        order.append(number)

    tasks = [asyncio.create_task(take(number)) for number in range(4)]
    await turn(3)
    for number in range(4):
        assert order == list(range(number))
        limit.give_back()
        await turn(3)
    await asyncio.gather(*tasks)
    assert limit.count == 3


@pytest.mark.parametrize("is_given", [False, True], ids=["still waiting", "place just given"])
async def test_whoever_stops_waiting_leaves_the_place_to_the_next(recalls: Recalls, is_given: bool) -> None:
    limit = await limit_of(2, recalls)
    first, second = (asyncio.create_task(limit.take()) for _ in range(2))
    await turn(3)
    if is_given:
        limit.give_back()
    first.cancel()
    await asyncio.wait({first})
    assert first.cancelled()
    if not is_given:
        limit.give_back()
    await second
    assert limit.count == 2
    limit.give_back()
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


class Opened:
    """A connection that notes its end."""

    is_open, node, name, lifetime = True, None, "c1", None

    def __init__(self) -> None:
        self.has_ended = False

    def on_resume(self, _: object) -> None: ...

    def when_ended(self, _: object) -> None: ...

    def abort(self, _: object) -> None:
        self.has_ended = True

    def close(self) -> None:
        self.has_ended = True


@pytest.mark.parametrize("turns", range(6))
async def test_a_shared_connection_that_opens_as_its_last_user_is_cancelled_does_not_stay(turns: int) -> None:
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection, over = Opened(), []

    async def opening(*_: object) -> Any:  # noqa: ANN401 - a double
        return await opened

    trunk = Trunk(opening, lambda: over.append(True))
    joining = asyncio.create_task(trunk.join(Callbacks(lambda _: None)))
    await turn(3)
    opened.set_result(connection)
    await turn(turns)
    joining.cancel()
    await asyncio.wait({joining})
    if not joining.cancelled():
        (await joining).abort(ConnectionLostError("done"))
    await turn(3)
    assert connection.has_ended
    assert over
