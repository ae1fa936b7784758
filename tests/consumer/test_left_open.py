"""Consumers that nobody closes, on plain nsqds, which keep what is in flight until its timeout."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import httpx
import pytest

from nsq_ha import Consumer, Message
from nsq_ha.devcluster import DevCluster
from tests.devcluster.probes import until
from tests.support.nsqd import LIMIT
from tests.support.waiting import eventually

PUBLISHED = 12

HEAD = """
import asyncio, sys, threading
from nsq_ha import Consumer
lookupd, topic = sys.argv[1:]

async def all_in_flight(consumer):
    while consumer.stats().in_flight < 12:
        await asyncio.sleep(0.01)

async def take_some():
    consumer = Consumer(topic, "ch", lookupd=lookupd, max_in_flight=12)
    await consumer.__aenter__()
    for _ in range(3):
        await anext(consumer)
    await all_in_flight(consumer)
    return consumer
"""


@pytest.fixture(scope="module")
def plain() -> Iterator[DevCluster]:
    with DevCluster(plain=True, nsqds=1, nsqlookupds=1) as cluster:
        yield cluster


@pytest.fixture
def topic(plain: DevCluster, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name))}"
    plain.create_topic(name)
    nsqd = plain.http_address("nsqd-0")
    httpx.post(nsqd + "/channel/create", params={"topic": name, "channel": "ch"}).raise_for_status()
    body = b"\n".join(b"%d" % number for number in range(PUBLISHED))
    httpx.post(nsqd + "/mpub", params={"topic": name}, content=body).raise_for_status()
    return name


def in_flight_and_depth(plain: DevCluster, topic: str) -> tuple[int, int]:
    answer = httpx.get(plain.http_address("nsqd-0") + "/stats", params={"format": "json", "topic": topic}).json()
    (channel,) = answer["topics"][0]["channels"]
    return channel["in_flight_count"], channel["depth"]


def run(plain: DevCluster, topic: str, text: str) -> str:
    """Run a program; return what it complains about."""
    command = [sys.executable, "-c", HEAD + text, plain.lookupd[0], topic]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=8 * LIMIT, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


@pytest.mark.parametrize("by", ["iteration", "handler"])
def test_at_the_end_of_the_loop_all_messages_go_back(plain: DevCluster, topic: str, by: str) -> None:
    programs = {
        "iteration": "asyncio.run(take_some())",
        "handler": """
async def hold(message):
    await asyncio.Event().wait()

async def main():
    consumer = Consumer(topic, "ch", lookupd=lookupd, max_in_flight=12)
    await consumer.__aenter__()
    running = asyncio.create_task(consumer.run(hold, concurrency=2))
    await all_in_flight(consumer)

asyncio.run(main())
""",
    }
    assert run(plain, topic, programs[by]) == ""
    until(lambda: in_flight_and_depth(plain, topic) == (0, PUBLISHED))


def test_a_loop_that_still_runs_at_exit_gives_all_messages_back(plain: DevCluster, topic: str) -> None:
    program = """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
consumer = asyncio.run_coroutine_threadsafe(take_some(), loop).result()
"""
    assert run(plain, topic, program) == ""
    until(lambda: in_flight_and_depth(plain, topic) == (0, PUBLISHED))


def test_without_a_loop_that_runs_the_log_says_how_many_stay_in_flight(plain: DevCluster, topic: str) -> None:
    program = """
loop = asyncio.new_event_loop()
consumer = loop.run_until_complete(take_some())
"""
    complaints = run(plain, topic, program)
    assert f"{topic}/ch: the process exits without closing the consumer: 12 messages stay in flight" in complaints
    assert in_flight_and_depth(plain, topic) == (PUBLISHED, 0)


async def test_a_close_that_is_cancelled_gives_all_messages_back(plain: DevCluster, topic: str) -> None:
    held = asyncio.Event()

    async def hold(message: Message) -> None:
        held.set()
        await asyncio.Event().wait()

    consumer = Consumer(topic, "ch", lookupd=plain.lookupd[0], max_in_flight=PUBLISHED)
    await consumer.__aenter__()
    running = asyncio.create_task(consumer.run(hold))
    await asyncio.wait_for(held.wait(), LIMIT)
    closing = asyncio.create_task(consumer.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, running, return_exceptions=True)
    await asyncio.to_thread(until, lambda: in_flight_and_depth(plain, topic) == (0, PUBLISHED))


async def test_a_close_gives_back_what_a_task_held_that_is_long_gone(plain: DevCluster, topic: str) -> None:
    async with Consumer(topic, "ch", lookupd=plain.lookupd[0], max_in_flight=PUBLISHED) as consumer:

        async def take() -> None:
            for _ in range(3):
                await anext(consumer)

        task = asyncio.create_task(take())
        await asyncio.wait({task})
        gone = weakref.ref(task)
        del task
        gc.collect()
        assert gone() is None
        await eventually(lambda: consumer.stats().in_flight == PUBLISHED)
    await asyncio.to_thread(until, lambda: in_flight_and_depth(plain, topic) == (0, PUBLISHED))
