"""What a read leaves for the next one: the same rows, with fewer channels and connections."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from nsq_ha.spark.cluster import BlockingCluster, worker_cluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range, plan
from nsq_ha.spark.read import range_reader
from nsq_ha.spark.read.columns import Projection
from nsq_ha.spark.read.range_reader import DriverRead
from nsq_ha.spark.read.replay import MOST_IDLE, Subscriptions
from tests.spark.streams import channels_of
from tests.support.waiting import block

if TYPE_CHECKING:
    from nsq_ha.devcluster import DevCluster
    from nsq_ha.policy.topology import Node
    from tests.spark.conftest import Publish

SCHEMA = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])
ROUNDS = 20


class Query:
    """A query's small micro-batches of a topic, read by the driver; counts the channels that are placed."""

    def __init__(self, asked: BlockingCluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options = ReadOptions.parse({"lookupd": ",".join(asked.lookupd), "topic": topic}, "stream")
        # Unlike a driver's, its patience suits a busy machine.
        monkeypatch.setattr(range_reader, "DRIVER_PATIENCE", 30.0)
        self.driver = DriverRead(replace(self.options, fetch_timeout=30.0), Projection(SCHEMA))
        self.asked = asked
        self.placed: list[tuple[int, int, str]] = []
        self._ends: dict[int, int] = {}
        original = BlockingCluster.open_channel

        def noted(  # noqa: PLR0917 - as the original
            cluster: BlockingCluster, topic: str, partition: int, node: Node, channel: str, offset: int
        ) -> None:
            self.placed.append((partition, offset, node.address))
            original(cluster, topic, partition, node, channel, offset)

        monkeypatch.setattr(BlockingCluster, "open_channel", noted)

    def planned(self) -> list[Range]:
        """Plan the next micro-batch, up to what is there now."""
        given = replace(self.options, starting_offsets="earliest")
        ranges = [replace(part, start=self._ends.get(part.partition, part.start)) for part in plan(given, self.asked)]
        self._ends = {part.partition: part.end for part in ranges}
        return [part for part in ranges if part.start < part.end]

    def read(self, ranges: list[Range] | None = None) -> list[bytes]:
        """Read a micro-batch; return its bodies."""
        ranges = self.planned() if ranges is None else ranges
        assert self.driver.wants(ranges)
        batches = self.driver.rows(ranges, self.asked)
        assert batches is not None
        return [value for batch in batches for value in batch.column("value").to_pylist()]


Begin = Callable[[str], Query]


@pytest.fixture
def begin(asked: BlockingCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Begin queries; what they keep is closed in the end."""
    begun: list[Query] = []

    def query(topic: str) -> Query:
        begun.append(Query(asked, topic, monkeypatch))
        return begun[-1]

    yield query
    for each in begun:
        each.driver.close()


def filled(publish: Publish, topic: str, mark: bytes, count: int = 20) -> list[bytes]:
    """Publish to both partitions; return the bodies in the order in which a micro-batch has them."""
    bodies = [[b"%s %d-%d" % (mark, partition, number) for number in range(count)] for partition in (0, 1)]
    for partition in (0, 1):
        publish(topic, partition, bodies[partition])
    return bodies[0] + bodies[1]


def until_kept(query: Query, publish: Publish) -> None:
    """Read micro-batches until one needs no new channel: a new channel may deliver strays, and is closed then."""
    for number in range(ROUNDS):
        before = len(query.placed)
        bodies = filled(publish, query.options.topics[0], b"round %d" % number)
        assert query.read() == bodies
        if len(query.placed) == before:
            return
    raise AssertionError(f"each of {ROUNDS} micro-batches placed a channel")


@pytest.mark.parametrize(
    ("name", "kind"), [("plain", {}), ("in_order", {"ordered": True}), ("headed", {"extended": True})]
)
def test_micro_batches_of_the_driver_go_on_with_the_same_subscriptions(
    dev_cluster: DevCluster, publish: Publish, begin: Begin, name: str, kind: dict[str, bool]
) -> None:
    query = begin(dev_cluster.create_topic(f"kept_{name}", 2, **kind))
    until_kept(query, publish)
    # A reader travels without its connections.
    assert not pickle.loads(pickle.dumps(query.driver)).subscriptions.idle  # noqa: S301 - of this test
    assert len(query.driver.subscriptions.idle) == 2


def test_messages_behind_the_end_wait_for_the_next_micro_batch(
    dev_cluster: DevCluster, publish: Publish, begin: Begin
) -> None:
    topic = dev_cluster.create_topic("kept_behind", 2)
    query = begin(topic)
    until_kept(query, publish)
    for number in range(2):
        first = filled(publish, topic, b"first %d" % number)
        ranges = query.planned()
        second = filled(publish, topic, b"second %d" % number)
        assert query.read(ranges) == first
        assert query.read() == second


def test_a_subscription_that_the_server_ended_is_replaced(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, begin: Begin
) -> None:
    topic = dev_cluster.create_topic("kept_ended", 2)
    query = begin(topic)
    until_kept(query, publish)
    before = len(query.placed)
    channels = {part: replay.channel for (_, part), (_, replay) in query.driver.subscriptions.idle.items()}
    for partition, node in asked.view(topic).leaders.items():
        asked.delete_channel(topic, partition, node, channels[partition])
    bodies = filled(publish, topic, b"after")
    assert query.read() == bodies
    assert sorted(partition for partition, *_ in query.placed[before:]) == [0, 1]


def test_after_a_leader_moved_its_channel_is_on_the_new_one(
    dev_cluster: DevCluster, publish: Publish, begin: Begin
) -> None:
    topic = dev_cluster.create_topic("kept_moved", 2, 2)
    query = begin(topic)
    until_kept(query, publish)
    before = len(query.placed)
    leader = dev_cluster.nsqds[dev_cluster.move_leader(topic, 0)]
    bodies = filled(publish, topic, b"after")
    assert query.read() == bodies
    assert (0, leader) in [(partition, node) for partition, _, node in query.placed[before:]]


def test_a_micro_batch_from_elsewhere_or_for_tasks_ends_the_subscriptions(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, begin: Begin
) -> None:
    topic = dev_cluster.create_topic("kept_elsewhere", 2)
    query = begin(topic)
    until_kept(query, publish)
    bodies = filled(publish, topic, b"again")
    ranges = query.planned()
    assert query.read(ranges) == bodies
    before = len(query.placed)
    assert query.read(ranges) == bodies
    assert len(query.placed) == before + 2
    assert not query.driver.wants([replace(part, end=part.start + 2**20) for part in ranges])
    assert not query.driver.subscriptions.idle

    deadline = time.monotonic() + 60.0
    while channels_of(asked, topic):
        assert time.monotonic() < deadline
        block(0.05)


def test_no_more_subscriptions_are_kept_than_a_driver_should_hold() -> None:
    class Idle:
        def __init__(self, partition: int) -> None:
            self.topic, self.partition, self.is_open = "t", partition, True

        def pause(self) -> bool:
            return self.partition != 5

        def close(self) -> None:
            self.is_open = False

    kept = Subscriptions()
    replays = [Idle(number) for number in range(MOST_IDLE + 3)]
    assert [kept.keep(replay, 0) for replay in replays] == [replay.partition != 5 for replay in replays]  # type: ignore[arg-type]
    assert [replay.partition for replay in replays if not replay.is_open] == [0, 1]
    kept.close()
    assert [replay.partition for replay in replays if replay.is_open] == [5], "the caller closes what is not kept"


def test_tasks_of_a_worker_share_connections_and_a_failure_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[BlockingCluster] = []
    original = BlockingCluster.close

    def close(self: BlockingCluster) -> None:
        closed.append(self)
        original(self)

    monkeypatch.setattr(BlockingCluster, "close", close)
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    with worker_cluster(("http://a:1",)) as first:
        pass
    with worker_cluster(("http://a:1",)) as again, worker_cluster(("http://a:1",)) as beside:
        assert again is first
        assert beside is not first
    assert closed == [beside], "of one kind one is kept"
    with worker_cluster(("http://b:1",)) as other:
        pass
    assert closed == [beside, first]
    with pytest.raises(ValueError, match="failed"), worker_cluster(("http://b:1",)) as broken:
        raise ValueError("failed")
    assert broken is other
    assert closed == [beside, first, other]
    monkeypatch.delenv("SPARK_REUSE_WORKER")
    with worker_cluster(("http://a:1",)) as alone:
        pass
    assert closed[-1] is alone
