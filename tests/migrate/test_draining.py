"""Waiting for a channel to be empty, by the answers of one nsqd."""

from __future__ import annotations

import asyncio

import pytest

from nsq_ha import Consumer, TlsConfig
from nsq_ha.migrate.draining import until_empty
from tests.admin.scripted import Scripted, part
from tests.engine.lookups.loopback import LIMIT, Fake
from tests.support.certificates import CA_FILE, server_context
from tests.support.ports import fixed_ports


async def test_a_message_that_comes_again_and_again_counts_as_left() -> None:
    servers = [await Fake().start() for _ in range(3)]
    cluster = Scripted(*servers)
    cluster.lookups(cluster.body(4150))
    in_work = part(0, "ch", depth=1, in_flight_count=1, clients=[{"in_flight_count": 1}], message_count=1)
    deferred = part(0, "ch", depth=1, in_flight_count=1, deferred_count=1, message_count=1)
    for _ in range(10):  # a look asks twice
        cluster.nsqd.then("/stats", {"topics": [in_work]})
        cluster.nsqd.then("/stats", {"topics": [deferred]})
    consumer = Consumer("orders", "ch", lookupd=cluster.follower.url)
    with pytest.raises(TimeoutError, match="1 requeued with a delay"):
        await until_empty(consumer, asyncio.Event(), 1.2)
    for server in servers:
        await server.stop()


async def test_nsqds_that_refuse_plain_http_are_asked_by_https() -> None:
    """The wait never ended with -tls-required."""
    refusing, answering = Fake(), Fake(server_context())
    refusing.port = fixed_ports(2)
    answering.port = refusing.port + 1
    servers = [Fake(), Fake(), refusing, answering]
    for server in servers:
        await server.start()
    for path, answer in (("/stats", {"topics": [part(0, "ch")]}), ("/coordinator/stats", {})):
        refusing.answer(path, {"message": "TLS_REQUIRED"}, 403)
        answering.answer(path, answer)
    cluster = Scripted(*servers[:3])
    cluster.lookups(cluster.body(4150))
    consumer = Consumer("orders", "ch", lookupd=cluster.follower.url, tls=TlsConfig(ca_file=CA_FILE))
    await until_empty(consumer, asyncio.Event(), LIMIT)
    for server in servers:
        await server.stop()
