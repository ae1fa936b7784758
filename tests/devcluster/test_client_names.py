"""What nsqd shows about a client in its statistics, on both kinds of embedded cluster."""

import asyncio
import sys
from typing import Any

import pytest

from nsq_ha import Consumer, LookupClient, Producer, __version__
from nsq_ha.devcluster import DevCluster
from tests.support import web

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

LIMIT = 30.0
LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""A source address that is not chosen by default, where there is one."""


def clients_of(url: str) -> list[dict[str, Any]]:
    """Return the clients of the only channel, as nsqd shows them."""
    asked = {"format": "json", "needClients": "true", "include_clients": "true", "topic": "orders"}
    stats = web.get(f"{url}/stats", params=asked, timeout=LIMIT).json()
    (topic,) = stats.get("data", stats)["topics"]
    (channel,) = topic["channels"]
    found: list[dict[str, Any]] = channel["clients"]
    return found


@pytest.mark.parametrize("plain", [False, True], ids=["partitioned", "plain"])
async def test_the_statistics_show_what_was_given(plain: bool) -> None:
    with await asyncio.to_thread(DevCluster(nsqds=1, nsqlookupds=1, plain=plain).__enter__) as cluster:
        await asyncio.to_thread(cluster.create_topic, "orders", *(() if plain else (1, 1)))
        options: dict[str, Any] = {"lookupd": cluster.lookupd, "lookup_timeout": LIMIT, "connect_timeout": LIMIT}
        async with Producer(**options, local_addr=LOOPBACK) as producer:
            await producer.publish("orders", b"x")
        async with LookupClient(cluster.lookupd[0], timeout=LIMIT) as lookup:
            (node,) = await lookup.nodes()
        seen: dict[str, Any] = {"hostname": "shop-7", "user_agent": "shop/1.2 (nsq)", "local_addr": (LOOPBACK, 0)}
        async with Consumer("orders", "ch", **options, **seen, lookup_interval=0.2, start_timeout=LIMIT):
            (client,) = await asyncio.to_thread(clients_of, node.node.http_url)
        assert (client["client_id"], client["hostname"], client["user_agent"]) == ("shop-7", "shop-7", "shop/1.2 (nsq)")
        assert client["remote_address"].rpartition(":")[0] == LOOPBACK
        async with Consumer("orders", "ch", **options, client_id="me", lookup_interval=0.2, start_timeout=LIMIT):
            clients = await asyncio.to_thread(clients_of, node.node.http_url)
        (client,) = (each for each in clients if each["client_id"] == "me")
        assert client["hostname"] not in ("", "me")
        assert client["user_agent"] == f"nsq_ha/{__version__}"


async def test_requests_to_http_servers_have_the_source_address_too() -> None:
    hosts: list[str] = []
    asked = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hosts.append(writer.get_extra_info("peername")[0])
        asked.set()
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Consumer("orders", "ch", lookupd=f"127.0.0.1:{port}", start_timeout=0.0, local_addr=LOOPBACK):
        await asyncio.wait_for(asked.wait(), LIMIT)
    assert set(hosts) == {LOOPBACK}
