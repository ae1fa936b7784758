"""Giving up at the last failure itself, and the topic of dead letters."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nsq_ha import Backoff, ClosedError, ConfigError, Consumer, Message, Producer
from nsq_ha.consumer.giving_up import EXTRA_DELIVERIES
from nsq_ha.dead_letters import DeadLetter, DeadLetterError, replay
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import TopicNotFoundError
from nsq_ha.protocol import Close, Finish, Requeue
from nsq_ha.protocol.encoding import MAX_MESSAGE_BYTES
from tests.support.inside import partitions_of
from tests.support.nsqd import LIMIT, Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import eventually, turn


class Letters:
    """Takes what is published."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.fails = 0

    async def publish(self, topic: str, body: bytes, **_: Any) -> object:  # noqa: ANN401 - Producer.publish's
        await turn()
        if self.fails:
            self.fails -= 1
            raise RuntimeError("no room")
        self.bodies.append(body)
        return None


def answers(peer: Peer) -> list[object]:
    return [command for command in peer.commands if isinstance(command, Requeue | Finish)]


async def fails(message: Message) -> None:
    raise ValueError("no")


async def requeues(message: Message) -> None:
    message.requeue(30.0)


def requeues_in_a_thread(message: Message) -> None:
    message.requeue(30.0)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("handler", [fails, requeues, requeues_in_a_thread])
async def test_the_last_failure_gives_up_without_another_back_off(
    stage: Stage, handler: Callable[[Message], object], *, ordered: bool
) -> None:
    """It used to wait for one more delivery: 8 s seen, 900 s possible, while an ordered partition waited."""
    stage.lead({0: stage.nsqd}, ordered=ordered)
    letters = Letters()
    async with stage.consumer(
        max_attempts=3, on_give_up="dead_letter", dead_letter_topic="dead", producer=letters
    ) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(handler))
        peer.message(b"again", message_id(2), attempts=2)
        if not ordered:
            await stage.nsqd.until(lambda: peer.of(Requeue))
        peer.message(b"last", message_id(3), attempts=3)
        await stage.nsqd.until(lambda: peer.of(Finish))
        await consumer.aclose()
        await running
    assert peer.of(Finish) == [Finish(message_id(3))]
    assert letters.bodies == [b"last"]


async def test_what_fails_after_its_connection_is_lost_is_not_given_up(stage: Stage) -> None:
    """The server delivers it again: given up here as well, it would be a dead letter that is handled later."""
    letters = Letters()
    may_fail = asyncio.Event()

    async def fails_late(message: Message) -> None:
        if message.body == b"last":
            started.set()
            await may_fail.wait()
            raise ValueError("no")

    started = asyncio.Event()
    async with stage.consumer(
        max_attempts=3, on_give_up="dead_letter", dead_letter_topic="dead", producer=letters
    ) as consumer:
        running = asyncio.create_task(consumer.run(fails_late))
        peer = await stage.nsqd.subscriber()
        peer.message(b"last", message_id(2), attempts=3)
        await asyncio.wait_for(started.wait(), LIMIT)
        peer.close()
        again = await stage.nsqd.subscriber(1)
        may_fail.set()
        again.message(b"next", message_id(3))
        await stage.nsqd.until(lambda: again.of(Finish))
    await running
    assert letters.bodies == []


async def test_so_does_a_requeue_while_iterating(stage: Stage) -> None:
    given_up: list[tuple[bytes, int]] = []

    async def give_up(message: Message) -> None:
        given_up.append((message.body, message.attempts))

    async with stage.consumer(max_attempts=2, on_give_up=give_up) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", attempts=2)
        (await anext(consumer)).requeue()
        await stage.nsqd.until(lambda: peer.of(Finish))
    assert given_up == [(b"x", 2)]
    assert peer.of(Requeue) == []


async def test_a_handler_that_is_cancelled_has_not_failed(stage: Stage) -> None:
    """It used to be requeued, so that a service that was stopped twice had one attempt of three left."""
    entered = asyncio.Event()

    async def hang(message: Message) -> None:
        entered.set()
        await asyncio.Event().wait()

    letters = Letters()
    async with stage.consumer(max_attempts=1, on_give_up="republish", producer=letters) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(hang))
        peer.message(b"x")
        await entered.wait()
        running.cancel()
        await asyncio.wait({running})
    await stage.nsqd.until(lambda: not peer.is_open)
    assert answers(peer) == []
    assert letters.bodies == []


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
async def test_the_next_run_handles_it_again_by_the_same_attempt(
    stage: Stage, *, ordered: bool, is_async: bool
) -> None:
    stage.lead({0: stage.nsqd}, ordered=ordered)
    entered, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    seen: list[tuple[bytes, int]] = []

    async def hang(message: Message) -> None:
        entered.set()
        await asyncio.Event().wait()

    def hang_in_a_thread(message: Message) -> None:
        loop.call_soon_threadsafe(entered.set)
        may_end.wait(LIMIT)
        message.finish()  # too late: the message is another handler's now

    async def handle(message: Message) -> None:
        seen.append((message.body, message.attempts))
        may_end.set()

    async with stage.consumer(max_attempts=1) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(hang if is_async else hang_in_a_thread))
        peer.message(b"x")
        await entered.wait()
        running.cancel()
        await asyncio.wait({running})
        running = asyncio.create_task(consumer.run(handle))
        await stage.nsqd.until(lambda: peer.of(Finish))
        await consumer.aclose()
        await running
    assert seen == [(b"x", 1)]
    assert answers(peer) == [Finish(message_id(2))]


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_handler_cancelled_while_another_task_is_waited_for_counts_no_attempt_that_matters(
    stage: Stage, limit: int | None
) -> None:
    """With a limit it waits for the end of the connection; without one other consumers get it at once."""
    entered, may_end = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body == b"0":
            entered.set()
            await asyncio.Event().wait()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    consumer = await stage.consumer(max_attempts=limit).__aenter__()
    peer = await stage.nsqd.subscriber()
    running = asyncio.create_task(consumer.run(handle, concurrency=2))
    peer.message(b"1", message_id(3))
    peer.message(b"0", message_id(2))
    await entered.wait()
    closing = asyncio.create_task(consumer.aclose())
    await stage.nsqd.until(lambda: peer.of(Close))
    running.cancel()
    if limit is None:
        await stage.nsqd.until(lambda: peer.of(Requeue))
    may_end.set()
    await asyncio.wait({running, closing})
    await stage.nsqd.until(lambda: not peer.is_open)
    assert Requeue(message_id(2), 0) in answers(peer) or limit is not None
    assert answers(peer) == [] or limit is None


async def works(consumer: Consumer, entered: asyncio.Event) -> None:
    async for message in consumer:
        async with message:
            entered.set()
            await asyncio.Event().wait()


async def works_in_tasks(consumer: Consumer, entered: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(works(consumer, entered))


@pytest.mark.parametrize("work", [works, works_in_tasks])
async def test_a_block_that_is_cancelled_with_the_consumer_has_not_failed(stage: Stage, work: Any) -> None:  # noqa: ANN401
    """At the last attempt a stop used to publish the message as a dead letter."""
    entered = asyncio.Event()
    letters = Letters()

    async def main() -> None:
        async with stage.consumer(max_attempts=1, on_give_up="republish", producer=letters) as consumer:
            await work(consumer, entered)

    running = asyncio.create_task(main())
    peer = await stage.nsqd.subscriber()
    peer.message(b"x")
    await entered.wait()
    running.cancel()
    await asyncio.wait({running})
    await stage.nsqd.until(lambda: not peer.is_open)
    assert answers(peer) == []
    assert letters.bodies == []


async def test_a_block_that_times_out_has_failed(stage: Stage) -> None:
    letters = Letters()
    async with stage.consumer(
        max_attempts=1, on_give_up="dead_letter", dead_letter_topic="dead", producer=letters
    ) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")
        message = await anext(consumer)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0), message:
                await asyncio.Event().wait()
        await stage.nsqd.until(lambda: peer.of(Finish))
    assert answers(peer) == [Finish(message_id(2))]
    assert letters.bodies == [b"x"]


async def test_a_block_that_times_out_in_a_handler_is_not_finished(stage: Stage) -> None:
    async def handle(message: Message) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0), message:
                await asyncio.Event().wait()

    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(handle))
        peer.message(b"x")
        await stage.nsqd.until(lambda: peer.of(Requeue))
        await consumer.aclose()
        await running
    assert peer.of(Finish) == []


async def test_a_plain_function_blocks_its_thread_alone(stage: Stage) -> None:
    """It used to run in the event loop, and no heartbeat was answered meanwhile."""
    began, may_end = threading.Event(), threading.Event()
    names: list[str] = []

    def give_up(message: Message) -> None:
        names.append(threading.current_thread().name)
        began.set()
        assert may_end.wait(LIMIT)

    async with stage.consumer(max_attempts=1, on_give_up=give_up) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(fails))
        peer.message(b"x")
        assert await asyncio.to_thread(began.wait, LIMIT)
        may_end.set()
        await stage.nsqd.until(lambda: peer.of(Finish))
        await consumer.aclose()
        await running
    assert names == ["nsq_ha handler 1"]


@pytest.mark.parametrize("iterates", [False, True])
async def test_closing_waits_for_a_plain_function_for_close_timeout(stage: Stage, *, iterates: bool) -> None:
    began, may_end = threading.Event(), threading.Event()

    def give_up(message: Message) -> None:
        began.set()
        may_end.wait(LIMIT)

    async with asyncio.timeout(LIMIT):
        async with stage.consumer(max_attempts=1, on_give_up=give_up, close_timeout=0.1) as consumer:
            peer = await stage.nsqd.subscriber()
            running = None if iterates else asyncio.create_task(consumer.run(fails))
            peer.message(b"x")
            if iterates:
                (await anext(consumer)).requeue()
            assert await asyncio.to_thread(began.wait, LIMIT)
        if running is not None:
            await running
        await stage.nsqd.until(lambda: not peer.is_open)
    assert not may_end.is_set()
    may_end.set()
    assert answers(peer) == []


async def test_closing_waits_for_it(stage: Stage) -> None:
    may_end = asyncio.Event()

    async def give_up(message: Message) -> None:
        await may_end.wait()

    async with asyncio.timeout(LIMIT), stage.consumer(max_attempts=1, on_give_up=give_up) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")
        (await anext(consumer)).requeue()
        closing = asyncio.create_task(consumer.aclose())
        await stage.nsqd.until(lambda: peer.of(Close))
        may_end.set()
        await closing
    assert answers(peer) == [Finish(message_id(2))]


# ------------------------------------------------------------ the topic of dead letters


async def test_a_topic_of_dead_letters_that_is_not_there_is_reported_at_the_start() -> None:
    """Only the first failure used to show it, in a log line."""
    with DevCluster() as cluster:
        cluster.create_topic("payments")
        async with Producer(lookupd=cluster.lookupd) as producer:
            consumer = Consumer(
                "payments",
                "ledger",
                lookupd=cluster.lookupd,
                max_attempts=3,
                on_give_up="dead_letter",
                dead_letter_topic="payments.failed",
                producer=producer,
            )
            with pytest.raises(TopicNotFoundError, match=r"dead_letter_topic 'payments\.failed'.*create"):
                await consumer.__aenter__()


async def test_dead_letters_may_go_to_another_cluster() -> None:
    """Then it is that cluster that must have the topic."""
    with DevCluster() as cluster, DevCluster() as other:
        for one in (cluster, other):
            one.create_topic("payments")
        cluster.create_topic("dead")

        def consumer(producer: Producer) -> Consumer:
            return Consumer(
                "payments",
                "ledger",
                lookupd=cluster.lookupd,
                max_attempts=1,
                on_give_up="dead_letter",
                dead_letter_topic="dead",
                producer=producer,
            )

        async with Producer(lookupd=cluster.lookupd) as here, Producer(lookupd=other.lookupd) as there:
            with pytest.raises(
                TopicNotFoundError, match=f"'dead' does not exist in the producer's cluster .lookupd={other.lookupd[0]}"
            ):
                await consumer(there).__aenter__()
            other.create_topic("dead")
            async with consumer(there) as reading, Consumer("dead", "look", lookupd=other.lookupd) as dead:
                await here.publish("payments", b"x")
                (await anext(reading)).requeue()
                async with asyncio.timeout(LIMIT):
                    letter = await anext(dead)
                letter.finish()
    assert DeadLetter.of(letter).body == b"x"


@pytest.mark.parametrize("exists", [False, True])
async def test_nothing_is_republished_to_another_cluster(*, exists: bool) -> None:
    """The message would be in another topic of the same name, or come again for ever."""
    with DevCluster() as cluster, DevCluster() as other:
        cluster.create_topic("payments")
        if exists:
            other.create_topic("payments")

        def consumer(lookupd: str, producer: Producer) -> Consumer:
            return Consumer(
                "payments", "ledger", lookupd=lookupd, max_attempts=2, on_give_up="republish", producer=producer
            )

        async with Producer(lookupd=other.lookupd) as there, Producer(lookupd=cluster.lookupd[1]) as here:
            with pytest.raises(
                ConfigError, match=f"'payments' to another cluster: the producer's lookupd={other.lookupd[0]}"
            ):
                await consumer(cluster.lookupd[0], there).__aenter__()
            async with consumer(cluster.lookupd[0], here):  # another nsqlookupd of the same cluster
                pass


async def test_a_message_that_is_republished_never_comes_without_a_pause(stage: Stage) -> None:
    """With ``max_attempts=1`` it used to go round thousands of times a second."""
    letters = Letters()
    async with stage.consumer(max_attempts=1, on_give_up="republish", producer=letters) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(fails))
        peer.message(b"x")
        await stage.nsqd.until(lambda: peer.of(Requeue))
        assert letters.bodies == []
        peer.message(b"x", attempts=2)
        await stage.nsqd.until(lambda: peer.of(Finish))
        await consumer.aclose()
        await running
    (requeue,) = peer.of(Requeue)
    assert isinstance(requeue, Requeue)
    assert requeue.delay_ms >= 900
    assert letters.bodies == [b"x"]


async def test_no_answer_about_it_is_no_reason_not_to_start(stage: Stage) -> None:
    async with (
        Producer(lookupd=f"http://127.0.0.1:{stage.nsqd.port}", lookup_timeout=0.1) as silent,
        stage.consumer(max_attempts=3, on_give_up="dead_letter", dead_letter_topic="dead", producer=silent) as consumer,
    ):
        await eventually(lambda: partitions_of(consumer))


@pytest.mark.parametrize("policy", ["dead_letter", "republish"])
async def test_a_producer_that_cannot_publish_is_refused_at_the_start(stage: Stage, policy: str) -> None:
    """It used to show in a log line of the first message that was given up, and of each repeat of it."""
    options: dict[str, Any] = {"max_attempts": 3, "on_give_up": policy}
    if policy == "dead_letter":
        options["dead_letter_topic"] = "dead"
    producer = stage.producer()
    with pytest.raises(
        ConfigError, match=r"the Producer was not entered: .*`async with Producer\(\.\.\.\) as producer`"
    ):
        await stage.consumer(**options, producer=producer).__aenter__()
    async with producer, stage.consumer(**options, producer=producer):
        pass
    with pytest.raises(ClosedError, match="the Producer is closed"):
        await stage.consumer(**options, producer=producer).__aenter__()


@asynccontextmanager
async def bereaved(
    producer: Producer, lookupd: str | Iterable[str]
) -> AsyncIterator[tuple[Consumer, Callable[[], Awaitable[Message]]]]:
    """Yield a consumer of ``payments`` that gives up at the first failure, and a reader of its dead letters."""
    chosen: Any = {"max_attempts": 1, "on_give_up": "dead_letter", "dead_letter_topic": "dead"}
    async with (
        Consumer("dead", "look", lookupd=producer.config.lookupd) as dead,
        Consumer("payments", "ledger", lookupd=lookupd, producer=producer, **chosen) as consumer,
    ):

        async def read() -> Message:
            async with asyncio.timeout(LIMIT):
                message = await anext(dead)
            message.finish()
            return message

        yield consumer, read


@pytest.mark.parametrize("extended", [False, True])
async def test_dead_letters_keep_headers_on_topics_of_both_kinds(*, extended: bool) -> None:
    """On a topic without headers entering used to fail."""
    with DevCluster() as cluster:
        cluster.create_topic("payments", extended=True)
        cluster.create_topic("dead", extended=extended)
        async with (
            Producer(lookupd=cluster.lookupd) as producer,
            bereaved(producer, cluster.lookupd) as (consumer, read),
        ):
            published = await producer.publish("payments", b"x\ny", headers={"a": 1}, tag="t", trace_id=5)
            failing = await anext(consumer)
            with contextlib.suppress(ValueError):
                async with failing:
                    int("none")
            message = await read()
    letter = DeadLetter.of(message)
    assert letter.format == ("headers" if extended else "envelope")
    assert (letter.body, letter.headers, letter.tag) == (b"x\ny", {"a": 1}, "t")
    assert message.tag == ("t" if extended else None)
    origin = letter.provenance
    assert (origin.topic, origin.partition, origin.channel, origin.nsqd) == ("payments", 0, "ledger", failing.nsqd)
    assert (origin.id, origin.trace_id, origin.attempts) == (failing.id, 5, 1)
    assert origin.timestamp_ns == failing.timestamp_ns
    assert int.from_bytes(origin.id[:8], "big") == published.internal_id
    assert (origin.reason, origin.error_type) == ("requeued", "ValueError")
    assert origin.error == "invalid literal for int() with base 10: 'none'"
    assert message.trace_id == 5


async def test_a_replay_keeps_partition_headers_and_trace() -> None:
    with DevCluster() as cluster:
        cluster.create_topic("payments", partitions=3, extended=True)
        cluster.create_topic("dead")
        async with (
            Producer(lookupd=cluster.lookupd) as producer,
            bereaved(producer, cluster.lookupd) as (consumer, read),
        ):
            await producer.publish("payments", b"x", headers={"a": 1}, tag="t", trace_id=5, key="user-42")
            (failing := await anext(consumer)).requeue()
            letter = DeadLetter.of(await read())
            receipt = await replay(producer, letter)
            again = await anext(consumer)
            again.finish()
    assert (receipt.topic, receipt.partition, receipt.trace_id) == ("payments", failing.partition, 5)
    assert (again.body, again.headers, again.tag, again.trace_id) == (b"x", {"a": 1}, "t", 5)
    assert (again.partition, again.attempts) == (failing.partition, 1)


@pytest.mark.parametrize("extended", [False, True])
async def test_the_largest_message_goes_without_its_origin(caplog: pytest.LogCaptureFixture, *, extended: bool) -> None:
    with DevCluster() as cluster:
        cluster.create_topic("payments")
        cluster.create_topic("dead", extended=extended)
        async with (
            Producer(lookupd=cluster.lookupd) as producer,
            bereaved(producer, cluster.lookupd) as (consumer, read),
        ):
            body = b"x" * (MAX_MESSAGE_BYTES - extended)  # such a topic stores that a message has no header
            await producer.publish("payments", body)
            (await anext(consumer)).requeue()
            message = await read()
    assert message.body == body
    with pytest.raises(DeadLetterError, match="is no dead letter"):
        DeadLetter.of(message)
    assert "lacks its origin and the reason (requeued), since the whole was refused: " in caplog.text


async def test_a_handler_in_a_thread_tells_its_error() -> None:
    def fail(message: Message) -> None:
        try:
            int("none")
        except ValueError:
            message.requeue()

    with DevCluster() as cluster:
        for topic in ("payments", "dead"):
            cluster.create_topic(topic)
        async with (
            Producer(lookupd=cluster.lookupd) as producer,
            bereaved(producer, cluster.lookupd) as (consumer, read),
        ):
            await producer.publish("payments", b"x")
            running = asyncio.create_task(consumer.run(fail))
            letter = DeadLetter.of(await read())
            await consumer.aclose()
            await running
    assert letter.provenance.error == "invalid literal for int() with base 10: 'none'"


async def test_plain_nsqds_take_dead_letters_without_key_and_trace(stage: Stage) -> None:
    """They know neither, so that each message used to come again for ever."""
    address = f"127.0.0.1:{stage.nsqds[1].port}"
    async with (
        Producer(nsqd=address) as producer,
        stage.consumer(
            max_attempts=1, on_give_up="dead_letter", dead_letter_topic="dead", producer=producer
        ) as consumer,
    ):
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2, trace_id=7))
        (await anext(consumer)).requeue()
        await stage.nsqd.until(lambda: peer.of(Finish) or peer.of(Requeue))
    assert answers(peer) == [Finish(message_id(2, trace_id=7))]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_message_that_no_handler_has_seen_is_handled_whatever_its_deliveries(
    stage: Stage, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """Restarts and timeouts in the client's queue count as deliveries: five of eight messages were dropped so."""
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.attempts)
        if fails:
            raise ValueError("no")

    async with stage.consumer(max_attempts=3) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(handle))
        peer.message(b"x", message_id(2), attempts=3 + EXTRA_DELIVERIES)
        await stage.nsqd.until(lambda: peer.of(Finish))
        await consumer.aclose()
        await running
    assert seen == [13]
    logged = [text for text in caplog.messages if text.startswith("giving up")]
    assert [text.endswith(": delivery 13 failed, max_attempts=3") for text in logged] == [True] * fails


async def test_a_message_whose_giving_up_failed_comes_again_for_that_alone(stage: Stage) -> None:
    seen: list[int] = []
    given: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.attempts)
        raise ValueError("no")

    def give_up(message: Message) -> None:
        given.append(message.attempts)
        if len(given) == 1:
            raise OSError("not now")

    async with stage.consumer(max_attempts=1, on_give_up=give_up, requeue_backoff=Backoff(0.01, 0.01)) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(handle))
        peer.message(b"x", message_id(2), attempts=1)
        await stage.nsqd.until(lambda: peer.of(Requeue))
        peer.message(b"x", message_id(2), attempts=2)
        await stage.nsqd.until(lambda: peer.of(Finish))
        await consumer.aclose()
        await running
    assert (seen, given) == ([1], [1, 2])


@pytest.mark.parametrize("in_batches", [False, True])
async def test_so_does_one_whose_giving_up_was_cancelled(stage: Stage, *, in_batches: bool) -> None:
    """The end of a batch's wait cancels it, too; then the message was handed out once more."""
    given: list[int] = []

    async def give_up(message: Message) -> None:
        given.append(message.attempts)
        if len(given) == 1:
            raise OSError("not now")
        if len(given) == 2:
            await asyncio.Event().wait()

    async with stage.consumer(max_attempts=1, on_give_up=give_up, handler_backoff=None) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        (await anext(consumer)).requeue()
        await stage.nsqd.until(lambda: peer.of(Requeue))
        if in_batches:
            peer.message(b"y", message_id(3))
        peer.message(b"x", message_id(2), attempts=2)
        if in_batches:
            assert [message.body for message in await anext(consumer.batches(2, 0.1))] == [b"y"]
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.1)
        peer.message(b"z", message_id(4))
        assert (await anext(consumer)).body == b"z"
    assert given == [1, 2, 2]


async def test_and_one_whose_handler_failed_before_its_run_was_cancelled(stage: Stage) -> None:
    """Its next delivery was handled, though it had had all its attempts."""
    handled: list[int] = []
    given = asyncio.Queue[int]()

    async def handle(message: Message) -> None:
        handled.append(message.attempts)
        raise ValueError("it fails")

    async def give_up(message: Message) -> None:
        given.put_nowait(message.attempts)
        if not running.done():
            await asyncio.Event().wait()

    async with stage.consumer(max_attempts=1, on_give_up=give_up, handler_backoff=None) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        running = asyncio.create_task(consumer.run(handle))
        assert await given.get() == 1
        running.cancel()
        await asyncio.wait([running])
        again = asyncio.create_task(consumer.run(handle))
        assert await given.get() == 1
        await stage.nsqd.until(lambda: peer.of(Finish))
        assert handled == [1]
    await again


@pytest.mark.parametrize("give_up", [lambda: None, lambda message, other: None])
def test_a_function_that_takes_no_message_is_refused(give_up: Any) -> None:  # noqa: ANN401 - wrong on purpose
    """Its message used to come again for ever, and no handler saw it."""
    with pytest.raises(ConfigError, match="on_give_up must take one argument, the message"):
        Consumer("payments", "work", nsqd="127.0.0.1:4150", max_attempts=2, on_give_up=give_up)


async def test_redeliveries_are_warned_about_at_doubled_numbers(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    attempts = (9, 10, 11, 20, 39, 40)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        for number, each in enumerate(attempts):
            peer.message(b"x", message_id(number + 2), attempts=each)
        running = asyncio.create_task(consumer.run(lambda _: None))
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == len(attempts))
        await consumer.aclose()
        await running
    said = [text for text in caplog.messages if "redelivered again and again: this is delivery" in text]
    assert [text.rpartition(" ")[2] for text in said] == ["10", "20", "40"]
