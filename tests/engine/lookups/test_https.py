"""Whole clients with an nsqlookupd that is reached by https: an embedded cluster behind an end of TLS."""

import asyncio
from typing import Any

import pytest

from nsq_ha import Consumer, LookupClient, Producer, TlsConfig, sync
from nsq_ha.admin import AdminClient
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import DiscoveryError, LookupUnavailableError, PublishError
from tests.support.certificates import CA_FILE
from tests.support.https import https_of

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

LIMIT = 30.0


@pytest.mark.parametrize("plain", [False, True], ids=["partitioned", "plain"])
async def test_every_client_finds_its_cluster_by_https(plain: bool) -> None:
    with await asyncio.to_thread(DevCluster(nsqds=1, nsqlookupds=1, plain=plain).__enter__) as cluster:
        if not plain:
            # A change goes to the address that the nsqlookupd gives for itself, where nothing speaks TLS here.
            await asyncio.to_thread(cluster.create_topic, "orders", 1, 1)
        async with https_of(cluster.lookupd[0]) as url, asyncio.timeout(LIMIT):
            tls: dict[str, Any] = {"lookupd_tls": TlsConfig(ca_file=CA_FILE)}
            async with AdminClient(url, **tls) as admin:
                if plain:
                    await admin.create_topic("orders")
                assert [topic.name for topic in await admin.topics()] == ["orders"]
            async with LookupClient(url, timeout=LIMIT, **tls) as lookup:
                assert (await lookup.lookup("orders")).exists
            async with (
                Producer(lookupd=url, lookup_timeout=LIMIT, **tls) as producer,
                Consumer("orders", "ch", lookupd=url, lookup_timeout=LIMIT, lookup_interval=0.2, **tls) as consumer,
            ):
                await producer.publish("orders", b"x")
                message = await anext(consumer)
                message.finish()
                assert message.body == b"x"

            def publish() -> None:
                with sync.Producer(lookupd=url, lookup_timeout=LIMIT, **tls) as writer:
                    writer.publish("orders", b"y")

            await asyncio.to_thread(publish)


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["time limit", "cancelled"])
async def test_a_handshake_that_is_cut_short_leaves_no_connection(is_cancelled: bool) -> None:
    """Each question to an nsqlookupd that hangs there used to leave an open socket."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        begun.set()
        try:
            while await reader.read(65536):
                pass
        finally:
            ended.set()
            writer.close()

    server = await asyncio.start_server(hangs, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, asyncio.timeout(LIMIT), LookupClient(url, timeout=LIMIT if is_cancelled else 1.0) as lookup:
        asking = asyncio.create_task(lookup.lookup("orders"))
        await begun.wait()
        if is_cancelled:
            asking.cancel()
        with pytest.raises((asyncio.CancelledError, LookupUnavailableError)):
            await asking
        await ended.wait()


async def test_an_nsqlookupd_that_nobody_vouches_for_is_not_asked() -> None:
    with await asyncio.to_thread(DevCluster(nsqds=1, nsqlookupds=1).__enter__) as cluster:
        async with https_of(cluster.lookupd[0]) as url, asyncio.timeout(LIMIT):
            async with Producer(lookupd=url, lookup_timeout=LIMIT) as producer:
                with pytest.raises(PublishError, match=r"self-signed certificate.*give lookupd_tls="):
                    await producer.publish("orders", b"x", timeout=3.0)
            async with AdminClient(url) as admin:
                with pytest.raises(DiscoveryError, match=r"self-signed certificate.*give lookupd_tls="):
                    await admin.topics()
