"""The connections of a client whose peers are strangers, down, or bad in turns."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from nsq_ha import Consumer, Producer, StartFrom
from nsq_ha.engine.connect_limiter import AT_ONCE
from nsq_ha.protocol import Command
from nsq_ha.protocol.commands import Identify
from tests.engine.lookups.loopback import Fake, hang, lookup_body, peer
from tests.support.nsqd import LIMIT, Peer, Subscribe, error
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import dawdle

PARTITIONS = 8
STRANGERS = 400
SPAN = 20.0
"""Seconds for which connections are counted."""


@pytest.fixture
async def stage(nothing_is_left: None) -> AsyncIterator[Stage]:
    async with Stage(2) as stage:
        stage.lead(dict.fromkeys(range(PARTITIONS), stage.nsqd))
        yield stage


def silent(_: Peer, command: Command) -> bool:
    return isinstance(command, Identify)


def closes(peer: Peer, command: Command) -> bool:
    if isinstance(command, Identify):
        peer.close()
    return isinstance(command, Identify)


def refuses(peer: Peer, command: Command) -> bool:
    if isinstance(command, Subscribe):
        peer.write(error("E_SUB_ORDER_IS_MUST no"))
    return isinstance(command, Subscribe)


def closes_after(seconds: float) -> Callable[[Peer, Command], None]:
    def script(peer: Peer, command: Command) -> None:
        if isinstance(command, Subscribe):
            asyncio.get_running_loop().call_later(seconds, peer.close)

    return script


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["consumer", "producer"])
async def test_an_answer_cannot_send_a_crowd_to_a_stranger(stage: Stage, kind: str) -> None:
    asyncio.get_running_loop().set_debug(False)  # stacks of so many tasks take most of the time
    stage.lead(dict.fromkeys(range(STRANGERS), stage.nsqd))
    stage.nsqd.script = silent
    client: Consumer | Producer = (
        stage.consumer(start_timeout=1.0) if kind == "consumer" else stage.producer(publish_timeout=1.0)
    )
    async with client:
        if isinstance(client, Producer):
            publishes = [client.publish(TOPIC, b"x", partition=number) for number in range(STRANGERS)]
            await asyncio.gather(*publishes, return_exceptions=True)
        await dawdle(1.0)
        assert 1 <= len(stage.nsqd.peers) <= AT_ONCE + 5


async def test_nor_to_a_strangers_http(stage: Stage) -> None:
    """A consumer with a start position asks there before it subscribes."""
    asyncio.get_running_loop().set_debug(False)
    stranger = Fake()
    stranger.behave = hang
    await stranger.start()
    entry = peer(stage.nsqd.port) | {"http_port": stranger.port}
    partitions = {str(number): entry for number in range(STRANGERS)}
    body = lookup_body(dict.fromkeys(range(STRANGERS), stage.nsqd.port)) | {"partitions": partitions}
    stage.lookupd.answer("/lookup", body)
    async with stage.consumer(start_timeout=1.0, start_from=StartFrom.beginning(), lookup_timeout=5.0):
        await dawdle(1.0)
        assert 1 <= len(stranger.requests) <= AT_ONCE
    await stranger.stop()


@pytest.mark.parametrize("script", [closes, refuses, closes_after(0.0), closes_after(0.1), closes_after(1.0)])
async def test_a_consumer_is_no_hammer(stage: Stage, script: Callable[[Peer, Command], bool | None]) -> None:
    stage.nsqd.script = script
    async with stage.consumer(start_timeout=0.0):
        await stage.nsqd.until(lambda: len(stage.nsqd.peers) >= PARTITIONS)
        first = len(stage.nsqd.peers)
        await dawdle(SPAN)
        again = len(stage.nsqd.peers) - first
    assert again <= 2 * SPAN


async def test_a_producer_is_no_hammer(stage: Stage) -> None:
    stage.nsqd.script = closes
    async with stage.producer(publish_timeout=SPAN + 5.0) as producer:
        publishing = [
            asyncio.create_task(producer.publish(TOPIC, b"x", partition=number)) for number in range(PARTITIONS)
        ]
        await stage.nsqd.until(lambda: len(stage.nsqd.peers) >= PARTITIONS)
        await dawdle(SPAN)
        assert len(stage.nsqd.peers) - PARTITIONS <= 2 * SPAN
        stage.nsqd.script = None
        async with asyncio.timeout(3.0):
            await asyncio.gather(*publishing)


async def test_all_partitions_are_back_soon(stage: Stage) -> None:
    """After an nsqd was down, one connection shows that it is well, and then all are opened."""
    stage.lead(dict.fromkeys(range(64), stage.nsqd))
    async with stage.consumer(start_timeout=LIMIT) as consumer:
        await consumer.wait_ready(timeout=LIMIT)
        await stage.nsqd.stop()
        await dawdle(SPAN)
        began = asyncio.get_running_loop().time()
        await stage.nsqd.start()
        await stage.nsqd.until(lambda: len(stage.nsqd.open_peers) == 64)
        assert asyncio.get_running_loop().time() - began < 2.0


async def test_a_healthy_nsqd_beside_a_bad_one_is_not_delayed(stage: Stage) -> None:
    bad, good = stage.nsqds
    bad.script = closes
    stage.lead(dict.fromkeys(range(7), bad) | {7: good})
    async with stage.consumer(start_timeout=0.0):
        for number in range(3):
            peer = await good.subscriber(number)
            await dawdle(SPAN)
            began = asyncio.get_running_loop().time()
            peer.close()
            await good.subscriber(number + 1)
            assert asyncio.get_running_loop().time() - began < 0.3


async def test_neither_is_one_that_restarts_while_the_other_is_down(stage: Stage) -> None:
    """Its attempt waited behind those of each partition of the other, which may begin at one a second."""
    down, restarted = stage.nsqds
    stage.lead(dict.fromkeys(range(63), down) | {63: restarted})
    async with stage.consumer(start_timeout=LIMIT) as consumer:
        await consumer.wait_ready(timeout=LIMIT)
        await down.stop()
        await dawdle(SPAN)
        await restarted.stop()
        await dawdle(SPAN)
        began = asyncio.get_running_loop().time()
        await restarted.start()
        await restarted.until(lambda: bool(restarted.open_peers))
        assert asyncio.get_running_loop().time() - began < 4.0


async def test_all_nsqds_are_back_soon(nothing_is_left: None) -> None:
    """After a network was down, each nsqd had to wait for its turn, at one a second."""
    async with Stage(24) as stage:
        stage.lead(dict(enumerate(stage.nsqds)))
        async with stage.consumer(start_timeout=LIMIT) as consumer:
            await consumer.wait_ready(timeout=LIMIT)
            for nsqd in stage.nsqds:
                await nsqd.stop()
            await dawdle(SPAN)
            began = asyncio.get_running_loop().time()
            for nsqd in stage.nsqds:
                await nsqd.start()
            for nsqd in stage.nsqds:
                await nsqd.until(lambda nsqd=nsqd: bool(nsqd.open_peers))  # type: ignore[misc]
            assert asyncio.get_running_loop().time() - began < 5.0


async def test_what_waits_for_its_turn_still_looks_for_another_leader(stage: Stage) -> None:
    """A producer of many topics looked each of them up only from time to time, until its attempt had had its turn."""
    down, leads = stage.nsqds
    stage.lead({0: down})
    async with stage.producer(publish_timeout=60.0) as producer:
        topics = [f"topic{number}" for number in range(12)]
        await asyncio.gather(*(producer.publish(topic, b"x") for topic in topics))
        await down.stop()
        publishing = [asyncio.create_task(producer.publish(topic, b"y")) for topic in topics]
        await dawdle(3.0)
        stage.lead({0: leads})
        async with asyncio.timeout(2.0):
            await asyncio.gather(*publishing)
