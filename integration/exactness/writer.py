"""Publish the messages of a run, and remember which are certainly stored."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import ClassVar, Final, Self

from integration.exactness.scenario import PARTITIONS, Scenario, SinkScenario
from nsq_ha import OutgoingMessage, Producer, Receipt

AT_ONCE: Final = 2_000_000
"""Bytes of a lot; a topic takes a few megabytes at once."""
PAUSE: Final = 0.2
LIVE_LOT: Final = 10
"""Messages to each partition after each pause, while a query runs."""
PATIENCE: Final = 120.0


class Writer:
    """Publishes numbered messages to both partitions in turn. A context manager.

    Args:
        scenario: Sizes and lots.
        topic: The topic.
        lookupd: Base URLs of nsqlookupds.

    Attributes:
        acknowledged: Partition and body of each message whose publish succeeded.
        pause: Seconds between two lots while a query runs.
    """

    pause: ClassVar[float] = PAUSE

    def __init__(self, scenario: Scenario | SinkScenario, topic: str, lookupd: Sequence[str]) -> None:
        self.acknowledged: list[tuple[int, bytes]] = []
        self._scenario = scenario
        self._topic = topic
        self._chance = random.Random(scenario.seed)
        self._producer = Producer(lookupd=lookupd, publish_timeout=PATIENCE)
        self._number = 0

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._producer.aclose()

    async def write(self, count: int, lot: int) -> None:
        """Publish ``count`` messages, ``lot`` at a time to each partition.

        Raises:
            AssertionError: One was not stored, after all patience.
        """
        left = count
        while left:
            messages: list[OutgoingMessage] = []
            while len(messages) < min(left, lot * PARTITIONS) and sum(len(one.body) for one in messages) < AT_ONCE:
                messages.append(self._next())
            left -= len(messages)
            await self._publish(messages)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Publish a little all the time, until the block ends."""
        over = asyncio.Event()

        async def write() -> None:
            while not over.is_set():
                await self.write(LIVE_LOT * PARTITIONS, min(self._scenario.lot, LIVE_LOT))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.pause):
                        await over.wait()

        task = asyncio.create_task(write())
        try:
            yield
        finally:
            over.set()
            await task

    def _next(self) -> OutgoingMessage:
        """Return a message with a body of its own, as text: that is what the server's search returns undamaged."""
        number, self._number = self._number, self._number + 1
        body = b"%07d" % number + b"x" * self._chance.randrange(self._scenario.largest - 7)
        has_headers = self._scenario.kind == "extended" and number % 3 == 0
        return OutgoingMessage(body, partition=number % PARTITIONS, headers={"n": str(number)} if has_headers else None)

    async def _publish(self, messages: list[OutgoingMessage]) -> None:
        if len(messages) <= PARTITIONS:
            # One by one, so that nsqd gets PUBs.
            outcomes = [
                await self._producer.publish(self._topic, one.body, partition=one.partition, headers=one.headers)
                for one in messages
            ]
        else:
            answered = await self._producer.publish_many(self._topic, messages)
            assert all(isinstance(one, Receipt) for one in answered), answered[0]
            outcomes = [one for one in answered if isinstance(one, Receipt)]
        # The receipt names the partition that holds it.
        self.acknowledged += [(receipt.partition, one.body) for receipt, one in zip(outcomes, messages, strict=True)]
