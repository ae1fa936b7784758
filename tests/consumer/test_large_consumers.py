"""What a consumer of a thousand partitions, or with thousands of handlers, does in one turn of the event loop.

The whole iteration counts: many short callbacks that look at all that there is hold the loop as one long one does.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from nsq_ha import Consumer, Message
from tests.support.inside import inbox_of
from tests.support.nsqd import Peer, message_id
from tests.support.stage import Stage
from tests.support.turns import turns
from tests.support.waiting import dawdle, eventually

LIMIT = 0.2
"""Seconds of CPU of an iteration, for what took 0.4 s or more; now it takes less than a quarter of this."""


class Held:
    """A handler that ends when the gate opens."""

    def __init__(self) -> None:
        self.gate, self.running = asyncio.Event(), 0

    async def __call__(self, message: Message) -> None:
        self.running += 1
        await self.gate.wait()
        self.running -= 1


@asynccontextmanager
async def holding(stage: Stage, handler: Held, count: int, concurrency: int) -> AsyncIterator[Consumer]:
    """Consume with ``count`` messages in flight, of which ``concurrency`` are with handlers; leave them."""
    async with stage.consumer(max_in_flight=count) as consumer:
        running = asyncio.create_task(consumer.run(handler, concurrency=concurrency))
        handler.gate.set()
        peers = [peer for nsqd in stage.nsqds for peer in nsqd.open_peers]
        while sum(peer.ready for peer in peers) < count:  # quick ones, until all are asked for
            deliver(peers)
            await dawdle(1)  # RDY grows with the rate at which messages were handled: time is part of it
        handler.gate.clear()
        deliver(peers)
        await eventually(lambda: handler.running == concurrency)
        yield consumer
        handler.gate.set()
    await running


numbers: Iterator[int] = iter(range(1, 1_000_000))


def deliver(peers: list[Peer]) -> None:
    for partition, peer in enumerate(peers):
        for _ in range(peer.ready):
            peer.message(b"x", message_id(next(numbers), partition))


async def test_a_thousand_handlers_of_many_partitions_that_end_together_are_short_work(stage: Stage) -> None:
    """The end of each counted what all partitions have in flight: 2,500 took 1.1 s with 1,024 of them."""
    stage.lead(dict.fromkeys(range(512), stage.nsqd))
    handler = Held()
    async with holding(stage, handler, 2048, 2048):
        await dawdle(1)  # handlers that take a second are slow ones: that time is what is tested
        with turns() as measured:
            handler.gate.set()
            await eventually(lambda: not handler.running)
    assert measured.iteration < LIMIT, measured.what


async def test_the_end_of_an_nsqd_with_many_partitions_is_short_work(stage: Stage) -> None:
    """The end of each connection looked at all that waited: 1.5 s for 20,000 of 1,024 partitions."""
    stage.lead(dict.fromkeys(range(512), stage.nsqd))
    handler = Held()
    async with holding(stage, handler, 10_240, 10) as consumer:
        with turns() as measured:
            for peer in stage.nsqd.open_peers:
                peer.abort()
            await eventually(lambda: not inbox_of(consumer).waiting)
    assert measured.iteration < LIMIT, measured.what


async def test_late_answers_to_thousands_of_messages_are_short_work(stage: Stage) -> None:
    """Each looked for its copy among all that waited: 2,500 took 0.34 s after a lost connection."""
    handler = Held()
    async with holding(stage, handler, 2500, 2500) as consumer:
        [lost] = stage.nsqd.open_peers
        lost.abort()
        await eventually(lambda: [peer.ready for peer in stage.nsqd.open_peers if peer is not lost] == [2500])
        deliver(stage.nsqd.open_peers)
        await eventually(lambda: len(inbox_of(consumer).queue.messages) == 2500)
        await dawdle(1)  # handlers that take a second are slow ones: that time is what is tested
        with turns() as measured:
            handler.gate.set()
            await eventually(lambda: not handler.running)
    assert measured.iteration < LIMIT, measured.what
