"""``Consumer.run``: handlers, how many run at once, and what becomes of their messages."""

import asyncio
import contextlib
import threading

import pytest

from integration.reading import LIMIT, Consumers, eventually, next_of, numbers_by_key, running
from nsq_ha import Backoff, ConfigError, Message, Producer
from tests.support.waiting import turn

QUICK = Backoff(initial=0.02, maximum=0.05)


@pytest.mark.plain
async def test_a_handler_that_returns_finishes(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    seen: list[Message] = []

    async def handle(message: Message) -> None:
        seen.append(message)

    async with running(consume(ordinary), handle):
        for number in range(50):
            await producer.publish(ordinary, mark + b"%d" % number)
        await eventually(lambda: len({message.body for message in seen if message.body.startswith(mark)}) == 50)

        async def is_done() -> bool:
            stats = await consume.stats(ordinary)
            return all(entry.depth == entry.in_flight == 0 for entry in stats.values())

        await eventually(is_done)
    assert {message.attempts for message in seen if message.body.startswith(mark)} == {1}


async def test_a_handler_that_raises_gets_the_message_again(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    attempts: list[int] = []
    order: list[bytes] = []

    async def handle(message: Message) -> None:
        if message.body == mark + b"bad" and message.attempts < 3:
            attempts.append(message.attempts)
            raise ValueError("not yet")
        order.append(message.body)

    async with running(consume(ordered, requeue_backoff=QUICK), handle, concurrency=3):
        for body in (b"bad", b"good"):
            await producer.publish(ordered, mark + body, key="k")
        await eventually(lambda: len(order) == 2)
    assert attempts == [1, 2]
    assert order == [mark + b"bad", mark + b"good"]


@pytest.mark.plain
async def test_no_more_handlers_run_than_asked_for(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    gate = asyncio.Event()
    running_now, most, done = 0, 0, 0

    async def handle(message: Message) -> None:
        nonlocal running_now, most, done
        if not message.body.startswith(mark):
            return
        running_now += 1
        most = max(most, running_now)
        await gate.wait()
        running_now -= 1
        done += 1

    async with running(consume(ordinary), handle, concurrency=5):
        await producer.publish_many(ordinary, [mark + b"%d" % number for number in range(40)])
        await eventually(lambda: running_now == 5)
        gate.set()
        await eventually(lambda: done == 40)
    assert most == 5


async def test_ordered_messages_of_a_partition_are_handled_one_at_a_time(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    busy: set[int] = set()
    seen: list[Message] = []
    at_once = 0

    async def handle(message: Message) -> None:
        nonlocal at_once
        assert message.partition not in busy
        busy.add(message.partition)
        at_once = max(at_once, len(busy))
        await eventually(lambda: at_once > 1)  # the others may arrive later
        busy.remove(message.partition)
        seen.append(message)

    async with running(consume(ordered), handle, concurrency=16):
        await asyncio.gather(
            *(
                producer.publish(ordered, mark + b"p%d:%d" % (partition, number), partition=partition)
                for number in range(50)
                for partition in range(4)
            )
        )
        await eventually(lambda: len(seen) >= 200)
    assert numbers_by_key(seen, mark) == {b"p%d" % partition: list(range(50)) for partition in range(4)}


@pytest.mark.plain
async def test_a_plain_function_runs_in_a_thread(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    threads: list[int] = []
    attempts: list[int] = []

    def handle(message: Message) -> None:
        if message.body.startswith(mark):
            threads.append(threading.get_ident())
            attempts.append(message.attempts)
            if len(attempts) == 1:
                raise ValueError("once")

    async with running(consume(ordinary, requeue_backoff=QUICK), handle):
        await producer.publish(ordinary, mark)
        await eventually(lambda: attempts == [1, 2])
    assert threading.get_ident() not in threads


async def test_a_handler_may_answer_by_itself(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    seen: list[tuple[bytes, int]] = []

    async def handle(message: Message) -> None:
        seen.append((message.body.removeprefix(mark), message.attempts))
        if message.attempts == 1:
            message.requeue(0)
        else:
            message.finish()
            raise ValueError("it is finished all the same")

    async with running(consume(ordered), handle):
        await producer.publish(ordered, mark + b"a", key="k")
        await producer.publish(ordered, mark + b"b", key="k")
        await eventually(lambda: len(seen) == 4)
    assert seen == [(b"a", 1), (b"a", 2), (b"b", 1), (b"b", 2)]


@pytest.mark.parametrize("closes", [False, True])
async def test_a_cancelled_run_gives_its_messages_back_without_an_attempt(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes, *, closes: bool
) -> None:
    """To the next reader of the same consumer, or to the server when it closes."""
    started = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body.startswith(mark):
            started.set()
            await asyncio.Event().wait()

    async with consume(ordered) as consumer:
        task = asyncio.create_task(consumer.run(handle, concurrency=2))
        await producer.publish(ordered, mark, key="k")
        await asyncio.wait_for(started.wait(), LIMIT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if closes:
            await consumer.aclose()
        async with consume(ordered) if closes else contextlib.nullcontext(consumer) as reader:
            message = await next_of(reader, mark)
            message.finish()
    assert message.attempts == 1


@pytest.mark.plain
async def test_closing_waits_for_the_handlers(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    started, gate = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body.startswith(mark):
            started.set()
            await gate.wait()

    async with consume(ordinary, close_timeout=LIMIT) as consumer:
        task = asyncio.create_task(consumer.run(handle))
        await producer.publish(ordinary, mark)
        await asyncio.wait_for(started.wait(), LIMIT)
        closing = asyncio.create_task(consumer.aclose())
        await turn()
        gate.set()
        async with asyncio.timeout(LIMIT / 3):
            await closing
            await task

    async def is_done() -> bool:
        stats = await consume.stats(ordinary)
        return all(entry.depth == entry.in_flight == 0 for entry in stats.values())

    await eventually(is_done)


@pytest.mark.plain
async def test_run_wants_at_least_one_worker(consume: Consumers, ordinary: str) -> None:
    async with consume(ordinary) as consumer:
        with pytest.raises(ConfigError, match="concurrency"):
            await consumer.run(print, concurrency=0)
