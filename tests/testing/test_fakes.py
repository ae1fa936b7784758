"""The clients for unit tests behave as the real ones do."""

import asyncio
import inspect

import pytest

from nsq_ha import Consumer, Message, OutgoingMessage, Producer, Receipt
from nsq_ha.errors import ClosedError, ConfigError, NotWritableError, PublishError
from nsq_ha.testing import FakeConsumer, FakeProducer, Requeued

pytestmark = pytest.mark.timeout(30)


async def test_a_producer_remembers_what_was_published() -> None:
    async with FakeProducer(partitions={"orders": 4}) as producer:
        first = await producer.publish("orders", b"a", key="order-1", trace_id=7)
        second = await producer.publish("orders", b"b", partition=1, trace_id=8, headers={"x": "1"})
        plain = await producer.publish("bills", b"c", defer=3.0)
    assert (first.partition, first.offset, first.trace_id) == (1, 0, 7)
    assert second.offset == first.raw_size
    assert (plain.partition, plain.offset, plain.internal_id) == (0, None, None)
    assert producer.bodies() == [b"a", b"b", b"c"]
    assert producer.bodies("bills") == [b"c"]
    assert [each.key for each in producer.published] == ["order-1", None, None]
    assert producer.published[1].message.headers == {"x": "1"}
    assert producer.published[2].defer == 3.0
    assert producer.stats().published == 3


async def test_messages_without_a_key_take_turns() -> None:
    async with FakeProducer(partitions=2, trace=True) as producer:
        receipts = await producer.publish_many("orders", [b"a", OutgoingMessage(b"b"), b"c"])
    assert [receipt.partition for receipt in receipts] == [0, 1, 0]
    assert all(each.receipt.trace_id for each in producer.published)


async def test_a_producer_refuses_what_the_real_one_refuses() -> None:
    async with FakeProducer(ordered=["orders"], partitions=2) as producer:
        for topic, message in (
            ("orders", OutgoingMessage(b"a")),
            ("bills", OutgoingMessage(b"")),
            ("bills", OutgoingMessage(b"a", partition=2)),
            ("no topic!", OutgoingMessage(b"a")),
        ):
            with pytest.raises(ConfigError):
                await producer.publish(topic, message.body, key=message.key, partition=message.partition)
            with pytest.raises(ConfigError):
                await producer.publish_many(topic, [message])
        await producer.wait_ready("orders")
        assert producer.is_healthy
    assert producer.published == []
    assert not producer.is_healthy
    with pytest.raises(ClosedError):
        await producer.publish("bills", b"a")
    with pytest.raises(ClosedError):
        await FakeProducer().publish("bills", b"a")


async def test_a_producer_checks_what_only_the_real_one_uses() -> None:
    async with FakeProducer(partitions=2) as producer:
        for timeout in (0, -1.0, float("nan"), "1"):
            with pytest.raises(ConfigError, match="timeout must be"):
                await producer.publish("orders", b"a", timeout=timeout)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="timeout must be"):
                await producer.publish_many("orders", [b"a"], timeout=timeout)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="timeout must be"):
                await producer.wait_ready("orders", timeout=timeout)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="defer must be"):
            await producer.publish("orders", b"a", defer=-1)
        with pytest.raises(ConfigError, match="defer= cannot be combined"):
            await producer.publish("orders", b"a", defer=1, tag="t")
        with pytest.raises(ConfigError, match="messages must be a list"):
            await producer.publish_many("orders", b"")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"^message 1: "):
            await producer.publish_many("orders", [b"a", b""])
        with pytest.raises(ConfigError, match="has no partition 2"):
            await producer.publish_many("orders", [b"a", OutgoingMessage(b"b", partition=2)])
    assert producer.published == []


async def test_a_producer_refuses_a_key_before_it_takes_anything() -> None:
    """It remembered the messages before the wrong one, and did not say which one was wrong."""
    async with FakeProducer(sharding="modulo") as producer:
        with pytest.raises(ConfigError, match=r"^message 1: sharding 'modulo' takes ints of 0 or more"):
            await producer.publish_many("orders", [b"a", OutgoingMessage(b"b", key=-1)])
    assert producer.published == []
    async with FakeProducer(sharding=abs) as producer:
        with pytest.raises(ConfigError, match="14000 bits"):
            await producer.publish("orders", b"a", key=2**50_000)
    assert producer.published == []


async def test_a_producer_fails_as_it_is_asked_to() -> None:
    async with FakeProducer() as producer:
        producer.fail(NotWritableError("E_FAILED_ON_NOT_WRITABLE", ""), topic="orders")
        producer.fail(times=2, maybe_stored=True)
        first, again = await producer.publish_many("bills", [b"a", b"b"])
        with pytest.raises(PublishError) as raised:
            await producer.publish("orders", b"c")
        receipt = await producer.publish("orders", b"d")
    assert isinstance(first, PublishError)
    assert isinstance(again, PublishError)
    assert first.maybe_stored
    assert raised.value.retriable
    assert isinstance(raised.value.__cause__, NotWritableError)
    assert receipt.topic == "orders"
    assert producer.bodies() == [b"d"]
    assert (producer.stats().failed, producer.stats().uncertain) == (3, 2)


async def test_a_handler_gets_its_messages_and_run_ends() -> None:
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("no such customer")

    consumer = FakeConsumer("orders", "billing")
    consumer.deliver(b"a", b"bad", partition=3, trace_id=7)
    async with consumer:
        await consumer.run(handle)
    assert seen == [b"a", b"bad"]
    assert [(each.body, each.partition, each.trace_id) for each in consumer.finished] == [(b"a", 3, 7)]
    (requeued,) = consumer.requeued
    assert (requeued.message.body, requeued.delay) == (b"bad", None)
    assert (consumer.stats().delivered, consumer.stats().requeued) == (2, 1)


@pytest.mark.parametrize("is_early", [True, False])
async def test_messages_that_the_options_skip_reach_no_handler(*, is_early: bool) -> None:
    """A handler that must never see them passed its tests without the option."""
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)

    for others in (list[bytes](), [b"real"]):
        consumer, messages = FakeConsumer(skip_header={"zan_test": True}), list[Message]()

        def deliver(consumer: FakeConsumer = consumer, others: list[bytes] = others) -> list[Message]:
            skipped = consumer.deliver(b"test", headers={"zan_test": True})
            return skipped + (consumer.deliver(*others) if others else [])

        if is_early:
            messages = deliver()
        async with asyncio.timeout(10), consumer:
            messages = messages or deliver()
            await consumer.run(handle)
        stats, count = consumer.stats(), len(others)
        assert (stats.skipped, stats.delivered, stats.finished, stats.in_flight) == (1, count, count, 0)
        assert all(message.answered for message in messages)
    assert seen == [b"real"]


async def test_a_plain_handler_runs_in_a_thread() -> None:
    def handle(message: Message) -> None:
        assert message.headers == {"kind": "paid"}
        assert message.tag == "eu"

    async with FakeConsumer() as consumer:
        consumer.deliver(b"a", headers={"kind": "paid"}, tag="eu")
        await consumer.run(handle)
    assert [each.body for each in consumer.finished] == [b"a"]


async def test_iterating_ends_with_the_last_answer() -> None:
    async with FakeConsumer() as consumer:
        consumer.deliver(b"a", b"b")
        async for message in consumer:
            message.touch()
            message.requeue(delay=2.0)
    assert consumer.requeued == [Requeued(message, 2.0) for message in consumer.touched]
    with pytest.raises(ClosedError, match="stays_open"):
        consumer.deliver(b"c")


async def test_a_consumer_that_stays_open_gets_more() -> None:
    async with FakeConsumer(stays_open=True) as consumer:
        for body in (b"a", b"b"):
            consumer.deliver(body)
            async with asyncio.timeout(10), await anext(consumer) as message:
                assert message.body == body
        assert consumer.is_healthy
        await consumer.wait_ready(timeout=1)
    assert len(consumer.finished) == 2


async def test_unanswered_messages_are_in_flight_and_not_finished() -> None:
    async with FakeConsumer(stays_open=True) as consumer:
        consumer.deliver(b"a", b"b", b"c")
        async with await anext(consumer):
            pass
        (await anext(consumer)).requeue(1.0)
        await anext(consumer)
        stats = consumer.stats()
        assert (stats.delivered, stats.finished, stats.requeued, stats.in_flight) == (3, 1, 1, 1)
    stats = consumer.stats()
    assert (stats.finished, stats.requeued + stats.returned, stats.in_flight) == (1, 2, 0)


async def test_a_message_is_given_up_into_a_fake_producer() -> None:
    """The nsqlookupd that may run on the developer's machine is not asked for the topic."""
    asked: list[object] = []
    server = await asyncio.start_server(lambda *connection: asked.append(connection), "127.0.0.1", 0)
    lookupd = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, FakeProducer(lookupd=lookupd) as producer:
        consumer = FakeConsumer(
            "orders",
            "billing",
            redelivers=True,
            producer=producer,
            max_attempts=3,
            on_give_up="dead_letter",
            dead_letter_topic="dead",
        )
        consumer.deliver(b"bad")
        calls: list[int] = []

        async def handle(message: Message) -> None:
            calls.append(message.attempts)
            raise ValueError("no such customer")

        async with consumer:
            await consumer.run(handle)
    assert calls == [1, 2, 3]
    assert [(each.topic, each.key) for each in producer.published] == [("dead", "orders-0")]
    assert asked == []
    assert [each.attempts for each in consumer.finished] == [3]


async def test_deliveries_are_checked() -> None:
    consumer = FakeConsumer()
    for bodies in ((), ("text",)):
        with pytest.raises(ConfigError):
            consumer.deliver(*bodies)
    with pytest.raises(ConfigError):
        consumer.deliver(b"a", partition=5000)


@pytest.mark.parametrize(
    ("fake", "real", "names"),
    [
        (FakeProducer, Producer, ("publish", "publish_many", "wait_ready", "stats", "aclose")),
        (FakeConsumer, Consumer, ("wait_ready", "wait_subscribed", "stats")),
    ],
)
def test_methods_have_the_real_signatures(fake: type, real: type, names: tuple[str, ...]) -> None:
    for name in names:
        assert inspect.signature(getattr(fake, name)) == inspect.signature(getattr(real, name)), name


async def test_a_delay_needs_plain_nsqd_which_knows_no_keys() -> None:
    """It took what each server refuses."""
    async with FakeProducer(partitions=4) as producer:
        for given in ({"key": "a"}, {"partition": 1}):
            with pytest.raises(ConfigError, match="key= and partition= need the partitioned server"):
                await producer.publish("bills", b"a", defer=1.0, **given)
    assert producer.published == []


async def test_a_body_that_an_extended_topic_has_no_room_for_is_refused() -> None:
    most = 1000
    async with FakeProducer(extended=["notes"], max_message_bytes=most) as producer:
        await producer.publish("bills", bytes(most))
        await producer.publish("notes", bytes(most - 1))
        with pytest.raises(ConfigError, match=f"a message of {most + 1} bytes"):
            await producer.publish("notes", bytes(most))
        room = most - len(b'{"a":"b"}') - 3
        for topic in ("notes", "others"):  # a topic that gets headers is extended
            await producer.publish(topic, bytes(room), headers={"a": "b"})
            with pytest.raises(ConfigError, match=f"a message of {most + 1} bytes"):
                await producer.publish(topic, bytes(room + 1), headers={"a": "b"})
            with pytest.raises(ConfigError, match=f"^message 1: a message of {most + 1} bytes"):
                await producer.publish_many(topic, [b"a", OutgoingMessage(bytes(room + 1), headers={"a": "b"})])
        with pytest.raises(ConfigError, match="notes' is extended"):
            await producer.publish("notes", b"a", defer=1.0)


async def test_a_batch_with_headers_gets_no_ids() -> None:
    """As with the server, whose answer has none."""
    async with FakeProducer(trace=True) as producer:
        receipts = await producer.publish_many("notes", [OutgoingMessage(b"a", headers={"a": "b"}), b"c"])
        first, second = (receipt for receipt in receipts if isinstance(receipt, Receipt))
    assert (first.internal_id, first.offset, first.raw_size) == (None, None, None)
    assert first.trace_id
    assert second.internal_id


def test_no_server_delivers_what_none_takes() -> None:
    consumer = FakeConsumer()
    wrong: list[dict[str, object]] = [
        {"bodies": [b""]},
        {"headers": {"##x": "reserved"}},
        {"headers": {"a": object()}},
        {"headers": {1: "a"}},
        {"tag": ""},
        {"trace_id": -1},
        {"trace_id": 2**64},
        {"attempts": 0},
        {"attempts": 65_536},
    ]
    for given in wrong:
        with pytest.raises(ConfigError):
            consumer.deliver(*given.pop("bodies", [b"a"]), **given)  # type: ignore[arg-type, misc]
