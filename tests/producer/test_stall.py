"""A leader that does not answer: what may go elsewhere does, the rest waits for it."""

import asyncio
import functools

import pytest

from nsq_ha import Producer, Receipt
from nsq_ha.errors import PublishError, ResponseTimeoutError
from nsq_ha.policy.liveness import STALLED_AFTER
from nsq_ha.producer import connections
from tests.support.nsqd import LIMIT, Holding
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import block, eventually, stop_process

AMPLE = 4 * STALLED_AFTER
"""Seconds within which a machine that is not too busy has done what takes ``STALLED_AFTER``."""


def _held_or_done(holding: Holding, task: "asyncio.Task[Receipt]") -> bool:
    return bool(holding.held) or task.done()


async def until_one_is_held(producer: Producer, holding: Holding) -> "asyncio.Task[Receipt]":
    """Publish without key until partition 0 has one that it does not answer; return its publish."""
    while True:
        task = asyncio.create_task(producer.publish(TOPIC, b"free"))
        await eventually(functools.partial(_held_or_done, holding, task))
        if holding.held:
            return task


async def test_what_may_go_anywhere_goes_elsewhere(stage: Stage, holding: Holding) -> None:
    loop = asyncio.get_running_loop()
    async with stage.producer() as producer:
        began = loop.time()
        receipt = await (await until_one_is_held(producer, holding))
        assert (receipt.partition, receipt.attempts) == (1, 2)
        assert STALLED_AFTER <= loop.time() - began < AMPLE
        holding.release()


async def test_then_the_slow_partition_gets_single_messages_until_it_answers(stage: Stage, holding: Holding) -> None:
    async with stage.producer() as producer:
        await (await until_one_is_held(producer, holding))
        # Its first one is not answered yet: nothing more goes there.
        assert {(await producer.publish(TOPIC, b"x")).partition for _ in range(20)} == {1}
        assert holding.has(1)
        holding.release()
        stage.nsqds[0].script = None
        found = asyncio.Event()

        async def until_it_is_used() -> None:
            while (await producer.publish(TOPIC, b"x")).partition != 0:
                pass
            found.set()

        await asyncio.wait_for(until_it_is_used(), 10.0)
        assert {(await producer.publish(TOPIC, b"x")).partition for _ in range(6)} == {0, 1}


async def test_an_answer_that_comes_first_after_all_ends_the_publish(stage: Stage, holding: Holding) -> None:
    other = Holding()
    async with stage.producer() as producer:
        task = await until_one_is_held(producer, holding)
        stage.nsqds[1].script = other
        await eventually(lambda: other.held)
        holding.release()
        receipt = await task
        assert (receipt.partition, receipt.attempts) == (0, 2)  # the other one may store it, too
        other.release()


@pytest.mark.real_time
async def test_an_answer_that_came_while_the_process_was_stopped_counts(stage: Stage, holding: Holding) -> None:
    """The publish would be stored by another leader, too."""
    async with stage.producer() as producer:
        task = await until_one_is_held(producer, holding)
        stop_process(2 * STALLED_AFTER, holding.release)
        receipt = await task
    assert (receipt.partition, receipt.attempts) == (0, 1)


@pytest.mark.real_time
@pytest.mark.parametrize("limit_of_call", [1.0, None])
async def test_such_an_answer_is_in_time(stage: Stage, holding: Holding, limit_of_call: float | None) -> None:
    async with stage.producer(publish_timeout=1.0 if limit_of_call is None else LIMIT) as producer:
        task = asyncio.create_task(producer.publish(TOPIC, b"x", partition=0, timeout=limit_of_call))
        await eventually(lambda: holding.has(1))
        stop_process(2.0, holding.release)
        assert (await task).attempts == 1


@pytest.mark.real_time
@pytest.mark.parametrize("limit_of_call", [1.0, None])
async def test_nor_is_it_late_if_the_process_goes_on_just_after_the_limit(
    stage: Stage, holding: Holding, limit_of_call: float | None
) -> None:
    loop = asyncio.get_running_loop()

    def answer() -> None:
        holding.release()
        block(began + 1.02 - loop.time())

    async with stage.producer(publish_timeout=1.0 if limit_of_call is None else LIMIT) as producer:
        began = loop.time()
        task = asyncio.create_task(producer.publish(TOPIC, b"x", partition=0, timeout=limit_of_call))
        await eventually(lambda: holding.has(1))
        stop_process(0.0, answer)
        assert (await task).attempts == 1


async def test_a_key_waits_for_its_leader(stage: Stage, holding: Holding) -> None:
    async with stage.producer() as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"x", partition=0, timeout=2 * STALLED_AFTER)
        assert caught.value.maybe_stored
        assert isinstance(caught.value.__cause__, ResponseTimeoutError)
        assert holding.has(1)
        assert "has not answered" in str(caught.value)


async def test_without_a_healthy_partition_all_wait(stage: Stage, holding: Holding) -> None:
    stage.nsqds[1].script = holding
    async with stage.producer() as producer:
        tasks = [asyncio.create_task(producer.publish(TOPIC, b"x")) for _ in range(4)]
        await eventually(lambda: holding.has(4))
        await asyncio.wait(tasks, timeout=1.5 * STALLED_AFTER)
        # What was sent first may have found the other partition healthy for a moment; nothing circles.
        assert len(holding.held) <= 2 * len(tasks)
        holding.release(len(holding.held))
        receipts = await asyncio.gather(*tasks)
        assert all(receipt.attempts <= 2 for receipt in receipts)


async def test_what_was_sent_later_gets_its_own_time(stage: Stage, holding: Holding) -> None:
    async with stage.producer() as producer:
        first = await until_one_is_held(producer, holding)
        await asyncio.wait({first}, timeout=STALLED_AFTER / 2)
        later = [asyncio.create_task(producer.publish(TOPIC, b"x")) for _ in range(4)]
        await eventually(lambda: holding.has(3))
        assert (await first).partition == 1
        assert sum(task.done() for task in later) == 2
        holding.release(3)
        receipts = await asyncio.gather(*later)
        assert {receipt.attempts for receipt in receipts} == {1}
        assert [receipt.partition for receipt in receipts].count(0) == 2


async def test_set_to_fail_it_stays_where_it_is(stage: Stage, holding: Holding) -> None:
    async with stage.producer(on_unreachable="fail") as producer:
        task = await until_one_is_held(producer, holding)
        await asyncio.wait({task}, timeout=1.5 * STALLED_AFTER)
        assert not task.done()
        holding.release()
        assert (await task).partition == 0


async def test_a_leader_that_answers_one_by_one_keeps_what_it_has(stage: Stage, holding: Holding) -> None:
    async with stage.producer() as producer:
        tasks = [await until_one_is_held(producer, holding)]
        # All at once, in turn to both partitions: before the one that is held makes its leader a slow one.
        tasks += [asyncio.create_task(producer.publish(TOPIC, b"x")) for _ in range(8)]
        await eventually(lambda: holding.has(5))
        while holding.held:
            holding.release()
            await asyncio.wait(tasks, timeout=STALLED_AFTER / 2)
        receipts = await asyncio.gather(*tasks)
        assert {receipt.attempts for receipt in receipts} == {1}
        assert [receipt.partition for receipt in receipts].count(0) == 5


@pytest.fixture
def overdue_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "OVERDUE_AFTER", 2 * STALLED_AFTER)


@pytest.mark.usefixtures("overdue_soon")
async def test_a_leader_that_only_sends_heartbeats_is_left(
    stage: Stage, holding: Holding, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.producer(sharding="modulo") as producer:
        tasks = [asyncio.create_task(producer.publish(TOPIC, b"x", key=key)) for key in (0, 2)]
        await eventually(lambda: holding.has(2))
        behind = asyncio.create_task(producer.publish(TOPIC, b"behind", key=0))
        await asyncio.wait(tasks)
        stage.nsqds[0].script = None
        for task in tasks:
            with pytest.raises(PublishError, match="answered no publish for") as caught:
                await task
            assert (caught.value.attempts, caught.value.maybe_stored) == (1, True)
        # What was never written is not in doubt, and goes on over a new connection.
        assert (await behind).attempts == 1
        assert [peer.is_open for peer in stage.nsqds[0].peers] == [False, True]
        assert sum("closing its connection" in record.message for record in caplog.records) == 1
