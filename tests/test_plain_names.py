"""A plain cluster has no partitions: what users read names the topic alone."""

import asyncio
import logging
import re

import pytest

from nsq_ha import Consumer, Producer, PublishError
from nsq_ha.devcluster import DevCluster
from tests.support.nsqd import LIMIT, Holding
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually


async def test_errors_logs_and_health_of_a_producer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nsq_ha")
    async with Stage(2) as stage:
        stage.list_plain(*stage.nsqds)
        async with stage.producer(close_timeout=0.1) as producer:
            await producer.publish(TOPIC, b"x")
            for nsqd in stage.nsqds:
                nsqd.script = Holding()
            with pytest.raises(PublishError, match=f"publish to {TOPIC} ") as caught:
                await producer.publish(TOPIC, b"y", timeout=1.0)
            assert producer.stats().partitions[0].topic == TOPIC
            task = asyncio.create_task(producer.publish(TOPIC, b"z", timeout=2.0))
            await eventually(lambda: "has not answered" in producer.health().reason, LIMIT)
            reason = producer.health().reason
            with pytest.raises(PublishError):
                await task
    assert f"{TOPIC}: " in caplog.text
    for text in (str(caught.value), reason, caplog.text):
        assert not re.search(rf"{TOPIC}-\d", text), text


async def test_logs_and_messages_of_a_consumer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "nsq_ha")
    with DevCluster(nsqds=2, plain=True) as cluster:
        lookupd = cluster.lookupd
        async with Producer(lookupd=lookupd) as producer:
            await producer.publish(TOPIC, b"not JSON")
        async with Consumer(TOPIC, "ch", lookupd=lookupd) as consumer:
            message = await asyncio.wait_for(anext(consumer), LIMIT)
            with pytest.raises(ValueError, match=f"of {TOPIC} is not JSON") as caught:
                message.json()
            texts = [repr(message), str(caught.value), consumer.health().reason]
            message.finish()
    for text in (*texts, caplog.text):
        assert not re.search(rf"{TOPIC}-\d", text), text
