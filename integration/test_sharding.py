"""Keys decide the partition, by the rule the producer names, and a key's order is kept."""

import asyncio
from typing import Any

import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import Consumers, numbers_by_key, read
from nsq_ha import ConfigError, JavaInt, Producer
from nsq_ha.options.config import Sharding
from nsq_ha.policy.sharding import partition_for

KEYS: list[Any] = ["", "user-42", "Zürich", "N12345", 0, 7, 2**40]


def by_length(key: str) -> int:
    return len(key)


RULES: list[tuple[Sharding, list[Any]]] = [
    ("murmur3", [*KEYS, b"\xff\0\n", -5]),
    ("java", [*KEYS, -5, JavaInt(-5)]),
    ("modulo", [0, 7, 2**40]),
    (by_length, ["", "a", "ab", "abcdef"]),
]


@pytest.mark.parametrize("rule", RULES, ids=["murmur3", "java", "modulo", "function"])
async def test_a_key_goes_to_the_partition_that_its_rule_names(
    cluster: ClusterUnderTest,
    consume: Consumers,
    ordered: str,
    mark: bytes,
    rule: tuple[Sharding, list[Any]],
) -> None:
    sharding, keys = rule
    async with consume(ordered) as consumer, Producer(lookupd=cluster.lookupd, sharding=sharding) as producer:
        receipts = [await producer.publish(ordered, mark + b"%d" % n, key=key) for n, key in enumerate(keys)]
        messages = {message.body: message for message in await read(consumer, mark, len(keys))}
    for number, (key, receipt) in enumerate(zip(keys, receipts, strict=True)):
        assert receipt.partition == partition_for(key, 4, sharding)
        assert messages[mark + b"%d" % number].partition == receipt.partition


async def test_an_ordinary_topic_takes_keys_and_partitions_too(producer: Producer, ordinary: str) -> None:
    assert {(await producer.publish(ordinary, b"x", key="k")).partition for _ in range(5)} == {partition_for("k", 2)}
    assert {(await producer.publish(ordinary, b"x", partition=1)).partition for _ in range(5)} == {1}
    with pytest.raises(ConfigError, match="both choose the partition"):
        await producer.publish(ordinary, b"x", key="k", partition=1)


async def test_each_key_keeps_its_order_among_many_publishes_at_once(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    keys = [b"key-%d" % number for number in range(25)]
    async with consume(ordered) as consumer:
        reading = asyncio.create_task(read(consumer, mark, len(keys) * 40))
        await asyncio.gather(
            *(producer.publish(ordered, mark + key + b":%d" % number, key=key) for number in range(40) for key in keys)
        )
        messages = await reading
    assert numbers_by_key(messages, mark) == {key: list(range(40)) for key in keys}


async def test_messages_that_name_a_partition_and_no_key_keep_their_order(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes
) -> None:
    async with consume(ordered, partitions=[2]) as consumer:
        await asyncio.gather(*(producer.publish(ordered, mark + b"p:%d" % n, partition=2) for n in range(100)))
        messages = await read(consumer, mark, 100)
    assert numbers_by_key(messages, mark) == {b"p": list(range(100))}
