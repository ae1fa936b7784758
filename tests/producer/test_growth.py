"""A producer that meets a new partition: the channels of the others exist there before it stores anything."""

import asyncio

import pytest

from nsq_ha.engine.new_partitions import PATIENCE
from nsq_ha.events import ChannelsMissing, Event
from nsq_ha.protocol import Command
from tests.engine.lookups.loopback import hang
from tests.support.growing import Growing
from tests.support.nsqd import LIMIT, Peer, Publish
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually


async def test_channels_are_created_before_anything_is_stored(stage: Stage) -> None:
    """576 messages of a producer that started 2.5 s after an expansion were never delivered."""
    async with Growing(stage) as topic, stage.producer() as producer:
        stored: list[int] = []

        def record(_: Peer, command: Command) -> None:
            if isinstance(command, Publish):
                stored.append(len(topic.created()))

        stage.nsqd.script = record
        await asyncio.gather(*(producer.publish(TOPIC, b"x", partition=1) for _ in range(3)))
        assert topic.created() == ["1"]
        assert set(stored) == {1}


async def test_a_partition_is_checked_once(stage: Stage) -> None:
    async with Growing(stage) as topic, stage.producer() as producer:
        stage.lookupd.answer("/channels", {"channels": ["billing"]})
        for _ in range(2):
            await producer.publish(TOPIC, b"x", partition=0)
            stage.nsqd.peers[-1].abort()
            await eventually(lambda: not stage.nsqd.open_peers)
        await producer.publish(TOPIC, b"x", partition=0)
        assert stage.lookupd.queries("/channels") == [{"topic": TOPIC, "partition": "0"}]
        assert topic.http.requests == []


async def test_being_ready_includes_the_channels(stage: Stage) -> None:
    async with Growing(stage) as topic, stage.producer() as producer:
        await producer.wait_ready(TOPIC, timeout=LIMIT)
        assert topic.created() == ["1"]


async def test_a_publish_waits_a_moment_for_nsqds_http(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    events: list[Event] = []
    async with Growing(stage) as topic, stage.producer(on_event=events.append) as producer:
        topic.http.behave = hang
        began = loop.time()
        await producer.publish(TOPIC, b"x", partition=1)
        assert PATIENCE <= loop.time() - began < PATIENCE + 0.3
        began = loop.time()
        await producer.publish(TOPIC, b"x", partition=1)
        assert loop.time() - began < 0.1
        await eventually(lambda: any(isinstance(event, ChannelsMissing) for event in events))
        assert loop.time() - began < PATIENCE
    assert "orders-1 lacks channels of the topic's other partitions" in caplog.text


async def test_a_leader_that_does_not_lead_yet_gets_nothing(stage: Stage) -> None:
    async with Growing(stage) as topic, stage.producer() as producer:
        topic.has(leads=False)
        publishing = asyncio.create_task(producer.publish(TOPIC, b"x", partition=1))
        await eventually(lambda: topic.http.count("/stats") > 2)
        assert not publishing.done()
        assert not any(isinstance(command, Publish) for peer in stage.nsqd.peers for command in peer.commands)
        topic.has(leads=True)
        receipt = await publishing
        assert receipt.partition == 1
        assert topic.created() == ["1"]


async def test_closing_does_not_wait_for_a_check(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    async with Growing(stage) as topic:
        topic.http.behave = hang
        async with stage.producer(close_timeout=0.2) as producer:
            publishing = asyncio.create_task(producer.publish(TOPIC, b"x", partition=1))
            await eventually(lambda: stage.lookupd.count("/channels"))
            began = loop.time()
        assert loop.time() - began < 0.5
        await asyncio.gather(publishing, return_exceptions=True)
        await topic.http.stop()
