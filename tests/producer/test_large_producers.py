"""Thousands of publishes to a thousand partitions: none looks at all partitions."""

import asyncio
from collections import Counter

import pytest

from nsq_ha.policy.topology import TopicView
from nsq_ha.producer.choice import PartitionChoice
from tests.support.stage import TOPIC, Stage

MANY = 1000


@pytest.fixture
def looks(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> "Counter[str]":
    """Count looks at one partition, and at all leaders."""
    stage.lead(dict.fromkeys(range(MANY), stage.nsqds[0]))
    counts: Counter[str] = Counter()
    is_healthy, publishable = PartitionChoice.is_healthy, TopicView.publishable

    def counted(choice: PartitionChoice, partition: int) -> bool:
        counts["one"] += 1
        return is_healthy(choice, partition)

    def all_counted(view: TopicView) -> object:
        counts["all"] += 1
        return publishable.__get__(view)

    monkeypatch.setattr(PartitionChoice, "is_healthy", counted)
    monkeypatch.setattr(TopicView, "publishable", property(all_counted))
    return counts


async def test_publishes_before_the_partitions_are_connected(stage: Stage, looks: "Counter[str]") -> None:
    """2,000 of them held the loop for 0.25 s."""
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x", partition=0)
        looks.clear()
        await asyncio.gather(*(producer.publish(TOPIC, b"x") for _ in range(MANY)))
    assert looks["one"] < 5 * MANY


async def test_connecting_to_all(stage: Stage, looks: "Counter[str]") -> None:
    """Each made a dict of all leaders, together in 0.1 s."""
    async with stage.producer() as producer:
        await producer.wait_ready(TOPIC)
    assert looks["all"] < 10


async def test_no_publish_waits_for_an_nsqd_that_is_down_with_many_partitions(stage: Stage) -> None:
    """It is connected to once a second, for all of them: publishes without a key ended by their limit there."""
    stage.lead({number: stage.nsqds[number % 3 == 1] for number in range(256)})
    await stage.nsqds[1].stop()
    async with stage.producer(publish_timeout=20.0) as producer:
        for _ in range(2):  # the first ones find out; of the second ones, some try whether it works again
            outcomes = await asyncio.gather(*(producer.publish(TOPIC, b"x") for _ in range(MANY)))
            assert {receipt.nsqd for receipt in outcomes} == {stage.nsqds[0].node.address}
