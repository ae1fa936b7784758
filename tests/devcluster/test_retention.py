"""Finished messages are cleaned, so that a long run stays small."""

import pytest

from nsq_ha.devcluster import DevCluster
from tests.devcluster.clock import held
from tests.devcluster.probes import until
from tests.devcluster.wire import Wire, connect, message_id, pub
from tests.support import web
from tests.support.inside import nsqd_of

SIZE = 30 + 100


@pytest.mark.parametrize("keep", [0, 5 * SIZE])
def test_what_all_channels_finished_is_forgotten_but_for_the_last(keep: int) -> None:
    with DevCluster(nsqlookupds=1, nsqds=2, time_scale=0.01, retain_bytes=keep) as cluster:
        cluster.create_topic("orders", 1, 2, sync_every=1)
        leader = cluster.leader("orders")
        assert leader is not None
        address = cluster.nsqds[leader]
        with subscribe(address, "fast") as fast, subscribe(address, "slow") as slow:
            publish(address, 20)
            finish(fast, 20)
            finish(slow, 12)
            until(lambda: starts(cluster) == {12 - keep // SIZE})
            bodies = [record.body for record in nsqd_of(cluster, leader).replicas["orders", 0].log.records]
            assert bodies.count(b"") == 12 - keep // SIZE
            finish(slow, 8)
            until(lambda: starts(cluster) == {20 - keep // SIZE})


def test_without_a_channel_nothing_is_finished() -> None:
    with DevCluster(nsqlookupds=1, nsqds=1, time_scale=0.01, retain_bytes=0) as cluster:
        cluster.create_topic("orders", 1, 1, sync_every=1)
        publish(cluster.nsqds["nsqd-0"], 3)
        with held(cluster) as clock:
            for _ in range(20):
                clock.move(0.05)  # more than two turns of the clock by which nsqds flush and clean
        assert starts(cluster) == {0}


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="retain_bytes must not be below 0"):
        DevCluster(retain_bytes=-1)


def subscribe(address: str, channel: str) -> Wire:
    wire = connect(address, f"SUB orders {channel} 0\nRDY 100\n".encode())
    assert wire.answer() == b"OK"
    return wire


def publish(address: str, count: int) -> None:
    with connect(address, *(pub("orders", b"x" * 100) for _ in range(count))) as wire:
        for _ in range(count):
            assert wire.answer() == b"OK"


def finish(wire: Wire, count: int) -> None:
    for _ in range(count):
        wire.send(b"FIN " + message_id(wire.message()) + b"\n")


def starts(cluster: DevCluster) -> set[int]:
    """Numbers of the first messages that the replicas have."""
    urls = [f"{cluster.http_address(name)}/stats?format=json" for name in cluster.nsqds]
    topics = [web.get(url).json()["data"]["topics"] for url in urls]
    return {topic["backend_start"] // SIZE for (topic,) in topics}
