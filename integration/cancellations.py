"""Random cancellations of every call of both clients.

Producers and consumers are entered, used and closed repeatedly, each call inside ``asyncio.wait_for`` with a random
time limit, usually too short. Three things must hold: no call hangs, no acknowledged message is lost, and a client
whose close was cancelled can be closed again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from nsq_ha import Consumer, Producer, Receipt
from nsq_ha.admin import AdminClient
from nsq_ha.errors import NsqError

TOPIC: Final = "cancelled"
CHANNEL: Final = "ch"
PARTITIONS: Final = 4
HANGS_AFTER: Final = 30.0
"""Seconds after which a cancelled call counts as hanging; far more than any close takes."""
USES: Final = 20
"""Average number of calls of one client before the next one; twice as many of a consumer."""
AMPLE: Final = 1.0
"""Seconds that suffice for a call that does not wait for others."""
COMES_WITHIN: Final = 60.0
"""Seconds within which all acknowledged messages must arrive in the end."""


class HangError(AssertionError):
    """A cancelled call did not end."""


class Cancellations:
    """One run.

    Attributes:
        cancelled: Calls that were cancelled, by their names.
        acknowledged: Bodies whose publish was acknowledged.
        seen: Bodies that a consumer received.
    """

    def __init__(self, lookupd: Sequence[str], count: int, seed: int) -> None:
        """Plan ``count`` cancellations."""
        self.cancelled: Counter[str] = Counter()
        self.acknowledged: set[bytes] = set()
        self.seen: set[bytes] = set()
        self._lookupd = tuple(lookupd)
        self._count = count
        self._chance = random.Random(seed)
        self._number = 0

    async def run(self, producers: int = 6, consumers: int = 4) -> None:
        """Cancel, then read until nothing is missing.

        Raises:
            HangError: A call did not end.
            AssertionError: A message was lost.
        """
        async with asyncio.TaskGroup() as group:
            for _ in range(producers):
                group.create_task(self._produce())
            for _ in range(consumers):
                group.create_task(self._consume())
        await self._read_the_rest()

    @property
    def _is_over(self) -> bool:
        return self.cancelled.total() >= self._count

    async def _call(self, name: str, call: Awaitable[Any], longest: float = 0.008) -> Any:  # noqa: ANN401 - any call's
        """Make a call with a random time limit; return None if it was cancelled or failed."""
        limit = self._chance.choice((self._chance.uniform(0.0, longest), self._chance.uniform(0.0, longest), AMPLE))
        task = asyncio.ensure_future(asyncio.wait_for(call, limit))
        _, hanging = await asyncio.wait({task}, timeout=HANGS_AFTER)
        if hanging:
            raise HangError(
                f"{name}, cancelled after {limit * 1000:.3f} ms, has not ended for {HANGS_AFTER} s: {task!r}"
            )
        try:
            return task.result()
        except TimeoutError:
            self.cancelled[name] += 1
            return None
        except (NsqError, StopAsyncIteration):
            return None

    async def _closed(self, name: str, aclose: Callable[[], Awaitable[None]]) -> None:
        """Close with up to two cancellations, and then to the end."""
        for _ in range(self._chance.randrange(3)):
            await self._call(f"{name}.aclose", aclose(), 0.003)
        began = time.monotonic()
        task = asyncio.ensure_future(aclose())
        _, hanging = await asyncio.wait({task}, timeout=HANGS_AFTER)
        if hanging:
            raise HangError(f"{name}.aclose has not ended for {time.monotonic() - began:.0f} s")
        task.result()

    async def _produce(self) -> None:
        while not self._is_over:
            producer = Producer(lookupd=self._lookupd, close_timeout=2.0)
            if await self._call("Producer.__aenter__", producer.__aenter__(), 0.002) is not None:
                for _ in range(self._chance.randrange(2 * USES)):
                    await self._publish(producer)
            await self._closed("Producer", producer.aclose)

    async def _publish(self, producer: Producer) -> None:
        bodies = []
        for _ in range(self._chance.choice((1, 1, 1, 20))):
            self._number += 1
            bodies.append(b"%d" % self._number)
        if len(bodies) == 1:
            key = self._chance.choice((None, self._chance.randrange(50)))
            outcome = await self._call("publish", producer.publish(TOPIC, bodies[0], key=key))
            outcomes = [outcome]
        else:
            outcomes = await self._call("publish_many", producer.publish_many(TOPIC, bodies)) or []
        for body, outcome in zip(bodies, outcomes, strict=False):
            if isinstance(outcome, Receipt):
                self.acknowledged.add(body)

    async def _consume(self) -> None:
        while not self._is_over:
            consumer = Consumer(TOPIC, CHANNEL, lookupd=self._lookupd, close_timeout=2.0, max_in_flight=20)
            if await self._call("Consumer.__aenter__", consumer.__aenter__(), 0.05) is not None:
                for _ in range(self._chance.randrange(4 * USES)):
                    message = await self._call("anext", anext(consumer))
                    if message is not None:
                        self.seen.add(message.body)
                        message.finish()
            await self._closed("Consumer", consumer.aclose)

    async def _read_the_rest(self) -> None:
        try:
            async with (
                asyncio.timeout(COMES_WITHIN),
                Consumer(TOPIC, CHANNEL, lookupd=self._lookupd) as consumer,
            ):
                while not self.acknowledged <= self.seen:
                    message = await anext(consumer)
                    self.seen.add(message.body)
                    message.finish()
        except TimeoutError:
            lost = sorted(self.acknowledged - self.seen)
            raise AssertionError(f"{len(lost)} acknowledged messages are lost, such as {lost[:5]}") from None


async def cancel(count: int, seed: int, lookupd: Sequence[str]) -> Cancellations:
    """Make a run on a cluster that has the topic, and return what it did."""
    async with AdminClient(lookupd) as admin:
        # A new channel starts at the end of the topic, so earlier messages would count as lost.
        await admin.create_channel(TOPIC, CHANNEL)
    run = Cancellations(lookupd, count, seed)
    await run.run()
    return run
