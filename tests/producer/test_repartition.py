"""Topics whose number of partitions changes: who publishes where, and when."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from nsq_ha import Producer
from nsq_ha.errors import PublishError
from nsq_ha.events import Event, Repartitioned
from nsq_ha.policy.liveness import DOUBTED_AFTER
from nsq_ha.policy.topology import TopicView
from tests.support.inside import topics_of
from tests.support.nsqd import LIMIT, Holding
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually

LOOKUP_INTERVAL = 0.05
DELAY = 13 * LOOKUP_INTERVAL
"""Seconds for which new partitions are not used: the longest interval between lookups, and a short one."""


def grow(stage: Stage, number: int) -> None:
    stage.lead({partition: stage.nsqds[partition % 3] for partition in range(number)})


def grow_without_leaders(stage: Stage, led: int, number: int) -> None:
    """Say a number of partitions of which only the first take writes."""
    stage.lead({partition: stage.nsqds[partition % 3] for partition in range(led)}, number)


def growing(stage: Stage, **options: Any) -> Producer:  # noqa: ANN401 - ProducerConfig's fields
    return stage.producer(**({"lookup_interval": LOOKUP_INTERVAL} | options))


async def partitions_of(producer: Producer) -> set[int]:
    return {(await producer.publish(TOPIC, b"x")).partition for _ in range(8)}


async def until_it_uses(producer: Producer, partitions: set[int]) -> None:
    async with asyncio.timeout(LIMIT):
        while await partitions_of(producer) != partitions:
            pass


async def until_view(producer: Producer, condition: Callable[[TopicView], bool]) -> None:
    """Wait until what the producer knows of its topic is so."""
    topic = topics_of(producer)[TOPIC]
    await eventually(lambda: topic.view.is_answered and condition(topic.view))


async def until_it_knows(producer: Producer, number: int) -> None:
    await until_view(producer, lambda view: view.partition_num == number)


async def test_new_partitions_are_published_to_after_their_delay(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    grow(stage, 2)
    async with growing(stage) as producer:
        assert await partitions_of(producer) == {0, 1}
        grow(stage, 4)
        grown_at = loop.time()
        await until_it_uses(producer, {0, 1, 2, 3})
        assert loop.time() - grown_at >= DELAY


async def test_new_partitions_that_take_no_writes_are_not_hashed_over(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    grow(stage, 2)
    async with growing(stage) as producer:
        await producer.publish(TOPIC, b"x")
        grow_without_leaders(stage, 2, 4)
        changed_at = loop.time()
        while loop.time() < changed_at + 4 * DELAY:
            receipts = [await producer.publish(TOPIC, b"x", key=f"k{n}", timeout=LIMIT) for n in range(20)]
            assert {receipt.partition for receipt in receipts} == {0, 1}
        grow(stage, 4)
        served_at = loop.time()
        await until_it_uses(producer, {0, 1, 2, 3})
        assert loop.time() - served_at >= DELAY


async def test_a_partition_that_is_named_is_published_to_at_once(stage: Stage) -> None:
    grow(stage, 1)
    async with growing(stage, lookup_interval=1.0) as producer:
        await producer.publish(TOPIC, b"x")
        grow(stage, 2)
        await until_it_knows(producer, 2)
        assert (await producer.publish(TOPIC, b"x", partition=1)).partition == 1
        assert await partitions_of(producer) == {0}


async def test_keys_follow_and_the_event_tells(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    changes: list[tuple[str, int, int]] = []

    def told(event: Event) -> None:
        if isinstance(event, Repartitioned):
            changes.append((event.topic, event.before, event.after))

    grow(stage, 2)
    async with growing(stage, on_event=told) as producer:
        before = [(await producer.publish(TOPIC, b"x", key=f"k{n}")).partition for n in range(20)]
        assert set(before) == {0, 1}
        assert changes == []
        grow(stage, 4)
        await until_it_uses(producer, {0, 1, 2, 3})
        after = [(await producer.publish(TOPIC, b"x", key=f"k{n}")).partition for n in range(20)]
        assert set(after) == {0, 1, 2, 3}
        assert [number % 2 for number in after] == before
    assert changes == [(TOPIC, 2, 4)]
    assert "from 2 to 4, so keys move" in caplog.text


async def test_what_a_silent_leader_has_is_not_written_to_it_again_for_partitions_that_are_not_used_yet(
    stage: Stage,
) -> None:
    grow(stage, 1)
    async with growing(stage, lookup_interval=1.0) as producer:
        await producer.publish(TOPIC, b"0")
        grow(stage, 2)
        await until_it_knows(producer, 2)
        holding = stage.nsqds[0].script = Holding()
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"1", timeout=0.9 * DOUBTED_AFTER)
        assert (caught.value.attempts, len(holding.held)) == (1, 1)
        holding.release()


async def test_a_recreated_topic_is_used_at_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    grow(stage, 1)
    async with growing(stage, lookup_interval=1.0) as producer:
        await producer.publish(TOPIC, b"x", key="k")
        stage.lookupd.answer("/lookup", {"message": "Key not found"}, status=404)
        await until_view(producer, lambda view: not view.exists)
        grow(stage, 2)
        assert await partitions_of(producer) == {0, 1}
        await producer.publish(TOPIC, b"x", key="k")
    assert "keys move" not in caplog.text
