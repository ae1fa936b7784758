"""Reading what a test has published, and waiting for what must come true."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from nsq_ha import Consumer, Message
from nsq_ha.admin import AdminClient
from nsq_ha.admin.description import ChannelStats
from nsq_ha.dead_letters import DeadLetter
from nsq_ha.errors import DeadLetterError
from tests.support import waiting

LIMIT: Final = 30.0
"""Seconds for what takes less than one on an idle machine."""


async def next_of(consumer: Consumer, mark: bytes, limit: float = LIMIT) -> Message:
    """Return the next message of this test, unanswered; those of other tests are finished."""
    async with asyncio.timeout(limit):
        while True:
            message = await anext(consumer)
            if message.body.startswith(mark):
                return message
            message.finish()


async def next_letter(consumer: Consumer, mark: bytes, limit: float = LIMIT) -> tuple[DeadLetter, Message]:
    """Return the next dead letter of a message of this test, and its own message; all messages are finished."""
    async with asyncio.timeout(limit):
        while True:
            message = await anext(consumer)
            message.finish()
            try:
                letter = DeadLetter.of(message)
            except DeadLetterError:
                continue
            if letter.body.startswith(mark):
                return letter, message


async def read(
    consumer: Consumer, mark: bytes, count: int, *, finish: bool = True, limit: float = LIMIT
) -> list[Message]:
    """Return the next ``count`` messages of this test."""
    messages = []
    for _ in range(count):
        message = await next_of(consumer, mark, limit)
        if finish:
            message.finish()
        messages.append(message)
    return messages


async def eventually(condition: Callable[[], object | Awaitable[object]], limit: float = LIMIT) -> None:
    """Return when ``condition``, asked over and over, is true."""
    await waiting.eventually(condition, limit)


@asynccontextmanager
async def running(
    consumer: Consumer, handler: Callable[[Message], Awaitable[object] | object], concurrency: int = 1
) -> AsyncIterator[asyncio.Task[None]]:
    """Enter the consumer, run the handler until the block ends, and close."""
    async with consumer:
        task = asyncio.create_task(consumer.run(handler, concurrency=concurrency))
        yield task
    async with asyncio.timeout(LIMIT):
        await task


def bodies(messages: Iterable[Message], mark: bytes) -> list[bytes]:
    """Return what follows the mark in each body."""
    return [message.body.removeprefix(mark) for message in messages]


def without_repeats(items: Iterable[bytes]) -> list[bytes]:
    """Keep the first of each."""
    return list(dict.fromkeys(items))


def numbers_by_key(messages: Iterable[Message], mark: bytes) -> dict[bytes, list[int]]:
    """Return the numbers of bodies ``<mark><key>:<number>`` by key, in the order of arrival, repeats left out."""
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for body in without_repeats(bodies(messages, mark)):
        key, _, number = body.partition(b":")
        numbers[key].append(int(number))
    return dict(numbers)


class Consumers:
    """Makes consumers of one channel, to be entered by the test.

    Attributes:
        channel: The channel, which no other test uses.
    """

    def __init__(self, lookupd: Sequence[str], channel: str) -> None:
        self.channel = channel
        self._lookupd = lookupd

    def __call__(self, topic: str, **options: Any) -> Consumer:  # noqa: ANN401 - ConsumerConfig's fields
        return Consumer(topic, options.pop("channel", self.channel), lookupd=self._lookupd, **options)

    async def stats(self, topic: str) -> dict[int, ChannelStats]:
        """Return what the leaders say of the channel, by partition."""
        async with AdminClient(self._lookupd, question_timeout=LIMIT) as admin:
            description = await admin.describe(topic)
        return {
            partition.partition: stats
            for partition in description.partitions
            if partition.stats is not None
            for stats in partition.stats.channels
            if stats.name == self.channel
        }


def is_multiset(items: Sequence[bytes], wanted: Sequence[bytes]) -> bool:
    """Tell whether both have the same items, each as often."""
    return Counter(items) == Counter(wanted)
