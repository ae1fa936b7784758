"""Several consumers in one worker: they start, stop and fail together."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from nsq_ha import ClosedError, ConfigError, Consumer, ConsumerConfig, Message, Producer, Worker
from nsq_ha.consumer.handlers import check_handler
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ServerError, TopicNotFoundError, WorkerError
from nsq_ha.stats import Health
from tests.support.nsqd import LIMIT
from tests.support.waiting import eventually

TOPICS = ("orders", "refunds", "mails")


async def ignore(message: Message) -> None: ...


class Shop:
    """A cluster with some topics, their channel ``ch`` and a producer."""

    def __init__(self, cluster: DevCluster, producer: Producer) -> None:
        self.lookupd = cluster.lookupd
        self.producer = producer

    def worker(self, **options: Any) -> Worker:  # noqa: ANN401 - Worker's
        return Worker(lookupd=self.lookupd, **options)


@pytest.fixture
async def shop(nothing_is_left: None) -> AsyncIterator[Shop]:
    with DevCluster() as cluster:
        for topic in TOPICS:
            cluster.create_topic(topic)
        async with Producer(lookupd=cluster.lookupd) as producer:
            for topic in TOPICS:
                async with Consumer(topic, "ch", lookupd=cluster.lookupd):
                    pass
            yield Shop(cluster, producer)


class Held:
    """A handler that ends when the test says so."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ended: list[str] = []

    async def __call__(self, message: Message) -> None:
        self.entered.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append(message.topic)


async def test_each_topic_has_its_handler_and_options(shop: Shop) -> None:
    seen: list[tuple[str, bytes, str]] = []
    worker = shop.worker(max_in_flight=50, msg_timeout=30.0)

    async def book(message: Message) -> None:
        seen.append((message.topic, message.body, message.source.channel))
        if len(seen) == 3:
            worker.stop()

    def pay(message: Message) -> None:
        seen.append((message.topic, message.body, message.source.channel))
        if len(seen) == 3:
            worker.stop()  # from a thread

    orders = worker.add("orders", "ch", book)
    refunds = worker.add("refunds", "ch", pay, concurrency=4, max_in_flight=7)

    @worker.handler("mails", "ch", concurrency=2, msg_timeout=None)
    async def send(message: Message) -> None:
        await book(message)

    check_handler(send)
    mails = worker.consumers[2]
    assert worker.consumers == (orders, refunds, mails)
    assert (orders.config, worker.config.max_in_flight) == (worker.config, 50)
    assert (refunds.config.max_in_flight, refunds.config.msg_timeout, refunds.max_in_flight) == (7, 30.0, 7)
    assert (mails.config.max_in_flight, mails.config.msg_timeout) == (50, None)
    for topic in TOPICS:
        await shop.producer.publish(topic, topic.encode())
    async with asyncio.timeout(LIMIT):
        await worker.run()
    assert sorted(seen) == sorted((topic, topic.encode(), "ch") for topic in TOPICS)


async def test_stats_and_health_are_those_of_its_consumers(shop: Shop) -> None:
    worker, held = shop.worker(), Held()
    assert (worker.health().reason, worker.is_healthy) == ("not started yet", False)
    assert worker.stats().consumers == ()
    orders = worker.add("orders", "ch", held, max_in_flight=4)
    worker.add("refunds", "ch", ignore)
    await shop.producer.publish("orders", b"x")
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.health().reason == "ok")
    await held.entered.wait()
    stats = worker.stats()
    assert [(each.topic, each.in_flight) for each in stats.consumers] == [("orders", 1), ("refunds", 0)]
    assert (stats.delivered, stats.in_flight, stats.finished) == (1, 1, 0)
    orders.set_max_in_flight(0)
    assert (worker.health().reason, worker.is_healthy) == ("orders/ch: paused: max_in_flight=0", True)
    worker.consumers[1]._shell.failure = ClosedError("refused")
    assert worker.health() == Health(is_healthy=False, reason="refunds/ch: refused")
    worker.consumers[1]._shell.failure = None
    worker.stop()
    assert worker.health().reason == "closing"
    held.may_end.set()
    async with asyncio.timeout(LIMIT):
        await running
    assert (worker.health().reason, worker.stats().finished) == ("closed", 1)


async def test_a_stop_lets_handlers_end(shop: Shop) -> None:
    worker, held = shop.worker(close_timeout=3600.0), Held()
    worker.add("orders", "ch", held)
    worker.add("refunds", "ch", ignore)
    await shop.producer.publish("orders", b"x")
    running = asyncio.create_task(worker.run())
    await held.entered.wait()
    worker.stop()
    worker.stop()
    held.may_end.set()
    async with asyncio.timeout(LIMIT):
        await running
    assert held.ended == ["orders"]
    with pytest.raises(ClosedError, match="a Worker can be run only once"):
        await worker.run()
    worker.stop()


async def test_a_stop_before_the_run_ends_it(shop: Shop) -> None:
    worker = shop.worker()
    worker.add("orders", "ch", ignore)
    worker.stop()
    await worker.run()


async def test_a_stop_while_it_subscribes_ends_it(shop: Shop) -> None:
    worker = shop.worker(start_timeout=3600.0)
    worker.add("orders", "ch", ignore)
    worker.add("nothing", "ch", ignore)  # there is no such topic: entering waits for it
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker.consumers[1]._connecting is not None)
    worker.stop()
    async with asyncio.timeout(LIMIT):
        await running


async def test_a_cancelled_run_closes_all(shop: Shop) -> None:
    worker, held = shop.worker(close_timeout=3600.0), Held()
    worker.add("orders", "ch", held)
    worker.add("refunds", "ch", ignore)
    await shop.producer.publish("orders", b"x")
    running = asyncio.create_task(worker.run())
    await held.entered.wait()
    running.cancel()
    async with asyncio.timeout(LIMIT):
        await asyncio.wait({running})
    assert running.cancelled()
    assert held.ended == ["cancelled"]
    for consumer in worker.consumers:
        with pytest.raises(ClosedError):
            await consumer.wait_subscribed()


async def test_a_consumer_that_its_handler_closes_ends_alone(shop: Shop) -> None:
    worker = shop.worker()
    seen: list[str] = []

    async def once(message: Message) -> None:
        seen.append(message.topic)
        await orders.aclose()

    async def stop(message: Message) -> None:
        seen.append(message.topic)
        worker.stop()

    orders = worker.add("orders", "ch", once)
    worker.add("refunds", "ch", stop)
    running = asyncio.create_task(worker.run())
    await shop.producer.publish("orders", b"x")
    await eventually(lambda: worker.health().reason == "orders/ch: closed")
    assert worker.is_healthy
    await shop.producer.publish("refunds", b"x")
    async with asyncio.timeout(LIMIT):
        await running
    assert seen == ["orders", "refunds"]


# ---------------------------------------------------------------- failures


async def test_if_one_fails_the_others_end_gently_first(shop: Shop) -> None:
    worker, held = shop.worker(close_timeout=3600.0), Held()
    worker.add("orders", "ch", held)
    failing = worker.add("refunds", "ch", ignore)
    await shop.producer.publish("orders", b"x")
    running = asyncio.create_task(worker.run())
    await held.entered.wait()
    await failing.wait_subscribed()
    refusal = ServerError("E_SUB_ORDER_IS_MUST", "no")
    failing._shell.refused(refusal)
    await eventually(lambda: worker.consumers[0]._close.has_begun)
    assert not running.done()
    held.may_end.set()
    with pytest.raises(WorkerError) as caught:
        async with asyncio.timeout(LIMIT):
            await running
    assert held.ended == ["orders"]
    assert str(caught.value) == f"consumer of refunds/ch failed: {refusal}"
    assert (caught.value.topic, caught.value.channel, caught.value.retriable) == ("refunds", "ch", False)
    assert caught.value.__cause__ is refusal
    assert worker.health().reason == str(caught.value)


async def test_one_that_cannot_be_entered_fails(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    worker = shop.worker(max_attempts=3, producer=shop.producer)
    worker.add("orders", "ch", ignore, on_give_up="dead_letter", dead_letter_topic="nowhere")
    worker.add("refunds", "ch", ignore)
    with pytest.raises(
        WorkerError, match=r"consumer of orders/ch failed: dead_letter_topic 'nowhere' does not"
    ) as caught:
        async with asyncio.timeout(LIMIT):
            await worker.run()
    assert isinstance(caught.value.__cause__, TopicNotFoundError)
    assert caught.value.retriable


class FatalError(BaseException):
    pass


async def test_a_failure_of_another_kind_names_its_consumer(shop: Shop) -> None:
    worker, held = shop.worker(close_timeout=3600.0), Held()

    async def fail(message: Message) -> None:
        raise FatalError

    worker.add("orders", "ch", held)
    worker.add("refunds", "ch", fail)
    await shop.producer.publish("orders", b"x")
    running = asyncio.create_task(worker.run())
    await held.entered.wait()
    await shop.producer.publish("refunds", b"x")
    await eventually(lambda: worker.consumers[0]._close.has_begun)
    held.may_end.set()
    with pytest.raises(FatalError) as caught:
        async with asyncio.timeout(LIMIT):
            await running
    assert (worker.health().reason, worker.is_healthy) == ("failed", False)
    assert caught.value.__notes__ == ["in the worker's consumer of refunds/ch"]
    assert held.ended == ["orders"]


# ---------------------------------------------------------------- arguments


def a_worker(**options: Any) -> Worker:  # noqa: ANN401 - Worker's
    return Worker(lookupd="127.0.0.1:4161", **options)


@pytest.mark.parametrize(
    ("add", "text"),
    [
        (lambda worker: worker.add("a b", "ch", ignore), "'a b' is not a valid topic name"),
        (lambda worker: worker.add("orders", "ch", 7), "handler must be a function of a message, not int"),
        (lambda worker: worker.add("orders", "ch", ignore, concurrency=0), "concurrency must be an int of 1..10000"),
        (lambda worker: worker.add("orders", "ch", ignore, max_inflight=7), "unknown option 'max_inflight': did you"),
        (lambda worker: worker.add("orders", "ch", ignore, nsqd="a:1"), "give either lookupd= or nsqd="),
        (
            lambda worker: worker.add(
                "orders", "ch", ignore, max_attempts=1, on_give_up="dead_letter", dead_letter_topic="dead"
            ),
            "on_give_up='dead_letter' publishes: give producer=",
        ),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(add: Callable[[Any], object], text: str) -> None:
    worker = a_worker()
    with pytest.raises(ConfigError) as caught:
        add(worker)
    assert text in str(caught.value)
    assert worker.consumers == ()


async def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="give lookupd="):
        Worker()
    with pytest.raises(ConfigError, match="the worker has nothing to do: add"):
        await a_worker().run()
    worker = a_worker()
    worker.add("orders", "ch", ignore)
    worker.add("orders", "other", ignore)
    with pytest.raises(ConfigError, match="orders/ch was added before: raise its concurrency"):
        worker.add("orders", "ch", ignore)
    unused = a_worker(producer=Producer(lookupd="127.0.0.1:4161"), max_attempts=3)
    unused.add("orders", "ch", ignore)
    with pytest.raises(ConfigError, match="producer= would not be used, since no consumer has on_give_up="):
        await unused.run()


async def test_signals_are_for_the_main_thread() -> None:
    worker = a_worker()
    worker.add("orders", "ch", ignore)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(worker.run(install_signal_handlers=True))
        except ConfigError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LIMIT)
    assert "works only in the main thread" in str(errors[0])


async def test_nothing_is_added_to_a_running_worker(shop: Shop) -> None:
    worker = shop.worker()
    worker.add("orders", "ch", ignore)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: worker._loop is not None)
    with pytest.raises(ConfigError, match="the worker runs already: add refunds/ch before run"):
        worker.add("refunds", "ch", ignore)
    worker.stop()
    async with asyncio.timeout(LIMIT):
        await running


def test_options_come_as_a_value_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ConsumerConfig(lookupd=("http://127.0.0.1:4161",), max_in_flight=3)
    assert Worker(config=config).add("orders", "ch", ignore).config is config
    monkeypatch.setenv("NSQ_HA_LOOKUPD", "127.0.0.1:4161")
    monkeypatch.setenv("NSQ_HA_MAX_IN_FLIGHT", "9")
    worker = Worker.from_env(msg_timeout=30.0)
    assert worker.add("orders", "ch", ignore).config == ConsumerConfig(
        lookupd=("http://127.0.0.1:4161",), max_in_flight=9, msg_timeout=30.0
    )


async def test_a_handler_that_ends_the_program_lets_all_consumers_close_first(shop: Shop) -> None:
    """A SystemExit that left a task would end the event loop at once."""
    worker = shop.worker()

    async def leave(message: Message) -> None:
        raise SystemExit(3)

    worker.add("orders", "ch", leave)
    worker.add("mails", "ch", ignore)
    await shop.producer.publish("orders", b"x")
    with pytest.raises(SystemExit):
        await worker.run()
    async with Consumer("orders", "ch", lookupd=shop.lookupd) as consumer:
        (await consumer.get(timeout=LIMIT)).finish()
