"""The statistics of a scripted cluster: what is read, summed up, left out, and said of nsqds that do not answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from nsq_ha.admin import AdminClient, ChannelStats, ClientStats, Latency, PublisherStats
from nsq_ha.admin.description import Stats, partition_stats
from nsq_ha.errors import ConfigError, LookupUnavailableError, TopicNotFoundError
from tests.admin.scripted import Scripted, part
from tests.engine.lookups.loopback import LIMIT, Fake

CLIENT = {
    "client_id": "worker",
    "hostname": "host",
    "remote_address": "127.0.0.1:50001",
    "user_agent": "nsq_ha/1",
    "ready_count": 10,
    "in_flight_count": 3,
    "message_count": 40,
    "finish_count": 36,
    "requeue_count": 1,
    "connect_ts": 1_700_000_000,
    "tls": True,
    "snappy": True,
    "desired_tag": "t1",
    "sample_rate": 10,
    "tls_version": "TLS1.3",
    "auth_identity": "billing team",
}
BILLING: dict[str, Any] = {
    "channel_name": "billing",
    "depth": 7,
    "depth_size": 700,
    "depth_ts_nano": 1_700_000_100_500_000_000,
    "in_flight_count": 4,  # with the deferred one
    "deferred_count": 1,
    "delayed_queue_count": 4,
    "requeue_count": 2,
    "timeout_count": 4,
    "client_num": 1,
    "clients": [CLIENT],
    "message_count": 50,
    "e2e_processing_latency": {"count": 9, "percentiles": [{"quantile": 0.99, "value": 2.5e9}]},
}


async def with_second(cluster: Scripted, serve: Callable[[], Awaitable[Fake]]) -> Fake:
    """Return another nsqd of the cluster."""
    second = await serve()
    other = cluster.peer(4160) | {"http_port": second.port}
    for fake in (cluster.follower, cluster.leader):
        fake.answer("/nodes", {"producers": [cluster.peer(), other]})
    return second


async def test_everything_that_an_nsqd_says_is_a_value(cluster: Scripted, admin: AdminClient) -> None:
    topic = part(0) | {"channels": [BILLING], "message_count": 60, "client_num": 2, "backend_depth": 900}
    topic |= {"e2e_processing_latency": {"count": 9, "percentiles": [{"quantile": 0.5, "value": 1e9}]}}
    answer = {"version": "0.3.7", "health": "OK", "start_time": 1_700_000_001, "topics": [topic]}
    cluster.nsqd.answer("/stats", answer)
    found = await asyncio.wait_for(admin.stats(clients=True), LIMIT)
    (node,) = found.nodes
    assert (node.version, node.health, node.started_at, node.error) == ("0.3.7", "OK", 1_700_000_001, "")
    assert (node.node.address, found.silent) == ("127.0.0.1:4150", ())
    (entry,) = node.partitions
    assert (entry.topic, entry.partition, entry.nsqd, entry.publishers) == ("orders", 0, "127.0.0.1:4150", 2)
    assert entry.latency == Latency(9, ((0.5, 1.0),))
    client = ClientStats(
        client_id="worker",
        hostname="host",
        address="127.0.0.1:50001",
        user_agent="nsq_ha/1",
        ready=10,
        in_flight=3,
        messages=40,
        finished=36,
        requeued=1,
        connected_at=1_700_000_000,
        tls=True,
        snappy=True,
        tag="t1",
        sample_rate=10,
        tls_version="TLS1.3",
        auth_identity="billing team",
    )
    assert entry.channels == (
        ChannelStats(
            "billing",
            depth=7,
            depth_bytes=700,
            in_flight=3,
            deferred=5,
            requeued=2,
            timed_out=4,
            clients=1,
            paused=False,
            skipped=False,
            messages=50,
            oldest_at=1_700_000_100.5,
            latency=Latency(9, ((0.99, 2.5),)),
            connections=(client,),
        ),
    )
    assert entry.channels[0].lag(1_700_000_103) == 2.5
    assert entry.channels[0].lag(1_700_000_000) == 0
    query = cluster.nsqd.queries("/stats")[0]
    assert (query["needClients"], query["include_clients"]) == ("true", "true")


async def test_topics_are_summed_over_the_leaders(
    cluster: Scripted, admin: AdminClient, serve: Callable[[], Awaitable[Fake]]
) -> None:
    second = await with_second(cluster, serve)
    earlier = BILLING | {"depth_ts_nano": 1_700_000_000_000_000_000, "paused": True}
    earlier |= {"e2e_processing_latency": {"count": 1, "percentiles": [{"quantile": 0.99, "value": 3e9}]}}
    lead, follow = part(1) | {"channels": [BILLING]}, part(0) | {"is_leader": False}
    cluster.nsqd.answer("/stats", {"topics": [lead | {"message_count": 5}, follow, part(0) | {"topic_name": "audit"}]})
    second.answer("/stats", {"topics": [part(0) | {"channels": [earlier], "message_count": 6}, lead | follow]})
    found = await asyncio.wait_for(admin.stats(), LIMIT)
    assert [topic.topic for topic in found.topics] == ["audit", "orders"]
    orders = found.topics[1]
    assert [(entry.partition, entry.nsqd) for entry in orders.partitions] == [
        (0, "127.0.0.1:4160"),
        (1, "127.0.0.1:4150"),
    ]
    assert orders.messages == 11
    (billing,) = orders.channels
    assert (billing.depth, billing.in_flight, billing.clients, billing.paused) == (14, 6, 2, True)
    assert billing.oldest_at == 1_700_000_000.0
    assert billing.latency == Latency(10, ((0.99, 3.0),))
    assert len(found.nodes[0].partitions) == 3


async def test_long_texts_are_cut(cluster: Scripted, admin: AdminClient) -> None:
    """Versions of 8 MiB made a page of 158 million characters, in one turn of 7.8 s."""
    cluster.nsqd.answer("/stats", {"version": "v" * 10_000, "health": "h" * 10_000})
    for fake in (cluster.follower, cluster.leader):
        peer = cluster.peer() | {"hostname": "h" * 10_000, "version": "v" * 10_000}
        fake.answer("/nodes", {"producers": [peer]})
    (said,) = (await asyncio.wait_for(admin.stats(), LIMIT)).nodes
    (listed,) = await asyncio.wait_for(admin.nodes(), LIMIT)
    assert {len(text) for text in (said.version, said.health, listed.hostname, listed.version)} == {400}


async def test_only_what_was_asked_for_is_returned(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups(cluster.body(4150))
    topics = [part(0, "billing", "audit"), part(0, "billing") | {"topic_name": "other"}]
    cluster.nsqd.answer("/stats", {"topics": topics})
    found = await asyncio.wait_for(admin.stats("orders", channel="billing"), LIMIT)
    assert [(topic.topic, [c.name for c in topic.channels]) for topic in found.topics] == [("orders", ["billing"])]
    query = cluster.nsqd.queries("/stats")[0]
    assert (query["topic"], query["channel"], query["needClients"]) == ("orders", "billing", "false")


async def test_statistics_that_cannot_be_had(cluster: Scripted, admin: AdminClient) -> None:
    cluster.lookups({"message": "Key not found"}, status=404)
    with pytest.raises(TopicNotFoundError):
        await asyncio.wait_for(admin.stats("orders"), LIMIT)
    for name, channel in (("a b", None), (None, "a b")):
        with pytest.raises(ConfigError):
            await admin.stats(name, channel=channel)
    assert cluster.nsqd.requests == []
    for fake in (cluster.follower, cluster.leader):
        await fake.stop()
    with pytest.raises(LookupUnavailableError):
        await asyncio.wait_for(admin.stats(), LIMIT)


async def test_clients_that_an_older_nsqd_lists_without_a_count_are_counted(
    cluster: Scripted, admin: AdminClient
) -> None:
    """Before 1.2, plain nsqds send no number: nobody seemed to consume their channels."""
    cluster.nsqd.answer("/stats", {"topics": [part(None, "billing", clients=[CLIENT, CLIENT])]})
    found = await asyncio.wait_for(admin.stats(), LIMIT)
    assert [channel.clients for topic in found.topics for channel in topic.channels] == [2]


def test_those_who_publish_are_known_by_topic() -> None:
    """A plain nsqd lists them beside its topics, with what each published to them."""
    client = {
        "remote_address": "10.0.0.9:5",
        "user_agent": "go-nsq/1",
        "pub_count": 7,
        "err_count": 1,
        "last_pub_ts": 9,
    }
    own = {"topic_name": "a", "topic_partition": "0", "client_pub_stats": [client], "hourly_pubsize": 5}
    (entry,) = partition_stats(msgspec.convert({"topics": [own]}, Stats))
    assert (entry.hourly_bytes, entry.producers) == (5, (PublisherStats("10.0.0.9:5", "go-nsq/1", "", 7, 1, 9),))
    counts = [{"topic": "a", "count": 3}, {"topic": "b", "count": 4}]
    plain = {"remote_address": "10.0.0.9:5", "user_agent": "go-nsq/1", "hostname": "h", "pub_counts": counts}
    found = partition_stats(
        msgspec.convert({"topics": [{"topic_name": "a"}, {"topic_name": "c"}], "producers": [plain]}, Stats)
    )
    assert [each.producers for each in found] == [(PublisherStats("10.0.0.9:5", "go-nsq/1", "h", 3),), ()]
