"""Streams in a cluster that changes under them: leaders that move and die, and partitions that are added."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.cluster import ClusterUnderTest, replace_leader
from integration.jobs import Job, live_writer
from integration.replays import assert_all_and_each_once, of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

Under = Callable[[str, Callable[[], object]], Awaitable[None]]


@pytest.fixture
def under_fire(spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path) -> Under:
    """Change the cluster in a running query with a live writer; the stream must have the log, each row once."""

    async def run(topic: str, change: Callable[[], object]) -> None:
        job = Job(topic, tmp_path, **of(cluster), maxOffsetsPerTrigger="1000", arrowBatchRows="200", fetchRetries="60")

        def stream() -> None:
            with job.running(spark) as batches:
                change()
                batches()

        async with live_writer(topic, lookupd=cluster.lookupd) as stored:
            await asyncio.to_thread(stream)
        await asyncio.to_thread(job.finish, spark)
        await assert_all_and_each_once(cluster, topic, job, stored)

    return run


@pytest.mark.faults
async def test_a_leader_that_dies_inside_a_query_changes_no_row(cluster: ClusterUnderTest, under_fire: Under) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 3)
    await under_fire(topic, lambda: replace_leader(cluster, topic, 0))


@pytest.mark.slow
async def test_partitions_that_are_added_inside_a_query_are_read_from_their_beginning(
    cluster: ClusterUnderTest, under_fire: Under
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 1, 1)
    await under_fire(topic, lambda: cluster.expand(topic, 2))
