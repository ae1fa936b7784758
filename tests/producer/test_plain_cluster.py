"""Publishing to a plain cluster: to the nsqds that have the topic, or to any."""

import asyncio
from typing import Any

import pytest

from nsq_ha import ConfigError
from nsq_ha.protocol import Pub
from tests.support.certificates import server_context
from tests.support.nsqd import FakeNsqd, Holding
from tests.support.stage import TOPIC, Stage
from tests.support.tls import TLS
from tests.support.waiting import eventually


def published(nsqd: FakeNsqd) -> list[Pub]:
    return [command for command in nsqd.commands if isinstance(command, Pub)]


async def test_messages_go_to_the_nsqds_that_have_the_topic(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2], candidates=stage.nsqds[2:])
    async with stage.producer() as producer:
        receipts = [await producer.publish(TOPIC, b"x") for _ in range(10)]
    assert [len(published(nsqd)) for nsqd in stage.nsqds] == [5, 5, 0]
    assert published(stage.nsqd)[0] == Pub(TOPIC, None, b"x")
    assert receipts[0].trace_id is None


async def test_a_new_topic_is_published_to_any_nsqd(stage: Stage) -> None:
    stage.list_plain(candidates=stage.nsqds)
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x")
    assert sum(len(published(nsqd)) for nsqd in stage.nsqds) == 1


async def test_another_nsqd_is_used_when_one_is_down(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2])
    async with stage.producer() as producer:
        for _ in range(4):
            await producer.publish(TOPIC, b"x")
        await stage.nsqds[0].stop()
        receipts = await asyncio.gather(*(producer.publish(TOPIC, b"y") for _ in range(20)))
    assert len(published(stage.nsqds[1])) >= 20
    assert {receipt.nsqd for receipt in receipts} == {stage.nsqds[1].node.address}


async def test_an_nsqd_that_is_no_longer_listed_gets_nothing_new(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2])
    async with stage.producer(lookup_interval=1.0) as producer:
        await producer.publish(TOPIC, b"x")
        stage.list_plain(stage.nsqds[1])
        count = stage.lookupd.count("/lookup")
        await eventually(lambda: stage.lookupd.count("/lookup") >= count + 2)
        before = len(published(stage.nsqds[0]))
        for _ in range(6):
            await producer.publish(TOPIC, b"y")
    assert len(published(stage.nsqds[0])) == before


async def test_without_a_listed_nsqd_the_one_that_is_connected_gets_everything(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2])
    async with stage.producer(lookup_interval=0.1) as producer:
        await producer.wait_ready(TOPIC)
        stage.list_plain()  # an nsqlookupd that was restarted, until the nsqds register again
        await eventually(lambda: not any(partition.leader for partition in producer.stats().partitions))
        await stage.nsqds[0].stop()
        receipts = await asyncio.gather(*(producer.publish(TOPIC, b"y", timeout=5.0) for _ in range(20)))
        receipts += [await producer.publish(TOPIC, b"y", timeout=5.0) for _ in range(4)]
    assert {receipt.nsqd for receipt in receipts} == {stage.nsqds[1].node.address}


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ({"key": "a"}, "key= and partition= need the partitioned server: plain nsqd has no partitions"),
        ({"partition": 0}, "key= and partition= need the partitioned server"),
        ({"trace_id": 7}, "trace_id= and trace= need the partitioned server"),
        ({"headers": {"a": "b"}}, "headers= and tag= need the partitioned server: messages of plain nsqd have neither"),
        ({"tag": "blue"}, "headers= and tag= need the partitioned server"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_what_only_the_partitioned_server_knows_is_refused(
    stage: Stage, argument: dict[str, Any], text: str
) -> None:
    stage.list_plain(stage.nsqd)
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match=text):
            await producer.publish(TOPIC, b"x", **argument)


async def test_the_partitioned_server_defers_no_message(stage: Stage) -> None:
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match="defer= needs plain nsqd"):
            await producer.publish(TOPIC, b"x", defer=1.0)


@pytest.mark.parametrize("defer", [-1, 1e10, True, "1", float("nan")])
async def test_a_wrong_delay_is_refused(stage: Stage, defer: Any) -> None:  # noqa: ANN401 - anything
    stage.list_plain(stage.nsqd)
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match=r"defer must be a number of seconds, 0\.\.9223372036"):
            await producer.publish(TOPIC, b"x", defer=defer)


async def test_a_delay_goes_with_nothing_that_plain_nsqd_does_not_know(stage: Stage) -> None:
    stage.list_plain(stage.nsqd)
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match="defer= cannot be combined with a trace"):
            await producer.publish(TOPIC, b"x", defer=1.0, trace_id=7)


async def test_an_nsqd_that_answers_late_gets_less(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2])
    slow = Holding()
    stage.nsqds[0].script = slow
    async with stage.producer() as producer:
        calls = [asyncio.create_task(producer.publish(TOPIC, b"x")) for _ in range(2)]
        await stage.nsqds[0].until(lambda: slow.has(1))
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(10):
            await producer.publish(TOPIC, b"y")
        assert [len(published(nsqd)) for nsqd in stage.nsqds[:2]] == [1, 11]
        slow.release()
        await asyncio.gather(*calls)


async def test_a_close_does_not_wait_for_an_nsqd_that_cannot_confirm_the_end_of_tls(stage: Stage) -> None:
    stage.list_plain(stage.nsqd)
    stage.nsqd.tls = server_context()
    loop = asyncio.get_running_loop()
    async with stage.producer(tls=TLS, heartbeat_interval=60.0, close_timeout=1.0) as producer:
        await producer.publish(TOPIC, b"x")
        (peer,) = stage.nsqd.open_peers
        peer.mute()
        peer.pause()
        began = loop.time()
    assert loop.time() - began < 2.0
