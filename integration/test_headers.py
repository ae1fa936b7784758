"""What headers are for: filters, tags and compressed bodies."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import Consumers, bodies, eventually, next_of, read
from nsq_ha import ExtFilter, Message, OutgoingMessage, Producer, StartFrom

PUBLISHED: dict[bytes, dict[str, object] | None] = {
    b"v1": {"k": "v1"},
    b"v2": {"k": "v2"},
    b"nokey": {"z": "1"},
    b"noext": None,
    b"empty": {},
    b"number": {"k": 5},
    b"both": {"k": "v1", "z": "1"},
    b"inside": {"a": {"b": "v1"}},
    b"dotted": {"a.b": "v1"},
    b"long": {"k": "x" * 300, "z": "é"},
    b"blank": {"k": ""},
}
TEXTS = {b"v1", b"v2", b"both"}
WITHOUT_TEXT = {b"nokey", b"empty", b"number", b"inside", b"dotted", b"blank"}

CASES = [
    (ExtFilter.equals("k", "v1"), {b"v1", b"both"}),
    (ExtFilter.equals("k", "v1", inverse=True), PUBLISHED.keys() - {b"v1", b"both"}),
    (ExtFilter.equals("a.b", "v1"), {b"dotted"}),
    (ExtFilter.equals("z", "é"), {b"long"}),
    (ExtFilter.regexp("k", "^v[12]$"), TEXTS),
    (ExtFilter.regexp("k", r"^(?i:V)\d$|x{100}"), {*TEXTS, b"long"}),
    (ExtFilter.regexp("k", "^$"), WITHOUT_TEXT),
    (ExtFilter.regexp("k", "v", inverse=True), {*WITHOUT_TEXT, b"noext", b"long"}),
    (ExtFilter.glob("k", "v*"), TEXTS),
    (ExtFilter.glob("k", "{v[!1],x*}"), {b"v2", b"long"}),
    (ExtFilter.glob("k", "*"), PUBLISHED.keys() - {b"noext"}),
    (ExtFilter.glob("k", "?1", inverse=True), PUBLISHED.keys() - {b"v1", b"both"}),
    (ExtFilter.all_of({"k": "v1", "z": "1"}), {b"both"}),
    (ExtFilter.all_of({"k": "v1", "z": "1"}, inverse=True), PUBLISHED.keys() - {b"both"}),
    (ExtFilter.any_of([("k", "v1"), ("k", "v2"), ("z", "1")]), {*TEXTS, b"nokey"}),
    (ExtFilter.any_of({"k": "v1", "z": "1"}, inverse=True), PUBLISHED.keys() - {b"v1", b"both", b"nokey"}),
]


@pytest.fixture(scope="module")
def ordered_extended(cluster: ClusterUnderTest) -> str:
    """An ordered, extended topic of 1 partition."""
    return cluster.create_topic(1, 2, ordered=True, extended=True)


async def publish(producer: Producer, topic: str, mark: bytes) -> None:
    messages = [OutgoingMessage(mark + body, headers=headers, partition=0) for body, headers in PUBLISHED.items()]
    await producer.publish_many(topic, messages)


async def test_filters_deliver_what_matches(producer: Producer, consume: Consumers, extended: str, mark: bytes) -> None:
    """All at once, each on a channel of its own."""
    channels = [f"{consume.channel}_{number}#ephemeral" for number in range(len(CASES))]
    async with AsyncExitStack() as stack:
        consumers = []
        for name, (ext_filter, _) in zip(channels, CASES, strict=True):
            consumers.append(consume(extended, channel=name, ext_filter=ext_filter))
        await asyncio.gather(*(stack.enter_async_context(consumer) for consumer in consumers))
        await publish(producer, extended, mark)
        for consumer, (ext_filter, expected) in zip(consumers, CASES, strict=True):
            found = set(bodies(await read(consumer, mark, len(expected)), mark))
            assert found == set(expected), ext_filter
        await producer.publish(extended, mark + b"end", headers={"k": "v1", "z": "1", "a.b": "v1"}, partition=0)
        for consumer, (ext_filter, _) in zip(consumers, CASES, strict=True):
            if not ext_filter.inverse and ext_filter.kind == "equals" and ext_filter.key != "z":
                assert bodies(await read(consumer, mark, 1), mark) == [b"end"]  # nothing came before it
            assert consumer.stats().skipped == 0, ext_filter


async def all_confirmed(consume: Consumers, topic: str) -> bool:
    stats = await consume.stats(topic)
    return bool(stats) and all(one.depth == 0 and one.in_flight == 0 for one in stats.values())


async def test_what_a_filter_leaves_out_is_lost_to_the_channel(
    producer: Producer, consume: Consumers, extended: str, mark: bytes
) -> None:
    async with consume(extended, ext_filter=ExtFilter.equals("k", "v2")) as consumer:
        await publish(producer, extended, mark)
        assert bodies(await read(consumer, mark, 1), mark) == [b"v2"]
        await eventually(lambda: all_confirmed(consume, extended))
    async with consume(extended) as consumer:
        await producer.publish(extended, mark + b"later", partition=0)
        assert bodies(await read(consumer, mark, 1), mark) == [b"later"]


async def test_an_ordered_topic_can_be_filtered(
    producer: Producer, consume: Consumers, ordered_extended: str, mark: bytes
) -> None:
    async with consume(ordered_extended, ext_filter=ExtFilter.glob("kind", "even")) as consumer:
        messages = [
            OutgoingMessage(mark + b"%d" % number, key="k", headers={"kind": "odd" if number % 2 else "even"})
            for number in range(20)
        ]
        await producer.publish_many(ordered_extended, messages)
        assert bodies(await read(consumer, mark, 10), mark) == [b"%d" % number for number in range(0, 20, 2)]


async def test_a_header_is_skipped(producer: Producer, consume: Consumers, extended: str, mark: bytes) -> None:
    async with consume(extended, skip_header={"k": "v1", "z": "é"}) as consumer:
        await publish(producer, extended, mark)
        expected = PUBLISHED.keys() - {b"v1", b"both", b"long"}
        assert set(bodies(await read(consumer, mark, len(expected)), mark)) == expected
        await eventually(lambda: all_confirmed(consume, extended))
        assert consumer.stats().skipped == 3


async def test_tagged_messages_go_to_the_consumer_with_the_tag(
    producer: Producer, consume: Consumers, extended: str, mark: bytes
) -> None:
    async with consume(extended, tag="blue") as tagged, consume(extended) as untagged:
        for number in range(6):
            await producer.publish(extended, mark + b"%d" % number, tag="blue" if number % 2 else None)
        assert sorted(bodies(await read(tagged, mark, 3), mark)) == [b"1", b"3", b"5"]
        assert sorted(bodies(await read(untagged, mark, 3), mark)) == [b"0", b"2", b"4"]


async def test_a_tag_that_no_consumer_has_goes_to_consumers_without_one(
    producer: Producer, consume: Consumers, extended: str, mark: bytes
) -> None:
    async with consume(extended, tag="blue"), consume(extended) as untagged:
        await producer.publish(extended, mark + b"red", tag="red", partition=0)
        assert bodies(await read(untagged, mark, 1), mark) == [b"red"]
    async with consume(extended) as untagged:
        await producer.publish(extended, mark + b"blue", tag="blue", partition=0)
        assert bodies(await read(untagged, mark, 1), mark) == [b"blue"]


async def test_an_untagged_message_waits_and_blocks_tagged_ones(
    producer: Producer, consume: Consumers, extended: str, mark: bytes
) -> None:
    async with consume(extended, tag="blue", start_from=StartFrom.end()) as tagged:
        for body, tag in ((b"1", "blue"), (b"2", None), (b"3", "blue")):
            await producer.publish(extended, mark + body, tag=tag, partition=0)
        assert bodies(await read(tagged, mark, 1), mark) == [b"1"]
        async with consume(extended) as untagged:
            assert bodies([await next_of(untagged, mark)], mark) == [b"2"]
            assert bodies(await read(tagged, mark, 1), mark) == [b"3"]


# ------------------------------------------------------------ compressed bodies

LARGE = b"the same again, " * 5000


NUMBERS = {"gzip": "1", "snappy": "2", "lz4": "3"}


@pytest.mark.parametrize("codec", NUMBERS)
async def test_compressed_bodies(
    cluster: ClusterUnderTest,
    consume: Consumers,
    extended: str,
    mark: bytes,
    codec: Any,  # noqa: ANN401 - one of the words
) -> None:
    raw = consume(extended, channel=f"{consume.channel}_r#ephemeral", decompress=False)
    producer = Producer(lookupd=cluster.lookupd, compress_body=codec)
    async with raw, consume(extended) as consumer, producer:
        body = mark + LARGE
        await producer.publish(extended, body, headers={"a": 1}, tag="t", trace_id=9)
        await producer.publish_many(extended, [body, mark + b"small"])
        found = {(len(m.body), m.body[-6:], str(m.headers), m.tag) for m in await read(consumer, mark, 3)}
        assert found == {
            (len(body), b"gain, ", "{'a': 1}", "t"),
            (len(body), b"gain, ", "{}", None),
            (len(mark) + 5, b":small", "{}", None),
        }
        stored: list[Message] = []
        while len(stored) < 2:
            message = await anext(raw)
            message.finish()
            if message.headers.get("nsq.msg.size") == str(len(body)):
                stored.append(message)
        assert all(len(m.body) < 10_000 and m.headers["nsq.client.compress"] == NUMBERS[codec] for m in stored)
