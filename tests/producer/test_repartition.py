"""Topics whose number of partitions changes: who publishes where, and when."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from nsq_ha import ConfigError, OutgoingMessage, Producer, ProducerConfig, Receipt
from nsq_ha.errors import PublishError, ResponseTimeoutError, TopicNotFoundError
from nsq_ha.policy.liveness import DOUBTED_AFTER
from nsq_ha.policy.sharding import partition_for
from nsq_ha.policy.topology import TopicView
from nsq_ha.producer.batch import STEP
from nsq_ha.protocol import Mpub
from tests.support.inside import topics_of
from tests.support.nsqd import LIMIT, Holding
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import dawdle, eventually, turn

DELAY = 0.4


def grow(stage: Stage, number: int) -> None:
    stage.lead({partition: stage.nsqds[partition % 3] for partition in range(number)})


def grow_without_leaders(stage: Stage, led: int, number: int) -> None:
    """Say a number of partitions of which only the first take writes."""
    stage.lead({partition: stage.nsqds[partition % 3] for partition in range(led)}, number)


def growing(stage: Stage, **options: Any) -> Producer:  # noqa: ANN401 - ProducerConfig's fields
    return stage.producer(lookup_interval=0.05, **({"new_partition_delay": 0.0} | options))


async def partitions_of(producer: Producer) -> set[int]:
    return {(await producer.publish(TOPIC, b"x")).partition for _ in range(8)}


async def until_it_uses(producer: Producer, partitions: set[int]) -> None:
    async with asyncio.timeout(LIMIT):
        while await partitions_of(producer) != partitions:
            pass


async def until_view(producer: Producer, condition: Callable[[TopicView], bool]) -> None:
    """Wait until what the producer knows of its topic is so."""
    watch = topics_of(producer)[TOPIC].watch
    await eventually(lambda: watch.view is not None and condition(watch.view))


async def until_it_knows(producer: Producer, number: int) -> None:
    await until_view(producer, lambda view: view.partition_num == number)


async def held_while_it_grows(stage: Stage, producer: Producer) -> tuple[Holding, asyncio.Task[Receipt]]:
    """Leave a publish with a key unanswered, and have the topic grow."""
    await producer.publish(TOPIC, b"0", key="k")
    holding = stage.nsqds[0].script = Holding()
    first = asyncio.create_task(producer.publish(TOPIC, b"1", key="k"))
    await eventually(lambda: holding.has(1))
    grow(stage, 2)
    await until_it_knows(producer, 2)
    return holding, first


async def test_new_partitions_are_published_to_after_their_delay(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    grow(stage, 2)
    async with growing(stage, new_partition_delay=DELAY) as producer:
        assert await partitions_of(producer) == {0, 1}
        grow(stage, 4)
        grown_at = loop.time()
        await until_it_uses(producer, {0, 1, 2, 3})
        assert loop.time() - grown_at >= DELAY


async def test_the_usual_delay_is_longer_than_consumers_take_to_find_them(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    grow(stage, 2)
    async with stage.producer(lookup_interval=0.1) as producer:
        assert await partitions_of(producer) == {0, 1}
        grow(stage, 4)
        grown_at = loop.time()
        await until_it_uses(producer, {0, 1, 2, 3})
        assert loop.time() - grown_at >= 1.2 + 0.1


async def test_new_partitions_that_take_no_writes_are_not_hashed_over(stage: Stage) -> None:
    changes: list[tuple[str, int, int]] = []
    loop = asyncio.get_running_loop()
    grow(stage, 2)
    async with growing(
        stage, new_partition_delay=DELAY, on_partition_change=lambda *change: changes.append(change)
    ) as producer:
        await producer.publish(TOPIC, b"x")
        grow_without_leaders(stage, 2, 4)
        changed_at = loop.time()
        while loop.time() < changed_at + 4 * DELAY:
            receipts = [await producer.publish(TOPIC, b"x", key=f"k{n}", timeout=LIMIT) for n in range(20)]
            assert {receipt.partition for receipt in receipts} == {0, 1}
        assert changes == []
        grow(stage, 4)
        served_at = loop.time()
        await until_it_uses(producer, {0, 1, 2, 3})
        assert loop.time() - served_at >= DELAY
    assert changes == [(TOPIC, 2, 4)]


async def test_a_partition_that_is_named_is_published_to_at_once(stage: Stage) -> None:
    grow(stage, 1)
    async with growing(stage, new_partition_delay=60.0) as producer:
        await producer.publish(TOPIC, b"x")
        grow(stage, 2)
        await until_it_knows(producer, 2)
        assert (await producer.publish(TOPIC, b"x", partition=1)).partition == 1
        assert await partitions_of(producer) == {0}


async def test_keys_follow_and_the_event_tells(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    changes: list[tuple[str, int, int]] = []
    grow(stage, 2)
    async with growing(stage, on_partition_change=lambda *change: changes.append(change)) as producer:
        before = [(await producer.publish(TOPIC, b"x", key=f"k{n}")).partition for n in range(20)]
        assert set(before) == {0, 1}
        assert changes == []
        grow(stage, 4)
        while not changes:
            await producer.publish(TOPIC, b"x", key="k0")
        after = [(await producer.publish(TOPIC, b"x", key=f"k{n}")).partition for n in range(20)]
        assert set(after) == {0, 1, 2, 3}
        assert [number % 2 for number in after] == before
    assert changes == [(TOPIC, 2, 4)]
    assert "keys move (partition_change='follow')" in caplog.text


async def test_a_failing_event_hook_harms_nobody(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the hook is broken")

    grow(stage, 1)
    async with growing(stage, on_partition_change=fail) as producer:
        await producer.publish(TOPIC, b"x", key="k")
        grow(stage, 2)
        await until_it_uses(producer, {0, 1})
    assert "the hook is broken" in caplog.text


async def test_refused_keys_are_not_stored_and_the_rest_goes_on(stage: Stage) -> None:
    grow(stage, 1)
    async with growing(stage, partition_change="refuse") as producer:
        await producer.publish(TOPIC, b"x", key="k")
        grow(stage, 2)
        await until_it_uses(producer, {0, 1})
        with pytest.raises(PublishError, match="partition_change='refuse'") as caught:
            await producer.publish(TOPIC, b"x", key="k")
        assert (caught.value.maybe_stored, caught.value.attempts) == (False, 0)
        results = await producer.publish_many(TOPIC, [OutgoingMessage(b"x", key="k"), b"y"])
        assert isinstance(results[0], PublishError)
        assert isinstance(results[1], Receipt)
        named = await producer.publish(TOPIC, b"x", partition=1)
        assert named.partition == 1


async def test_keys_wait_until_what_is_under_way_is_answered(stage: Stage) -> None:
    grow(stage, 1)
    async with growing(stage, partition_change="drain") as producer:
        holding, first = await held_while_it_grows(stage, producer)
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"2", key="k", timeout=0.2)
        assert isinstance(caught.value.__cause__, ResponseTimeoutError)
        assert not caught.value.maybe_stored
        second = asyncio.create_task(producer.publish(TOPIC, b"2", key="k"))
        many = asyncio.create_task(producer.publish_many(TOPIC, [OutgoingMessage(b"3", key="k")]))
        asked = stage.lookupd.count("/lookup")
        await eventually(lambda: stage.lookupd.count("/lookup") > asked + 2)
        assert not second.done()
        assert not many.done()
        stage.nsqds[0].script = None
        holding.release()
        assert (await first).partition == 0
        receipt = await second
        (third,) = await many
        assert isinstance(third, Receipt)
        assert third.partition == receipt.partition


async def test_a_large_batch_is_drained_as_a_whole(stage: Stage) -> None:
    """Nobody uses the new number before its last command is answered."""
    key, count = next(f"k{n}" for n in range(9) if partition_for(f"k{n}", 2) == 1), STEP + 1
    grow(stage, 1)
    async with growing(stage, partition_change="drain", new_partition_delay=0.2, max_batch_bytes=20_000) as producer:
        await producer.publish(TOPIC, b"0")
        holding = stage.nsqds[0].script = Holding()
        batch = [OutgoingMessage(b"x" * 100, key=key)] * count
        many = asyncio.create_task(producer.publish_many(TOPIC, batch, timeout=3600.0))
        await eventually(lambda: holding.has(1))
        grow(stage, 2)
        await until_it_knows(producer, 2)
        await dawdle(0.25)
        ready = asyncio.create_task(producer.wait_ready(TOPIC))
        await dawdle(0.05)
        later = asyncio.create_task(producer.publish(TOPIC, b"later", key=key, timeout=3600.0))
        written = 0
        while written < count:
            await eventually(lambda: holding.has(1), 5.0)
            [(_, command)] = holding.held
            assert isinstance(command, Mpub)
            written += len(command.bodies)
            if written == count:
                await dawdle(0.5)
                assert not later.done()
            holding.release()
        assert (await later).partition == 1
        assert {receipt.partition for receipt in await many if isinstance(receipt, Receipt)} == {0}
        await ready


async def test_a_publish_ends_in_time_if_the_topic_goes_while_keys_wait(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    grow(stage, 1)
    async with growing(stage, partition_change="drain") as producer:
        holding, first = await held_while_it_grows(stage, producer)
        began = loop.time()
        second = asyncio.create_task(producer.publish(TOPIC, b"2", key="k", timeout=5.0))
        await turn(5)
        stage.lookupd.answer("/lookup", {"message": "Key not found"}, status=404)
        await until_view(producer, lambda view: not view.exists)
        assert not second.done()
        holding.release()
        await first
        with pytest.raises(PublishError) as caught:
            await asyncio.wait_for(second, LIMIT)
        assert isinstance(caught.value.__cause__, TopicNotFoundError)
        assert (caught.value.attempts, caught.value.maybe_stored) == (0, False)
        assert loop.time() - began < 5.1


async def test_what_a_silent_leader_has_is_not_written_to_it_again_for_partitions_that_are_not_used_yet(
    stage: Stage,
) -> None:
    grow(stage, 1)
    async with growing(stage, new_partition_delay=60.0) as producer:
        await producer.publish(TOPIC, b"0")
        grow(stage, 2)
        await until_it_knows(producer, 2)
        holding = stage.nsqds[0].script = Holding()
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"1", timeout=0.9 * DOUBTED_AFTER)
        assert (caught.value.attempts, len(holding.held)) == (1, 1)
        holding.release()


async def test_a_recreated_topic_is_used_at_once(stage: Stage) -> None:
    changes: list[object] = []
    grow(stage, 1)
    async with growing(
        stage, new_partition_delay=60.0, partition_change="refuse", on_partition_change=lambda *c: changes.append(c)
    ) as producer:
        await producer.publish(TOPIC, b"x", key="k")
        stage.lookupd.answer("/lookup", {"message": "Key not found"}, status=404)
        await until_view(producer, lambda view: not view.exists)
        grow(stage, 2)
        assert await partitions_of(producer) == {0, 1}
        await producer.publish(TOPIC, b"x", key="k")
    assert changes == []


def test_the_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="partition_change"):
        ProducerConfig(partition_change="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="new_partition_delay"):
        ProducerConfig(new_partition_delay=-1.0)
