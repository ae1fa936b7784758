"""``Consumer.batches``: when a batch is handed out, and that none of its messages is ever lost."""

import asyncio
import contextlib
import logging
import sys
from typing import Any

import pytest

from nsq_ha import Backoff, Batch, ClosedError, ConfigError, Consumer, NsqError
from nsq_ha.protocol import Finish, Requeue, Touch
from tests.support.inside import consumer_machine_of, shell_of
from tests.support.nsqd import Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually, turn

pytestmark = pytest.mark.usefixtures("any_may_wait")


def deliver(peer: Peer, numbers: range, **fields: object) -> None:
    for number in numbers:
        peer.message(b"%d" % number, message_id(number + 2), **fields)


def bodies(batch: Batch) -> list[bytes]:
    return [message.body for message in batch]


def now() -> float:
    return asyncio.get_running_loop().time()


async def waiting(consumer: Consumer, count: int) -> None:
    await eventually(lambda: len(consumer_machine_of(consumer).queue) == count)


# ------------------------------------------------------------ when


async def test_a_full_batch_is_handed_out_at_once(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(7))
        await waiting(consumer, 7)
        began = now()
        batches = consumer.batches(3, 60.0)
        assert [bodies(await anext(batches)) for _ in range(2)] == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]
        assert now() - began < 1.0
        assert consumer_machine_of(consumer).queue[0].body == b"6"


async def test_a_partial_batch_is_handed_out_after_the_wait(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        loop = asyncio.get_running_loop()
        loop.call_later(10.0, deliver, peer, range(2))
        loop.call_later(11.0, deliver, peer, range(2, 3))
        loop.call_later(13.0, deliver, peer, range(3, 4))
        began = now()
        batches = consumer.batches(10, 2.0)
        assert bodies(await anext(batches)) == [b"0", b"1", b"2"]
        assert now() - began == pytest.approx(12.0, abs=0.1)
        assert bodies(await anext(batches)) == [b"3"]
        assert now() - began == pytest.approx(15.0, abs=0.1)


async def test_without_a_wait_a_batch_is_what_is_there(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(4))
        await waiting(consumer, 4)
        began = now()
        assert bodies(await anext(consumer.batches(10, 0))) == [b"0", b"1", b"2", b"3"]
        assert now() - began < 0.5


async def test_no_wait_for_what_cannot_come(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async with stage.consumer(max_in_flight=3) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(3))
        began = now()
        batches = consumer.batches(10, 60.0)
        batch = await anext(batches)
        assert (len(batch), now() - began < 1.0) == (3, True)
        batch.finish()
        deliver(peer, range(3, 6))
        assert len(await anext(batches)) == 3
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lines == ["orders/ch: batches get at most max_in_flight=3 messages: raise it to max_messages=10 or more"]


async def test_an_ordered_topic_gives_one_message_of_each_partition(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]}, ordered=True)
    async with stage.consumer() as consumer:
        peers = [await nsqd.subscriber() for nsqd in stage.nsqds[:2]]
        began = now()
        batches = consumer.batches(10, 60.0)
        for partition, peer in enumerate(peers):
            peer.message(b"%d" % partition, message_id(2, partition))
        batch = await anext(batches)
        assert (sorted(bodies(batch)), now() - began < 1.0) == ([b"0", b"1"], True)
        batch.finish()
        peers[1].message(b"next", message_id(3, 1))
        began = now()
        assert bodies(await anext(consumer.batches(10, 2.0))) == [b"next"]
        assert now() - began == pytest.approx(2.0, abs=0.2)


async def test_the_test_after_a_failure_is_a_batch_of_its_own(stage: Stage) -> None:
    pauses = Backoff(initial=1.0, maximum=1.0, jitter=0.0)
    async with stage.consumer(handler_backoff=pauses) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(8))
        await waiting(consumer, 8)
        batches = consumer.batches(2, 60.0)
        for _ in range(2):
            with contextlib.suppress(ValueError):
                async with await anext(batches):
                    raise ValueError
        began = now()
        test = await anext(batches)
        assert bodies(test) == [b"4"]
        assert now() - began == pytest.approx(1.0, abs=0.1)
        test.finish()
        assert bodies(await anext(batches)) == [b"5", b"6"]


# ------------------------------------------------------------ answers


async def test_a_block_finishes_or_requeues_all(stage: Stage) -> None:
    async with stage.consumer(handler_backoff=None) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(6))
        await waiting(consumer, 6)
        batches = consumer.batches(3, 1.0)
        async with await anext(batches) as batch:
            batch[1].requeue(7.0)
        with contextlib.suppress(ValueError):
            async with await anext(batches) as batch:
                batch[-1].finish()
                raise ValueError
        await stage.nsqd.until(lambda: len(peer.of(Finish, Requeue)) == 6)
    assert {command.message_id for command in peer.of(Finish)} == {message_id(n) for n in (2, 4, 7)}  # type: ignore[attr-defined]
    assert Requeue(message_id(3), 7000) in peer.commands


async def test_answering_all(stage: Stage) -> None:
    async with stage.consumer(handler_backoff=None) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(6))
        await waiting(consumer, 6)
        batches = consumer.batches(2, 1.0)
        first, second, third = [await anext(batches) for _ in range(3)]
        first.touch()
        first[0].finish()
        first.finish()
        with pytest.raises(ConfigError, match="delay"):
            second.requeue(-1.0)
        assert not any(message.answered for message in second)
        second.requeue(3.0)
        second.finish()
        with third:
            pass
        await stage.nsqd.until(lambda: len(peer.of(Finish, Requeue, Touch)) == 8)
    assert peer.of(Requeue) == [Requeue(message_id(4), 3000), Requeue(message_id(5), 3000)]
    assert (repr(first), len(first), first[:1]) == ("<Batch of 2 messages>", 2, (first[0],))


# ------------------------------------------------------------ cancelling, closing, losing


async def test_cancelling_loses_nothing_and_counts_no_attempt(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(3))
        await waiting(consumer, 3)
        batches = consumer.batches(10, 60.0)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(batches), 0.5)
        deliver(peer, range(3, 10))
        batch = await anext(batches)
        assert bodies(batch) == [b"%d" % number for number in range(10)]
        assert not peer.of(Requeue)
        batch.finish()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 10)


async def test_after_a_cancellation_single_messages_continue(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(3))
        await waiting(consumer, 3)
        filling = asyncio.ensure_future(anext(consumer.batches(10, 60.0)))
        await turn(5)
        filling.cancel()
        await asyncio.wait({filling})
        assert [(await anext(consumer)).body for _ in range(3)] == [b"0", b"1", b"2"]


async def collect(consumer: Consumer, found: list[list[bytes]]) -> None:
    async for batch in consumer.batches(10, 60.0):
        async with batch:
            found.append(bodies(batch))


async def test_a_close_hands_out_the_last_partial_batch(stage: Stage) -> None:
    found: list[list[bytes]] = []
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        collecting = asyncio.create_task(collect(consumer, found))
        deliver(peer, range(3))
        await eventually(
            lambda: consumer_machine_of(consumer).flow.in_flight == 3 and not consumer_machine_of(consumer).queue
        )
        await consumer.aclose()
        await collecting
    assert found == [[b"0", b"1", b"2"]]
    assert len(peer.of(Finish)) == 3


async def test_leaving_the_loop_gives_the_batch_back(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(3))
        async for batch in consumer.batches(2, 1.0):
            assert len(batch) == 2
            break
    await eventually(lambda: not peer.is_open)
    assert not peer.of(Finish)


async def test_messages_of_a_lost_connection_are_not_in_the_batch(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    async with stage.consumer() as consumer:
        lost, kept = [await nsqd.subscriber() for nsqd in stage.nsqds[:2]]
        batches = consumer.batches(10, 5.0)
        filling = asyncio.ensure_future(anext(batches))
        lost.message(b"lost", message_id(2))
        await dawdle(1.0)
        lost.abort()
        await dawdle(1.0)
        kept.message(b"kept", message_id(3, 1))
        assert bodies(await filling) == [b"kept"]
        lost = await stage.nsqds[0].subscriber()
        filling = asyncio.ensure_future(anext(batches))
        lost.message(b"lost", message_id(2))
        await dawdle(1.0)
        lost.abort()
        await dawdle(10.0)
        assert not filling.done()
        kept.message(b"later", message_id(4, 1))
        assert bodies(await filling) == [b"later"]


async def test_a_refusal_comes_after_the_batch(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        batches = consumer.batches(10, 60.0)
        deliver(peer, range(2))
        filling = asyncio.ensure_future(anext(batches))
        await eventually(
            lambda: consumer_machine_of(consumer).flow.in_flight == 2 and not consumer_machine_of(consumer).queue
        )
        shell_of(consumer).refused(NsqError("refused"))
        assert bodies(await filling) == [b"0", b"1"]
        with pytest.raises(NsqError, match="refused"):
            await anext(batches)


async def test_several_tasks_share_the_messages(stage: Stage) -> None:
    found: list[list[bytes]] = []
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(collect(consumer, found))
            await turn(5)
            deliver(peer, range(60))
            await stage.nsqd.until(lambda: len(peer.of(Finish)) == 60)
            await consumer.aclose()
    assert sorted(body for each in found for body in each) == sorted(b"%d" % number for number in range(60))


async def test_no_batches_while_run_is_active(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(print))
        await turn(3)
        with pytest.raises(ConfigError, match="run"):
            await anext(consumer.batches())
        await consumer.aclose()
        await running


async def test_a_closed_consumer_has_no_batches(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        batches = consumer.batches()
    assert [batch async for batch in batches] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((0, 1.0), "max_messages must be an int of 1..1000000, not 0"),
        ((True, 1.0), "max_messages must be"),
        ((2.0, 1.0), "max_messages must be"),
        ((1_000_001, 1.0), "max_messages must be"),
        ((10, -1.0), "max_wait must be 0..86400 seconds, not -1.0"),
        ((10, float("nan")), "max_wait must be"),
        ((10, None), "max_wait must be"),
        ((10, True), "max_wait must be"),
    ],
)
async def test_wrong_arguments(stage: Stage, arguments: Any, text: str) -> None:  # noqa: ANN401
    async with stage.consumer() as consumer:
        with pytest.raises(ConfigError, match=text):
            consumer.batches(*arguments)


async def test_an_answered_batch_does_not_stay_in_memory(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=40) as consumer:
        peer = await stage.nsqd.subscriber()
        for number in range(40):
            peer.message(bytes(256 * 1024), message_id(number + 2))
        batch = await anext(consumer.batches(40, 60.0))
        held = [message.body for message in batch]
        batch.finish()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 40)
        del batch
        only_ours = {sys.getrefcount(body) for body in [bytes(9)]}
        assert {sys.getrefcount(body) for body in held} == only_ours


# -- one message, for a limited time


async def test_get_raises_a_timeout_error_and_the_next_call_goes_on(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError, match=r"^orders/ch: no message came within 2.5 s$") as raised:
            await consumer.get(timeout=2.5)
        assert not isinstance(raised.value, NsqError)
        assert 2.5 <= loop.time() - began < 2.6
        peer.message(b"late")
        async with await consumer.get() as message:
            assert message.body == b"late"
        with pytest.raises(ConfigError, match="timeout must be"):
            await consumer.get(timeout=0)
    with pytest.raises(ClosedError, match="the consumer is closed"):
        await consumer.get(timeout=1.0)


async def test_a_message_that_get_returned_belongs_to_the_task_that_called_it(stage: Stage) -> None:
    """Not to the one that ``wait_for`` makes: the close of another task waits for its answer."""
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"mine")
        message = await asyncio.wait_for(consumer.get(timeout=5.0), 10.0)
        closing = asyncio.create_task(consumer.aclose())
        await turn(10)
        assert not closing.done()
        message.finish()
        await closing
        assert len(peer.of(Finish)) == 1
