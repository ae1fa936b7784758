"""Readings of an invented cluster, and a poller that never asks."""

from collections.abc import Mapping, Sequence

from nsq_ha.admin import ChannelStats, ClientStats, ClusterState, ClusterStats, LookupdState, NodeStats, PartitionStats
from nsq_ha.admin.memory import Memory
from nsq_ha.admin.reading import Reading
from nsq_ha.policy.topology import Node

HOSTILE = '<script>alert("1")</script>\u202e&'
CLIENT = ClientStats("id", "host", "10.0.0.9:5", "go-nsq/1", 5, 1, 7, 6, 1, 90, tls=True, snappy=True, tag="t")


def channel(name: str = "billing", *, depth: int = 0, messages: int = 10, **fields: object) -> ChannelStats:
    known: dict[str, object] = {
        "depth_bytes": depth * 10,
        "in_flight": 0,
        "deferred": 0,
        "requeued": 0,
        "timed_out": 0,
        "clients": 1,
        "paused": False,
        "skipped": False,
    }
    return ChannelStats(name, depth, messages=messages, **(known | fields))  # type: ignore[arg-type]


def partition(
    topic: str = "orders", number: int = 0, *channels: ChannelStats, is_leader: bool = True, messages: int = 10
) -> PartitionStats:
    return PartitionStats(
        topic, number, is_leader, 0, messages * 30, messages, ordered=False, extended=False, channels=channels
    )


def node(port: int = 4150, *partitions: PartitionStats, error: str = "", started_at: int = 50) -> NodeStats:
    address = Node("n", port, port + 1)
    placed = tuple(
        PartitionStats(**{name: getattr(each, name) for name in each.__slots__} | {"nsqd": address.address})
        for each in partitions
    )
    if error:
        return NodeStats(address, error=error)
    return NodeStats(address, "1.0", "OK", started_at, placed)


def reading(
    at: float,
    *nodes: NodeStats,
    before: Reading | None = None,
    stable: bool | None = True,
    is_plain: bool = False,
    lookupds: Sequence[LookupdState] = (LookupdState("http://l:4161", leads=True, error=""),),
    errors: Mapping[str, str] | None = None,
    has_clients: bool = False,
) -> Reading:
    return Reading(
        at,
        stats=ClusterStats(nodes),
        cluster=ClusterState(is_plain, stable, tuple(lookupds), ()),
        errors=errors or {},
        earlier=before.kept if before else None,
        memory=before.remembered if before else Memory(),
        has_clients=has_clients,
    )
