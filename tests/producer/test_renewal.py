"""Publishing by TLS to an nsqd that can write to a connection for a short time only: it is replaced in time."""

import asyncio

import pytest

from nsq_ha import Producer, Receipt
from nsq_ha.policy import tls_renewal
from nsq_ha.protocol import Command
from tests.support.inside import tls_in_memory, topics_of
from tests.support.nsqd import LIMIT, Holding, Peer, Publish
from tests.support.stage import TOPIC, Stage
from tests.support.tls import TLS, replaced_soon, secure, without_collector
from tests.support.waiting import eventually, turn


@pytest.fixture
def secured(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    secure(stage)
    replaced_soon(monkeypatch)
    return stage


@pytest.fixture
def holding(secured: Stage) -> Holding:
    holding = Holding()
    secured.nsqd.script = holding
    return holding


def publish(producer: Producer, body: bytes, key: bytes | None = None) -> asyncio.Task[Receipt]:
    return asyncio.create_task(producer.publish(TOPIC, body, key=key))


async def opened(producer: Producer) -> None:
    """Return when another connection is open, and the one before has not answered."""
    lane = topics_of(producer)[TOPIC].lanes[0]
    await eventually(lambda: lane.conn is not None and lane.conn.is_draining)


def written(peer: Peer) -> list[bytes]:
    return [command.body for command in peer.of(*Publish)]  # type: ignore[attr-defined]


async def test_publishes_go_over_many_connections_and_none_is_written_twice(secured: Stage) -> None:
    count = 0
    async with secured.producer(tls=TLS) as producer:
        while len(secured.nsqd.peers) < 5:
            receipt = await producer.publish(TOPIC, b"%d" % count)
            assert receipt.attempts == 1
            count += 1
    bodies = [body for peer in secured.nsqd.peers for body in written(peer)]
    assert bodies == [b"%d" % number for number in range(count)]


@pytest.mark.slow
@pytest.mark.real_time
async def test_replaced_connections_do_not_stay_in_memory(secured: Stage) -> None:
    """Few are left without the collector, which comes rarely: attempts that were given up, if the machine is busy."""
    with without_collector():
        async with secured.producer(tls=TLS, connect_timeout=LIMIT) as producer:
            while len(secured.nsqd.peers) < 12:
                await producer.publish(TOPIC, b"x")
        await eventually(lambda: tls_in_memory() <= 4)


async def test_the_next_connection_is_written_to_when_the_last_one_has_answered(
    secured: Stage, holding: Holding
) -> None:
    """The order in which a server reads from two connections is unknown."""
    async with secured.producer(tls=TLS) as producer:
        before = [publish(producer, body, b"key") for body in (b"1", b"2")]
        await secured.nsqd.until(lambda: holding.has(1))
        await opened(producer)
        after = publish(producer, b"3", b"another key")
        await turn(20)
        first, second = secured.nsqd.peers[:2]
        assert (written(first), written(second)) == ([b"1"], [])
        secured.nsqd.script = None
        holding.release()
        assert [(await task).attempts for task in (*before, after)] == [1, 1, 1]
        assert written(first) == [b"1"]
        assert sorted(written(second)) == [b"2", b"3"]
        await secured.nsqd.until(lambda: not first.is_open)


async def test_what_is_not_answered_in_time_is_in_doubt_and_tried_by_one_publish(
    secured: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have stored them, so few are written again while it does not answer."""
    monkeypatch.setattr(tls_renewal, "WRITES_FOR", 1.0)
    holding = Holding()
    secured.nsqd.script = holding
    async with secured.producer(tls=TLS) as producer:
        tasks = [publish(producer, b"%d" % number) for number in range(5)]
        await secured.nsqd.until(lambda: holding.has(5))
        await secured.nsqd.until(lambda: len(holding.held) > 5)
        assert len(holding.held) == 6
        secured.nsqd.script = None
        peer, command = holding.held[-1]
        peer.nsqd.answer(peer, command)
        receipts = await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
        assert {receipt.attempts for receipt in receipts} <= {2, 3}


async def test_what_a_silent_leader_left_unanswered_is_tried_over_each_next_connection(stage: Stage) -> None:
    """It was doubted before its connection was replaced: the next connection is not doubted for that."""
    secure(stage)
    stage.nsqd.script = holding = Holding()
    async with stage.producer(tls=TLS) as producer:
        tasks = [publish(producer, b"%d" % number, b"key %d" % number) for number in range(5)]
        await stage.nsqd.until(lambda: len(holding.held) == 7)
        assert [len(written(peer)) for peer in stage.nsqd.peers if written(peer)] == [5, 1, 1]
        stage.nsqd.script = None
        peer, command = holding.held[-1]
        peer.nsqd.answer(peer, command)
        receipts = await asyncio.gather(*tasks)
        assert sorted(receipt.attempts for receipt in receipts) == [2, 2, 2, 2, 3]


async def test_partitions_above_the_limit_share_connections_that_are_replaced(secured: Stage) -> None:
    partitions, most = 12, 0
    secured.lead(dict.fromkeys(range(partitions), secured.nsqd))

    def script(peer: Peer, command: Command) -> bool:
        nonlocal most
        most = max(most, len(secured.nsqd.open_peers))
        return False

    secured.nsqd.script = script
    count = 0
    async with secured.producer(tls=TLS, connections_per_nsqd=3) as producer:
        while len(secured.nsqd.peers) < 12:
            tasks = [producer.publish(TOPIC, b"%d" % count, partition=number) for number in range(partitions)]
            receipts = await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
            assert {receipt.attempts for receipt in receipts} == {1}
            count += 1
        await eventually(lambda: len(secured.nsqd.open_peers) <= 4)
    assert most <= 8  # each one, and the one that replaces it
    bodies = [body for peer in secured.nsqd.peers for body in written(peer)]
    assert sorted(bodies) == sorted(b"%d" % number for number in range(count) for _ in range(partitions))


async def test_a_new_leader_takes_over_while_connections_are_replaced(secured: Stage) -> None:
    async with secured.producer(tls=TLS, lookup_interval=0.1) as producer:
        while len(secured.nsqd.peers) < 3:
            await producer.publish(TOPIC, b"here")
        secured.lead({0: secured.nsqds[1]})

        async def is_there() -> bool:
            return (await producer.publish(TOPIC, b"there")).nsqd == secured.nsqds[1].node.address

        await eventually(is_there)
        await eventually(lambda: not secured.nsqd.open_peers)
