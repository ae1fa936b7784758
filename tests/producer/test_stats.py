"""What a producer says about itself: stats(), health() and wait_ready()."""

import asyncio
import dataclasses
import gc
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from nsq_ha import OutgoingMessage
from nsq_ha.errors import (
    ClosedError,
    ConfigError,
    LookupUnavailableError,
    PublishError,
    ResponseTimeoutError,
    TopicNotFoundError,
)
from nsq_ha.policy.topology import unanswered
from nsq_ha.producer.state import Lane, ProducerTopic
from nsq_ha.producer.statistics import producer_troubles
from nsq_ha.stats import ProducerPartition, ProducerStats
from tests.support.nsqd import LIMIT, Holding, Publish, Refusing
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually, turn


def one(stats: ProducerStats) -> ProducerPartition:
    [partition] = stats.partitions
    return partition


def zero(stats: ProducerStats) -> bool:
    return not any(dataclasses.astuple(stats))


async def test_before_and_after(stage: Stage) -> None:
    producer = stage.producer()
    assert zero(producer.stats())
    assert producer.health().reason == "not started yet"
    assert not producer.is_healthy
    async with producer:
        assert zero(producer.stats())
        assert (producer.is_healthy, producer.health().reason) == (True, "ok")
        await producer.publish(TOPIC, b"x")
        assert (producer.stats().lookups, producer.stats().lookup_failures, producer.stats().leader_changes) == (
            1,
            0,
            0,
        )
        assert producer.stats().lookup_seconds > 0
    assert (producer.stats().published, one(producer.stats()).state) == (1, "closed")
    assert one(producer.stats()).heartbeat_age is None
    assert (producer.is_healthy, producer.health().reason) == (False, "closed")


async def test_a_partition_that_works(stage: Stage) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x")
        await producer.publish(TOPIC, b"x", trace_id=7)
        await producer.publish_many(TOPIC, [b"x"] * 5)
        await producer.publish_many(TOPIC, [b"x"] * 5_000)
        stats = producer.stats()
        partition = one(stats)
        assert dataclasses.replace(partition, heartbeat_age=None) == ProducerPartition(
            topic=TOPIC,
            partition=0,
            leader=stage.nsqd.node.address,
            state="connected",
            queued=0,
            in_flight=0,
            published=5_007,
            failed=0,
            uncertain=0,
            timed_out=0,
            retries=0,
            reconnects=0,
            heartbeat_age=None,
            trouble=None,
        )
        assert partition.heartbeat_age is not None
        assert (stats.published, stats.pending_bytes, stats.queued) == (5_007, 0, 0)
        peer = stage.nsqd.peers[0]
        await stage.nsqd.until(lambda: peer.nops)
        age = one(producer.stats()).heartbeat_age
        assert age is not None
        assert age < 2.0


async def test_what_waits_is_queued_or_in_flight(stage: Stage) -> None:
    stage.nsqd.script = holding = Holding()
    async with stage.producer(window=2) as producer:
        publishes = [asyncio.create_task(producer.publish(TOPIC, b"four", partition=0)) for _ in range(3)]
        # Publishes that name their partition keep their order: only one is unanswered.
        await stage.nsqd.until(lambda: holding.has(1))
        stats = producer.stats()
        assert (one(stats).in_flight, one(stats).queued, stats.pending_bytes) == (1, 2, 12)
        for _ in publishes:
            await stage.nsqd.until(lambda: holding.has(1))
            holding.release()
        await asyncio.gather(*publishes)
        assert (one(producer.stats()).in_flight, one(producer.stats()).queued) == (0, 0)


async def test_refusals_and_lost_connections_are_counted(stage: Stage) -> None:
    stage.nsqd.script = Refusing(Publish, "E_FAILED_ON_NOT_LEADER x", "E_FAILED_ON_NOT_LEADER x", "E_BAD_MESSAGE x")
    async with stage.producer() as producer:
        with pytest.raises(PublishError) as refused:
            await producer.publish(TOPIC, b"x")
        assert not refused.value.maybe_stored
        stats = producer.stats()
        assert (stats.failed, stats.uncertain, stats.timed_out, stats.retries) == (1, 0, 0, 2)
        stage.nsqd.script = holding = Holding()
        publish = asyncio.create_task(producer.publish(TOPIC, b"x"))
        await stage.nsqd.until(lambda: holding.held)
        stage.nsqd.script = None
        stage.nsqd.peers[-1].abort()
        await publish
        partition = one(producer.stats())
        assert (partition.retries, partition.reconnects, partition.published) == (3, 1, 1)


async def test_a_publish_that_times_out_is_uncertain(stage: Stage) -> None:
    stage.nsqd.script = Holding()
    async with stage.producer(close_timeout=0.1) as producer:
        with pytest.raises(PublishError) as late:
            await producer.publish(TOPIC, b"x", timeout=0.1)
        assert late.value.maybe_stored
        assert one(producer.stats()).trouble is None
        stage.lookupd.answer("/lookup", {"message": "Key not found"}, status=500)
        with pytest.raises(PublishError):
            await producer.publish("unknown", b"x", timeout=0.1)
        assert len(await producer.publish_many("unknown", [b"x", b"y"], timeout=0.1)) == 2
        with_keys = [OutgoingMessage(b"x", key="a"), OutgoingMessage(b"y", key="b")]
        assert len(await producer.publish_many("unknown", with_keys, timeout=0.1)) == 2
        stats = producer.stats()
        assert (one(stats).failed, one(stats).uncertain, one(stats).timed_out) == (1, 1, 1)
        assert (stats.failed, stats.uncertain, stats.timed_out) == (6, 1, 6)


async def test_another_thread_may_look(stage: Stage) -> None:
    found: list[object] = []

    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x")

        def look() -> None:
            found.extend((producer.stats().published, producer.health().reason, producer.is_healthy))

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(10.0)
    assert found == [1, "ok", True]


# ------------------------------------------------------------ health


async def test_a_partition_without_a_leader(stage: Stage) -> None:
    async with stage.producer(lookup_interval=0.1) as producer:
        await producer.publish(TOPIC, b"x")
        stage.lead({}, 1)
        await eventually(lambda: producer.health().reason != "ok")
        assert producer.is_healthy
        assert producer.health().reason == "orders-0 has no leader (for 0 s)"
        assert not producer.health(patience=0.0)
        await eventually(lambda: not producer.is_healthy)
        assert producer.health().reason == "orders-0 has no leader (for 5 s)"
        stage.lead({0: stage.nsqd})
        await eventually(lambda: producer.health().reason == "ok")


async def test_an_nsqd_that_fails_before_its_leader_is_gone_is_one_outage(stage: Stage) -> None:
    """health() was good again in the midst of it, for the nsqlookupds had noticed only now."""
    async with stage.producer(lookup_interval=0.1) as producer:
        await producer.publish(TOPIC, b"x")
        await stage.nsqd.stop()
        waiting = asyncio.create_task(producer.publish(TOPIC, b"x", timeout=LIMIT))
        await eventually(lambda: not producer.is_healthy)
        stage.lead({}, 1)
        await eventually(lambda: "has no leader" in producer.health().reason)
        assert not producer.is_healthy
        await stage.nsqd.start()
        stage.lead({0: stage.nsqd})
        await waiting


async def test_a_closed_producer_is_freed(stage: Stage) -> None:
    """Its timer ran for ever: the connections' end, which comes after the close, set it again."""

    def lanes() -> set[int]:
        gc.collect()
        return {id(each) for each in gc.get_objects() if isinstance(each, Lane)}

    before = lanes()
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x")
        assert lanes() - before
    del producer
    await eventually(lambda: not lanes() - before)


async def test_no_nsqlookupd_answers(stage: Stage) -> None:
    async with stage.producer(lookup_interval=0.1) as producer:
        await producer.publish(TOPIC, b"x")
        await stage.lookupd.stop()
        await eventually(lambda: not producer.is_healthy)
        reason = producer.health().reason
        assert reason.startswith("no nsqlookupd gave a usable answer")
        assert reason.endswith("(for 5 s)")
        await producer.publish(TOPIC, b"x")  # the known leaders stay in use
        await stage.lookupd.start()
        await eventually(lambda: producer.is_healthy)


async def test_an_nsqd_that_is_gone_counts_while_something_waits_for_it(stage: Stage) -> None:
    async with stage.producer(lookup_interval=0.1) as producer:
        await producer.publish(TOPIC, b"x")
        await stage.nsqd.stop()
        with pytest.raises(PublishError):
            await producer.publish(TOPIC, b"x", timeout=0.5)
        await eventually(lambda: producer.stats().partitions[0].state == "idle")
        assert producer.health().reason == "ok"
        publish = asyncio.create_task(producer.publish(TOPIC, b"x"))
        await eventually(lambda: not producer.is_healthy)
        assert producer.health().reason.startswith(f"orders-0: cannot connect to {stage.nsqd.node.address}")
        await stage.nsqd.start()
        await publish
        assert producer.is_healthy


async def test_a_topic_that_does_not_exist(stage: Stage) -> None:
    stage.lookupd.answer("/lookup", {"message": "Key not found"}, status=500)
    async with stage.producer(lookup_interval=0.1) as producer:
        with pytest.raises(PublishError):
            await producer.publish(TOPIC, b"x")
        await eventually(lambda: not producer.is_healthy)
        assert "there is no topic 'orders'" in producer.health().reason


async def test_a_producer_that_closes(stage: Stage) -> None:
    stage.nsqd.script = holding = Holding()
    async with stage.producer() as producer:
        publish = asyncio.create_task(producer.publish(TOPIC, b"x"))
        await stage.nsqd.until(lambda: holding.held)
        closing = asyncio.create_task(producer.aclose())
        await eventually(lambda: producer.health().reason == "closing")
        assert not producer.is_healthy
        holding.release()
        await asyncio.gather(publish, closing)


# ------------------------------------------------------------ wait_ready


async def test_all_partitions_are_connected_before_the_first_publish(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1], 2: stage.nsqds[2]})
    async with stage.producer(idle_timeout=60.0) as producer:
        await producer.wait_ready(TOPIC)
        assert {partition.state for partition in producer.stats().partitions} == {"connected"}
        assert len(producer.stats().partitions) == 3
        await asyncio.gather(*(producer.publish(TOPIC, b"x", partition=number) for number in range(3)))
        assert [len(nsqd.peers) for nsqd in stage.nsqds] == [1, 1, 1]


async def test_it_waits_for_a_leader_and_repeats_what_fails(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]}, 2)
    await stage.nsqd.stop()
    async with stage.producer(lookup_interval=0.1) as producer:
        waiting = asyncio.create_task(producer.wait_ready(TOPIC, TOPIC, timeout=60.0))
        await eventually(lambda: producer.health().reason != "ok")
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]}, 2)
        await eventually(lambda: "connected" in {partition.state for partition in producer.stats().partitions})
        assert not waiting.done()
        await stage.nsqd.start()
        await waiting


async def test_a_time_limit_says_what_is_missing(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]}, 2)
    async with stage.producer(lookup_interval=0.1) as producer:
        with pytest.raises(ResponseTimeoutError) as late:
            await producer.wait_ready(TOPIC, timeout=0.5)
        assert str(late.value) == "the producer is not ready after 0.5 s: orders-1 has no leader"
        assert isinstance(late.value, TimeoutError)
        stage.lookupd.answer("/lookup", {"message": "Key not found"}, status=500)
        with pytest.raises(TopicNotFoundError):
            await producer.wait_ready("absent")
        with pytest.raises(ResponseTimeoutError, match=r"after 0\.1 s: .*absent"):
            await producer.wait_ready("absent", timeout=0.1)


async def test_wrong_arguments(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    producer = stage.producer()
    with pytest.raises(ClosedError):
        await producer.wait_ready(TOPIC)
    async with producer:
        with pytest.raises(ConfigError, match="name the topics"):
            await producer.wait_ready()
        with pytest.raises(ConfigError, match="topic"):
            await producer.wait_ready("a b")
        with pytest.raises(ConfigError, match="timeout must be"):
            await producer.wait_ready(TOPIC, timeout=0)


async def test_a_close_ends_the_wait(stage: Stage) -> None:
    stage.lead({}, 1)
    async with stage.producer(lookup_interval=0.1) as producer:
        waiting = asyncio.create_task(producer.wait_ready(TOPIC))
        await eventually(lambda: producer.health().reason != "ok")
    with pytest.raises(ClosedError):
        await waiting


async def test_a_close_ends_the_wait_though_a_publish_waits_for_the_first_lookup(stage: Stage) -> None:
    stage.lookupd.delay = 60.0
    async with stage.producer() as producer:
        waiting = asyncio.create_task(producer.wait_ready(TOPIC))
        publishing = asyncio.create_task(producer.publish(TOPIC, b"x", timeout=0.5))
        await turn(3)
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(PublishError):
        await publishing


async def test_a_topic_that_is_not_found_ends_the_wait_for_all(stage: Stage) -> None:
    async with stage.producer(lookup_interval=0.1) as producer:
        await producer.publish(TOPIC, b"x")
        stage.lookupd.answer("/lookup", {"message": "Key not found"}, status=500)
        await eventually(lambda: producer.health().reason != "ok")
        before = asyncio.all_tasks()
        for topics in (("absent", TOPIC), (TOPIC, "absent")):
            with pytest.raises(TopicNotFoundError):
                await producer.wait_ready(*topics)
            await turn(3)
            assert not [task for task in asyncio.all_tasks() - before if "known_view" in repr(task)]


# ------------------------------------------------------------ a plain cluster


async def test_an_nsqd_that_left_a_plain_cluster_for_good_is_no_trouble(stage: Stage) -> None:
    first, second, _ = stage.nsqds
    stage.list_plain(first, second)
    async with stage.producer(lookup_interval=0.1) as producer:
        await producer.wait_ready(TOPIC)
        assert {partition.state for partition in producer.stats().partitions} == {"connected"}
        stage.list_plain(second)
        await first.stop()
        await eventually(
            lambda: {partition.leader for partition in producer.stats().partitions} == {None, second.node.address}
        )
        await eventually(lambda: producer.health(patience=0.0).reason == "ok")
        await producer.wait_ready(TOPIC)


async def test_nsqds_that_are_not_listed_any_more_are_trouble_when_their_connections_end(stage: Stage) -> None:
    stage.list_plain(stage.nsqd)
    async with stage.producer(lookup_interval=0.1) as producer:
        await producer.publish(TOPIC, b"x")
        stage.list_plain()  # an nsqlookupd that was restarted, until the nsqds register again
        await eventually(lambda: one(producer.stats()).leader is None)
        await producer.publish(TOPIC, b"x")
        assert producer.health(patience=0.0).reason == "ok"
        await stage.nsqd.stop()
        await eventually(lambda: not producer.is_healthy)
        assert producer.health().reason.startswith("orders: no nsqlookupd lists an nsqd for it (for ")


async def test_an_idle_producer_knows_whether_an_nsqlookupd_answers(stage: Stage) -> None:
    stage.lookupd.answer("/listlookup", {"message": "INTERNAL"}, status=500)
    async with stage.producer() as producer:
        await eventually(lambda: not producer.health(patience=0.0))
        assert producer.health().is_healthy  # so far
        assert "no nsqlookupd gave a usable answer" in producer.health(patience=0.0).reason
        await producer.publish(TOPIC, b"x")  # the lookup works, and so does everything else
        assert (producer.health(patience=0.0).is_healthy, producer.health().reason) == (True, "ok")


def test_another_thread_may_ask_while_a_lookup_ends() -> None:
    """health() raised TypeError: what it had looked at was gone when it subtracted it."""

    class SilentError(LookupUnavailableError):
        def __str__(self) -> str:
            watch.error = watch.failing_since = None  # as the loop's thread does meanwhile
            return "no answer"

    watch: Any = SimpleNamespace(
        topic=TOPIC, error=SilentError(""), failing_since=4.0, absent_since=None, leaderless_since={}
    )
    machine = SimpleNamespace(topics={TOPIC: ProducerTopic(TOPIC, 0.0, unanswered(TOPIC))})
    shell: Any = SimpleNamespace(machine=machine, watches={TOPIC: watch}, clock=lambda: 10.0)
    troubles = producer_troubles(shell, None)
    assert [(each.reason, each.seconds) for each in troubles] == [("no answer", 6.0)]
