"""Batches: split by partition, kind and size; an outcome for each message; order kept."""

import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import Consumers, bodies, is_multiset, numbers_by_key, read
from nsq_ha import OutgoingMessage, Producer, Receipt
from nsq_ha.base.identity import partition_of
from nsq_ha.errors import PublishError, TopicNotFoundError
from nsq_ha.policy.sharding import partition_for


def receipts_of(results: list[Receipt | PublishError]) -> list[Receipt]:
    """Return the results, which must all be receipts."""
    receipts = [result for result in results if isinstance(result, Receipt)]
    assert len(receipts) == len(results), results
    return receipts


@pytest.mark.plain
async def test_a_batch_without_keys(producer: Producer, consume: Consumers, ordinary: str, mark: bytes) -> None:
    wanted = [mark + b"%d" % number for number in range(500)]
    async with consume(ordinary) as consumer:
        receipts = receipts_of(await producer.publish_many(ordinary, wanted))
        messages = await read(consumer, mark, len(wanted))
    assert is_multiset([message.body for message in messages], wanted)
    assert {receipt.attempts for receipt in receipts} == {1}
    # One command: one append to one partition.
    assert len({receipt.partition for receipt in receipts}) == 1


async def test_each_key_goes_to_its_partition_and_keeps_its_order(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    keys = [b"key-%d" % number for number in range(12)]
    batch = [
        OutgoingMessage(mark + key + b":%d" % number, key=key, trace_id=number + 1 if number % 3 else None)
        for number in range(20)
        for key in keys
    ]
    async with consume(ordered) as consumer:
        receipts = receipts_of(await producer.publish_many(ordered, iter(batch)))
        messages = await read(consumer, mark, len(batch))
    for message, receipt in zip(batch, receipts, strict=True):
        assert receipt.partition == partition_for(message.key or b"", 4)
        assert receipt.trace_id == message.trace_id
    assert numbers_by_key(messages, mark) == {key: list(range(20)) for key in keys}
    assert all(partition_of(message.internal_id) == message.partition for message in messages)


async def test_offsets_of_a_traced_batch(producer: Producer, consume: Consumers, ordinary: str, mark: bytes) -> None:
    batch = [OutgoingMessage(mark + b"x" * number, partition=1, trace_id=number) for number in range(1, 40)]
    async with consume(ordinary) as consumer:
        receipts = receipts_of(await producer.publish_many(ordinary, batch))
        messages = {message.body: message for message in await read(consumer, mark, len(batch))}
    assert receipts[0].internal_id == messages[batch[0].body].internal_id
    for outgoing, receipt in zip(batch, receipts, strict=True):
        message = messages[outgoing.body]
        assert (receipt.offset, receipt.raw_size) == (message.offset, message.raw_size)
        assert (receipt.partition, receipt.trace_id) == (1, message.trace_id)


async def test_headers_and_plain_messages_in_one_batch(
    producer: Producer, consume: Consumers, extended: str, mark: bytes
) -> None:
    batch: list[bytes | OutgoingMessage] = [
        mark + b"plain",
        OutgoingMessage(mark + b"headers", headers={"a": 1}, partition=0),
        OutgoingMessage(mark + b"traced", trace_id=3, partition=0),
        OutgoingMessage(mark + b"all", headers={"b": [2]}, tag="t", trace_id=4, partition=0),
        OutgoingMessage(mark + b"last", partition=0),
    ]
    async with consume(extended) as consumer:
        receipts = receipts_of(await producer.publish_many(extended, batch))
        messages = {message.body.removeprefix(mark): message for message in await read(consumer, mark, len(batch))}
    assert [receipt.trace_id for receipt in receipts] == [None, None, 3, 4, None]
    assert (messages[b"headers"].headers, messages[b"headers"].tag) == ({"a": 1}, None)
    assert messages[b"traced"].trace_id == 3
    assert (messages[b"all"].headers, messages[b"all"].tag, messages[b"all"].trace_id) == ({"b": [2]}, "t", 4)
    assert (messages[b"plain"].headers, messages[b"last"].headers) == ({}, {})


async def test_a_batch_beyond_the_largest_command_is_split(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    padding = b"x" * (900 * 1024)
    batch = [OutgoingMessage(mark + b"%d:" % number + padding, key="big") for number in range(8)]
    async with consume(ordered) as consumer:
        receipts = receipts_of(await producer.publish_many(ordered, batch))
        messages = await read(consumer, mark, len(batch))
    assert len({receipt.partition for receipt in receipts}) == 1
    assert [body.partition(b":")[0] for body in bodies(messages, mark)] == [b"%d" % n for n in range(8)]


@pytest.mark.few("partitioned")
@pytest.mark.plain
async def test_ten_thousand_small_messages(producer: Producer, consume: Consumers, ordinary: str, mark: bytes) -> None:
    wanted = [mark + b"%d" % number for number in range(10_500)]
    async with consume(ordinary, max_in_flight=2000) as consumer:
        receipts_of(await producer.publish_many(ordinary, wanted))
        messages = await read(consumer, mark, len(wanted))
    assert is_multiset([message.body for message in messages], wanted)


async def test_every_message_of_an_unknown_topic_has_its_error(cluster: ClusterUnderTest) -> None:
    async with Producer(lookupd=cluster.lookupd) as producer:
        results = await producer.publish_many("ct_no_such_topic", [b"a", b"b"], timeout=20.0)
    assert len(results) == 2
    for result in results:
        assert isinstance(result, PublishError)
        assert isinstance(result.__cause__, TopicNotFoundError)
        assert (result.maybe_stored, result.attempts) == (False, 0)
