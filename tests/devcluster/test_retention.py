"""Finished messages are cleaned, so that a long run stays small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsq_ha.devcluster import DevCluster
from tests.devcluster.probes import until
from tests.devcluster.wire import Wire, connect, message_id, pub

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.log import Log

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
            held = [record.body for record in logs(cluster)[0].records]
            assert held.count(b"") == 12 - keep // SIZE
            finish(slow, 8)
            until(lambda: starts(cluster) == {20 - keep // SIZE})


def test_without_a_channel_nothing_is_finished() -> None:
    with DevCluster(nsqlookupds=1, nsqds=1, time_scale=0.01, retain_bytes=0) as cluster:
        cluster.create_topic("orders", 1, 1, sync_every=1)
        publish(cluster.nsqds["nsqd-0"], 3)
        node = cluster._nsqd("nsqd-0")
        turns = node._turn
        until(lambda: cluster._call(lambda: node._turn) > turns + 8)
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


def logs(cluster: DevCluster) -> list[Log]:
    nodes = [cluster._nsqd(name) for name in cluster.nsqds]
    return [node.replicas["orders", 0].log for node in nodes]


def starts(cluster: DevCluster) -> set[int]:
    """Where the logs of all replicas start."""
    return cluster._call(lambda: {log.start for log in logs(cluster)})
