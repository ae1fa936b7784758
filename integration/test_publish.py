"""One message: what its receipt says, and what arrives."""

import asyncio
import time
from typing import Any, Final

import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import LIMIT, Consumers, next_of, read
from nsq_ha import ConfigError, LookupClient, OutgoingMessage, Producer, Receipt
from nsq_ha.base.identity import partition_of
from nsq_ha.errors import MessageRefusedError, PublishError

LARGEST: Final = 1024 * 1024


async def test_a_plain_message(
    cluster: ClusterUnderTest, producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary) as consumer:
        before = time.time_ns()
        receipt = await producer.publish(ordinary, mark + b"\0\n paid")
        message = (await read(consumer, mark, 1))[0]
        after = time.time_ns()
    async with LookupClient(cluster.lookupd[0]) as lookup:
        leaders = (await lookup.lookup(ordinary)).partitions
    assert (receipt.topic, receipt.attempts) == (ordinary, 1)
    assert receipt.nsqd == leaders[receipt.partition].address
    assert (receipt.internal_id, receipt.trace_id, receipt.offset, receipt.raw_size) == (None, None, None, None)
    assert message.body == mark + b"\0\n paid"
    assert (message.topic, message.partition, message.nsqd) == (ordinary, receipt.partition, receipt.nsqd)
    assert (message.attempts, message.trace_id) == (1, 0)
    assert partition_of(message.internal_id) == receipt.partition
    assert (message.headers, message.tag) == ({}, None)
    # The clocks are those of two processes: a second apart is a fault of the layout, not of the clock.
    assert before - 10**9 < message.timestamp_ns < after + 10**9


@pytest.mark.plain
async def test_keyless_messages_go_round_all_partitions(producer: Producer, ordinary: str, mark: bytes) -> None:
    receipts = [await producer.publish(ordinary, mark + b"x") for _ in range(4)]
    assert sorted(receipt.partition for receipt in receipts) == [0, 0, 1, 1]


@pytest.mark.plain
async def test_the_least_loaded_of_two_partitions_takes_the_message(
    cluster: ClusterUnderTest, ordinary: str, mark: bytes
) -> None:
    async with Producer(lookupd=cluster.lookupd, strategy="least_loaded") as producer:
        await producer.publish(ordinary, mark + b"the topic is known now")
        receipts = await asyncio.gather(*(producer.publish(ordinary, mark + b"x") for _ in range(20)))
    assert sorted(receipt.partition for receipt in receipts) == [0] * 10 + [1] * 10


async def test_a_receipt_of_a_traced_message_names_what_arrives(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    trace_ids = [7, 1, 2**64 - 1]
    async with consume(ordered) as consumer:
        receipts = [await producer.publish(ordered, mark + b"x" * n, key="k", trace_id=n) for n in trace_ids[:2]]
        receipts.append(await producer.publish(ordered, mark, key="k", trace_id=trace_ids[2]))
        messages = await read(consumer, mark, 3)
    assert [receipt.trace_id for receipt in receipts] == trace_ids
    for receipt, message in zip(receipts, messages, strict=True):
        assert (receipt.internal_id, receipt.trace_id) == (message.internal_id, message.trace_id)
        assert (receipt.offset, receipt.raw_size) == (message.offset, message.raw_size)
        assert (receipt.partition, receipt.nsqd) == (message.partition, message.nsqd)
        assert receipt.raw_size == 4 + 26 + len(message.body)


async def test_offsets_chain_within_a_partition(producer: Producer, ordinary: str, mark: bytes) -> None:
    receipts = [await producer.publish(ordinary, mark + b"x" * n, partition=1, trace_id=n) for n in range(1, 30)]
    assert {receipt.partition for receipt in receipts} == {1}
    ends = [(receipt.offset or 0) + (receipt.raw_size or 0) for receipt in receipts]
    assert [receipt.offset for receipt in receipts[1:]] == ends[:-1]
    ids = [receipt.internal_id or 0 for receipt in receipts]
    assert ids == sorted(set(ids))


async def test_tracing_is_switched_while_running(producer: Producer, ordinary: str, ordered: str) -> None:
    assert (await producer.publish(ordinary, b"untraced")).offset is None
    producer.trace = {ordinary}
    first, second = [await producer.publish(ordinary, b"traced") for _ in range(2)]
    assert first.offset is not None
    assert first.trace_id != second.trace_id
    assert (await producer.publish(ordered, b"untraced", key="k")).offset is None
    producer.trace = True
    assert (await producer.publish(ordered, b"traced", key="k")).offset is not None
    assert (await producer.publish(ordered, b"traced", key="k", trace_id=5)).trace_id == 5
    producer.trace = False
    assert (await producer.publish(ordinary, b"untraced")).offset is None


async def test_headers_and_tag_arrive(producer: Producer, consume: Consumers, extended: str, mark: bytes) -> None:
    headers = {"kind": "order", "größe": [1, 2.5, None, {"deep": True}]}
    async with consume(extended) as consumer:
        plain = await producer.publish(extended, mark + b"1", partition=0)
        await producer.publish(extended, mark + b"2", partition=0, headers=headers)
        traced = await producer.publish(extended, mark + b"3", partition=0, headers=headers, tag="t", trace_id=9)
        await producer.publish(extended, mark + b"4", partition=0, headers={})
        only_traced = await producer.publish(extended, mark + b"5", partition=0, trace_id=11)
        messages = {message.body[-1:]: message for message in await read(consumer, mark, 5)}
    assert messages[b"1"].headers == {}
    assert messages[b"1"].ext is None
    assert (messages[b"2"].headers, messages[b"2"].tag, messages[b"2"].trace_id) == (headers, None, 0)
    assert (messages[b"3"].headers, messages[b"3"].tag, messages[b"3"].trace_id) == (headers, "t", 9)
    assert (messages[b"4"].headers, messages[b"4"].ext) == ({}, b"{}")
    assert messages[b"5"].trace_id == 11
    assert plain.offset is None
    for receipt, message in ((traced, messages[b"3"]), (only_traced, messages[b"5"])):
        assert (receipt.internal_id, receipt.trace_id) == (message.internal_id, message.trace_id)
        assert (receipt.offset, receipt.raw_size) == (message.offset, message.raw_size)


async def test_the_largest_message(producer: Producer, consume: Consumers, ordinary: str, mark: bytes) -> None:
    body = mark + b"x" * (1024 * 1024 - len(mark))
    async with consume(ordinary) as consumer:
        await producer.publish(ordinary, body)
        message = await next_of(consumer, mark)
        message.finish()
    assert message.body == body
    with pytest.raises(ConfigError, match="1048577 bytes"):
        await producer.publish(ordinary, body + b"x")
    with pytest.raises(ConfigError, match="trace id and headers included"):
        await producer.publish(ordinary, body, trace_id=1)


@pytest.mark.parametrize(
    ("more", "head"),
    [({}, 1), ({"headers": {"a": 1}}, 1 + 2 + 7), ({"trace_id": 7}, 8)],
    ids=["none", "headers", "trace"],
)
async def test_an_extended_topic_stores_what_form_a_header_has(
    producer: Producer, extended: str, more: dict[str, Any], head: int
) -> None:
    """nsqd calls a message that is a byte too large a failed write, and takes no other publish for a moment."""
    body = bytes(LARGEST - head)
    assert (await producer.publish(extended, body, partition=0, **more)).attempts == 1
    with pytest.raises(ConfigError, match="exceeds max_message_bytes"):
        await producer.publish(extended, body + b"x", partition=0, **more)
    assert (await producer.publish(extended, b"next", partition=0)).attempts == 1


async def test_a_batch_for_an_extended_topic_is_refused_as_a_whole(producer: Producer, extended: str) -> None:
    with pytest.raises(ConfigError, match=r"^message 1: a message of 1048577 bytes"):
        await producer.publish_many(extended, [b"small", bytes(LARGEST), b"small"])
    with pytest.raises(ConfigError, match=r"^message 1: a message of 1048577 bytes"):
        await producer.publish_many(extended, [OutgoingMessage(b"small", headers={}), bytes(LARGEST)])
    assert all(
        isinstance(one, Receipt) for one in await producer.publish_many(extended, [b"small", bytes(LARGEST - 1)])
    )


async def test_a_message_that_no_queue_may_hold_is_not_repeated(cluster: ClusterUnderTest, extended: str) -> None:
    """The client's limit is higher than the server's."""
    async with Producer(lookupd=cluster.lookupd, max_message_bytes=LARGEST + 1) as producer:
        with pytest.raises(PublishError, match="invalid message write size") as caught:
            await producer.publish(extended, bytes(LARGEST), partition=1)
        assert isinstance(caught.value.__cause__, MessageRefusedError)
        assert (caught.value.attempts, caught.value.maybe_stored) == (1, False)
        await producer.publish(extended, b"next", partition=1)


async def test_headers_need_an_extended_topic(producer: Producer, ordinary: str, mark: bytes) -> None:
    with pytest.raises(ConfigError, match="extended"):
        await producer.publish(ordinary, mark, headers={"a": 1})
    with pytest.raises(ConfigError, match="extended"):
        await producer.publish(ordinary, mark, tag="t")
    assert (await producer.publish(ordinary, mark)).attempts == 1


async def test_an_ordered_topic_needs_a_key_or_a_partition(producer: Producer, ordered: str, mark: bytes) -> None:
    with pytest.raises(ConfigError, match="give key= or partition="):
        await producer.publish(ordered, mark)
    assert (await producer.publish(ordered, mark, partition=3)).partition == 3
    with pytest.raises(ConfigError, match=r"it has 4 \(0\.\.3\)"):
        await producer.publish(ordered, mark, partition=4)


@pytest.mark.plain
async def test_many_publishes_at_once_are_all_stored(
    producer: Producer, consume: Consumers, ordinary: str, mark: bytes
) -> None:
    wanted = {mark + b"%d" % number for number in range(2000)}
    found: set[bytes] = set()
    async with consume(ordinary) as consumer:
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*(producer.publish(ordinary, body) for body in wanted))
        while not wanted <= found:  # an nsqd that takes too long for an answer leaves some in doubt: they come twice
            found.update(message.body for message in await read(consumer, mark, 1))
    assert found == wanted
