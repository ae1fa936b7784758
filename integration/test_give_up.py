"""What becomes of a message that was tried too often."""

import asyncio
import logging

import pytest

from integration.reading import LIMIT, Consumers, bodies, eventually, next_letter, next_of, read
from nsq_ha import Backoff, Consumer, Message, Producer
from nsq_ha.dead_letters import replay
from nsq_ha.protocol.encoding import MAX_MESSAGE_BYTES


async def fail_until_given_up(consumer: Consumer, mark: bytes, attempts: int) -> None:
    """Requeue the test's next message as often as it may be tried."""
    for attempt in range(1, attempts + 1):
        message = await next_of(consumer, mark)
        assert message.attempts == attempt
        message.requeue(0)


async def test_drop(producer: Producer, consume: Consumers, ordered: str, mark: bytes) -> None:
    async with consume(ordered, max_attempts=2) as consumer:
        await producer.publish(ordered, mark + b"bad", key="k")
        await producer.publish(ordered, mark + b"good", key="k")
        await fail_until_given_up(consumer, mark, 2)
        assert bodies(await read(consumer, mark, 1), mark) == [b"good"]

        async def is_empty() -> bool:
            return all(stats.depth == stats.in_flight == 0 for stats in (await consume.stats(ordered)).values())

        await eventually(is_empty)


@pytest.mark.plain
async def test_without_a_limit_nothing_is_given_up_but_warned_about(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="nsq_ha.consumer")
    async with consume(ordered) as consumer:
        await producer.publish(ordered, mark, key="k")
        await fail_until_given_up(consumer, mark, 9)
        await read(consumer, mark, 1)
    warned = [record.getMessage() for record in caplog.records if "again and again" in record.getMessage()]
    assert [text.rsplit(" ", 1)[1] for text in warned] == ["10"]


async def test_republish_puts_it_at_the_end(producer: Producer, consume: Consumers, ordered: str, mark: bytes) -> None:
    async with consume(ordered, max_attempts=1, on_give_up="republish", producer=producer) as consumer:
        await producer.publish(ordered, mark + b"bad", key="k", trace_id=5)
        await producer.publish(ordered, mark + b"good", key="k")
        first = await next_of(consumer, mark)
        first.requeue(0)
        good, again = await read(consumer, mark, 2)
    assert bodies([first, good, again], mark) == [b"bad", b"good", b"bad"]
    assert (again.attempts, again.trace_id, again.partition) == (1, 5, first.partition)
    assert again.internal_id > good.internal_id


async def test_dead_letter(producer: Producer, consume: Consumers, ordered: str, ordinary: str, mark: bytes) -> None:
    async with (
        consume(ordinary) as dead,
        consume(
            ordered, max_attempts=1, on_give_up="dead_letter", dead_letter_topic=ordinary, producer=producer
        ) as consumer,
    ):
        await producer.publish(ordered, mark + b"bad", key="k", trace_id=6)
        await producer.publish(ordered, mark + b"good", key="k")
        await fail_until_given_up(consumer, mark, 1)
        assert bodies(await read(consumer, mark, 1), mark) == [b"good"]
        letter, message = await next_letter(dead, mark)
    assert (letter.body, letter.format) == (mark + b"bad", "envelope")
    assert (message.trace_id, message.attempts) == (6, 1)


async def test_a_dead_letter_tells_its_story_and_goes_back(
    producer: Producer, consume: Consumers, extended: str, ordinary: str, mark: bytes
) -> None:
    """On a topic with headers they tell it, on one without an envelope does; headers and tag come back from both."""

    async def fail(message: Message) -> None:
        raise ValueError("no stock \u2603")

    async with consume(extended) as second, consume(ordinary) as third:
        for origin, letters, dead in ((ordinary, extended, second), (extended, ordinary, third)):
            headers, tag = ({"a": [1, "\u2603"]}, "t") if origin == extended else (None, None)
            async with consume(
                origin,
                channel=f"{consume.channel}.failing",
                max_attempts=1,
                on_give_up="dead_letter",
                dead_letter_topic=letters,
                producer=producer,
            ) as consumer:
                body = mark + origin.encode() + b"\n\x00\xff"
                receipt = await producer.publish(origin, body, headers=headers, tag=tag, trace_id=9)
                running = asyncio.create_task(consumer.run(fail))
                letter, message = await next_letter(dead, mark + origin.encode())
                await consumer.aclose()
                await running
            assert (letter.body, letter.headers, letter.tag) == (body, headers or {}, tag)
            assert letter.format == ("headers" if letters == extended else "envelope")
            story = letter.provenance
            assert (story.topic, story.partition, story.channel) == (origin, receipt.partition, consumer.channel)
            assert (story.nsqd, story.trace_id, story.attempts) == (receipt.nsqd, 9, 1)
            assert int.from_bytes(story.id[:8], "big") == receipt.internal_id
            assert (story.reason, story.error_type, story.error) == ("failed", "ValueError", "no stock \u2603")
            assert abs(story.given_up_at.timestamp() - message.timestamp_ns / 1e9) < LIMIT
            async with consume(origin, channel=f"{consume.channel}.again") as reader:
                assert (await replay(producer, letter)).partition == receipt.partition
                again = (await read(reader, body, 1))[0]
            assert (again.body, again.headers, again.tag, again.trace_id) == (body, headers or {}, tag, 9)
            assert (again.partition, again.attempts) == (receipt.partition, 1)


async def test_the_largest_message_is_a_dead_letter_too(
    producer: Producer, consume: Consumers, ordinary: str, single: str, mark: bytes
) -> None:
    """It has no room for its story: the server takes it without."""
    body = mark + bytes(MAX_MESSAGE_BYTES - len(mark))
    async with (
        consume(single) as dead,
        consume(
            ordinary, max_attempts=1, on_give_up="dead_letter", dead_letter_topic=single, producer=producer
        ) as consumer,
    ):
        await producer.publish(ordinary, body)
        await fail_until_given_up(consumer, mark, 1)
        assert (await read(dead, mark, 1))[0].body == body


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_of_the_application(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes, is_async: bool
) -> None:
    given_up: list[tuple[bytes, int]] = []

    def note(message: Message) -> None:
        given_up.append((message.body, message.attempts))

    async def note_later(message: Message) -> None:
        note(message)

    async with consume(ordered, max_attempts=2, on_give_up=note_later if is_async else note) as consumer:
        await producer.publish(ordered, mark + b"bad", key="k")
        await producer.publish(ordered, mark + b"good", key="k")
        await fail_until_given_up(consumer, mark, 2)
        assert bodies(await read(consumer, mark, 1), mark) == [b"good"]
    assert given_up == [(mark + b"bad", 2)]


async def test_a_function_that_fails_loses_nothing(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    calls = 0

    def fail(message: Message) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise RuntimeError("no room")

    async with consume(
        ordered, max_attempts=1, on_give_up=fail, requeue_backoff=Backoff(initial=0.02, maximum=0.05)
    ) as consumer:
        await producer.publish(ordered, mark + b"bad", key="k")
        await producer.publish(ordered, mark + b"good", key="k")
        await fail_until_given_up(consumer, mark, 1)
        assert bodies(await read(consumer, mark, 1), mark) == [b"good"]
    assert calls == 3
