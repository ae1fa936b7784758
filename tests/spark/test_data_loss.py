"""Logs that are not what was planned: cleaned, cut, re-created, grown; each is reported, or read as far as it goes."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import DataLossError
from nsq_ha.spark.checkpoint import PLANNED, OffsetJson, undated
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan import log_identity
from nsq_ha.spark.plan.batch_planner import Range
from nsq_ha.spark.plan.stream_planner import StreamPlanner
from nsq_ha.spark.read.columns import Projection
from nsq_ha.spark.read.range_reader import RangeReader
from nsq_ha.spark.source import NsqStreamReader
from tests.devcluster.probes import until
from tests.spark.conftest import Publish
from tests.spark.streams import numbered
from tests.support.spark_rows import delivered

MESSAGE = 36
"""Bytes of a body of 6 in the log."""

names = (f"loss_{number}" for number in itertools.count())

Stream = Callable[..., tuple[StreamPlanner, ReadOptions]]


@pytest.fixture
def stream(dev_cluster: DevCluster, asked: BlockingCluster) -> Stream:
    """The driver's side of a stream from the earliest on, which loses patience quickly."""

    def begin(topic: str, *, strict: bool) -> tuple[StreamPlanner, ReadOptions]:
        given = {"lookupd": dev_cluster.lookupd[0], "topic": topic, "startingOffsets": "earliest"}
        given |= {"failOnDataLoss": str(strict), "fetchTimeout": "1s", "fetchRetries": "1", "metadataRefresh": "0s"}
        options = ReadOptions.parse(given, "stream")
        return StreamPlanner(options, asked), options

    return begin


@pytest.fixture
def reader(dev_cluster: DevCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., NsqStreamReader]]:
    """A reader as Spark calls it, from the earliest on; each one stands for a process of its own."""
    # A log that is exactly as long as before is looked at again only after some seconds.
    monkeypatch.setattr(log_identity, "FRESH", 0.0)
    opened: list[NsqStreamReader] = []

    def begin(topic: str, **options: str) -> NsqStreamReader:
        given = {"lookupd": dev_cluster.lookupd[0], "topic": topic, "startingOffsets": "earliest", "driverBytes": "0"}
        given |= {"fetchTimeout": "1s", "fetchRetries": "1", "metadataRefresh": "0s"}
        parsed = ReadOptions.parse(given | options, "stream")
        opened.append(NsqStreamReader(parsed, Projection(StructType([StructField("value", BinaryType())]))))
        return opened[-1]

    yield begin
    for each in opened:
        each.stop()


def rows(parts: list[Range], options: ReadOptions, asked: BlockingCluster) -> list[bytes]:
    return [row.body for part in parts for batch in delivered(RangeReader(part, options, asked)) for row in batch]


def end_of(topic: str, messages: int) -> OffsetJson:
    return {topic: {"0": messages * MESSAGE}}


def test_a_start_that_was_cleaned_before_the_batch_is_planned(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    topic = dev_cluster.create_topic(next(names), 1)
    publish(topic, 0, numbered(100))
    dev_cluster.clean(topic, 0, 60)
    planner, _ = stream(topic, strict=True)
    with pytest.raises(DataLossError, match="1800 bytes from offset 360 on are deleted, the log begins at 2160"):
        planner.ranges(end_of(topic, 10), planner.latest(end_of(topic, 10)))
    planner, options = stream(topic, strict=False)
    parts = planner.ranges(end_of(topic, 10), planner.latest(end_of(topic, 10)))
    assert rows(parts, options, asked) == numbered(40, 60)
    assert "1800 bytes from offset 360 on are deleted" in caplog.text


def test_a_start_that_is_cleaned_between_plan_and_read(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, stream: Stream
) -> None:
    topic = dev_cluster.create_topic(next(names), 1)
    publish(topic, 0, numbered(100))
    planner, strict = stream(topic, strict=True)
    parts = planner.ranges(end_of(topic, 10), planner.latest(end_of(topic, 10)))
    dev_cluster.clean(topic, 0, 60)
    with pytest.raises(DataLossError, match="the log now begins at 2160"):
        rows(parts, strict, asked)
    assert rows(parts, stream(topic, strict=False)[1], asked) == numbered(40, 60)


def test_a_tail_that_was_never_committed(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, stream: Stream
) -> None:
    topic = dev_cluster.create_topic(next(names), 1)
    publish(topic, 0, numbered(50))
    planner, strict = stream(topic, strict=True)
    parts = planner.ranges(end_of(topic, 10), end_of(topic, 70))
    with pytest.raises(DataLossError, match="the log ends at 1800: its tail was never committed"):
        rows(parts, strict, asked)
    with pytest.raises(DataLossError, match="the log ends at 1800, before the offset 2520 reached"):
        planner.latest(end_of(topic, 70))
    lossy, options = stream(topic, strict=False)
    assert rows(parts, options, asked) == numbered(40, 10)
    # What comes in the place of the lost tail is read from where the log ends now.
    again = lossy.latest(end_of(topic, 70) | {PLANNED: int(time.time())})
    assert undated(again) == end_of(topic, 50)
    assert lossy.ranges(end_of(topic, 70), again) == [], "what is left was read before"
    publish(topic, 0, numbered(5, 90))
    assert rows(lossy.ranges(again, lossy.latest(again)), options, asked) == numbered(5, 90)


def test_a_tail_that_other_messages_have_filled(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, stream: Stream
) -> None:
    topic = dev_cluster.create_topic(next(names), 1)
    publish(topic, 0, [*numbered(10), b"x" * 100, *numbered(10, 20)])
    parts = [Range(topic, 0, 0, 12 * MESSAGE, asked.view(topic).leaders[0], ordered=False, extended=False)]
    with pytest.raises(DataLossError, match="the end 432 lies inside the message"):
        rows(parts, stream(topic, strict=True)[1], asked)
    assert rows(parts, stream(topic, strict=False)[1], asked) == numbered(10)


def saved(offset: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as Spark's checkpoint gives it back."""
    loaded: dict[str, Any] = json.loads(json.dumps(offset))
    return loaded


def values(planned: NsqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    parts = planned.partitions(start, end)
    return [body for part in parts for batch in planned.read(part) for body in batch.column("value").to_pylist()]


def made_anew(dev_cluster: DevCluster, publish: Publish, bodies: list[bytes]) -> str:
    """Return a topic that held 50 messages, was deleted, and was created again; its new messages are not flushed."""
    topic = dev_cluster.create_topic(next(names), 1)
    publish(topic, 0, numbered(50))
    dev_cluster.delete_topic(topic)
    dev_cluster.create_topic(topic, 1, sync_every=100_000)
    publish(topic, 0, bodies)
    return topic


def test_a_topic_that_was_deleted_and_made_anew(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, stream: Stream
) -> None:
    topic = made_anew(dev_cluster, publish, numbered(5, 60))
    with pytest.raises(DataLossError, match="the log ends at 180, before the offset 1800 reached: re-created, or cut"):
        stream(topic, strict=True)[0].latest(end_of(topic, 50))
    lossy, options = stream(topic, strict=False)
    an_hour_ago = end_of(topic, 50) | {PLANNED: int(time.time()) - 3600}
    again = lossy.latest(an_hour_ago)
    assert lossy.ranges(an_hour_ago, again) == []
    assert rows(lossy.ranges(again, lossy.latest(again)), options, asked) == numbered(5, 60)


def test_a_topic_that_was_made_anew_and_is_longer_than_before(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    topic = made_anew(dev_cluster, publish, numbered(70, 100))
    an_hour_ago = {PLANNED: int(time.time()) - 3600}
    start, end = end_of(topic, 40) | an_hour_ago, end_of(topic, 50) | an_hour_ago
    planner, _ = stream(topic, strict=True)
    with pytest.raises(DataLossError, match="the topic was re-created: the offset 1800 was taken from an earlier log"):
        planner.latest(end)
    with pytest.raises(DataLossError, match="the topic was re-created: the offset 1800"):
        # Planned before a restart, and never read.
        planner.ranges(start, end)
    lossy, options = stream(topic, strict=False)
    assert lossy.ranges(start, end) == []
    again = lossy.latest(end)
    assert lossy.ranges(end, again) == []
    assert rows(lossy.ranges(again, lossy.latest(again)), options, asked) == numbered(70, 100)
    assert caplog.text.count("re-created") == 1


@pytest.mark.few(2)
@pytest.mark.parametrize("again", [50, 70, 10], ids=["as long", "longer", "shorter"])
@pytest.mark.parametrize("sync_every", [1, 100_000], ids=["flushed", "fresh"])
def test_a_topic_that_is_made_anew_while_its_query_waits(
    dev_cluster: DevCluster,
    publish: Publish,
    reader: Callable[..., NsqStreamReader],
    again: int,
    sync_every: int,
) -> None:
    """All this happens within a second, so that no clock shows it."""
    topic = dev_cluster.create_topic(next(names), 1, sync_every=sync_every)
    publish(topic, 0, numbered(50))
    running, lossy = reader(topic), reader(topic, failOnDataLoss="false")
    start = saved(running.initialOffset())
    end = saved(running.latestOffset(start))
    assert values(running, start, end) == numbered(50)
    dev_cluster.delete_topic(topic)
    dev_cluster.create_topic(topic, 1, sync_every=sync_every)
    publish(topic, 0, numbered(again, 100))
    for planned in (running, reader(topic)):
        with pytest.raises(DataLossError, match="re-created"):
            planned.latestOffset(end)
    with pytest.raises(DataLossError, match="re-created"):
        # Planned before a restart, and never read.
        values(reader(topic), start, end)
    seen, begin = [], end
    for _ in range(3):
        until = saved(lossy.latestOffset(begin))
        seen += values(lossy, begin, until)
        begin = until
    assert seen == numbered(again, 100)
    assert undated(begin) == end_of(topic, again)


def test_a_topic_that_is_gone(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, stream: Stream
) -> None:
    topic = dev_cluster.create_topic(next(names), 1)
    publish(topic, 0, numbered(5))
    lossy, _ = stream(topic, strict=False)
    strict, _ = stream(topic, strict=True)
    end = strict.latest(strict.initial())
    dev_cluster.delete_topic(topic)
    until(lambda: not asked.view(topic).exists)  # the nsqlookupds forget it in their own time
    with pytest.raises(DataLossError, match="the topic is gone"):
        strict.ranges(strict.initial(), strict.latest(end))
    assert lossy.latest(end) == end


def test_partitions_that_are_added_begin_at_their_earliest(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, stream: Stream
) -> None:
    topic = dev_cluster.create_topic(next(names), 1, 1)
    publish(topic, 0, numbered(5))
    planner, options = stream(topic, strict=True)
    before = planner.latest(planner.initial())
    dev_cluster.expand(topic, 2)
    until(lambda: len(asked.view(topic).leaders) == 2)
    publish(topic, 1, numbered(5, 10))
    after = planner.latest(before)
    assert sorted(after[topic]) == ["0", "1"]
    assert rows(planner.ranges(before, after), options, asked) == numbered(5, 10)
