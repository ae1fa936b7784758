"""Failures, lost connections, cancelled runs and pauses in any order: messages flow again when handlers work."""

import asyncio
import itertools
import random
from typing import Any

import pytest

from nsq_ha import Backoff, Consumer, Message
from nsq_ha.protocol import Identity
from tests.support.inside import consumer_machine_of
from tests.support.nsqd import Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually

pytestmark = pytest.mark.usefixtures("any_may_wait")

CONCURRENCY = 3


class Handler:
    """Is slow or quick, and fails in several ways while ``is_broken``.

    Attributes:
        most: The most calls at a time.
    """

    def __init__(self, chance: random.Random) -> None:
        self.is_broken = True
        self.most = 0
        self._busy = 0
        self._chance = chance

    async def __call__(self, message: Message) -> None:
        self._busy += 1
        self.most = max(self.most, self._busy)
        try:
            await dawdle(self._chance.choice([0.0, 0.01, 0.4, 3.0]))
        finally:
            self._busy -= 1
        if self.is_broken:
            match self._chance.randrange(4):
                case 0 | 1:
                    raise ValueError("broken")
                case 2:
                    message.requeue(self._chance.choice([None, 0.0, 2.0]))
                case _:
                    pass  # it succeeds


class Story:
    """What happens to one consumer."""

    def __init__(self, stage: Stage, consumer: Consumer, chance: random.Random) -> None:
        self.handler = Handler(chance)
        self._stage = stage
        self._consumer = consumer
        self._chance = chance
        self._numbers = itertools.count(2)
        self._running = self._run()
        self._given: dict[Peer, bytes] = {}

    def _run(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._consumer.run(self.handler, concurrency=CONCURRENCY))

    def _peers(self) -> list[tuple[int, Peer]]:
        return [(index, peer) for index, nsqd in enumerate(self._stage.nsqds) for peer in nsqd.open_peers]

    async def step(self) -> None:
        """Let something happen."""
        chance, peers = self._chance, self._peers()
        for partition, peer in peers:
            if peer.ready and chance.random() < 0.7:
                peer.message(b"x", message_id(next(self._numbers), partition))
        match chance.randrange(12):
            case 0:
                chance.choice(peers)[1].abort()
            case 1:
                self._running.cancel()
                await asyncio.wait({self._running})
                self._running = self._run()
            case 2:
                self._consumer.set_max_in_flight(chance.choice([0, 1, 12]))
            case _:
                pass
        await dawdle(chance.choice([0.0, 0.1, 0.5]))

    def flows(self) -> bool:
        """Deliver another message wherever RDY asks for one; return whether no test is needed any more."""
        for partition, peer in self._peers():
            last = self._given.get(peer)
            answered = peer.commands[-20:]
            if peer.ready and (last is None or any(getattr(each, "message_id", b"") == last for each in answered)):
                last = self._given[peer] = message_id(next(self._numbers), partition)
                peer.message(b"good", last)
        return not consumer_machine_of(self._consumer).pause.is_active

    async def end(self) -> None:
        """Close."""
        await self._consumer.aclose()
        await self._running


@pytest.mark.parametrize("seed", range(4))
async def test_messages_flow_again_when_handlers_work(stage: Stage, seed: int) -> None:
    chance = random.Random(seed)
    stage.lead(dict(enumerate(stage.nsqds)))
    for nsqd in stage.nsqds:
        nsqd.identity = Identity(msg_timeout=5000)
    backoff = Backoff(initial=0.3, maximum=2.0, jitter=0.5)
    options: dict[str, Any] = {"handler_backoff": backoff, "max_in_flight": 12}
    async with stage.consumer(**options, auto_touch=chance.random() < 0.5) as consumer:
        story = Story(stage, consumer, chance)
        for _ in range(60):
            await story.step()
        story.handler.is_broken = False
        consumer.set_max_in_flight(12)
        await eventually(story.flows, 120.0)
        await eventually(lambda: not consumer_machine_of(consumer).queue)
        assert story.handler.most <= CONCURRENCY
        await story.end()
