"""Replays on the dev cluster: exact rows whatever happens to leaders; no Spark yet."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range, plan
from nsq_ha.spark.read.columns import default_schema
from nsq_ha.spark.read.range_reader import RangeReader
from nsq_ha.spark.source import NsqDataSource
from tests.spark.streams import channels_of
from tests.support.spark_rows import delivered

if TYPE_CHECKING:
    from nsq_ha.devcluster import DevCluster
    from nsq_ha.message import Message
    from nsq_ha.spark.cluster import BlockingCluster
    from tests.spark.conftest import Publish

T = TypeVar("T")


def options(asked: BlockingCluster, topic: str, **more: str) -> ReadOptions:
    return ReadOptions.parse({"lookupd": ",".join(asked.lookupd), "topic": topic, "fetchTimeout": "1s", **more})


def read(
    part: Range, given: ReadOptions, asked: BlockingCluster, between: Callable[[], None] | None = None
) -> list[Message]:
    """Read a range; ``between`` is called once, after the first portion."""
    got: list[Message] = []
    for batch in delivered(RangeReader(part, given, asked)):
        got += batch
        if between is not None:
            between()
            between = None
    return got


def assert_chain(part: Range, rows: list[Message]) -> None:
    ends = [row.offset + row.raw_size for row in rows if row.offset is not None and row.raw_size is not None]
    assert [row.offset for row in rows] == [part.start, *ends[:-1]]
    assert ends[-1] == part.end


@pytest.mark.parametrize(
    ("name", "kind"), [("plain", {}), ("in_order", {"ordered": True}), ("headed", {"extended": True})]
)
def test_every_kind_of_topic_comes_back_whole_and_leaves_no_channel(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, name: str, kind: dict[str, bool]
) -> None:
    topic = dev_cluster.create_topic(f"whole_{name}", 2, **kind)
    sent = {partition: [b"%d of %d" % (number, partition) for number in range(700)] for partition in (0, 1)}
    for partition, bodies in sent.items():
        publish(topic, partition, bodies)
    given = options(asked, topic)
    ranges = plan(given, asked)
    assert [part.partition for part in ranges] == [0, 1]
    for part in ranges:
        rows = read(part, given, asked)
        assert_chain(part, rows)
        assert [row.body for row in rows] == sent[part.partition]
        assert [row.headers for row in rows[:2]] == ([{"n": "0"}, {"n": "1"}] if name == "headed" else [{}, {}])
    assert eventually_none(lambda: channels_of(asked, topic))


def eventually_none(found: Callable[[], list[str]]) -> bool:
    """An ephemeral channel goes a moment after its client."""
    until = time.monotonic() + 5.0
    while found():
        if time.monotonic() > until:
            return False
    return True


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small reads keep the server ahead of the reader, so that there is something to lose.
    monkeypatch.setattr("nsq_ha.spark.connection.READ_BYTES", 4096)


@pytest.mark.few(2)
@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("fault", ["move_leader", "kill", "cut"])
def test_the_same_rows_come_when_the_leader_changes_in_the_middle(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, fault: str, *, ordered: bool
) -> None:
    topic = dev_cluster.create_topic(f"{fault}_{ordered}", 1, ordered=ordered)
    publish(topic, 0, [b"%04d" % number for number in range(2000)])
    given = options(asked, topic, arrowBatchRows="50")
    (part,) = plan(given, asked)
    undisturbed = [(row.offset, row.id, row.body, row.timestamp_ns) for row in read(part, given, asked)]
    leader = dev_cluster.leader(topic)
    assert leader is not None

    def happen() -> None:
        if fault == "move_leader":
            dev_cluster.move_leader(topic)
        else:
            getattr(dev_cluster, fault)(leader)

    try:
        disturbed = read(part, given, asked, happen)
    finally:
        if not dev_cluster.is_up(leader):
            dev_cluster.start(leader)
    assert_chain(part, disturbed)
    assert [(row.offset, row.id, row.body, row.timestamp_ns) for row in disturbed] == undisturbed


def test_ranges_of_a_topic_that_is_written_meanwhile(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish
) -> None:
    topic = dev_cluster.create_topic("live", 1)
    publish(topic, 0, [b"first"])
    over = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if over.is_set():
                return
            publish(topic, 0, [b"%d" % number] * 20)

    writer = threading.Thread(target=write)
    ends = [plan(options(asked, topic), asked)[0].end]
    with contextlib.ExitStack() as stack:
        stack.callback(writer.join, 10)
        stack.callback(over.set)
        writer.start()
        limit = time.monotonic() + 60
        while len(ends) < 5:
            assert time.monotonic() < limit, f"the topic no longer grows: {ends}"
            (whole,) = plan(options(asked, topic), asked)
            if whole.end > ends[-1]:
                part = replace(whole, start=ends[-1])
                assert_chain(part, read(part, options(asked, topic), asked))
                ends.append(whole.end)


def travelled(thing: T) -> T:
    """What arrives in another process."""
    arrived: T = pickle.loads(pickle.dumps(thing))  # noqa: S301 - our own
    return arrived


def test_the_classes_that_spark_calls_travel_and_read(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish
) -> None:
    topic = dev_cluster.create_topic("classes", 2)
    publish(topic, 1, [b"a", b"b"])
    given = {"lookupd": ",".join(dev_cluster.lookupd), "topic": topic}
    source = travelled(NsqDataSource(given))
    assert source.schema() == default_schema(headers=False)
    reader = source.reader(StructType([StructField("value", BinaryType()), StructField("partition", IntegerType())]))
    (part,) = travelled(reader.partitions())
    (batch,) = travelled(reader).read(part)
    assert batch.to_pylist() == [{"value": b"a", "partition": 1}, {"value": b"b", "partition": 1}]
    # What Spark hands to a read that planned nothing.
    assert list(reader.read(InputPartition(None))) == []
