"""Thousands of publishes to a thousand partitions: none looks at all partitions."""

import asyncio

from tests.support.stage import TOPIC, Stage

MANY = 1000


async def test_no_publish_waits_for_an_nsqd_that_is_down_with_many_partitions(stage: Stage) -> None:
    """It is connected to once a second, for all of them: publishes without a key ended by their limit there."""
    stage.lead({number: stage.nsqds[number % 3 == 1] for number in range(256)})
    await stage.nsqds[1].stop()
    async with stage.producer(publish_timeout=20.0) as producer:
        for _ in range(2):  # the first ones find out; of the second ones, some try whether it works again
            outcomes = await asyncio.gather(*(producer.publish(TOPIC, b"x") for _ in range(MANY)))
            assert {receipt.nsqd for receipt in outcomes} == {stage.nsqds[0].node.address}
