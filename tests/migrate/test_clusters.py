"""Two embedded clusters: keys that move under load, a cluster that is away, and consumers that read both."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from nsq_ha import ClosedError, ConfigError, Consumer, Message, OutgoingMessage, Producer, PublishError, Receipt
from nsq_ha.dead_letters import DeadLetter
from nsq_ha.devcluster import DevCluster
from nsq_ha.migrate import Cluster, MigratingConsumer, MigratingProducer
from tests.support.waiting import eventually, turn

LIMIT = 60.0
"""Seconds for what takes a moment on a quiet machine."""
KEYS = 8


class Clusters(NamedTuple):
    """The previous cluster and the current one."""

    previous: DevCluster
    current: DevCluster

    def create(self, topic: str, partitions: tuple[int, int] = (2, 3), *, ordered: bool = False) -> str:
        for cluster, count in zip(self, partitions, strict=True):
            cluster.create_topic(topic, count, replicas=1, ordered=ordered, multi_part=not ordered)
        return topic

    def producer(self, share: float = 0) -> MigratingProducer:
        previous, current = (Producer(lookupd=cluster.lookupd) for cluster in self)
        return MigratingProducer(previous, current, share=share)

    def consumer(self, topic: str, **options: Any) -> MigratingConsumer:  # noqa: ANN401
        previous, current = (Consumer(topic, "ch", lookupd=cluster.lookupd, start_timeout=LIMIT) for cluster in self)
        return MigratingConsumer(previous, current, **options)


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with DevCluster(nsqlookupds=1, nsqds=1) as previous, DevCluster(nsqlookupds=1, nsqds=2) as current:
        yield Clusters(previous, current)


class Handled(NamedTuple):
    """A message that a handler got."""

    body: bytes
    cluster: Cluster
    timestamp_ns: int


class Log:
    """Handles messages by keeping them."""

    def __init__(self, consumer: MigratingConsumer) -> None:
        self.consumer = consumer
        self.handled: list[Handled] = []

    async def handle(self, message: Message) -> None:
        self.handled.append(Handled(message.body, self.consumer.cluster_of(message), message.timestamp_ns))

    async def until(self, count: int) -> None:
        """Run until ``count`` messages were handled."""
        running = asyncio.create_task(self.consumer.run(self.handle))
        await eventually(lambda: running.done() or len(self.handled) >= count, LIMIT)
        await self.consumer.aclose()
        await running


# -- publishing


class Load:
    """Publishes in many tasks, some as batches, cancels some, and changes the share meanwhile.

    Attributes:
        stored: The numbers with a receipt, by key, in the order of the calls.
        cancelled: How many calls were cancelled.
    """

    def __init__(self, producer: MigratingProducer, topic: str) -> None:
        self.stored: dict[int, list[int]] = defaultdict(list)
        self.cancelled = 0
        self._producer = producer
        self._topic = topic
        self._chance = random.Random(7)
        self._shares = itertools.cycle((30, 70, 100, 40, 0, 100, 0))
        self._together = asyncio.Barrier(KEYS)

    async def publish(self, key: int, count: int) -> None:
        calls: dict[int, asyncio.Task[Any]] = {}
        for number in range(count):
            calls[number] = asyncio.create_task(self._call(key, number))
            await turn(self._chance.randrange(3))
            if number % 11 == 0:
                calls.pop(number).cancel()
                self.cancelled += 1
            if key == 0 and number % 9 == 8:
                self._producer.set_share(next(self._shares))
            if number % 20 == 19:
                await asyncio.wait(calls.values())
                # No key is ahead of the changes of the share, which go by the first key.
                await self._together.wait()
        for number, call in calls.items():
            assert isinstance(await call, Receipt)
            self.stored[key].append(number)

    async def _call(self, key: int, number: int) -> object:
        text = b"%d %d" % (key, number)
        if number % 7:
            return await self._producer.publish(self._topic, text, key=key, timeout=LIMIT)
        batch = [OutgoingMessage(text, key=key), OutgoingMessage(b"other", key=f"other {key}")]
        return (await self._producer.publish_many(self._topic, batch, timeout=LIMIT))[0]

    def bodies(self) -> set[bytes]:
        return {b"%d %d" % (key, number) for key, numbers in self.stored.items() for number in numbers}


async def test_keys_keep_their_order_while_the_share_rises_and_falls(clusters: Clusters) -> None:
    topic = clusters.create("moves")
    async with clusters.consumer(topic) as consumer, clusters.producer() as producer:
        log, load = Log(consumer), Load(producer, topic)
        running = asyncio.create_task(consumer.run(log.handle, concurrency=10))
        await asyncio.gather(*(load.publish(key, 80) for key in range(KEYS)))
        await eventually(lambda: load.bodies() <= {each.body for each in log.handled}, LIMIT)
        await consumer.aclose()
        await running
        assert producer.moving == 0
        assert producer.is_healthy

    assert load.cancelled > 50
    moved = 0
    by_body = {each.body: each for each in log.handled}
    for key, numbers in load.stored.items():
        found = [by_body[b"%d %d" % (key, number)] for number in numbers]
        times = [each.timestamp_ns for each in found]
        assert times == sorted(times), f"key {key} was stored out of order"
        moved += sum(one.cluster != other.cluster for one, other in itertools.pairwise(found))
    assert moved > 8


async def test_the_share_of_a_cluster_that_is_away_fails_and_the_rest_goes_on() -> None:
    with DevCluster(nsqlookupds=1, nsqds=1) as previous, DevCluster(nsqlookupds=1, nsqds=1) as current:
        clusters = Clusters(previous, current)
        topic = clusters.create("away", (1, 1))
        async with clusters.producer(50) as producer:
            keys = {
                (await producer.publish(topic, b"x", key=key, timeout=LIMIT)).nsqd: key
                for key in ("a", "b", "c", "d", "e", "f")
            }
            assert len(keys) == 2
            receipts = await producer.publish_many(topic, [b"1", b"2"], timeout=LIMIT)
            nodes = [receipt.nsqd for receipt in receipts if isinstance(receipt, Receipt)]
            assert set(nodes) == set(keys)  # one message each, the previous cluster first
            previous.kill("nsqd-0")
            at_previous, at_current = keys[nodes[0]], keys[nodes[1]]

            with pytest.raises(PublishError):
                await producer.publish(topic, b"3", key=at_previous, timeout=0.3)
            # The messages of the cluster that answers are stored within this limit, on a busy machine too.
            outcomes = await producer.publish_many(topic, [b"4", b"5", b"6", b"7"], timeout=10.0)
            assert [type(outcome) for outcome in outcomes] == [PublishError, Receipt] * 2
            assert (await producer.publish(topic, b"8", key=at_current, timeout=LIMIT)).nsqd == nodes[1]

            producer.set_share(100)
            assert (await producer.publish(topic, b"9", key=at_previous, timeout=LIMIT)).nsqd == nodes[1]
            health = producer.health(patience=0)
            assert not health
            assert health.reason.startswith("previous cluster: ")
            assert "current cluster" not in health.reason


# -- consuming


async def test_one_handler_reads_both_within_one_limit(clusters: Clusters) -> None:
    topic = clusters.create("both")
    busy, most = 0, 0
    full = asyncio.Event()
    async with clusters.consumer(topic) as consumer, clusters.producer(50) as producer:
        await producer.publish_many(topic, [b"%d" % number for number in range(60)], timeout=LIMIT)
        log = Log(consumer)

        async def handle(message: Message) -> None:
            nonlocal busy, most
            busy += 1
            most = max(most, busy)
            if busy == 3:
                full.set()
            await asyncio.wait_for(full.wait(), LIMIT)  # messages may come one by one
            await turn(3)
            await log.handle(message)
            busy -= 1

        running = asyncio.create_task(consumer.run(handle, concurrency=3))
        await eventually(lambda: len(log.handled) == 60, LIMIT)
        await consumer.aclose()
        await running
    assert most == 3
    assert sorted(int(each.body) for each in log.handled) == list(range(60))
    assert {each.cluster for each in log.handled if int(each.body) % 2} == {"current"}
    assert {each.cluster for each in log.handled if not int(each.body) % 2} == {"previous"}


async def test_a_plain_handler_runs_in_threads_within_one_limit(clusters: Clusters) -> None:
    topic = clusters.create("threads")
    lock, places = threading.Lock(), []
    busy, most = 0, 0
    async with clusters.consumer(topic) as consumer, clusters.producer(50) as producer:
        await producer.publish_many(topic, [b"%d" % number for number in range(40)], timeout=LIMIT)

        def handle(message: Message) -> None:
            nonlocal busy, most
            with lock:
                busy += 1
                most = max(most, busy)
                places.append(consumer.cluster_of(message))
            with lock:
                busy -= 1

        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await eventually(lambda: len(places) == 40, LIMIT)
        await consumer.aclose()
        await running
    assert most <= 2
    assert places.count("current") == 20


async def test_a_thread_that_waits_for_its_turn_does_not_start_after_the_run(clusters: Clusters) -> None:
    topic = clusters.create("late")
    release, begun = threading.Event(), []
    async with clusters.consumer(topic) as consumer, clusters.producer(50) as producer:
        await producer.publish_many(topic, [b"0", b"1"], timeout=LIMIT)

        def handle(message: Message) -> None:
            begun.append(message.body)
            release.wait(LIMIT)

        running = asyncio.create_task(consumer.run(handle))
        # One thread holds the only turn once its handler has begun. The other waits.
        await eventually(lambda: len(begun) == 1 and len(waiting_threads()) == 2, LIMIT)
        running.cancel()
        await asyncio.wait({running})
        release.set()
        await eventually(lambda: not waiting_threads(), LIMIT)
    assert len(begun) == 1


def waiting_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("nsq_ha handler")]


async def test_dead_letters_may_go_to_both(clusters: Clusters) -> None:
    topic, letters = clusters.create("source"), clusters.create("letters")
    async with clusters.producer(100) as producer:
        source = Consumer(
            topic,
            "ch",
            lookupd=clusters.current.lookupd,
            producer=producer,
            max_attempts=1,
            on_give_up="dead_letter",
            dead_letter_topic=letters,
        )
        async with source, Consumer(letters, "ch", lookupd=clusters.current.lookupd) as reader:
            await producer.publish(topic, b"bad", timeout=LIMIT)

            async def fail(_: Message) -> None:
                raise ValueError

            running = asyncio.create_task(source.run(fail))
            letter = await asyncio.wait_for(anext(reader), LIMIT)
            letter.finish()
            await source.aclose()
            await running
    assert DeadLetter.of(letter).body == b"bad"


async def test_a_failed_handler_requeues_in_the_same_cluster(clusters: Clusters) -> None:
    topic = clusters.create("fails")
    seen: list[tuple[bytes, Cluster, bool]] = []
    async with clusters.consumer(topic) as consumer, clusters.producer(50) as producer:
        await producer.publish_many(topic, [b"0", b"1"], timeout=LIMIT)

        async def handle(message: Message) -> None:
            is_first = message.body not in {body for body, _, _ in seen}
            seen.append((message.body, consumer.cluster_of(message), is_first))
            if is_first:
                message.requeue(0)

        running = asyncio.create_task(consumer.run(handle))
        await eventually(lambda: len(seen) == 4, LIMIT)
        await consumer.aclose()
        await running
    assert sorted(seen) == [
        (b"0", "previous", False),
        (b"0", "previous", True),
        (b"1", "current", False),
        (b"1", "current", True),
    ]


async def test_a_handler_may_close_it(clusters: Clusters) -> None:
    topic = clusters.create("closes")
    async with clusters.consumer(topic) as consumer, clusters.producer(50) as producer:
        await producer.publish_many(topic, [b"0", b"1"], timeout=LIMIT)
        handled = []

        async def handle(message: Message) -> None:
            handled.append(message)
            await consumer.aclose()

        await asyncio.wait_for(consumer.run(handle), LIMIT)
        with pytest.raises(ConfigError, match="no handler of this consumer handles"):
            consumer.cluster_of(handled[0])
    assert handled
    with pytest.raises(ClosedError):
        await consumer.run(handle)


@pytest.mark.parametrize("answers", [True, False])
async def test_a_signal_closes_both(clusters: Clusters, answers: bool) -> None:
    topic = clusters.create(f"signals-{answers}")
    begun, release = [], asyncio.Event()
    before = signal.getsignal(signal.SIGTERM)
    async with clusters.consumer(topic) as consumer, clusters.producer(50) as producer:
        await producer.publish_many(topic, [b"0", b"1"], timeout=LIMIT)

        async def handle(message: Message) -> None:
            begun.append(message.body)
            await release.wait()

        running = asyncio.create_task(consumer.run(handle, concurrency=2, install_signal_handlers=True))
        await eventually(lambda: len(begun) == 2, LIMIT)
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: not consumer.is_healthy, LIMIT)
        assert not running.done()
        if answers:
            release.set()
        else:
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, LIMIT)
    assert signal.getsignal(signal.SIGTERM) is before


class Stop(BaseException):
    """No Exception, as SystemExit is."""


async def test_what_is_no_exception_ends_the_run(clusters: Clusters) -> None:
    topic = clusters.create("ends")
    async with clusters.consumer(topic) as consumer, clusters.producer(50) as producer:
        await producer.publish_many(topic, [b"0", b"1"], timeout=LIMIT)

        async def handle(_: Message) -> None:
            raise Stop

        with pytest.raises(BaseExceptionGroup) as caught:  # as for one consumer
            await asyncio.wait_for(consumer.run(handle), LIMIT)
        assert caught.group_contains(Stop)


async def test_a_cancelled_run_can_be_followed_by_another(clusters: Clusters) -> None:
    topic = clusters.create("again")
    async with clusters.consumer(topic) as consumer, clusters.producer(50) as producer:
        await producer.publish_many(topic, [b"%d" % number for number in range(6)], timeout=LIMIT)
        started = asyncio.Event()

        async def hang(_: Message) -> None:
            started.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(consumer.run(hang, concurrency=4))
        await asyncio.wait_for(started.wait(), LIMIT)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        log = Log(consumer)
        await log.until(6)
    assert sorted(each.body for each in log.handled) == [b"%d" % number for number in range(6)]


async def test_one_cluster_may_be_away_when_it_starts(clusters: Clusters) -> None:
    topic = clusters.create("starts")
    gone = Consumer(topic, "ch", lookupd="127.0.0.1:1", start_timeout=0.05)
    here = Consumer(topic, "ch", lookupd=clusters.current.lookupd, start_timeout=LIMIT)
    async with MigratingConsumer(gone, here) as consumer, clusters.producer(100) as producer:
        await producer.publish(topic, b"1", timeout=LIMIT)
        log = Log(consumer)
        await log.until(1)
    assert [each.cluster for each in log.handled] == ["current"]


async def test_if_one_cannot_start_both_are_closed(clusters: Clusters) -> None:
    topic = clusters.create("refused")
    was_used = Consumer(topic, "ch", lookupd=clusters.current.lookupd)
    async with was_used:
        pass
    consumer = MigratingConsumer(Consumer(topic, "ch", lookupd=clusters.previous.lookupd), was_used)
    with pytest.raises(ClosedError, match="entered only once"):
        await consumer.__aenter__()
    with pytest.raises(ClosedError):
        await consumer.previous.wait_subscribed()


# -- in order


async def test_the_current_cluster_waits_until_the_previous_one_is_empty(clusters: Clusters) -> None:
    topic = clusters.create("in-order", (1, 2), ordered=True)
    async with clusters.consumer(topic, order="previous_first") as consumer, clusters.producer() as producer:
        log = Log(consumer)
        assert consumer.is_holding
        for number in range(60):
            producer.set_share(min(number * 2, 100))
            for key in range(5):
                await producer.publish(topic, b"%d %d" % (key, number), key=key, timeout=LIMIT)
        with pytest.raises(TimeoutError, match=r"in-order/ch: after 0\.2 s the previous cluster"):
            await consumer.finish_previous(0.2)
        assert consumer.is_holding
        running = asyncio.create_task(consumer.run(log.handle, concurrency=4))
        await consumer.finish_previous(LIMIT)
        assert not consumer.is_holding
        assert {each.cluster for each in log.handled} == {"previous"}
        await eventually(lambda: len(log.handled) == 300, LIMIT)
        await consumer.aclose()
        await running
    numbers = defaultdict(list)
    for each in log.handled:
        key, number = each.body.split()
        numbers[key].append(int(number))
    assert {key: found == list(range(60)) for key, found in numbers.items()} == {b"%d" % key: True for key in range(5)}


async def test_messages_in_work_and_deferred_ones_count_as_left(
    clusters: Clusters, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nsq_ha.migrate")
    topic = clusters.create("left", (1, 1))
    async with clusters.consumer(topic, order="previous_first") as consumer, clusters.producer() as producer:
        await producer.publish_many(topic, [b"deferred", b"held"], timeout=LIMIT)
        held: list[Message] = []

        async def handle(message: Message) -> None:
            if message.body == b"deferred" and message.attempts == 1:
                message.requeue(3600)
            else:
                held.append(message)
                await asyncio.Event().wait()

        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await eventually(lambda: held, LIMIT)
        finishing = asyncio.create_task(consumer.finish_previous())
        await eventually(lambda: "1 in work, 1 requeued with a delay" in caplog.text, LIMIT)
        held[0].finish()
        await eventually(lambda: "0 in work, 1 requeued with a delay" in caplog.text, LIMIT)
        for task in (finishing, running):
            task.cancel()
            await asyncio.wait({task})
        assert consumer.is_holding


async def test_a_previous_cluster_that_cannot_be_asked_is_not_empty(
    clusters: Clusters, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nsq_ha.migrate")
    topic = clusters.create("asked")
    gone = Consumer(topic, "ch", lookupd="127.0.0.1:1", start_timeout=0.05)
    here = Consumer(topic, "ch", lookupd=clusters.current.lookupd, start_timeout=LIMIT, max_in_flight=7)
    consumer = MigratingConsumer(gone, here, order="previous_first")
    with pytest.raises(ClosedError, match="async with"):
        await consumer.finish_previous()
    async with consumer:
        assert here.max_in_flight == 0
        waiting = asyncio.create_task(consumer.finish_previous())
        await eventually(lambda: "the previous cluster cannot be asked" in caplog.text, LIMIT)
        await consumer.aclose()
        with pytest.raises(ClosedError, match="the consumer is closed"):
            await waiting


async def test_wrong_arguments_are_refused() -> None:
    one, other = (Consumer("t", "c", lookupd="127.0.0.1:1") for _ in range(2))
    with pytest.raises(ConfigError, match="same consumer"):
        MigratingConsumer(one, one)
    with pytest.raises(ConfigError, match="previous must be a Consumer"):
        MigratingConsumer(Producer(lookupd="127.0.0.1:1"), one)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="order must be"):
        MigratingConsumer(one, other, order="current_first")  # type: ignore[arg-type]
    fixed = Consumer("t", "c", nsqd="127.0.0.1:1")
    with pytest.raises(ConfigError, match="give it lookupd="):
        MigratingConsumer(fixed, other, order="previous_first")
    consumer = MigratingConsumer(one, other)
    assert not consumer.is_holding
    assert consumer.health().reason == "previous cluster: not started yet; current cluster: not started yet"
    with pytest.raises(ConfigError, match="handler must"):
        await consumer.run(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="concurrency must be"):
        await consumer.run(print, concurrency=0)
    with pytest.raises(ClosedError):
        await consumer.run(print)
    await consumer.aclose()
