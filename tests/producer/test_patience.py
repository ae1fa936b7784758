"""A publish waits until its own limit, not for a time of ours, while nsqlookupd lists no nsqd yet."""

import asyncio

import pytest

from nsq_ha.errors import PublishError, TopicNotFoundError
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import dawdle

BOTH_CAUSES = (
    "no nsqlookupd lists an nsqd for topic 'orders' (asked {url}): start nsqd with the option -lookupd-tcp-address;"
    " one that already runs registers again within 30 s after nsqlookupd was restarted"
)


def without_nsqds(stage: Stage) -> None:
    stage.lookupd.answer("/lookup", {"message": "TOPIC_NOT_FOUND"}, status=404)
    stage.lookupd.answer("/nodes", {"producers": []})


@pytest.mark.parametrize("after", [2.0, 14.0, 29.0])
async def test_an_nsqd_that_registers_within_the_limit_takes_the_publish(stage: Stage, after: float) -> None:
    """The application was started first, or nsqlookupd was restarted: nsqd registers again after 15 to 30 s."""
    without_nsqds(stage)
    async with stage.producer() as producer:
        publishing = asyncio.create_task(producer.publish(TOPIC, b"x", timeout=30.0))
        many = asyncio.create_task(producer.publish_many(TOPIC, [b"y"] * 3, timeout=30.0))
        await dawdle(after)
        assert not publishing.done()
        stage.list_plain(candidates=[stage.nsqd])
        assert (await publishing).nsqd == stage.nsqd.node.address
        assert not any(isinstance(outcome, PublishError) for outcome in await many)


async def test_a_publish_without_any_nsqd_fails_at_its_limit_and_names_both_causes(stage: Stage) -> None:
    without_nsqds(stage)
    loop = asyncio.get_running_loop()
    async with stage.producer() as producer:
        for limit in (1.0, 12.0):
            began = loop.time()
            with pytest.raises(PublishError) as caught:
                await producer.publish(TOPIC, b"x", timeout=limit)
            assert loop.time() - began == pytest.approx(limit, abs=0.3)
            assert BOTH_CAUSES.format(url=stage.lookupd.url) in str(caught.value)
            assert isinstance(caught.value.__cause__, TopicNotFoundError)
            assert not caught.value.maybe_stored
