"""The model of a cluster: who leads, what nsqds have, the figures of channels, and what changes between two looks."""

import dataclasses
from typing import Any

import pytest

from nsq_ha.admin import ChannelStats, ClusterState, ClusterStats, NodeStats, PartitionStats
from nsq_ha.admin.reading import Rates, Reading
from nsq_ha.engine.answers import NodeInfo
from nsq_ha.policy.topology import Node

NODES = (Node("a", 1, 2), Node("b", 1, 2))
A, B = (node.address for node in NODES)
NOW = 1000.0


def channel(name: str = "c", depth: int = 0, messages: int = 100, **others: object) -> ChannelStats:
    values: dict[str, Any] = {
        "depth_bytes": 0,
        "in_flight": 1,
        "deferred": 2,
        "requeued": 3,
        "timed_out": 4,
        "clients": 5,
    }
    known = ChannelStats(name, depth, paused=False, skipped=False, messages=messages, **values)
    return dataclasses.replace(known, **others)  # type: ignore[arg-type]  # its fields


def held(
    topic: str, number: int, *channels: ChannelStats, nsqd: str = A, messages: int = 100, leads: bool = True
) -> PartitionStats:
    return PartitionStats(topic, number, leads, 0, 0, messages, False, False, channels, nsqd=nsqd)


def reading(
    *partitions: PartitionStats,
    at: float = NOW,
    before: Reading | None = None,
    is_plain: bool = False,
    silent: str = "",
    infos: tuple[NodeInfo, ...] = (),
) -> Reading:
    nodes = [
        NodeStats(node, error="hangs")
        if node.address == silent
        else NodeStats(node, "1.0", "OK", 1, tuple(each for each in partitions if each.nsqd == node.address))
        for node in NODES
    ]
    return Reading(
        at,
        stats=ClusterStats(tuple(nodes)),
        cluster=ClusterState(is_plain, None, (), ()),
        infos={info.node.address: info for info in infos},
        earlier=None if before is None else before.kept,
    )


def test_a_row_is_the_sum_over_partitions() -> None:
    found = reading(
        held("orders", 0, channel("billing", 7, oldest_at=NOW - 5, skipped=True)),
        held("orders", 1, channel("billing", 3, oldest_at=NOW - 9), nsqd=B),
        dataclasses.replace(held("letters", 0), unrouted=4),
    )
    letters, billing = found.rows
    assert (letters.topic, letters.name, letters.messages, letters.depth, letters.state) == ("letters", "", 100, 4, "")
    assert (billing.topic, billing.name, billing.messages, billing.depth) == ("orders", "billing", 200, 10)
    assert (billing.state, billing.lag, billing.partition, billing.nsqd) == ("skipped on 1 of 2", 9.0, None, None)
    assert billing.channel is not None
    assert (billing.channel.in_flight, billing.channel.timed_out) == (2, 8)
    assert (billing.in_rate, billing.out_rate) == (None, None)


def test_a_row_for_each_partition_or_nsqd() -> None:
    partitions = (held("orders", 0, channel(paused=True)), held("orders", 1, channel(), nsqd=B))
    found = reading(*partitions).parts
    assert [(row.partition, row.nsqd, row.state, row.lag) for row in found] == [(0, A, "paused", 0.0), (1, B, "", 0.0)]
    found = reading(*partitions, is_plain=True).parts
    assert [(row.partition, row.nsqd) for row in found] == [(None, A), (None, B)]


def test_rates_are_sums_over_partitions() -> None:
    before = reading(held("t", 0, channel(depth=5, messages=10)), held("t", 1, channel()))
    after = reading(
        held("t", 0, channel(depth=3, messages=30, requeued=7, timed_out=6), messages=120),
        held("t", 1, channel(messages=104), messages=104),
        held("new", 0, channel()),
        at=NOW + 2,
        before=before,
    )
    new, row = after.rows
    assert (row.in_rate, row.rates) == (12.0, Rates(13.0, 2.0, 1.0))
    assert (new.in_rate, new.rates) == (None, None)
    assert [(each.in_rate, each.out_rate) for each in after.parts] == [(None, None), (10.0, 11.0), (2.0, 2.0)]


def test_rates_follow_a_partition_to_its_new_leader() -> None:
    before = reading(held("t", 0, channel(messages=100, depth=50)), held("t", 0, leads=False, nsqd=B))
    after = reading(
        held("t", 0, channel(messages=120, depth=60, requeued=1000), nsqd=B, messages=120),
        held("t", 0, leads=False),
        at=NOW + 4,
        before=before,
    )
    assert after.moved == {("t", 0): A}
    assert before.moved == {}
    [row] = after.rows
    assert (row.in_rate, row.rates) == (5.0, Rates(2.5, 0.0, 0.0))


def test_a_restart_or_a_clock_that_stands_still_gives_no_false_rate() -> None:
    before = reading(held("t", 0, channel()))
    [row] = reading(held("t", 0, channel(messages=0), messages=0), at=NOW + 1, before=before).rows
    assert (row.in_rate, row.rates) == (0.0, Rates(0.0, 0.0, 0.0))
    for again in (
        reading(held("t", 0, channel()), before=before),
        reading(held("t", 0, channel()), at=1, before=before),
    ):
        assert (again.seconds, again.rows[0].in_rate, again.rows[0].rates) == (None, None, None)
    unanswered = dataclasses.replace(before, errors={"nsqds": "no answer"})
    [row] = reading(held("t", 0, channel()), at=NOW + 1, before=unanswered).rows
    assert row.in_rate is None


def test_plain_nsqds_count_each_for_itself() -> None:
    before = reading(held("t", 0, channel()), held("t", 0, channel(), nsqd=B), is_plain=True)
    after = reading(
        held("t", 0, channel(messages=110), messages=110),
        held("t", 0, channel(messages=130), nsqd=B, messages=130),
        at=NOW + 10,
        before=before,
        is_plain=True,
    )
    assert [(row.nsqd, row.in_rate, row.out_rate) for row in after.parts] == [(A, 1.0, 1.0), (B, 3.0, 3.0)]
    assert [(row.in_rate, row.out_rate) for row in after.rows] == [(4.0, 4.0)]


@pytest.mark.parametrize(("is_plain", "rate"), [(True, 1.0), (False, 15.0)])
def test_what_a_plain_nsqd_delivered_is_not_done_yet(is_plain: bool, rate: float) -> None:
    """Messages that were delivered and requeued again and again looked finished. A partitioned one counts them."""
    before = reading(held("t", 0, channel(depth=50, in_flight=0, deferred=0)), is_plain=is_plain)
    now = held("t", 0, channel(depth=20, in_flight=18, deferred=10))
    assert [row.out_rate for row in reading(now, at=NOW + 2, before=before, is_plain=is_plain).rows] == [rate]


def test_while_two_claim_a_partition_the_former_leader_keeps_it() -> None:
    before = reading(held("t", 0), held("t", 0, leads=False, nsqd=B))
    both = reading(held("t", 0), held("t", 0, nsqd=B), before=before)
    assert (both.leaders, both.topics["t"].messages) == ({("t", 0): A}, 100)
    assert (both.nsqds[A].leads, both.nsqds[B].leads, both.nsqds[B].follows) == ({"t": [0]}, {}, {"t": [0]})


def test_what_an_nsqd_leads_and_follows() -> None:
    listed = NodeInfo(NODES[0], "host", "0.9", {"orders": (0, 2)}, ("orders", "listed"), frozenset({"orders"}))
    found = reading(
        held("orders", 0, channel(clients=2)),
        held("orders", 1, leads=False),
        held("orders", 2, channel(clients=1)),
        infos=(listed,),
    ).nsqds[A]
    assert (found.leads, found.follows) == ({"orders": [0, 2]}, {"orders": [1]})
    assert (found.health, found.version, found.hostname, found.clients) == ("OK", "1.0", "host", 3)
    assert (found.topics, found.tombstoned) == (["listed", "orders"], ["orders"])


def test_a_silent_nsqd_keeps_what_it_led() -> None:
    listed = NodeInfo(NODES[0], "host", "0.9", {"orders": (2, 0), "letters": ()}, ("orders",))
    first = reading(silent=A, infos=(listed,)).nsqds[A]
    assert (first.health, first.version, first.leads, first.follows) == ("silent", "0.9", {"orders": [0, 2]}, {})
    before = reading(held("orders", 1))
    assert reading(silent=A, infos=(listed,), before=before).nsqds[A].leads == {"orders": [1]}
    assert reading(held("orders", 1, nsqd=B), silent=A, before=before).moved == {("orders", 1): A}


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_plain_nsqd_leads_nothing(is_plain: bool) -> None:
    found = reading(held("t", 0), is_plain=is_plain)
    assert bool(found.leaders) is bool(found.nsqds[A].leads) is not is_plain
    assert list(found.topics) == found.names == ["t"]
