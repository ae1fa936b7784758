"""Bodies that the producer compresses."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nsq_ha import ConfigError, Consumer, OutgoingMessage, Producer
from nsq_ha.devcluster import DevCluster

BODY = b"the same again, " * 2000


@pytest.fixture(scope="module")
def dev_cluster() -> Iterator[DevCluster]:
    with DevCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def topics(dev_cluster: DevCluster) -> tuple[str, str]:
    dev_cluster.create_topic("packed", 1, extended=True)
    dev_cluster.create_topic("plainly", 1)
    return "packed", "plainly"


async def stored(cluster: DevCluster, topic: str, publish: Callable[[], Any], count: int) -> list[tuple[bytes, Any]]:
    """Return bodies and headers as they are stored."""
    async with Consumer(topic, "ch#ephemeral", lookupd=cluster.lookupd, decompress=False) as consumer:
        await publish()
        found = []
        for _ in range(count):
            message = await anext(consumer)
            found.append((message.body, message.headers))
            message.finish()
        return found


@pytest.mark.parametrize(("codec", "number"), [("gzip", "1"), ("snappy", "2"), ("lz4", "3")])
async def test_large_bodies_are_compressed(
    dev_cluster: DevCluster,
    topics: tuple[str, str],
    codec: Any,  # noqa: ANN401 - one of the words
    number: str,
) -> None:
    async with Producer(lookupd=dev_cluster.lookupd, compress_body=codec) as producer:

        async def publish() -> None:
            receipt = await producer.publish(topics[0], BODY, headers={"a": 1}, trace_id=7)
            assert receipt.trace_id == 7
            await producer.publish(topics[0], b"small")
            outcomes = await producer.publish_many(topics[0], [BODY, OutgoingMessage(BODY, tag="t", key="k"), b"small"])
            assert not any(isinstance(outcome, Exception) for outcome in outcomes)

        found = await stored(dev_cluster, topics[0], publish, 5)
    marks = {"nsq.client.compress": number, "nsq.msg.size": "32000"}
    small: list[tuple[bytes, Any]] = [(b"small", {})] * 2
    large = [entry for entry in found if entry not in small]
    assert len(large) == 3
    assert all(len(body) < 2000 for body, _ in large)
    assert sorted((headers for _, headers in large), key=len) == [marks, marks, {"a": 1, **marks}]


async def test_there_and_back(dev_cluster: DevCluster, topics: tuple[str, str]) -> None:
    options: dict[str, Any] = {"compress_body": {topics[0]: "lz4"}}
    async with (
        Producer(lookupd=dev_cluster.lookupd, **options) as producer,
        Consumer(topics[0], "ch2#ephemeral", lookupd=dev_cluster.lookupd) as consumer,
    ):
        # A body above the server's limit, which fits once it is compressed.
        for body in (BODY, bytes(3_000_000)):
            await producer.publish(topics[0], body, headers={"a": 1})
            message = await anext(consumer)
            message.finish()
            assert (message.body == body, message.headers) == (True, {"a": 1})
        await producer.publish(topics[1], BODY)  # not among the topics to compress


async def test_a_body_that_is_compressed_stays_as_it_is(dev_cluster: DevCluster, topics: tuple[str, str]) -> None:
    marks = {"nsq.client.compress": "0"}
    async with Producer(lookupd=dev_cluster.lookupd, compress_body="gzip") as producer:
        found = await stored(dev_cluster, topics[0], lambda: producer.publish(topics[0], BODY, headers=marks), 1)
    assert found == [(BODY, marks)]


async def test_a_topic_without_headers_is_refused_for_small_bodies_too(
    dev_cluster: DevCluster, topics: tuple[str, str]
) -> None:
    async with Producer(lookupd=dev_cluster.lookupd, compress_body="gzip") as producer:
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"compress_body: messages of topic 'plainly' have no headers, .*ex"):
                await producer.publish(topics[1], b"small")
        with pytest.raises(ConfigError, match="compress_body"):
            await producer.publish_many(topics[1], [b"small"])


async def test_plain_nsqd_has_no_headers() -> None:
    with DevCluster(plain=True) as cluster:
        async with Producer(lookupd=cluster.lookupd, compress_body="gzip") as producer:
            with pytest.raises(ConfigError, match="plain nsqd has none"):
                await producer.publish("t", b"small")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "zip",
            "must be 'gzip', 'snappy', 'lz4' or a mapping of topics to these, or None, not 'zip': did you mean 'gzip'",
        ),
        ({"t": "x"}, "compress_body of t must be 'gzip'"),
        ({"bad name": "lz4"}, "compress_body: 'bad name' is not a valid topic name"),
    ],
)
def test_the_option_is_checked(value: Any, said: str) -> None:  # noqa: ANN401 - any value may be given
    with pytest.raises(ConfigError, match=said):
        Producer(lookupd="a:1", compress_body=value)
