"""What finish, requeue, touch and silence do to a message."""

import asyncio

import pytest

from integration.reading import Consumers, eventually, next_of, read
from nsq_ha import Backoff, Producer


async def test_what_is_finished_is_done(
    producer: Producer,
    consume: Consumers,
    ordinary: str,
    mark: bytes,
) -> None:
    async with consume(ordinary) as consumer:
        for number in range(20):
            await producer.publish(ordinary, mark + b"%d" % number)
        await read(consumer, mark, 20)

        async def is_empty() -> bool:
            stats = await consume.stats(ordinary)
            return len(stats) == 2 and all(s.depth == s.in_flight == s.deferred == 0 for s in stats.values())

        await eventually(is_empty)


@pytest.mark.plain
async def test_a_requeued_message_comes_again_with_one_more_attempt(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary) as consumer:
        await producer.publish(ordinary, mark)
        ids = set[bytes]()
        for attempt in range(1, 4):
            message = await next_of(consumer, mark)
            assert message.attempts == attempt
            ids.add(message.id)
            message.requeue(0)
        (await next_of(consumer, mark)).finish()
    assert len(ids) == 1


async def test_a_delivery_has_the_id_of_its_copy(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary) as consumer:
        stored = [await producer.publish(ordinary, mark + b"twice", partition=0, trace_id=7) for _ in range(2)]
        first, copy = await read(consumer, mark, 2, finish=False)
        first.requeue(0)
        again = await next_of(consumer, mark)
        for message in (copy, again):
            message.finish()
    assert again.internal_id == first.internal_id
    assert {first.internal_id, copy.internal_id} == {receipt.internal_id for receipt in stored}
    assert first.internal_id != copy.internal_id


async def test_a_delayed_requeue_comes_after_its_delay(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    loop = asyncio.get_running_loop()
    async with consume(ordinary) as consumer:
        await producer.publish(ordinary, mark)
        message = await next_of(consumer, mark)
        asked = loop.time()
        message.requeue(1.0)
        again = await next_of(consumer, mark)
        again.finish()
    assert loop.time() - asked > 0.9
    assert (again.id, again.attempts) == (message.id, 2)


async def test_a_requeue_without_delay_takes_the_back_off(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    loop = asyncio.get_running_loop()
    async with consume(ordinary, requeue_backoff=Backoff(initial=0.8, maximum=1.0, jitter=0.0)) as consumer:
        await producer.publish(ordinary, mark)
        message = await next_of(consumer, mark)
        asked = loop.time()
        message.requeue()
        again = await next_of(consumer, mark)
        again.finish()
    assert loop.time() - asked > 0.7
    assert again.attempts == 2


async def test_an_ordered_requeue_brings_the_same_message_first(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    async with consume(ordered) as consumer:
        for number in range(3):
            await producer.publish(ordered, mark + b"%d" % number, key="k")
        seen: list[tuple[bytes, int]] = []
        while len(seen) < 7:
            message = await next_of(consumer, mark)
            seen.append((message.body[-1:], message.attempts))
            if message.body.endswith(b"1") and message.attempts < 4:
                message.requeue(0)
            else:
                message.finish()
            if seen[-1][0] == b"2":
                break
    assert seen == [(b"0", 1), (b"1", 1), (b"1", 2), (b"1", 3), (b"1", 4), (b"2", 1)]


async def test_an_ordered_delay_is_waited_out_here_and_nothing_overtakes(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    # The server drops a delayed REQ of an ordered channel without a word: the message would come after its timeout.
    loop = asyncio.get_running_loop()
    async with consume(ordered, msg_timeout=60.0) as consumer:
        await producer.publish(ordered, mark + b"first", partition=0)
        await producer.publish(ordered, mark + b"second", partition=0)
        message = await next_of(consumer, mark)
        asked = loop.time()
        message.requeue(5.0)  # a busy machine takes its time to publish and read another one
        await producer.publish(ordered, mark + b"elsewhere", partition=1)
        others = await read(consumer, mark, 1)
        again = await next_of(consumer, mark)
        waited = loop.time() - asked
        again.finish()
        last = await read(consumer, mark, 1)
    assert [m.body for m in (*others, again, *last)] == [mark + b"elsewhere", mark + b"first", mark + b"second"]
    assert (again.attempts, last[0].attempts) == (2, 1)
    assert 4.9 < waited < 30.0


async def test_an_ordered_delay_may_be_longer_than_the_message_timeout(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    loop = asyncio.get_running_loop()
    async with consume(ordered, msg_timeout=3.0) as consumer:
        await producer.publish(ordered, mark, key="k")
        message = await next_of(consumer, mark)
        asked = loop.time()
        message.requeue(5.0)
        again = await next_of(consumer, mark)
        waited = loop.time() - asked
        again.finish()
    # It was touched meanwhile: a timeout would have brought it sooner.
    assert again.attempts == 2
    assert waited > 4.9


async def test_an_unanswered_message_comes_again(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary, msg_timeout=1.0) as consumer:
        await producer.publish(ordinary, mark)
        message = await next_of(consumer, mark)
        again = await next_of(consumer, mark)
        assert (again.id, again.attempts) == (message.id, 2)
        # Too late: the server refuses this or the other one, and the connection lives on.
        message.finish()
        again.finish()
        await producer.publish(ordinary, mark + b"next")
        while not (message := await next_of(consumer, mark)).body.endswith(b"next"):
            message.finish()
        message.finish()


async def test_touch_keeps_a_message(producer: Producer, consume: Consumers, ordered: str, mark: bytes) -> None:
    loop = asyncio.get_running_loop()
    async with consume(ordered, msg_timeout=3.0) as consumer:
        await producer.publish(ordered, mark, key="k")
        await producer.publish(ordered, mark + b"next", key="k")
        message = await next_of(consumer, mark)
        until = loop.time() + 5.0

        def touched_long_enough() -> bool:
            message.touch()
            return loop.time() > until

        await eventually(touched_long_enough)
        message.finish()
        following = (await read(consumer, mark, 1))[0]
    assert (following.body, following.attempts) == (mark + b"next", 1)
