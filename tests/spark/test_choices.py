"""Options that change what is asked of a cluster, against one: report, registered channels, times, waiting, placing."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Literal

import pytest

from nsq_ha.admin import AdminClient
from nsq_ha.admin.description import ChannelStats
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ChannelNotRegisteredError, ConfigError
from nsq_ha.message import Message
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range, plan
from nsq_ha.spark.plan.stream_planner import StreamPlanner
from nsq_ha.spark.read.range_reader import RangeReader
from tests.devcluster.probes import until
from tests.spark.conftest import Publish
from tests.spark.streams import numbered
from tests.support.spark_rows import delivered

names = (f"choice_{number}" for number in itertools.count())


def options(
    dev_cluster: DevCluster, topic: str, mode: Literal["batch", "stream"] = "batch", /, **more: str
) -> ReadOptions:
    return ReadOptions.parse({"lookupd": dev_cluster.lookupd[0], "topic": topic, "fetchTimeout": "1s", **more}, mode)


def rows(parts: list[Range], given: ReadOptions, asked: BlockingCluster) -> list[Message]:
    return [row for part in parts for batch in delivered(RangeReader(part, given, asked)) for row in batch]


@pytest.fixture
def cluster(dev_cluster: DevCluster) -> Iterator[BlockingCluster]:
    with BlockingCluster(tuple(dev_cluster.lookupd)) as cluster:
        yield cluster


def channel_stats(dev_cluster: DevCluster, topic: str, channel: str) -> dict[int, ChannelStats]:
    async def ask() -> dict[int, ChannelStats]:
        async with AdminClient(dev_cluster.lookupd) as admin:
            result = await admin.describe(topic)
        return {
            part.partition: stats
            for part in result.partitions
            if part.stats is not None
            for stats in part.stats.channels
            if stats.name == channel
        }

    return asyncio.run(ask())


def test_the_report_channel_shows_what_spark_has_not_done(
    dev_cluster: DevCluster, cluster: BlockingCluster, publish: Publish
) -> None:
    topic = dev_cluster.create_topic(next(names), 2)
    for partition in (0, 1):
        publish(topic, partition, numbered(50))
    given = options(
        dev_cluster, topic, "stream", startingOffsets="earliest", reportChannel="seen", maxOffsetsPerTrigger="60"
    )
    planner = StreamPlanner(given, cluster)
    start = planner.initial()
    first = planner.latest(start)
    planner.commit(first)
    assert {partition: stats.depth for partition, stats in channel_stats(dev_cluster, topic, "seen").items()} == {
        0: 20,
        1: 20,
    }
    planner.commit(planner.latest(first))
    assert [stats.depth for stats in channel_stats(dev_cluster, topic, "seen").values()] == [0, 0]


def test_a_topic_of_registered_channels_is_read_through_one_and_never_cut(
    dev_cluster: DevCluster, cluster: BlockingCluster, publish: Publish
) -> None:
    topic = dev_cluster.create_topic(next(names), 1, disable_channel_auto_create=True)
    publish(topic, 0, numbered(300))
    with pytest.raises(ConfigError, match="accepts registered channels only"):
        plan(options(dev_cluster, topic), cluster)
    named = options(dev_cluster, topic, channel="spark")
    (part,) = plan(named, cluster)
    with pytest.raises(ChannelNotRegisteredError):
        rows([part], named, cluster)

    async def register() -> None:
        async with AdminClient(dev_cluster.lookupd) as admin:
            await admin.create_channel(topic, "spark")

    asyncio.run(register())
    found: list[Message] = []

    def is_registered() -> bool:
        with contextlib.suppress(ChannelNotRegisteredError):
            found[:] = rows([part], named, cluster)
        return bool(found)

    until(is_registered)  # the nsqds hear of it a little later
    assert [row.body for row in found] == numbered(300)
    # The channel stays where the first read left it; the second sets it back and follows the chain.
    assert [row.body for row in rows([part], named, cluster)] == numbered(300)


def test_times_begin_and_end_a_read_to_the_message(
    dev_cluster: DevCluster, cluster: BlockingCluster, publish: Publish
) -> None:
    topic = dev_cluster.create_topic(next(names), 2)
    publish(topic, 0, numbered(20))
    publish(topic, 1, numbered(20, 100))
    middle = int(time.time() * 1000) + 20
    while time.time() * 1000 < middle + 20:
        threading.Event().wait(0.005)
    publish(topic, 0, numbered(20, 20))

    def read(**more: str) -> list[bytes]:
        given = options(dev_cluster, topic, **more)
        return sorted(row.body for row in rows(plan(given, cluster), given, cluster))

    assert read(startingTimestamp=str(middle)) == numbered(20, 20)
    assert read(endingTimestamp=str(middle)) == numbered(20) + numbered(20, 100)
    by_partition = f'{{"{topic}": {{"0": {middle}}}}}'
    assert read(startingOffsetsByTimestamp=by_partition) == numbered(20, 20) + numbered(20, 100)
    assert read(endingOffsetsByTimestamp=by_partition) == numbered(20) + numbered(20, 100)
    assert read(startingTimestamp="0") == numbered(40) + numbered(20, 100)
    assert read(startingTimestamp=str(middle + 3_600_000)) == []
    assert read(startingTimestamp=str(middle - 3_600_000), startingOffsetsByTimestampStrategy="error") != []
    with pytest.raises(ConfigError, match=rf"{topic}-1 has no message from {middle} .*Strategy=latest"):
        read(startingTimestamp=str(middle), startingOffsetsByTimestampStrategy="error")
    stream = options(dev_cluster, topic, "stream", startingTimestamp=str(middle))
    planner = StreamPlanner(stream, cluster)
    parts = planner.ranges(planner.initial(), planner.latest(planner.initial()))
    assert sorted(row.body for row in rows(parts, stream, cluster)) == numbered(20, 20)
