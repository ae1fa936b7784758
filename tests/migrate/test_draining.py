"""Waiting for a channel to be empty, by the answers of one nsqd."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from nsq_ha import Consumer, TlsConfig
from nsq_ha.migrate.draining import until_empty
from tests.admin.scripted import UNKNOWN, Plain, Scripted, part
from tests.engine.lookups.loopback import LIMIT, Fake
from tests.support.certificates import CA_FILE, server_context
from tests.support.ports import fixed_ports
from tests.support.waiting import eventually


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


async def test_an_nsqd_that_is_not_listed_again_yet_is_not_empty(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that registered first were asked alone, and the messages of the others were overtaken."""
    servers = [await Fake().start() for _ in range(4)]
    cluster = Plain(servers[:2], servers[2:])
    cluster.has_topic(0, 1)
    empty, full = cluster.nsqds
    empty.answer("/stats", {"topics": [part(None, "ch")]})
    full.answer("/stats", {"topics": [part(None, "ch", depth=5)]})
    consumer = Consumer("orders", "ch", lookupd=[each.url for each in cluster.lookupds])
    read = [SimpleNamespace(leader=f"127.0.0.1:{each.port + 1}", state="connected") for each in cluster.nsqds]
    monkeypatch.setattr(consumer, "stats", lambda: SimpleNamespace(partitions=read))
    cluster.lookupds[1].delay = 0.6  # longer than the first answers wait for others
    caplog.set_level(logging.INFO, "nsq_ha.migrate")
    waiting = asyncio.create_task(until_empty(consumer, asyncio.Event(), None))
    await eventually(lambda: "5 waiting" in caplog.text)
    cluster.lookupds[1].delay = 0.0
    cluster.lookupds[1].answer("/lookup", UNKNOWN, 404)
    cluster.lookupds[1].answer("/nodes", {"producers": []})
    await eventually(lambda: f"no nsqlookupd lists nsqd 127.0.0.1:{full.port + 1} now" in caplog.text)
    assert not waiting.done()
    read.pop()
    await asyncio.wait_for(waiting, LIMIT)
    for server in servers:
        await server.stop()
