"""Answers that do not come: connections that end, peers that are silent, callers that go."""

import asyncio

import pytest

from nsq_ha.errors import ClosedError, ConnectError, ConnectionLostError, PublishError, ResponseTimeoutError
from nsq_ha.protocol import Pub
from tests.support.nsqd import LIMIT, Holding
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import turn


@pytest.fixture
def holding(stage: Stage) -> Holding:
    holding = Holding()
    stage.nsqd.script = holding
    return holding


async def test_a_lost_answer_is_tried_again_and_counted(stage: Stage, holding: Holding) -> None:
    async with stage.producer() as producer:
        task = asyncio.create_task(producer.publish(TOPIC, b"x", key="k"))
        await stage.nsqd.until(lambda: holding.held)
        holding.held.pop()[0].close()
        await stage.nsqd.until(lambda: holding.held)
        holding.release()
        assert (await task).attempts == 2


async def test_a_lost_answer_fails_in_doubt_where_that_is_asked_for(stage: Stage, holding: Holding) -> None:
    async with stage.producer(on_unreachable="fail") as producer:
        task = asyncio.create_task(producer.publish(TOPIC, b"x", key="k"))
        await stage.nsqd.until(lambda: holding.held)
        holding.held.pop()[0].abort()
        with pytest.raises(PublishError) as caught:
            await task
        assert isinstance(caught.value.__cause__, ConnectionLostError)
        assert (caught.value.attempts, caught.value.maybe_stored) == (1, True)
        assert caught.value.nsqd == stage.nsqd.node.address


async def test_what_failed_is_not_sent_after_all(stage: Stage, holding: Holding) -> None:
    # The leader moves while an answer is outstanding: the caller gets the error, so the new leader must not.
    stage.lead({0: stage.nsqds[0]})
    async with stage.producer(on_unreachable="fail", lookup_interval=0.2) as producer:
        task = asyncio.create_task(producer.publish(TOPIC, b"x", key="k"))
        await stage.nsqd.until(lambda: holding.held)
        stage.lead({0: stage.nsqds[1]})
        with pytest.raises(PublishError) as caught:
            await task
        assert caught.value.maybe_stored
        assert (await producer.publish(TOPIC, b"y", key="k")).nsqd == stage.nsqds[1].node.address
    assert [command.body for command in stage.nsqds[1].commands if isinstance(command, Pub)] == [b"y"]


async def test_of_one_key_one_publish_is_unanswered(stage: Stage, holding: Holding) -> None:
    async with stage.producer() as producer:
        tasks = [
            asyncio.create_task(producer.publish(TOPIC, b"%s:%d" % (key, n), key=key))
            for n in range(5)
            for key in (b"a", b"b")
        ]
        seen: list[bytes] = []
        while len(seen) < 10:
            await stage.nsqd.until(lambda: len(holding.held) == 2)
            assert sorted(body[:1] for body in holding.bodies()) == [b"a", b"b"]
            seen += holding.bodies()
            holding.release(2)
        await asyncio.gather(*tasks)
    assert [body for body in seen if body.startswith(b"a")] == [b"a:%d" % n for n in range(5)]
    assert [body for body in seen if body.startswith(b"b")] == [b"b:%d" % n for n in range(5)]


async def test_after_a_lost_connection_each_key_goes_on_in_order(stage: Stage, holding: Holding) -> None:
    async with stage.producer() as producer:
        tasks = [
            asyncio.create_task(producer.publish(TOPIC, b"%d:%d" % (key, n), key=key))
            for n in range(3)
            for key in range(3)
        ]
        await stage.nsqd.until(lambda: len(holding.held) == 3)
        holding.release(1)
        await stage.nsqd.until(lambda: len(holding.held) == 3)
        in_doubt = holding.bodies()
        holding.held[0][0].abort()
        holding.held.clear()
        stored: list[bytes] = []
        while len(stored) < 8:
            await stage.nsqd.until(lambda: holding.held)
            stored += holding.bodies()
            holding.release(len(holding.held))
        receipts = await asyncio.gather(*tasks)
    for key in range(3):
        own = [body for body in stored if body.startswith(b"%d:" % key)]
        assert own == [b"%d:%d" % (key, n) for n in range(3 - len(own), 3)]
    assert set(in_doubt) <= set(stored)
    assert sorted(receipt.attempts for receipt in receipts) == [1] * 6 + [2] * 3


async def test_a_late_answer_goes_to_its_own_publish(stage: Stage, holding: Holding) -> None:
    async with stage.producer() as producer:
        late = asyncio.create_task(producer.publish(TOPIC, b"late", key="a", trace_id=1, timeout=1.0))
        await stage.nsqd.until(lambda: holding.held)
        with pytest.raises(PublishError) as caught:
            await late
        assert isinstance(caught.value.__cause__, ResponseTimeoutError)
        assert (caught.value.attempts, caught.value.maybe_stored) == (1, True)
        after = asyncio.create_task(producer.publish(TOPIC, b"after", key="b", trace_id=2))
        await stage.nsqd.until(lambda: len(holding.held) == 2)
        holding.release(2)
        assert (await after).trace_id == 2


async def test_a_publish_that_was_never_written_is_surely_not_stored(stage: Stage, holding: Holding) -> None:
    async with stage.producer(window=1) as producer:
        first = asyncio.create_task(producer.publish(TOPIC, b"first", key="a"))
        await stage.nsqd.until(lambda: holding.held)
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"second", key="b", timeout=0.2)
        assert (caught.value.attempts, caught.value.maybe_stored) == (0, False)
        holding.release()
        await first
        assert holding.held == []


async def test_a_cancelled_publish_that_was_not_written_is_never_sent(stage: Stage, holding: Holding) -> None:
    async with stage.producer(window=1) as producer:
        first = asyncio.create_task(producer.publish(TOPIC, b"first", key="a"))
        await stage.nsqd.until(lambda: holding.held)
        second = asyncio.create_task(producer.publish(TOPIC, b"second", key="b"))
        third = asyncio.create_task(producer.publish(TOPIC, b"third", key="c"))
        await turn()
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        holding.release()
        await first
        await stage.nsqd.until(lambda: holding.held)
        assert holding.bodies() == [b"third"]
        holding.release()
        await third


async def test_a_silent_leader(stage: Stage, holding: Holding) -> None:
    loop = asyncio.get_running_loop()
    async with stage.producer(heartbeat_interval=1.0) as producer:
        began = loop.time()
        task = asyncio.create_task(producer.publish(TOPIC, b"x", key="k"))
        await stage.nsqd.until(lambda: holding.held)
        holding.held.pop()[0].stop_heartbeats()
        # The silence of two heartbeats ends the connection, a new one gets it again.
        await stage.nsqd.until(lambda: holding.held)
        assert loop.time() - began < 3 * 3.0
        holding.release()
        assert (await task).attempts == 2
    assert len(stage.nsqd.peers) == 2


async def test_a_leader_that_never_answers_a_connect(stage: Stage) -> None:
    stage.nsqd.is_silent = True
    async with stage.producer(connect_timeout=0.2) as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"x", key="k", timeout=0.7)
        assert isinstance(caught.value.__cause__, ConnectError)
        assert (caught.value.attempts, caught.value.maybe_stored) == (0, False)


# ------------------------------------------------------------ closing


async def test_closing_fails_what_is_not_answered(stage: Stage, holding: Holding) -> None:
    loop = asyncio.get_running_loop()
    async with stage.producer(close_timeout=0.3, window=1) as producer:
        sent = asyncio.create_task(producer.publish(TOPIC, b"sent", key="a"))
        await stage.nsqd.until(lambda: holding.held)
        waiting = asyncio.create_task(producer.publish(TOPIC, b"waiting", key="b"))
        await turn()
        began = loop.time()
    assert loop.time() - began < 3.0
    for task, attempts, maybe_stored in ((sent, 1, True), (waiting, 0, False)):
        with pytest.raises(PublishError) as caught:
            await task
        assert isinstance(caught.value.__cause__, ClosedError)
        assert (caught.value.attempts, caught.value.maybe_stored) == (attempts, maybe_stored)
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)


async def test_a_cancelled_close_leaves_nothing(stage: Stage, holding: Holding) -> None:
    producer = stage.producer()
    await producer.__aenter__()
    task = asyncio.create_task(producer.publish(TOPIC, b"x", key="k"))
    await stage.nsqd.until(lambda: holding.held)
    closing = asyncio.create_task(producer.aclose())
    await turn()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(PublishError) as caught:
        await task
    assert caught.value.maybe_stored
    await producer.aclose()
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)


async def test_a_second_close_waits_for_the_first(stage: Stage, holding: Holding) -> None:
    producer = stage.producer(close_timeout=LIMIT)
    await producer.__aenter__()
    task = asyncio.create_task(producer.publish(TOPIC, b"x", key="k"))
    await stage.nsqd.until(lambda: holding.held)
    closing = [asyncio.create_task(producer.aclose()) for _ in range(2)]
    await turn()
    assert not any(close.done() for close in closing)
    holding.release()
    await asyncio.gather(*closing)
    assert (await task).attempts == 1
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
