"""Streams in Spark itself, on the dev cluster: the cases that every change must pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.streams import Stream, numbered, spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsq_ha.devcluster import DevCluster
    from nsq_ha.spark.cluster import Cluster
    from tests.spark.conftest import Publish

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_limits_then_a_restart_with_new_rows(
    spark: SparkSession, dev_cluster: DevCluster, publish: Publish, tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("limits", 2)
    spread(publish, topic, numbered(2500))
    stream = Stream(spark, dev_cluster, topic, tmp_path, maxOffsetsPerTrigger="1000")
    progress = stream.drain()
    assert [each["numInputRows"] for each in progress] == [1000, 1000, 500]
    source = progress[0]["sources"][0]
    assert json.loads(source["latestOffset"]) == json.loads(progress[-1]["sources"][0]["endOffset"])
    spread(publish, topic, numbered(100, 2500))
    assert [each["numInputRows"] for each in stream.drain()] == [100]
    assert stream.values() == numbered(2600)
    assert stream.drain() == []


def test_a_plain_nsqd_is_streamed_through_a_spool(
    spark: SparkSession, dev_cluster: DevCluster, asked: Cluster, publish: Publish, tmp_path: Path
) -> None:
    topic = dev_cluster.create_topic("plain", 1)
    leader = asked.view(topic).leaders[0]
    asked.open_channel(topic, 0, leader, "spark", 0)
    publish(topic, 0, numbered(2500))
    stream = Stream(spark, dev_cluster, topic, tmp_path, maxOffsetsPerTrigger="1000", minPartitions="2")
    del stream.options["lookupd"], stream.options["startingOffsets"]
    spool = tmp_path / "spool"
    stream.options |= {"delivery": "ack", "nsqd": leader.address, "channel": "spark", "spool": str(spool)}
    progress = stream.drain()
    assert max(each["numInputRows"] for each in progress) <= 1000
    publish(topic, 0, numbered(100, 2500))
    stream.drain()
    assert stream.values() == numbered(2600)
    # The last batch's files go when the next one is planned.
    rows = [int(path.name.split("-")[2]) for path in spool.glob("*.arrow")]
    assert sum(rows) <= 1000
