"""What a consumer reports through ``on_event``."""

import asyncio
from typing import Any

import pytest

from nsq_ha.consumer import subscriptions
from nsq_ha.events import (
    Connected,
    Disconnected,
    Event,
    GaveUp,
    LeaderChanged,
    LoopBlocked,
    Recovered,
    Refused,
    Stalled,
)
from nsq_ha.message import Message
from nsq_ha.policy import timing
from nsq_ha.protocol import Finish
from tests.support.events import Events, plain
from tests.support.nsqd import Refusing, Subscribe, error
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import block, eventually

CHANNEL = "ch"


@pytest.fixture
def found() -> Events:
    return Events()


async def test_the_life_of_a_subscription(stage: Stage, found: Events) -> None:
    first, second = (nsqd.node.address for nsqd in stage.nsqds[:2])
    place = {"topic": TOPIC, "channel": CHANNEL, "partition": 0}
    async with stage.consumer(on_event=found.append, lookup_interval=0.1):
        await eventually(lambda: found.of(Connected))
        stage.lead({0: stage.nsqds[1]})
        await eventually(lambda: len(found.of(Connected)) == 2)
    assert [type(event) for event in found] == [
        LeaderChanged,
        Connected,
        LeaderChanged,
        Disconnected,
        Connected,
        Disconnected,
    ]
    assert [plain(event) for event in found[1::2]] == [
        place | {"nsqd": first},
        place | {"nsqd": first, "reason": f"left for {second}, which leads now"},
        place | {"nsqd": second, "reason": "closed by this client"},
    ]
    assert plain(found[2]) == place | {"before": first, "after": second}


async def test_refusals(stage: Stage, found: Events) -> None:
    stage.nsqd.script = Refusing(Subscribe, "E_FAILED_ON_NOT_LEADER not here", closes=True)
    async with stage.consumer(on_event=found.append, lookup_interval=0.1):
        peer = await stage.nsqd.subscriber()
        peer.write(error("E_FIN_FAILED gone"))
        await eventually(lambda: len(found.of(Refused)) == 2)
    place = {"topic": TOPIC, "channel": CHANNEL, "partition": 0, "nsqd": stage.nsqd.node.address}
    assert [plain(event) for event in found.of(Refused)] == [
        place | {"code": "E_FAILED_ON_NOT_LEADER", "text": "E_FAILED_ON_NOT_LEADER not here"},
        place | {"code": "E_FIN_FAILED", "text": "E_FIN_FAILED gone"},
    ]


async def test_a_partition_that_stalls_and_recovers(
    stage: Stage, found: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "FIRST_WARNING", 0.5)
    monkeypatch.setattr(subscriptions, "SETTLED", 0.5)
    async with stage.consumer(on_event=found.append, lookup_interval=0.1):
        await stage.nsqd.stop()
        await eventually(lambda: found.of(Stalled))
        await stage.nsqd.start()
        await eventually(lambda: found.of(Recovered))
    [stalled, *_] = found.of(Stalled)
    [recovered] = found.of(Recovered)
    assert isinstance(stalled, Stalled)
    assert isinstance(recovered, Recovered)
    assert (stalled.topic, stalled.channel, stalled.partition) == (TOPIC, CHANNEL, 0)
    assert (recovered.topic, recovered.channel, recovered.partition) == (TOPIC, CHANNEL, 0)
    assert 0.5 <= stalled.seconds <= recovered.seconds
    assert stage.nsqd.node.address in stalled.reason


async def test_a_topic_that_does_not_exist(stage: Stage, found: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "FIRST_WARNING", 0.5)
    stage.lookupd.answer("/lookup", {"message": "TOPIC_NOT_FOUND"}, status=404)
    async with stage.consumer(on_event=found.append, lookup_interval=0.1, start_timeout=0.1):
        await eventually(lambda: found.of(Stalled))
        stage.lead({0: stage.nsqd})
        await eventually(lambda: found.of(Recovered))
    for event in (*found.of(Stalled), *found.of(Recovered)):
        assert isinstance(event, Stalled | Recovered)
        assert (event.topic, event.channel, event.partition) == (TOPIC, CHANNEL, None)


@pytest.mark.parametrize(("policy", "failure"), [("drop", None), ("function", None), ("function", "no room")])
async def test_a_message_that_is_given_up(stage: Stage, found: Events, policy: str, failure: str | None) -> None:
    def give_up(_: Message) -> None:
        if failure is not None:
            raise OSError(failure)

    def fail(_: Message) -> None:
        raise ValueError

    options: dict[str, Any] = {"on_give_up": give_up if policy == "function" else None}
    async with stage.consumer(on_event=found.append, max_attempts=2, **options) as consumer:
        running = asyncio.create_task(consumer.run(fail))
        peer = await stage.nsqd.subscriber()
        peer.message(b"bad", attempts=2)
        await eventually(lambda: found.of(GaveUp))
        if failure is None:
            await stage.nsqd.until(lambda: peer.of(Finish))
        await consumer.aclose()
        await running
    [event] = found.of(GaveUp)
    assert plain(event) == {
        "topic": TOPIC,
        "channel": CHANNEL,
        "partition": 0,
        "nsqd": stage.nsqd.node.address,
        "internal_id": 2,
        "trace_id": 0,
        "attempts": 2,
        "policy": policy,
        "error": failure,
    }


async def test_a_blocked_event_loop_names_the_handler(stage: Stage, found: Events) -> None:
    async def slow(_: Message) -> None:
        block(5.0)

    async with stage.consumer(on_event=found.append) as consumer:
        running = asyncio.create_task(consumer.run(slow))
        (await stage.nsqd.subscriber()).message(b"x")
        await eventually(lambda: found.of(LoopBlocked))
        await consumer.aclose()
        await running
    [event] = found.of(LoopBlocked)
    assert isinstance(event, LoopBlocked)
    assert (event.topic, event.channel) == (TOPIC, CHANNEL)
    assert event.handler is not None
    assert "slow" in event.handler
    assert event.seconds >= 4.0


async def test_a_function_that_closes_the_consumer(stage: Stage) -> None:
    closing: list[asyncio.Task[None]] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Connected):
            closing.append(asyncio.create_task(consumer.aclose()))

    consumer = stage.consumer(on_event=on_event)  # events come while it is entered
    async with consumer:
        assert [message async for message in consumer] == []
        await closing[0]
