"""A consumer that meets a new partition, and one of many partitions: which channels exist when."""

import asyncio

import pytest

from nsq_ha.engine.new_partitions import PATIENCE
from nsq_ha.protocol import Command
from tests.engine.lookups.loopback import hang
from tests.support.growing import Growing
from tests.support.nsqd import LIMIT, Peer, Subscribe
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually


async def test_the_channels_of_others_exist_before_its_own_opens_the_partition_to_producers(stage: Stage) -> None:
    """By default nsqlookupd shows producers a partition as soon as it has one channel."""
    async with Growing(stage) as topic:
        before: list[list[str]] = []

        def record(_: Peer, command: Command) -> None:
            if isinstance(command, Subscribe) and command.partition == 1:
                before.append(topic.created())

        stage.nsqd.script = record
        async with stage.consumer() as consumer:
            await consumer.wait_ready(timeout=LIMIT)
        assert before == [["1"]]
        assert topic.http.queries("/channel/create") == [{"topic": "orders", "partition": "1", "channel": "billing"}]


async def test_a_new_partition_is_subscribed_though_nsqds_http_is_silent(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with Growing(stage) as topic:
        topic.http.behave = hang
        began = asyncio.get_running_loop().time()
        async with stage.consumer() as consumer:
            await consumer.wait_ready(timeout=LIMIT)
            assert asyncio.get_running_loop().time() - began == pytest.approx(PATIENCE, abs=0.3)
            await eventually(lambda: "lacks channels" in caplog.text)
            await topic.http.stop()


async def test_one_that_does_not_lead_yet_is_asked_to_subscribe(stage: Stage) -> None:
    """Its answer tells; a leader whose writes are disabled serves consumers."""
    async with Growing(stage) as topic:
        topic.has(leads=False)
        async with stage.consumer() as consumer:
            await consumer.wait_ready(timeout=LIMIT)
            assert topic.created() == []


async def test_where_sub_is_not_answered_in_time_the_channel_is_created_over_http(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with Growing(stage) as topic:
        stage.lookupd.answer("/channels", {"channels": ["billing"]})
        stage.nsqd.script = lambda _, command: isinstance(command, Subscribe)
        async with stage.consumer(start_timeout=2.0):
            created = [(query["partition"], query["channel"]) for query in topic.http.queries("/channel/create")]
            assert sorted(created) == [("0", "ch"), ("1", "ch")]
            assert "not all partitions are subscribed yet" in caplog.text
            assert "may not exist" not in caplog.text


async def test_where_that_fails_too_entering_names_the_partitions(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.nsqd.script = lambda _, command: isinstance(command, Subscribe)
    stage.lead(dict.fromkeys(range(3), stage.nsqd))
    async with stage.consumer(start_timeout=2.0):
        assert "The channel may not exist on partitions 0-2 yet" in caplog.text


async def test_quick_subscriptions_send_no_further_request(stage: Stage) -> None:
    async with Growing(stage) as topic:
        stage.lookupd.answer("/channels", {"channels": ["billing"]})
        async with stage.consumer() as consumer:
            await consumer.wait_ready(timeout=LIMIT)
            await dawdle(2.0)  # longer than slow ones are waited for
        assert topic.http.requests == []
