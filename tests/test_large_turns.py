"""What a message of 1 MiB costs one turn of the event loop, on its way out and in."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from nsq_ha import Compression, Consumer, Producer, TlsConfig
from nsq_ha.devcluster import DevCluster
from tests.support.certificates import CA_FILE, server_context
from tests.support.nsqd import LIMIT
from tests.support.turns import LARGE_TURN, turns

if TYPE_CHECKING:
    from nsq_ha.options.config import BodyCodec

MEBI = 1024 * 1024
BODIES = {
    "zeros": bytes(MEBI),
    "noise": random.Random(1).randbytes(MEBI - 1),  # an extended topic takes no more
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nsqds=1, nsqlookupds=1, tls=server_context()) as cluster:
        cluster.create_topic("orders", 1, 1, ordered=True)
        cluster.create_topic("extended", 1, 1, ordered=True, extended=True)
        yield cluster


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "TLS": {"tls": TlsConfig(ca_file=CA_FILE)},
    "snappy": {"compression": Compression.SNAPPY},
    "deflate": {"compression": Compression.DEFLATE},
}


BODY_CODECS: Final[tuple[BodyCodec, ...]] = ("gzip", "snappy", "lz4")


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
async def test_a_message_of_a_mebibyte_takes_short_turns(
    cluster: DevCluster, options: dict[str, Any], body: bytes
) -> None:
    async with (
        Producer(lookupd=cluster.lookupd, **options) as producer,
        Consumer("orders", "ch", lookupd=cluster.lookupd, **options) as consumer,
    ):
        await takes_short_turns(producer, consumer, body)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("codec", BODY_CODECS)
async def test_so_does_one_that_is_compressed(cluster: DevCluster, codec: BodyCodec, body: bytes) -> None:
    async with (
        Producer(lookupd=cluster.lookupd, compress_body=codec) as producer,
        Consumer("extended", "ch", lookupd=cluster.lookupd) as consumer,
    ):
        compressed = await takes_short_turns(producer, consumer, body)
        assert (compressed is None) is (body == BODIES["noise"])


async def takes_short_turns(producer: Producer, consumer: Consumer, body: bytes) -> object:
    """Publish and consume a message, and return its compressed form."""
    async with asyncio.timeout(6 * LIMIT):
        await producer.publish(consumer.topic, b"to connect", key="k")
        (await anext(consumer)).finish()
        with turns() as measured:
            await producer.publish(consumer.topic, body, key="k")
            message = await anext(consumer)
        assert message.body == body
        message.finish()
    assert measured.longest < LARGE_TURN, measured.what
    return message.compressed
