"""What a producer reports through ``on_event``."""

import asyncio

import pytest

from nsq_ha.errors import PublishError
from nsq_ha.events import (
    Connected,
    Disconnected,
    Event,
    LeaderChanged,
    LookupdFailed,
    LookupdRecovered,
    Recovered,
    Refused,
    Repartitioned,
    Stalled,
)
from nsq_ha.policy import timing
from tests.support.events import Events, plain
from tests.support.nsqd import Publish, Refusing
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually


@pytest.fixture
def found() -> Events:
    return Events()


async def test_the_life_of_a_connection(stage: Stage, found: Events) -> None:
    nsqd = stage.nsqd.node.address
    async with stage.producer(on_event=found.append) as producer:
        await producer.publish(TOPIC, b"x")
        await eventually(lambda: found.of(Connected))
        assert [plain(event) for event in found] == [
            {"topic": TOPIC, "channel": None, "partition": 0, "before": None, "after": nsqd},
            {"topic": TOPIC, "channel": None, "partition": 0, "nsqd": nsqd},
        ]
    assert [type(event) for event in found] == [LeaderChanged, Connected, Disconnected]
    place = {"topic": TOPIC, "channel": None, "partition": 0, "nsqd": nsqd}
    assert plain(found[-1]) == place | {"reason": "the producer was closed"}


async def test_another_leader_and_more_partitions(stage: Stage, found: Events) -> None:
    first, second, third = (nsqd.node.address for nsqd in stage.nsqds)
    async with stage.producer(on_event=found.append, lookup_interval=0.1) as producer:
        await producer.publish(TOPIC, b"x", partition=0)
        stage.lead({0: stage.nsqds[1], 1: stage.nsqds[2]})
        await eventually(lambda: found.of(Disconnected) and found.of(Repartitioned))
        stage.lead({1: stage.nsqds[2]}, 2)
        await eventually(lambda: len(found.of(LeaderChanged)) == 4)
    assert {(event.topic, event.channel) for event in found if isinstance(event, LeaderChanged)} == {(TOPIC, None)}
    changes = [(event.partition, event.before, event.after) for event in found if isinstance(event, LeaderChanged)]
    assert changes == [(0, None, first), (0, first, second), (1, None, third), (0, second, None)]
    [repartitioned] = found.of(Repartitioned)
    assert plain(repartitioned) == {"topic": TOPIC, "channel": None, "before": 1, "after": 2}
    [first_end, *_] = found.of(Disconnected)
    assert plain(first_end)["reason"] == f"closed the connection to {first}: another node leads now"


async def test_refusals_of_publishes(stage: Stage, found: Events) -> None:
    stage.nsqd.script = Refusing(Publish, "E_FAILED_ON_NOT_LEADER not here", "E_BAD_MESSAGE no", closes=False)
    async with stage.producer(on_event=found.append) as producer:
        with pytest.raises(PublishError):
            await producer.publish(TOPIC, b"x")
    assert [(event.code, event.text) for event in found if isinstance(event, Refused)] == [
        ("E_FAILED_ON_NOT_LEADER", "E_FAILED_ON_NOT_LEADER not here"),
        ("E_BAD_MESSAGE", "E_BAD_MESSAGE no"),
    ]
    assert {event.nsqd for event in found if isinstance(event, Refused)} == {stage.nsqd.node.address}


async def test_a_partition_that_stalls_and_recovers(
    stage: Stage, found: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "FIRST_WARNING", 0.5)
    async with stage.producer(on_event=found.append, lookup_interval=0.1) as producer:
        await producer.publish(TOPIC, b"x")
        await stage.nsqd.stop()
        publish = asyncio.create_task(producer.publish(TOPIC, b"y"))
        await eventually(lambda: found.of(Stalled))
        await stage.nsqd.start()
        await publish
    [stalled, *_] = found.of(Stalled)
    assert isinstance(stalled, Stalled)
    assert (stalled.topic, stalled.channel, stalled.partition) == (TOPIC, None, 0)
    assert stalled.seconds >= 0.5
    assert stalled.failures > 1
    assert stage.nsqd.node.address in stalled.reason
    [recovered] = found.of(Recovered)
    assert isinstance(recovered, Recovered)
    assert (recovered.partition, recovered.seconds >= stalled.seconds) == (0, True)


async def test_an_nsqlookupd_that_fails_and_recovers(stage: Stage, found: Events) -> None:
    async with stage.producer(on_event=found.append, lookup_interval=0.1) as producer:
        await producer.publish(TOPIC, b"x")
        await stage.lookupd.stop()
        await eventually(lambda: found.of(LookupdFailed))
        await stage.lookupd.start()
        await eventually(lambda: found.of(LookupdRecovered))
    [failed] = found.of(LookupdFailed)
    assert isinstance(failed, LookupdFailed)
    assert failed.lookupd == stage.lookupd.url
    assert failed.reason


async def test_a_function_that_fails_or_closes_the_producer(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    closing: list[asyncio.Task[None]] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Connected):
            closing.append(asyncio.create_task(producer.aclose()))
        raise ValueError("mine")

    async with stage.producer(on_event=on_event) as producer:
        assert (await producer.publish(TOPIC, b"x")).partition == 0
        await eventually(lambda: closing)
        await closing[0]
    assert [record.name for record in caplog.records if "on_event" in record.getMessage()] == ["nsq_ha.events"]
