"""Consumers that nobody closes, on plain nsqds, which keep what is in flight until its timeout."""

import asyncio
import gc
import re
import weakref
from collections.abc import Iterator

import pytest

from nsq_ha import Consumer, Message
from nsq_ha.devcluster import DevCluster
from tests.devcluster.probes import until
from tests.support import programs, web
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


@pytest.fixture(scope="module")
def two() -> Iterator[DevCluster]:
    with DevCluster(plain=True, nsqds=2, nsqlookupds=1) as cluster:
        yield cluster


@pytest.fixture
def topic(plain: DevCluster, request: pytest.FixtureRequest) -> str:
    return published(plain, request.node.name, PUBLISHED)


def published(plain: DevCluster, test: str, count: int) -> str:
    """Return a new topic with so many messages on each nsqd."""
    name = f"t{abs(hash(test))}"
    plain.create_topic(name)
    for nsqd in map(plain.http_address, plain.nsqds):
        web.post(nsqd + "/channel/create", params={"topic": name, "channel": "ch"}).raise_for_status()
        body = b"\n".join(b"%d" % number for number in range(count))
        web.post(nsqd + "/mpub", params={"topic": name}, content=body).raise_for_status()
    return name


def in_flight_and_depth(plain: DevCluster, topic: str) -> tuple[int, int]:
    found = []
    for nsqd in map(plain.http_address, plain.nsqds):
        answer = web.get(nsqd + "/stats", params={"format": "json", "topic": topic}).json()
        found += answer["topics"][0]["channels"]
    return sum(channel["in_flight_count"] for channel in found), sum(channel["depth"] for channel in found)


def run(plain: DevCluster, topic: str, text: str) -> str:
    """Run a program; return what it complains about."""
    ended = programs.run(programs.ORDINARY, HEAD + text, plain.lookupd[0], topic)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


UNREAD = """
async def raise_ready():
    consumer = Consumer(topic, "ch", lookupd=lookupd, max_in_flight=5)
    await consumer.__aenter__()
    await anext(consumer)
    while consumer.stats().in_flight < 5:
        await asyncio.sleep(0.01)
    consumer.set_max_in_flight(10)
    await asyncio.sleep(0)  # RDY is written, and what nsqd sends for it is not read yet
    return consumer
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_what_nsqd_has_sent_and_nobody_has_read_goes_back(
    plain: DevCluster, request: pytest.FixtureRequest, seconds: float
) -> None:
    topic = published(plain, request.node.name, 25)
    plain.delay("nsqd-0", seconds)
    try:
        assert run(plain, topic, UNREAD + "asyncio.run(raise_ready())") == ""
    finally:
        plain.delay("nsqd-0", 0.0)
    until(lambda: in_flight_and_depth(plain, topic) == (0, 25))


@pytest.mark.slow
def test_all_consumers_of_all_nsqds_wait_side_by_side(two: DevCluster, request: pytest.FixtureRequest) -> None:
    topic = published(two, request.node.name, 25)
    program = """
import time
async def main():
    began.extend(await asyncio.gather(*(raise_ready() for _ in range(4))))
    began.append(time.monotonic())
began = []
asyncio.run(main())
assert time.monotonic() - began[-1] < 2.5, time.monotonic() - began[-1]
"""
    for nsqd in two.nsqds:
        two.delay(nsqd, 0.4)
    try:
        assert run(two, topic, UNREAD + program) == ""
    finally:
        for nsqd in two.nsqds:
            two.delay(nsqd, 0.0)
    until(lambda: in_flight_and_depth(two, topic) == (0, 50))


@pytest.mark.slow
def test_an_nsqd_that_does_not_answer_is_waited_for_a_moment_and_named(
    plain: DevCluster, request: pytest.FixtureRequest
) -> None:
    topic = published(plain, request.node.name, 25)
    program = """
async def main():
    await raise_ready()
    print("frozen?", flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""
    with programs.Program(programs.ORDINARY, HEAD + UNREAD + program, plain.lookupd[0], topic) as running:
        assert running.stdout.readline() == b"frozen?\n"
        plain.freeze("nsqd-0")
        try:
            running.stdin.write(b"yes\n")
            _, complaints = running.communicate()
        finally:
            plain.thaw("nsqd-0")
    assert running.returncode == 0
    said = "did not answer CLS in time: up to 10 messages may stay in flight until nsqd's message timeout"
    assert said in complaints.decode()


@pytest.mark.slow
def test_messages_of_a_task_that_ended_go_back_to_each_nsqd(two: DevCluster, request: pytest.FixtureRequest) -> None:
    topic = published(two, request.node.name, PUBLISHED)
    program = """
async def main():
    consumer = Consumer(topic, "ch", lookupd=lookupd, max_in_flight=24)
    await consumer.__aenter__()
    nsqds = set()
    async def take_of_both():
        while len(nsqds) < 2:
            nsqds.add((await anext(consumer)).nsqd)
    await asyncio.create_task(take_of_both())
asyncio.run(main())
"""
    assert run(two, topic, program) == ""
    until(lambda: in_flight_and_depth(two, topic) == (0, 2 * PUBLISHED))


@pytest.mark.slow
def test_a_message_that_is_being_given_up_goes_back(plain: DevCluster, topic: str) -> None:
    program = """
async def hang(message):
    began.set()
    await asyncio.Event().wait()

async def main():
    consumer = Consumer(topic, "ch", lookupd=lookupd, max_in_flight=12, max_attempts=1, on_give_up=hang)
    await consumer.__aenter__()
    message = await anext(consumer)
    message.requeue()
    await began.wait()

began = asyncio.Event()
asyncio.run(main())
"""
    assert "giving up" in run(plain, topic, program)
    until(lambda: in_flight_and_depth(plain, topic) == (0, PUBLISHED))


@pytest.mark.slow
def test_a_close_that_reaches_its_time_limit_gives_the_messages_of_handlers_back(plain: DevCluster, topic: str) -> None:
    program = """
async def hold(message):
    await asyncio.Event().wait()

async def main():
    async with Consumer(topic, "ch", lookupd=lookupd, max_in_flight=12, close_timeout=0.2) as consumer:
        running = asyncio.create_task(consumer.run(hold, concurrency=3))
        await all_in_flight(consumer)

asyncio.run(main())
"""
    # A handler that had no message yet gets none.
    assert re.search(f"{topic}/ch: closed with messages unanswered: [123] of 127.0.0.1:", run(plain, topic, program))
    until(lambda: in_flight_and_depth(plain, topic) == (0, PUBLISHED))


@pytest.mark.slow
def test_the_consumers_of_a_worker_that_is_cut_off_give_all_messages_back(plain: DevCluster, topic: str) -> None:
    program = """
from nsq_ha import Worker

async def main():
    worker, held = Worker(lookupd=lookupd, max_in_flight=12), asyncio.Event()
    @worker.handler(topic, "ch", concurrency=2)
    async def hold(message):
        held.set()
        await asyncio.Event().wait()
    running = asyncio.create_task(worker.run())
    await held.wait()

asyncio.run(main())
"""
    assert run(plain, topic, program) == ""
    until(lambda: in_flight_and_depth(plain, topic) == (0, PUBLISHED))


@pytest.mark.few(1)
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


@pytest.mark.slow
def test_without_a_loop_that_runs_the_log_says_how_many_stay_in_flight(plain: DevCluster, topic: str) -> None:
    program = """
loop = asyncio.new_event_loop()
consumer = loop.run_until_complete(take_some())
"""
    complaints = run(plain, topic, program)
    assert f"{topic}/ch: the process exits without closing the consumer: 12 messages stay in flight" in complaints
    assert "message timeout: 12 of 127.0.0.1:" in complaints
    assert in_flight_and_depth(plain, topic) == (PUBLISHED, 0)


def test_the_log_counts_what_nsqd_may_have_sent_and_nobody_has_read(
    plain: DevCluster, request: pytest.FixtureRequest
) -> None:
    topic = published(plain, request.node.name, 25)
    program = """
loop = asyncio.new_event_loop()
consumer = loop.run_until_complete(raise_ready())
"""
    plain.delay("nsqd-0", 0.05)
    try:
        assert ": 5 to 10 messages stay in flight" in run(plain, topic, UNREAD + program)
    finally:
        plain.delay("nsqd-0", 0.0)
    until(lambda: in_flight_and_depth(plain, topic) == (10, 15))


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
