"""Consuming in threads: iteration, handlers, and every way to stop."""

import contextvars
import gc
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import nsq_ha
from nsq_ha import Backoff, ClosedError, ConfigError, Message
from nsq_ha.dead_letters import DeadLetter, replay
from nsq_ha.devcluster import DevCluster
from nsq_ha.process import loop_thread
from nsq_ha.sync import Consumer, Producer, taking
from tests.support.nsqd import LIMIT
from tests.support.threads import at_once, in_thread, signal_when, until


@pytest.fixture
def producer(cluster: DevCluster) -> Iterator[Producer]:
    with Producer(lookupd=cluster.lookupd) as producer:
        yield producer


def publish(producer: Producer, topic: str, count: int, first: int = 0) -> list[bytes]:
    bodies = [b"%d" % number for number in range(first, first + count)]
    producer.publish_many(topic, bodies)
    return bodies


def some(consumer: Consumer, count: int) -> list[bytes]:
    """Finish the next ``count`` messages; return their bodies."""
    bodies = []
    for _ in range(count):
        with next(consumer) as message:
            bodies.append(message.body)
    return bodies


# -- iterating


def test_iterating_hands_out_every_message(cluster: DevCluster, topic: str, producer: Producer) -> None:
    bodies = publish(producer, topic, 500)
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        assert (consumer.topic, consumer.channel, consumer.max_in_flight) == (topic, "ch", 200)
        assert sorted(some(consumer, 500)) == sorted(bodies)
        assert (consumer.health().reason, consumer.is_healthy) == ("ok", True)
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        last = publish(producer, topic, 1, 500)
        assert some(consumer, 1) == last


def test_batches(cluster: DevCluster, topic: str, producer: Producer) -> None:
    bodies = publish(producer, topic, 250)
    found: list[bytes] = []
    sizes: list[int] = []
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        for batch in consumer.batches(max_messages=100, max_wait=0.5):
            with batch:
                found += [message.body for message in batch]
            sizes.append(len(batch))
            if len(found) == 250:
                break
        with pytest.raises(ConfigError, match="max_messages"):
            consumer.batches(0)
    assert sorted(found) == sorted(bodies)
    assert max(sizes) <= 100
    assert list(consumer.batches()) == []


def test_batches_of_several_threads_and_what_a_stop_does(cluster: DevCluster, topic: str, producer: Producer) -> None:
    found: list[bytes] = []

    def collect() -> None:
        for batch in consumer.batches(10, 60.0):
            with batch:
                found.extend(message.body for message in batch)

    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        threads = [in_thread(collect), in_thread(collect)]
        publish(producer, topic, 47)
        until(lambda: len(found) >= 30)
        consumer.stop()
        for thread in threads:
            thread.result(LIMIT)
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        found += some(consumer, 47 - len(found))
    assert sorted(found) == sorted(b"%d" % number for number in range(47))


def test_a_pause_holds_back_what_a_thread_has_not_seen(cluster: DevCluster, topic: str, producer: Producer) -> None:
    backoff = Backoff(initial=1.0, maximum=1.0, jitter=0.0)
    with Consumer(topic, "ch", lookupd=cluster.lookupd, handler_backoff=backoff) as consumer:
        publish(producer, topic, 300)
        some(consumer, 200)  # quickly, so that it gets many at a time
        failed, failed_at = 0, time.monotonic()
        while "handlers fail" not in loop_thread.shared().call(consumer.health).reason:
            failed_at = time.monotonic()
            next(consumer).requeue()
            failed += 1
        some(consumer, 1)
        assert time.monotonic() - failed_at >= 0.9
        some(consumer, 99 - failed)


def test_several_threads_share_the_messages(cluster: DevCluster, topic: str, producer: Producer) -> None:
    bodies = publish(producer, topic, 400)
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        found = at_once(4, lambda _: some(consumer, 100))
    assert Counter(body for part in found for body in part) == Counter(bodies)
    assert not consumer._takers


def ahead(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Take messages until some wait for this thread; return the bodies of the others."""
    found = some(consumer, 1)
    taker = consumer._local.handle.taker
    monkeypatch.setattr(taking, "QUICK", LIMIT)
    while len(taker._ready) < 2:
        found += some(consumer, 1)
    return found


def test_what_a_thread_does_not_take_in_time_is_given_back_in_order(
    cluster: DevCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = cluster.create_topic("given_back", 1, 1)
    with Consumer(name, "ch", lookupd=cluster.lookupd) as consumer:
        bodies = publish(producer, name, 100)
        found = ahead(consumer, monkeypatch)
        consumer._local.handle.taker._fresh_until = 0.0  # as after a quarter of a second
        found += some(consumer, 100 - len(found))
        assert found == bodies


def test_what_a_slow_thread_does_not_take_in_time_goes_to_another_one(
    cluster: DevCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = cluster.create_topic("passed_on", 1, 1)
    with Consumer(name, "ch", lookupd=cluster.lookupd) as consumer:
        bodies = publish(producer, name, 100)
        found = ahead(consumer, monkeypatch)
        found += in_thread(lambda: some(consumer, 100 - len(found))).result(LIMIT)
        assert sorted(found) == sorted(bodies)


def test_after_an_exception_in_its_block_a_message_comes_again(
    cluster: DevCluster, topic: str, producer: Producer
) -> None:
    publish(producer, topic, 1)
    with Consumer(topic, "ch", lookupd=cluster.lookupd, requeue_backoff=Backoff(initial=0.01)) as consumer:
        with pytest.raises(ValueError, match="not now"), next(consumer) as message:
            raise ValueError("not now")
        with next(consumer) as again:
            assert (again.body, again.attempts) == (message.body, 2)


def test_any_thread_may_answer(cluster: DevCluster, topic: str, producer: Producer) -> None:
    publish(producer, topic, 3)
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        messages = [next(consumer) for _ in range(3)]

        def answer(index: int) -> None:
            messages[index].touch()
            messages[index].requeue(0) if index == 0 else messages[index].finish()

        at_once(3, answer)
        assert some(consumer, 1) == [messages[0].body]


def test_stopping_ends_the_iteration_of_other_threads(cluster: DevCluster, topic: str, producer: Producer) -> None:
    consumer = Consumer(topic, "ch", lookupd=cluster.lookupd).start()
    publish(producer, topic, 4)

    def finish_all() -> None:
        for message in consumer:
            message.finish()

    threads = [in_thread(finish_all) for _ in range(3)]
    until(lambda: len(consumer._takers) == 3)
    consumer.stop()
    for thread in threads:
        thread.result(LIMIT)
    with pytest.raises(StopIteration):
        next(consumer)


def test_stopping_waits_for_a_thread_that_works_on_a_message(
    cluster: DevCluster, topic: str, producer: Producer
) -> None:
    publish(producer, topic, 1)
    consumer = Consumer(topic, "ch", lookupd=cluster.lookupd, close_timeout=3 * LIMIT)
    got, go_on = threading.Event(), threading.Event()

    def work() -> list[int]:
        attempts = []
        for message in consumer:
            with message:
                got.set()
                go_on.wait(LIMIT)
                attempts.append(message.attempts)
        return attempts

    working = in_thread(work)
    assert got.wait(LIMIT)
    stopping = in_thread(consumer.stop)
    until(consumer._client._shell.closing.is_set)
    assert not stopping.done()
    go_on.set()
    stopping.result(LIMIT)
    assert working.result(LIMIT) == [1]
    last = publish(producer, topic, 1, 1)
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as other:
        assert some(other, 1) == last


def test_leaving_the_block_gives_back_at_once_what_this_thread_has_not_answered(
    cluster: DevCluster, topic: str, producer: Producer
) -> None:
    publish(producer, topic, 1)
    with Consumer(topic, "ch", lookupd=cluster.lookupd, close_timeout=3 * LIMIT) as consumer:
        first = next(consumer)
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer, next(consumer) as message:
        assert (message.body, message.attempts) == (first.body, 1)


def test_a_thread_that_ends_holds_up_no_close(cluster: DevCluster, topic: str, producer: Producer) -> None:
    publish(producer, topic, 1)
    consumer = Consumer(topic, "ch", lookupd=cluster.lookupd, close_timeout=3 * LIMIT)
    kept = in_thread(lambda: next(consumer)).result(LIMIT)
    until(lambda: gc.collect() and not consumer._takers)
    consumer.stop()
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer, next(consumer) as message:
        assert message.body == kept.body


Interrupt = Callable[[float, Callable[[], object]], None]


class AlarmError(Exception):
    """What the signal handler raises."""


@pytest.fixture
def interrupt() -> Iterator[Interrupt]:
    """Return a function that calls another one, which a signal handler's exception ends after so many seconds."""

    def ring(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        raise AlarmError

    def interrupted(seconds: float, call: Callable[[], object]) -> None:
        # Again and again: Python misses a signal that comes just before its thread blocks.
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)
        call()

    def interrupt(seconds: float, call: Callable[[], object]) -> None:
        with pytest.raises((AlarmError, RuntimeError)) as caught:
            interrupted(seconds, call)
        # Inside a wait, Python leaves the lock of its condition without having it: "cannot release un-acquired lock".
        assert AlarmError in {type(caught.value), type(caught.value.__context__)}

    before = signal.signal(signal.SIGALRM, ring)
    yield interrupt
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("take", [next, lambda consumer: consumer.get(timeout=60.0)], ids=["next", "get"])
def test_the_call_after_an_interrupted_wait_goes_on(
    cluster: DevCluster, topic: str, producer: Producer, interrupt: Interrupt, take: Callable[[Consumer], Message]
) -> None:
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        for seconds in (*(0.0005,) * 200, *(0.003,) * 50, *(0.03,) * 5):
            interrupt(seconds, lambda: take(consumer))
        bodies = publish(producer, topic, 3)
        assert sorted(take(consumer).body for _ in bodies) == bodies


def test_an_interrupted_wait_for_a_batch_loses_no_message(
    cluster: DevCluster, topic: str, producer: Producer, interrupt: Interrupt
) -> None:
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        batches = consumer.batches(3, 60.0)
        bodies = publish(producer, topic, 2)
        until(lambda: consumer.stats().in_flight == 2)
        for seconds in (0.0005, 0.003, 0.03):
            interrupt(seconds, lambda: next(batches))
        bodies += publish(producer, topic, 1, 2)
        with next(batches) as batch:
            assert sorted(message.body for message in batch) == bodies


@pytest.mark.parametrize("is_batch", [False, True])
def test_what_comes_for_a_thread_that_asks_no_more_goes_to_another(
    cluster: DevCluster, topic: str, producer: Producer, interrupt: Interrupt, *, is_batch: bool
) -> None:
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        interrupt(0.03, lambda: next(consumer.batches(1)) if is_batch else next(consumer))
        bodies = publish(producer, topic, 3)
        assert sorted(in_thread(lambda: some(consumer, 3)).result(LIMIT)) == bodies


def test_get_waits_for_a_limited_time(cluster: DevCluster, topic: str, producer: Producer) -> None:
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        with pytest.raises(TimeoutError, match=f"^{topic}/ch: no message came within 0.01 s$"):
            consumer.get(timeout=0.01)
        bodies = publish(producer, topic, 3)
        got = [consumer.get(timeout=60.0) for _ in bodies]
        assert sorted(message.body for message in got) == bodies
        for message in got:
            message.finish()
        publish(producer, topic, 1, 3)
        with consumer.get() as message:
            assert message.body == b"3"
        with pytest.raises(ConfigError, match="timeout must be"):
            consumer.get(timeout=0)
    with pytest.raises(ClosedError, match="the consumer is closed"):
        consumer.get(timeout=60.0)


def test_the_limit_of_get_holds_while_the_event_loop_is_blocked(cluster: DevCluster, topic: str) -> None:
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        portal, free = consumer._started("start"), threading.Event()
        portal.post(lambda: free.wait(LIMIT))
        with pytest.raises(TimeoutError, match="no message came"):
            consumer.get(timeout=0.05)
        free.set()


# -- handlers


def test_handlers_run_in_as_many_threads_as_was_asked_for(cluster: DevCluster, topic: str, producer: Producer) -> None:
    publish(producer, topic, 8)
    together = threading.Barrier(8)
    handled = []

    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:

        def handle(message: Message) -> None:
            together.wait(LIMIT)
            handled.append(message.body)
            if len(handled) == 8:
                consumer.stop()

        consumer.run(handle, concurrency=8)
    assert len(handled) == 8


@pytest.mark.parametrize("fails", [False, True])
def test_a_handler_that_stops_the_consumer_is_answered_like_any_other(
    cluster: DevCluster, topic: str, producer: Producer, *, fails: bool
) -> None:
    publish(producer, topic, 1)
    consumer = Consumer(topic, "ch", lookupd=cluster.lookupd, requeue_backoff=Backoff(initial=0.01))

    def handle(message: Message) -> None:
        consumer.stop()
        if fails:
            raise ValueError("fails")

    consumer.run(handle)
    consumer.stop()
    publish(producer, topic, 1, 1)
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as other:
        expected = {b"0": 2, b"1": 1} if fails else {b"1": 1}
        found = {}
        for message in other:
            with message:
                found[message.body] = message.attempts
            if len(found) == len(expected):
                break
        assert found == expected


def test_run_returns_when_a_signal_handler_stops_the_consumer(
    cluster: DevCluster, topic: str, producer: Producer
) -> None:
    consumer = Consumer(topic, "ch", lookupd=cluster.lookupd)
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
    main = threading.get_ident()
    handled: list[bytes] = []
    try:
        in_thread(lambda: signal_when(lambda: handled, main))
        publish(producer, topic, 1)
        consumer.run(lambda message: handled.append(message.body))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [b"0"]


def test_what_a_handler_raises_to_end_the_program_ends_the_run(
    cluster: DevCluster, topic: str, producer: Producer
) -> None:
    publish(producer, topic, 1)

    def leave(message: Message) -> None:
        raise SystemExit(3)

    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:
        with pytest.raises(SystemExit):
            consumer.run(leave)
        assert some(consumer, 1) == [b"0"]
        assert producer.publish(topic, b"the loop still runs").topic == topic


def test_a_handler_does_not_delay_heartbeats(
    cluster: DevCluster, topic: str, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    """It works until three heartbeats were answered; the connection stays, and the message is finished once."""
    caplog.set_level(logging.DEBUG, "nsq_ha")
    publish(producer, topic, 1)

    def heartbeats() -> int:
        return sum(record.getMessage().endswith("> NOP") for record in caplog.records)

    def handle(message: Message) -> None:
        seen = heartbeats()
        until(lambda: heartbeats() >= seen + 3, 3 * LIMIT)
        assert message.attempts == 1
        consumer.stop()

    with Consumer(topic, "ch", lookupd=cluster.lookupd, heartbeat_interval=5.0) as consumer:
        consumer.run(handle)
    subscribed = [record for record in caplog.records if record.message.startswith("subscribed to")]
    assert len(subscribed) == 2  # once for each partition


def test_handlers_have_the_context_of_the_call(cluster: DevCluster, topic: str, producer: Producer) -> None:
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")
    seen = []
    publish(producer, topic, 1)
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:

        def handle(message: Message) -> None:
            seen.append(word.get())
            consumer.stop()

        word.set("given")
        consumer.run(handle)
    assert seen == ["given"]


def test_a_coroutine_as_handler_runs_in_the_loop_and_cannot_wait_for_itself(
    cluster: DevCluster, topic: str, producer: Producer
) -> None:
    errors = []
    publish(producer, topic, 1)
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as consumer:

        async def handle(message: Message) -> None:
            for call in (consumer.stop, lambda: producer.publish(topic, b"x")):
                try:
                    call()
                except ConfigError as error:
                    errors.append(str(error))

        running = in_thread(lambda: consumer.run(handle))
        until(lambda: len(errors) == 2)
        consumer.stop()
        running.result(LIMIT)
    assert "Consumer.stop() was called in the background event loop" in errors[0]


# -- giving up


def test_dead_letters_are_published_by_a_producer_for_threads(
    cluster: DevCluster, topic: str, producer: Producer
) -> None:
    letters = cluster.create_topic(topic + ".dead", 1, 1)
    publish(producer, topic, 1)
    other = Producer(lookupd=cluster.lookupd)  # starting the consumer starts it
    with (
        Consumer(letters, "ch", lookupd=cluster.lookupd) as dead,
        Consumer(
            topic,
            "ch",
            lookupd=cluster.lookupd,
            producer=other,
            max_attempts=1,
            on_give_up="dead_letter",
            dead_letter_topic=letters,
        ) as consumer,
    ):

        def fail(message: Message) -> None:
            consumer.stop()
            raise ValueError("cannot be booked")

        consumer.run(fail)
        with next(dead) as message:
            letter = DeadLetter.of(message)
        assert (letter.body, letter.provenance.error) == (b"0", "cannot be booked")
        assert replay(producer, letter).partition == letter.provenance.partition
    other.stop()


def test_what_is_set_before_the_start_holds_with_a_producer_too(cluster: DevCluster, topic: str) -> None:
    producer = Producer(lookupd=cluster.lookupd)
    consumer = Consumer(topic, "ch", lookupd=cluster.lookupd, producer=producer, max_attempts=1, on_give_up="republish")
    consumer.set_max_in_flight(7)
    with consumer:
        assert consumer.max_in_flight == 7
    producer.stop()


def test_a_function_that_is_given_what_is_given_up_may_publish_and_stop(
    cluster: DevCluster, topic: str, producer: Producer
) -> None:
    publish(producer, topic, 1)
    given_up: list[bytes] = []

    def bury(message: Message) -> None:
        given_up.append(message.body)
        consumer.stop()  # before what is buried here comes again
        producer.publish(topic, b"buried", partition=0)

    def fail(message: Message) -> None:
        raise ValueError("cannot be booked")

    consumer = Consumer(topic, "ch", lookupd=cluster.lookupd, max_attempts=1, on_give_up=bury)
    consumer.run(fail)
    consumer.stop()
    assert given_up == [b"0"]
    with Consumer(topic, "ch", lookupd=cluster.lookupd) as other:
        assert some(other, 1) == [b"buried"]


def test_an_async_producer_is_refused(cluster: DevCluster, topic: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a nsq_ha\.sync\.Producer"):
        Consumer(
            topic,
            "ch",
            lookupd=cluster.lookupd,
            producer=nsq_ha.Producer(lookupd=cluster.lookupd),
            max_attempts=1,
            on_give_up="republish",
        )


def test_wrong_options_are_refused_at_once(cluster: DevCluster) -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_in_flight'"):
        Consumer("t", "c", lookupd=cluster.lookupd, max_inflight=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="on_give_up"):
        Consumer("t", "c", lookupd=cluster.lookupd, max_attempts=1, on_give_up=lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="lookupd"):
        Consumer("t", "c")
