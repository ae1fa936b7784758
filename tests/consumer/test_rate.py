"""``max_rate``: messages a second, whatever RDY and the handlers would allow."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from nsq_ha import Backoff, ConfigError, Consumer, Message
from nsq_ha.protocol import Finish, Identity, Requeue
from tests.support.inside import consumer_machine_of
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually
from tests.support.work import work

TIMEOUT = 10.0
Handed = list[tuple[float, bytes]]


@pytest.fixture
async def stage(nothing_is_left: None) -> AsyncIterator[Stage]:
    async with Stage(3, Identity(version="fake", msg_timeout=int(TIMEOUT * 1000))) as stage:
        yield stage


def now() -> float:
    return asyncio.get_running_loop().time()


def recording(handed: Handed, takes: float = 0.0) -> Callable[[Message], Any]:
    async def handle(message: Message) -> None:
        handed.append((now(), message.body))
        if takes:
            await dawdle(takes)

    return handle


async def feed(stage: Stage, count: int) -> list[asyncio.Task[None]]:
    """Have each subscribed nsqd deliver ``count`` messages, as fast as RDY allows."""
    peers = [await nsqd.subscriber() for nsqd in stage.nsqds if nsqd.peers]
    return [asyncio.create_task(peer.feed([b"%d" % number for number in range(count)])) for peer in peers]


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def times(handed: Handed, since: float, seconds: float) -> int:
    return sum(since <= at < since + seconds for at, _ in handed)


def most_unanswered(consumer: Consumer) -> int:
    return max(each.in_flight for each in consumer.stats().partitions)


@pytest.mark.few(2)
@pytest.mark.parametrize("iterates", [True, False])
@pytest.mark.parametrize("rate", [0.5, 10.0, 200.0])
async def test_messages_are_handed_out_at_the_rate(stage: Stage, rate: float, *, iterates: bool) -> None:
    stage.lead(dict(enumerate(stage.nsqds)))
    handed: Handed = []
    async with stage.consumer(max_rate=rate) as consumer:
        await consumer.wait_subscribed()
        running = asyncio.create_task(work(consumer, recording(handed), iterates=iterates))
        feeding = await feed(stage, 10_000)
        await eventually(lambda: len(handed) >= rate)  # one second's worth comes at once
        began = now()
        seconds = 40.0 if rate < 1 else 15.0
        await dawdle(seconds)
        assert times(handed, began, seconds) == pytest.approx(seconds * rate, rel=0.02, abs=1)
        stats = consumer.stats()
        assert (stats.max_rate, stats.timed_out, stats.requeued) == (rate, 0, 0)
        assert stats.in_flight <= max(rate, 3) * 1.4 + 1
        assert stats.limited_seconds == pytest.approx(seconds, rel=0.15)
        assert f"limited: max_rate={rate:g} messages a second" in str(consumer.health())
        await stop(feeding)
    await running


async def test_a_rate_of_less_than_one_in_the_message_timeout_asks_just_before_the_turn(stage: Stage) -> None:
    """A message that waited for its turn here timed out, and came again."""
    handed: Handed = []
    async with stage.consumer(max_rate=0.15) as consumer:
        running = asyncio.create_task(work(consumer, recording(handed), iterates=False))
        peer = await stage.nsqd.subscriber()
        feeding = asyncio.create_task(peer.feed([b"%d" % number for number in range(100)]))
        await eventually(lambda: handed)
        assert peer.ready == 0
        for number in range(1, 4):
            await eventually(lambda: peer.ready == 1, limit=9)
            waiting_since = now()
            await eventually(lambda: len(handed) > number, limit=9)  # noqa: B023 - awaited here
            assert now() - waiting_since <= TIMEOUT / 2 + 0.1
            await eventually(lambda: peer.ready == 0)
        assert handed[3][0] - handed[0][0] == pytest.approx(20, rel=0.02)
        assert consumer.stats().limited_seconds == pytest.approx(20, rel=0.15)  # what waits at the nsqd counts, too
        await stop([feeding])
    await running


async def test_changes_count_at_once(stage: Stage) -> None:
    handed: Handed = []
    async with stage.consumer(max_rate=10.0) as consumer:
        running = asyncio.create_task(work(consumer, recording(handed), iterates=True))
        feeding = await feed(stage, 100_000)
        for rate in (50.0, 2.0, 0.01, 20.0):
            consumer.set_max_rate(rate)
            assert consumer.max_rate == rate
            began = now()
            await dawdle(8.0)
            assert times(handed, began, 8.0) == pytest.approx(8 * rate, rel=0.05, abs=2)
            assert consumer.stats().timed_out == 0
        consumer.set_max_rate(None)
        assert consumer.max_rate is None
        began = now()
        await dawdle(0.05)
        assert times(handed, began, 0.05) > 100
        assert consumer.stats().limited_seconds > 0
        consumer.set_max_rate(20.0)
        began = now()
        await dawdle(5.0)
        assert times(handed, began, 5.0) <= 101
        await stop(feeding)
    await running


async def test_a_burst_is_handed_out_at_once(stage: Stage) -> None:
    handed: Handed = []
    async with stage.consumer(max_rate=20.0) as consumer:
        running = asyncio.create_task(work(consumer, recording(handed), iterates=False))
        feeding = await feed(stage, 1000)
        await eventually(lambda: len(handed) >= 18)
        assert handed[17][0] - handed[0][0] < 0.5
        await dawdle(20.0)
        assert len(handed) == pytest.approx(420, abs=4)
        await stop(feeding)
    await running


async def test_slow_handlers_hold_no_more_than_they_work_on_and_what_is_due(stage: Stage) -> None:
    handed: Handed = []
    async with stage.consumer(max_rate=2.0) as consumer:
        running = asyncio.create_task(consumer.run(recording(handed, takes=8.0), concurrency=100))
        feeding = await feed(stage, 1000)
        for _ in range(40):
            await dawdle(1.0)
            assert len(consumer_machine_of(consumer).queue) <= 8
        assert len(handed) == pytest.approx(80, abs=3)
        assert consumer.stats().timed_out == 0
        await stop(feeding)
    await running


async def test_ordered_partitions_keep_their_one_message(stage: Stage) -> None:
    stage.lead(dict(enumerate(stage.nsqds)), ordered=True)
    handed: Handed = []
    async with stage.consumer(max_rate=3.0) as consumer:
        await consumer.wait_subscribed()
        running = asyncio.create_task(work(consumer, recording(handed), iterates=False))
        feeding = await feed(stage, 1000)
        await eventually(lambda: len(handed) >= 9)  # in real time: an ordered channel asks an nsqd over HTTP
        assert handed[8][0] - handed[0][0] >= 1.5  # one second's worth comes at once
        assert [nsqd.peers[0].ready for nsqd in stage.nsqds] == [1, 1, 1]
        assert most_unanswered(consumer) <= 1
        await stop(feeding)
    await running


async def test_a_pause_after_a_failure_goes_first(stage: Stage) -> None:
    """A test message needs its turn, too; while the consumer pauses, turns are not used up by what is kept."""
    calls: Handed = []

    async def handle(message: Message) -> None:
        calls.append((now(), message.body))
        if len(calls) in {5, 6, 7}:
            raise ValueError

    backoff = Backoff(initial=4.0, maximum=4.0, factor=1.0, jitter=0.0)
    async with stage.consumer(max_rate=10.0, handler_backoff=backoff) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        feeding = await feed(stage, 1000)
        await eventually(lambda: len(calls) > 8)
        assert calls[6][0] - calls[5][0] == pytest.approx(4.0, abs=0.3)
        assert calls[7][0] - calls[6][0] == pytest.approx(4.0, abs=0.3)
        count, began = len(calls), now()
        await dawdle(10.0)
        assert len(calls) - count == pytest.approx(10 * (now() - began), abs=4)
        await stop(feeding)
    await running


async def test_pausing_wins_over_the_rate(stage: Stage) -> None:
    handed: Handed = []
    async with stage.consumer(max_rate=5.0) as consumer:
        running = asyncio.create_task(work(consumer, recording(handed), iterates=False))
        peer = await stage.nsqd.subscriber()
        feeding = await feed(stage, 1000)
        await eventually(lambda: len(handed) > 5)
        consumer.set_max_in_flight(0)
        await dawdle(5.0)
        count = len(handed)
        assert (peer.ready, consumer.stats().in_flight) == (0, 0)
        await dawdle(5.0)
        assert len(handed) == count
        consumer.set_max_in_flight(200)
        await eventually(lambda: len(handed) > count + 10)
        await stop(feeding)
    await running


async def test_closing_returns_what_waits_for_its_turn_at_once(stage: Stage) -> None:
    stage.list_plain(stage.nsqd)
    handed: Handed = []
    async with stage.consumer(max_rate=1.0) as consumer:
        running = asyncio.create_task(work(consumer, recording(handed), iterates=False))
        feeding = await feed(stage, 1000)
        await eventually(lambda: handed and consumer_machine_of(consumer).queue)
        await stop(feeding)
        began = now()
    assert now() - began < 1.0
    await running
    peer = stage.nsqd.peers[0]
    await stage.nsqd.until(lambda: len(peer.of(Finish)) == len(handed) and peer.of(Requeue))


async def test_a_task_that_is_cancelled_while_it_waits_loses_nothing(stage: Stage) -> None:
    async with stage.consumer(max_rate=1.0) as consumer:
        peer = await stage.nsqd.subscriber()
        feeding = asyncio.create_task(peer.feed([b"1", b"2", b"3"]))
        (await anext(consumer)).finish()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(consumer), 0.3)
        assert [(await anext(consumer)).body for _ in range(2)] == [b"2", b"3"]
        await feeding


async def test_batches_fill_at_the_rate(stage: Stage) -> None:
    async with stage.consumer(max_rate=10.0) as consumer:
        feeding = await feed(stage, 1000)
        batches = consumer.batches(max_messages=50, max_wait=2.0)
        sizes = []
        for _ in range(3):
            async with await anext(batches) as batch:
                sizes.append(len(batch))
        # One second's worth comes at once.
        assert sizes == [pytest.approx(30, abs=2), pytest.approx(20, abs=2), pytest.approx(20, abs=2)]
        await stop(feeding)


async def test_wrong_rates_are_refused(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with pytest.raises(ConfigError, match="max_rate"):
        stage.consumer(max_rate=0)
    consumer = stage.consumer(max_rate=0.001)
    consumer.set_max_rate(0.002)  # before it is entered
    for rate in (0, float("nan"), "fast"):
        with pytest.raises(ConfigError, match="max_rate"):
            consumer.set_max_rate(rate)  # type: ignore[arg-type]
    assert consumer.max_rate == 0.002
    assert not caplog.text
