"""Topics that nobody publishes to cause no lookups, tasks or connections."""

import asyncio

import pytest

from nsq_ha import Producer
from nsq_ha.errors import PublishError, TopicNotFoundError
from nsq_ha.producer import machine
from tests.support.inside import topics_of
from tests.support.nsqd import LIMIT
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually


def watched(producer: Producer) -> set[str]:
    assert producer._lookups is not None
    return set(producer._lookups._watches) | set(topics_of(producer))


def tasks() -> list[str]:
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith(("watch", "nsq_ha sender"))]


async def test_wrong_names_are_not_looked_up_for_ever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "UNKNOWN_TOPIC_PATIENCE", 0.1)
    monkeypatch.setattr(machine, "FIRST_WARNING", 0.1)
    stage.lookupd.answer("/lookup", {"message": "Key not found"}, 404)
    async with stage.producer(lookup_interval=0.1) as producer:
        names = [f"wrong_{number}" for number in range(20)]
        outcomes = await asyncio.gather(
            *(producer.publish(name, b"x", timeout=0.1) for name in names), return_exceptions=True
        )
        assert {type(outcome) for outcome in outcomes} == {PublishError}
        await eventually(lambda: not watched(producer) and not tasks())
        count = stage.lookupd.count("/lookup")
        with pytest.raises(PublishError) as caught:
            await producer.publish("wrong_1", b"x")
        assert isinstance(caught.value.__cause__, TopicNotFoundError)
        assert stage.lookupd.count("/lookup") > count


async def test_a_topic_comes_back_with_its_next_publish(stage: Stage) -> None:
    async with stage.producer(idle_timeout=1.0) as producer:
        await producer.publish(TOPIC, b"x", key="k")
        await eventually(lambda: not watched(producer) and not tasks())
        await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
        outcomes = await asyncio.wait_for(producer.publish_many(TOPIC, [b"y"] * 3), LIMIT)
        assert not any(isinstance(outcome, PublishError) for outcome in outcomes)
        assert (await producer.publish(TOPIC, b"z", key="k")).attempts == 1
        assert watched(producer) == {TOPIC}


async def test_a_topic_that_grew_while_it_was_idle_is_used_in_full_at_once(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]})
    async with stage.producer(idle_timeout=1.0) as producer:
        await producer.publish(TOPIC, b"x")
        await eventually(lambda: not watched(producer))
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
        assert {(await producer.publish(TOPIC, b"y")).partition for _ in range(2)} == {0, 1}
