"""Compression, TLS, and what a connection offers to the server."""

import asyncio
import os
from typing import Any

import pytest

from integration.cluster import ClusterUnderTest
from integration.reading import Consumers, eventually, next_of, read
from nsq_ha import Compression, Consumer, Producer, TlsConfig
from nsq_ha.errors import ConnectError, PublishError
from tests.support.inside import connection_of, connection_to, partitions_of

NONE: dict[str, Any] = {"compression": Compression.NONE}
SNAPPY: dict[str, Any] = {"compression": Compression.SNAPPY}
DEFLATE: dict[str, Any] = {"compression": Compression.DEFLATE, "deflate_level": 3}


def agreed(consumer: Consumer) -> set[tuple[bool, bool, bool]]:
    """Return what its connections agreed on: TLS, snappy, deflate."""
    return {
        (connection.identity.tls_v1, connection.identity.snappy, connection.identity.deflate)
        for partition in partitions_of(consumer).values()
        if (connection := connection_of(partition)) is not None
    }


async def round_trip(cluster: ClusterUnderTest, consume: Consumers, topic: str, mark: bytes, **options: Any) -> None:  # noqa: ANN401 - ClientConfig's fields
    """Send small, large, compressible and incompressible bodies through, in order."""
    wanted = [mark + body for body in (b"x", b"y" * 800_000, os.urandom(300_000), b"", os.urandom(70_000), b"z" * 9)]
    async with (
        consume(topic, **options) as consumer,
        Producer(lookupd=cluster.lookupd, **options) as producer,
    ):
        expected = {(options.get("tls") is not None, *(options.get("compression") is c for c in _CODECS))}
        assert agreed(consumer) == expected
        for body in wanted:
            if cluster.is_plain:
                await producer.publish(topic, body)
            else:
                await producer.publish(topic, body, key="k", trace_id=7)
        messages = await read(consumer, mark, len(wanted))
        await producer.publish_many(topic, wanted)
        batch = await read(consumer, mark, len(wanted))
    if not cluster.is_plain:
        assert [message.body for message in messages] == wanted
    assert sorted(message.body for message in messages) == sorted(wanted)
    assert sorted(message.body for message in batch) == sorted(wanted)


_CODECS = (Compression.SNAPPY, Compression.DEFLATE)


@pytest.mark.plain
@pytest.mark.parametrize("options", [NONE, SNAPPY, DEFLATE], ids=["plain", "snappy", "deflate"])
async def test_bodies_pass_unchanged(
    cluster: ClusterUnderTest, consume: Consumers, single: str, mark: bytes, options: dict[str, Any]
) -> None:
    await round_trip(cluster, consume, single, mark, **options)


@pytest.mark.plain
@pytest.mark.tls
@pytest.mark.parametrize("options", [NONE, SNAPPY, DEFLATE], ids=["tls", "tls+snappy", "tls+deflate"])
async def test_bodies_pass_unchanged_through_tls(
    cluster: ClusterUnderTest, consume: Consumers, single: str, mark: bytes, options: dict[str, Any]
) -> None:
    await round_trip(cluster, consume, single, mark, tls=cluster.tls, **options)


@pytest.mark.plain
@pytest.mark.tls
async def test_a_certificate_that_nobody_trusts_is_refused(cluster: ClusterUnderTest, single: str, mark: bytes) -> None:
    async with Producer(lookupd=cluster.lookupd, tls=TlsConfig(), on_unreachable="fail") as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish(single, mark)
    assert isinstance(caught.value.__cause__, ConnectError)
    assert "certificate verify failed" in str(caught.value)
    assert (caught.value.attempts, caught.value.maybe_stored) == (0, False)
    async with Producer(lookupd=cluster.lookupd, tls=TlsConfig(verify=False)) as producer:
        assert (await producer.publish(single, mark)).attempts == 1


async def test_an_idle_connection_stays_alive(
    cluster: ClusterUnderTest, consume: Consumers, single: str, mark: bytes
) -> None:
    # Heartbeats of a second: the server cuts after three that nobody answers.
    options: dict[str, Any] = {"heartbeat_interval": 1.0}
    async with consume(single, **options) as consumer, Producer(lookupd=cluster.lookupd, **options) as producer:
        await producer.publish(single, mark)
        await read(consumer, mark, 1)
        connections = [
            connection_of(partitions_of(consumer)[0]),
            connection_to(producer, single),
        ]
        now = asyncio.get_running_loop().time
        began = now()
        await eventually(lambda: now() - began > 4.0)
        assert connections == [
            connection_of(partitions_of(consumer)[0]),
            connection_to(producer, single),
        ]
        await producer.publish(single, mark)
        (await next_of(consumer, mark)).finish()
