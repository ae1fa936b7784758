"""A plain cluster: one connection for each nsqd, and nsqds that are silent."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nsq_ha import Producer
from nsq_ha.protocol import Pub
from tests.support.nsqd import FakeNsqd, Holding
from tests.support.stage import Stage
from tests.support.waiting import dawdle

TOPICS = [f"topic{number}" for number in range(20)]


@pytest.fixture
async def stage(nothing_is_left: None) -> AsyncIterator[Stage]:
    async with Stage(4) as stage:
        stage.list_plain(candidates=stage.nsqds)
        yield stage


def stored(stage: Stage) -> set[tuple[str, bytes]]:
    return {
        (command.topic, command.body) for nsqd in stage.nsqds for command in nsqd.commands if isinstance(command, Pub)
    }


async def test_a_connection_without_answers_is_left_for_another_nsqd(stage: Stage) -> None:
    async with stage.producer() as producer:
        used = (await producer.publish(TOPICS[0], b"first")).nsqd
        (silent,) = (nsqd for nsqd in stage.nsqds if nsqd.node.address == used)
        silent.script = Holding()
        receipts = await asyncio.gather(*(producer.publish(topic, b"x", timeout=5.0) for topic in TOPICS))
    assert used not in {receipt.nsqd for receipt in receipts}


async def test_what_waits_for_a_handshake_without_an_answer_is_stored_elsewhere(stage: Stage) -> None:
    for nsqd in stage.nsqds[:3]:
        nsqd.is_silent = True
    async with stage.producer(connect_timeout=60.0) as producer:
        await asyncio.gather(*(producer.publish(topic, b"x", timeout=10.0) for topic in TOPICS))
    assert stored(stage) == {(topic, b"x") for topic in TOPICS}


# ---------------------------------------------------------------- an nsqd that is silent


def producer_of(stage: Stage, kind: str, nsqds: list[FakeNsqd], **options: Any) -> Producer:  # noqa: ANN401 - of a producer
    if kind == "nsqd":
        return Producer(nsqd=[nsqd.node.address for nsqd in nsqds], **options)
    stage.list_plain(*nsqds)
    return stage.producer(**options)


async def slow(producer: Producer, topics: list[str], seconds: float) -> int:
    """Publish to the topics in turn for some seconds; return how many publishes took more than a moment."""
    loop, found = asyncio.get_running_loop(), 0
    end = loop.time() + seconds
    while loop.time() < end:
        for topic in topics:
            began = loop.time()
            await producer.publish(topic, b"x", timeout=5.0)
            found += loop.time() - began > 0.1
        await dawdle(0.05)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["nsqd", "lookupd"])
@pytest.mark.parametrize("topics", [1, 5])
async def test_a_silent_nsqd_is_remembered(stage: Stage, kind: str, topics: int) -> None:
    silent, good = stage.nsqds[:2]
    silent.is_silent = True
    async with producer_of(stage, kind, [silent, good]) as producer:
        assert await slow(producer, TOPICS[:topics], 60.0) <= 1
        assert 3 < len(silent.peers) < 8
        silent.is_silent = False
        await slow(producer, TOPICS[:topics], 40.0)
        assert len([command for command in silent.commands if isinstance(command, Pub)]) > 10
