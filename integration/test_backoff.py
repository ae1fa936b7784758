"""What a consumer does for handlers that fail, or that take long: it pauses, and touches their messages."""

import asyncio
import time

import pytest

from integration.reading import Consumers, eventually, running
from nsq_ha import Backoff, Message, Producer
from nsq_ha.events import BackoffChanged, Event
from tests.support.waiting import dawdle

QUICK = Backoff(initial=0.02, maximum=0.05)
PAUSES = Backoff(initial=0.5, maximum=1.0, jitter=0.0)


@pytest.mark.plain
async def test_a_failing_handler_is_called_a_few_times_and_loses_nothing(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    calls: list[float] = []
    done: set[bytes] = set()
    is_broken = True

    async def handle(message: Message) -> None:
        if not message.body.startswith(mark):
            return
        if is_broken:
            calls.append(time.monotonic())
            raise ConnectionError("the database is down")
        done.add(message.body)

    wanted = {mark + b"%d" % number for number in range(100)}
    async with running(consume(ordinary, requeue_backoff=QUICK, handler_backoff=PAUSES), handle, concurrency=4):
        await producer.publish_many(ordinary, sorted(wanted))
        await eventually(lambda: len(calls) >= 8)
        # The first ones may fail together, and each later one is the only one after a pause.
        last = calls[-2:]
        assert last[1] - last[0] >= 0.9
        is_broken = False
        await eventually(lambda: done == wanted)
    assert len(calls) <= 12


@pytest.mark.plain
async def test_a_share_of_bad_messages_costs_the_good_ones_nothing(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    """With all defaults; each bad one comes again meanwhile."""
    done: set[bytes] = set()
    bad: list[int] = []

    async def handle(message: Message) -> None:
        if message.body.startswith(mark + b"bad"):
            bad.append(message.attempts)
            raise ValueError("it fails each time")
        done.add(message.body)

    good = {mark + b"%d" % number for number in range(600)}
    events: list[Event] = []
    async with running(consume(ordinary, on_event=events.append), handle, concurrency=4):
        began = time.monotonic()
        for number, body in enumerate(sorted(good)):
            await producer.publish(ordinary, body)
            if number % 50 == 0:
                await producer.publish(ordinary, mark + b"bad %d" % number)
            await asyncio.sleep(max(began + number / 40 - time.monotonic(), 0.0))
        await eventually(lambda: good <= done)
        assert max(bad) > 1
    assert not any(isinstance(event, BackoffChanged) for event in events), "it paused"


async def test_on_an_ordered_topic_the_other_partitions_go_on(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    failures: list[float] = []
    done: list[bytes] = []

    async def handle(message: Message) -> None:
        if not message.body.startswith(mark):
            return
        if message.body == mark + b"bad" and (len(failures) < 3 or len(done) < 20):
            failures.append(time.monotonic())
            raise ValueError("not yet")
        done.append(message.body.removeprefix(mark))

    async with running(consume(ordered, handler_backoff=PAUSES), handle, concurrency=4):
        await producer.publish(ordered, mark + b"bad", partition=0)
        await eventually(lambda: len(failures) == 1)
        await producer.publish(ordered, mark + b"good", partition=0)
        for number in range(20):
            await producer.publish(ordered, mark + b"%d" % number, partition=1 + number % 3)
        await eventually(lambda: len(done) == 22)
    assert failures[1] - failures[0] >= 0.45
    assert failures[2] - failures[1] >= 0.9
    assert done[20:] == [b"bad", b"good"]  # all others were handled while this one failed


@pytest.mark.plain
async def test_a_long_handler_keeps_its_message_with_auto_touch(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    calls: list[int] = []

    async def handle(message: Message) -> None:
        if message.body.startswith(mark):
            calls.append(message.attempts)
            await dawdle(6.0)

    async def is_done() -> bool:
        stats = await consume.stats(ordinary)
        return bool(calls) and all(entry.depth == entry.in_flight == 0 for entry in stats.values())

    async with running(consume(ordinary, msg_timeout=4.0, auto_touch=True), handle, concurrency=2):
        await producer.publish(ordinary, mark)
        await eventually(is_done)
    assert calls == [1]
