"""What a consumer says about itself: stats(), health() and wait_ready()."""

import asyncio
import dataclasses
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nsq_ha.consumer.partitions import Partitions
from nsq_ha.errors import ClosedError, ConfigError, LookupUnavailableError, ResponseTimeoutError, ServerError
from nsq_ha.message import Message
from nsq_ha.options.config import ConsumerConfig
from nsq_ha.policy.topology import unanswered
from nsq_ha.protocol import Finish, Requeue
from nsq_ha.stats import ConsumerPartition, ConsumerStats
from tests.support.inside import consumer_machine_of, partitions_of
from tests.support.nsqd import Refusing, Subscribe, message_id
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually


def one(stats: ConsumerStats) -> ConsumerPartition:
    [partition] = stats.partitions
    return partition


async def test_before_and_after(stage: Stage) -> None:
    consumer = stage.consumer(max_in_flight=7)
    before = consumer.stats()
    assert (before.topic, before.channel, before.partitions, before.max_in_flight) == (TOPIC, "ch", (), 7)
    assert (consumer.is_healthy, consumer.health().reason) == (
        False,
        "not started yet",
    )
    async with consumer:
        peer = await stage.nsqd.subscriber()
        assert (consumer.is_healthy, consumer.health().reason) == (True, "ok")
        peer.message(b"x")
        async with await anext(consumer):
            pass
        await stage.nsqd.until(lambda: peer.of(Finish))
    assert (consumer.stats().delivered, consumer.stats().finished, one(consumer.stats()).state) == (1, 1, "closed")
    assert (consumer.is_healthy, consumer.health().reason) == (False, "closed")


async def test_messages_of_all_kinds(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=10) as consumer:
        peer = await stage.nsqd.subscriber()
        for number in range(4):
            peer.message(b"x", message_id(2 + number))
        first, second, third = [await anext(consumer) for _ in range(3)]
        await eventually(lambda: consumer.stats().queued == 1)
        first.finish()
        second.requeue()
        await stage.nsqd.until(lambda: peer.of(Finish) and peer.of(Requeue))
        stats = consumer.stats()
        age, lag = one(stats).heartbeat_age, one(stats).lag
        assert age is not None
        assert lag is not None
        assert dataclasses.replace(one(stats), heartbeat_age=None, lag=None) == ConsumerPartition(
            topic=TOPIC,
            partition=0,
            leader=stage.nsqd.node.address,
            state="connected",
            queued=1,
            in_flight=2,
            ready=peer.ready,
            delivered=4,
            finished=1,
            requeued=1,
            timed_out=0,
            returned=0,
            skipped=0,
            reconnects=0,
            lag=None,
            heartbeat_age=None,
            trouble=None,
        )
        assert (stats.ready, stats.in_flight, stats.given_up) == (peer.ready, 2, 0)
        peer.abort()
        await eventually(lambda: consumer.stats().reconnects == 1)
        third.finish()  # too late: the message is delivered again
        stats = consumer.stats()
        assert (stats.delivered, stats.finished, stats.requeued, stats.returned) == (4, 1, 1, 2)
        assert (stats.in_flight, stats.queued) == (0, 0)


async def test_many_messages_of_a_handler(stage: Stage) -> None:
    async def handle(_: Message) -> None:
        pass

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=5))
        peer = await stage.nsqd.subscriber()
        await peer.feed([b"x"] * 500)
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 500)
        stats = consumer.stats()
        assert (stats.delivered, stats.finished, stats.in_flight, stats.queued) == (500, 500, 0, 0)
        assert 500 - 63 <= stats.handled <= 500
        await consumer.aclose()
        await running
    stats = consumer.stats()
    assert (stats.handled, stats.handler_seconds >= 0) == (500, True)


async def test_lookups_and_changes_of_a_leader(stage: Stage) -> None:
    async with stage.consumer(lookup_interval=0.1) as consumer:
        await eventually(lambda: consumer.stats().lookups > 1)
        assert (consumer.stats().lookup_failures, consumer.stats().leader_changes) == (0, 0)
        assert consumer.stats().lookup_seconds > 0
        stage.lead({0: stage.nsqds[1]})
        await eventually(lambda: consumer.stats().leader_changes == 1)
        await stage.lookupd.stop()
        await eventually(lambda: consumer.stats().lookup_failures)


async def test_the_lag_is_the_time_since_the_publish(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        assert one(consumer.stats()).lag is None
        peer.message(b"x", timestamp_ns=time.time_ns() - 3_600_000_000_000)
        async with await anext(consumer):
            lag = one(consumer.stats()).lag
    assert lag is not None
    assert 3_600 <= lag < 7_200


async def test_the_lag_is_not_below_zero_if_the_clock_is_behind(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", timestamp_ns=time.time_ns() + 3_600_000_000_000)
        async with await anext(consumer):
            assert one(consumer.stats()).lag == 0


async def test_a_message_that_is_given_up(stage: Stage) -> None:
    def fail(_: Message) -> None:
        raise ValueError

    async with stage.consumer(max_attempts=1) as consumer:
        running = asyncio.create_task(consumer.run(fail))
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")
        await stage.nsqd.until(lambda: peer.of(Finish))
        stats = consumer.stats()
        assert (stats.given_up, stats.finished, stats.requeued) == (1, 1, 0)
        await consumer.aclose()
        await running


async def test_messages_that_the_close_leaves_to_nsqd(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        for number in range(3):
            peer.message(b"x", message_id(2 + number))
        await eventually(lambda: consumer.stats().queued == 3)
    stats = consumer.stats()
    assert (stats.delivered, stats.finished, stats.in_flight, stats.queued) == (3, 0, 0, 0)
    assert stats.returned + stats.requeued == 3


async def test_another_thread_may_look(stage: Stage) -> None:
    found: list[object] = []

    async with stage.consumer() as consumer:

        def look() -> None:
            found.extend((len(consumer.stats().partitions), consumer.health().reason, consumer.is_healthy))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(10.0)
    assert found == [1, "ok", True]


async def test_what_arrives_while_another_thread_looks_is_counted_once(
    stage: Stage,
) -> None:
    """Messages counted as finished that were not, or as fewer than none: for Prometheus, a counter that began again."""

    class ArrivingError(ClosedError):
        def __str__(self) -> str:
            conn = partition.conn
            assert conn is not None
            message = Message(message_id(2), b"x", 1, 1, conn.source)
            consumer_machine_of(consumer).arrived(conn, [message], 0.0, 0.0)
            return ""

    async with stage.consumer() as consumer:
        await stage.nsqd.subscriber()
        partition = partitions_of(consumer)[0]
        partition.trouble = ArrivingError()
        stats = consumer.stats()
        assert (stats.delivered, stats.in_flight, stats.finished) == (1, 1, 0)


# ------------------------------------------------------------ health


async def test_a_partition_without_a_leader(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, 2)
    async with stage.consumer(lookup_interval=0.1, start_timeout=0.1) as consumer:
        assert consumer.is_healthy
        assert consumer.health().reason == "orders-1 has no leader (for 0 s)"
        assert not consumer.health(patience=0.0)
        await eventually(lambda: not consumer.is_healthy)
        assert consumer.health().reason == "orders-1 has no leader (for 5 s)"
        assert [partition.state for partition in consumer.stats().partitions] == ["connected", "waiting"]
        stage.lead({0: stage.nsqd, 1: stage.nsqd})
        await eventually(lambda: consumer.health().reason == "ok")


async def test_an_nsqd_that_is_gone(stage: Stage) -> None:
    async with stage.consumer(lookup_interval=0.1) as consumer:
        await stage.nsqd.stop()
        await eventually(lambda: not consumer.is_healthy)
        assert consumer.health().reason.startswith(f"orders-0: cannot connect to {stage.nsqd.node.address}")
        assert one(consumer.stats()).trouble is not None
        await stage.nsqd.start()
        await eventually(lambda: consumer.is_healthy)
        assert (one(consumer.stats()).trouble, consumer.stats().reconnects) == (None, 1)


async def test_an_nsqd_that_fails_before_its_leader_is_gone_is_one_outage(stage: Stage) -> None:
    """health() was good again in the midst of it, for the nsqlookupds had noticed only now."""
    async with stage.consumer(lookup_interval=0.1) as consumer:
        await stage.nsqd.stop()
        await eventually(lambda: not consumer.is_healthy)
        stage.lead({}, 1)
        await eventually(lambda: "has no leader" in consumer.health().reason)
        assert not consumer.is_healthy


async def test_no_nsqlookupd_answers(stage: Stage) -> None:
    async with stage.consumer(lookup_interval=0.1) as consumer:
        await stage.lookupd.stop()
        await eventually(lambda: not consumer.is_healthy)
        assert consumer.health().reason.startswith("no nsqlookupd gave a usable answer")
        await stage.lookupd.start()
        await eventually(lambda: consumer.is_healthy)


async def test_a_topic_that_does_not_exist(stage: Stage) -> None:
    stage.lookupd.answer("/lookup", {"message": "Key not found"}, status=404)
    async with stage.consumer(lookup_interval=0.1, start_timeout=0.1) as consumer:
        assert consumer.is_healthy
        await eventually(lambda: not consumer.is_healthy)
        assert consumer.health().reason.startswith("there is no topic 'orders'")


async def test_a_refusal_that_retries_cannot_fix(stage: Stage) -> None:
    async with stage.consumer(lookup_interval=0.1) as consumer:
        stage.nsqds[1].script = Refusing(Subscribe, "E_BAD_TOPIC no", closes=True)
        stage.lead({0: stage.nsqds[1]})
        await eventually(lambda: not consumer.is_healthy)
        assert consumer.health().reason == "E_BAD_TOPIC no"


async def test_a_pause_is_healthy_but_named(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        consumer.set_max_in_flight(0)
        assert (consumer.is_healthy, consumer.health().reason) == (True, "paused: max_in_flight=0")


async def test_a_consumer_that_closes(stage: Stage) -> None:
    started = asyncio.Event()
    release = asyncio.Event()

    async def handle(_: Message) -> None:
        started.set()
        await release.wait()

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handle))
        (await stage.nsqd.subscriber()).message(b"x")
        await started.wait()
        closing = asyncio.create_task(consumer.aclose())
        await eventually(lambda: consumer.health().reason == "closing")
        assert not consumer.is_healthy
        assert one(consumer.stats()).state == "closing"
        release.set()
        await asyncio.gather(closing, running)


# ------------------------------------------------------------ wait_ready


async def test_wait_ready(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, 2)
    consumer = stage.consumer(lookup_interval=0.1, start_timeout=0.1)
    with pytest.raises(ClosedError):
        await consumer.wait_ready()
    async with consumer:
        with pytest.raises(ResponseTimeoutError) as late:
            await consumer.wait_ready(timeout=0.5)
        assert str(late.value).startswith("orders/ch: not all partitions are subscribed after 0.5 s: partition 1: ")
        assert isinstance(late.value, TimeoutError)
        with pytest.raises(ConfigError, match="timeout must be"):
            await consumer.wait_ready(timeout=-1)
        waiting = asyncio.create_task(consumer.wait_ready(timeout=60.0))
        stage.lead({0: stage.nsqd, 1: stage.nsqd})
        await waiting
        await consumer.wait_ready()
        stage.nsqds[1].script = Refusing(Subscribe, "E_BAD_TOPIC no", closes=True)
        stage.lead({0: stage.nsqds[1], 1: stage.nsqd})
        await eventually(lambda: not consumer.is_healthy)
        with pytest.raises(ServerError):
            await consumer.wait_ready(timeout=60.0)


# ------------------------------------------------------------ a plain cluster


async def test_an_nsqd_that_left_a_plain_cluster_for_good_is_no_trouble(stage: Stage) -> None:
    first, second, _ = stage.nsqds
    stage.list_plain(first, second)
    async with stage.consumer(lookup_interval=0.1) as consumer:
        assert len(consumer.stats().partitions) == 2
        stage.list_plain(second)
        await first.stop()
        await eventually(
            lambda: {partition.leader for partition in consumer.stats().partitions} == {None, second.node.address}
        )
        await eventually(lambda: consumer.health(patience=0.0).reason == "ok")
        stage.list_plain()
        await eventually(lambda: not any(partition.leader for partition in consumer.stats().partitions))
        assert consumer.health(patience=0.0).reason == "ok"  # its connection lasts
        await second.stop()
        await eventually(lambda: not consumer.is_healthy)
        assert "no nsqlookupd lists an nsqd for topic 'orders' any more" in consumer.health().reason


def test_another_thread_may_ask_while_a_lookup_ends() -> None:
    """health() raised TypeError: what it had looked at was gone when it subtracted it."""

    class SilentError(LookupUnavailableError):
        def __str__(self) -> str:
            watch.error = watch.failing_since = None  # as the loop's thread does meanwhile
            return "no answer"

    watch: Any = SimpleNamespace(topic=TOPIC, view=unanswered(TOPIC), leaderless_since={})
    watch.error, watch.failing_since = SilentError(""), 4.0
    config, machine = ConsumerConfig(lookupd=("http://a:1",)), SimpleNamespace(partitions={})
    shell: Any = SimpleNamespace(config=config, machine=machine)
    troubles = Partitions(watch, shell, 0.0).troubles(10.0)
    assert [(each.reason, each.seconds) for each in troubles] == [("no answer", 6.0)]
