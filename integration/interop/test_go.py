"""Messages between nsq_ha and the published Go client, in both directions.

There is no such test with the Java client, see ``README.md``.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from integration.cluster import ClusterUnderTest
from integration.interop.program import GoClient, build, missing
from integration.reading import Consumers, read
from nsq_ha import Message, OutgoingMessage, Producer, Receipt
from nsq_ha.options.config import BodyCodec
from nsq_ha.policy.sharding import partition_for

pytestmark = pytest.mark.timeout(900)

KEYS = ["", "user-42", "Zürich", "N12345", "0", "7", "日本", "a" * 300]
BODIES = [bytes(range(256)), b"\n", b"x" * 100_000]
HEADERS: list[dict[str, Any]] = [
    {"kind": "paid", "Zürich": "日本", "empty": ""},
    {"count": 7, "half": 0.5, "yes": True, "none": None, "list": [1, "2"], "table": {"a": {"b": 1}}},
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    return build(tmp_path_factory.mktemp("interop"))


@pytest.fixture
def go(program: Path, cluster: ClusterUnderTest) -> GoClient:
    return GoClient(program, cluster.lookupd)


async def create(consume: Consumers, topic: str, **options: Any) -> None:  # noqa: ANN401
    """Create the channel, so that it keeps what is published before its reader comes."""
    async with consume(topic, **options):
        pass


def by_body(messages: list[Message]) -> dict[bytes, Message]:
    return {message.body: message for message in messages}


# -- keys


async def test_keys_of_the_go_client_land_on_our_partitions(
    go: GoClient, consume: Consumers, ordered: str, mark: bytes
) -> None:
    async with consume(ordered) as consumer:
        await go.publish(ordered, [{"body": mark + b"%d" % n, "key": key} for n, key in enumerate(KEYS)])
        found = by_body(await read(consumer, mark, len(KEYS)))
    assert {key: found[mark + b"%d" % n].partition for n, key in enumerate(KEYS)} == {
        key: partition_for(key, 4) for key in KEYS
    }


async def test_the_go_client_reads_our_keys_in_order(
    go: GoClient, consume: Consumers, producer: Producer, ordered: str, mark: bytes
) -> None:
    await create(consume, ordered)
    for number in range(40):
        await producer.publish(ordered, mark + b"%d" % number, key=KEYS[number % len(KEYS)])
    found = await go.consume(ordered, consume.channel, 40, "-ordered")
    for index, key in enumerate(KEYS):
        mine = [message for message in found if int(message["body"].removeprefix(mark)) % len(KEYS) == index]
        assert [int(message["body"].removeprefix(mark)) for message in mine] == list(range(index, 40, len(KEYS)))
        assert {message["partition"] for message in mine} == {str(partition_for(key, 4))}


# -- bodies


async def test_bodies_arrive_as_they_are(
    go: GoClient, consume: Consumers, producer: Producer, ordinary: str, mark: bytes
) -> None:
    async with consume(ordinary) as consumer:
        await go.publish(ordinary, [{"body": mark + body} for body in BODIES])
        assert {message.body for message in await read(consumer, mark, 3)} == {mark + body for body in BODIES}
        receipts = await producer.publish_many(ordinary, [mark + body for body in BODIES])
        assert all(isinstance(receipt, Receipt) for receipt in receipts)
    found = await go.consume(ordinary, consume.channel, 3)
    assert {message["body"] for message in found} == {mark + body for body in BODIES}
    assert {message["attempts"] for message in found} <= {1, 2}  # our consumer may have had them, and given them back


# -- traces


async def test_traces_of_the_go_client(go: GoClient, consume: Consumers, ordered: str, mark: bytes) -> None:
    ids = [1, 7, 2**63, 2**64 - 1]
    topic = ordered
    async with consume(topic) as consumer:
        receipts = await go.publish(topic, [{"body": mark + b"%d" % n, "trace_id": n} for n in ids])
        found = by_body(await read(consumer, mark, len(ids)))
    for trace_id, receipt in zip(ids, receipts, strict=True):
        message = found[mark + b"%d" % trace_id]
        assert message.trace_id == trace_id
        assert (message.internal_id, message.offset, message.raw_size) == (
            receipt["internal_id"],
            receipt["offset"],
            receipt["raw_size"],
        )


async def test_the_go_client_reads_our_traces(
    go: GoClient, consume: Consumers, producer: Producer, ordered: str, mark: bytes
) -> None:
    await create(consume, ordered)
    receipts = [
        await producer.publish(ordered, mark + b"%d" % n, key="k", trace_id=n) for n in (1, 7, 2**63, 2**64 - 1)
    ]
    found = await go.consume(ordered, consume.channel, 4, "-ordered")
    assert [(message["trace_id"], message["internal_id"]) for message in found] == [
        (receipt.trace_id, receipt.internal_id) for receipt in receipts
    ]
    assert [(message["offset"], message["raw_size"]) for message in found] == [
        (receipt.offset, receipt.raw_size) for receipt in receipts
    ]


# -- compressed bodies


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
async def test_compressed_bodies_of_the_go_client(
    go: GoClient, consume: Consumers, extended: str, mark: bytes, codec: str
) -> None:
    bodies = [mark + body for body in (b"paid " * 50_000, bytes(range(256)) * 100)]
    async with consume(extended) as consumer, consume(extended, channel=f"{consume.channel}_", decompress=False) as raw:
        await go.publish(
            extended, [{"body": body, "ext": True, "headers": HEADERS[0]} for body in bodies], f"-compress={codec}"
        )
        found = await read(consumer, mark, len(bodies))
        stored = [await anext(raw) for _ in bodies]
        for message in stored:
            message.finish()
    assert {message.body for message in found} == {*bodies}
    assert all(message.headers == HEADERS[0] for message in found)
    assert {message.headers["nsq.msg.size"] for message in stored} == {str(len(body)) for body in bodies}
    assert all(len(message.body) < int(str(message.headers["nsq.msg.size"])) for message in stored)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4"])
async def test_the_go_client_reads_our_compressed_bodies(
    go: GoClient, consume: Consumers, extended: str, mark: bytes, codec: BodyCodec
) -> None:
    await create(consume, extended)
    bodies = [mark + body for body in (b"paid " * 50_000, bytes(range(256)) * 100)]
    async with Producer(lookupd=go.lookupd, compress_body=codec) as producer:
        for body in bodies:
            await producer.publish(extended, body, headers=HEADERS[0])
    found = await go.consume(extended, consume.channel, len(bodies))
    assert {message["body"] for message in found} == {*bodies}
    sizes = {json.loads(message["ext"])["nsq.msg.size"] for message in found}
    assert sizes == {str(len(body)) for body in bodies}


# -- headers and tags


async def test_headers_and_tags_of_the_go_client(go: GoClient, consume: Consumers, extended: str, mark: bytes) -> None:
    async with consume(extended) as consumer:
        await go.publish(
            extended,
            [
                {"body": mark + b"0", "ext": True, "headers": HEADERS[0]},
                {"body": mark + b"1", "ext": True, "headers": HEADERS[1], "trace_id": 2**64 - 1},
                {"body": mark + b"2", "ext": True, "tag": "blue"},
                {"body": mark + b"3", "ext": True, "headers": HEADERS[0], "tag": "Zürich", "key": "k"},
                {"body": mark + b"4"},
            ],
        )
        found = by_body(await read(consumer, mark, 5))
    seen = [found[mark + b"%d" % number] for number in range(5)]
    assert [message.headers for message in seen] == [HEADERS[0], HEADERS[1], {}, HEADERS[0], {}]
    assert [message.tag for message in seen] == [None, None, "blue", "Zürich", None]
    assert [message.trace_id for message in seen] == [0, 2**64 - 1, 0, 0, 0]
    assert seen[3].partition == partition_for("k", 2)


async def test_the_go_client_reads_our_headers_and_tags(
    go: GoClient, consume: Consumers, producer: Producer, extended: str, mark: bytes
) -> None:
    await create(consume, extended)
    await producer.publish(extended, mark + b"0", headers=HEADERS[0], trace_id=7)
    await producer.publish(extended, mark + b"1", headers=HEADERS[1])
    await producer.publish(extended, mark + b"2", tag="blue")
    await producer.publish(extended, mark + b"3")
    batch = [OutgoingMessage(mark + b"4", headers=HEADERS[0], tag="Zürich"), OutgoingMessage(mark + b"5", trace_id=9)]
    assert all(isinstance(outcome, Receipt) for outcome in await producer.publish_many(extended, batch))
    found = {message["body"]: message for message in await go.consume(extended, consume.channel, 6)}
    seen = [found[mark + b"%d" % number] for number in range(6)]
    headers = [
        {key: value for key, value in json.loads(message["ext"] or "{}").items() if not key.startswith("##")}
        for message in seen
    ]
    assert headers == [HEADERS[0], HEADERS[1], {}, {}, HEADERS[0], {}]
    assert [message["tag"] for message in seen] == ["", "", "blue", "", "Zürich", ""]
    assert [message["trace_id"] for message in seen] == [7, 0, 0, 0, 0, 9]
