"""Drivers that are killed, between and inside batches, and what the next one makes of it."""

import asyncio
import os
import sys
import uuid
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from integration.cluster import ClusterUnderTest
from integration.jobs import Job, live_writer, running
from integration.replays import assert_all_and_each_once, of
from nsq_ha.admin import AdminClient
from tests.support.full import FULL

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NSQD_VARIABLE: Final = "NSQ_HA_TEST_NSQD"
"""Names a plain upstream nsqd, ``host:port``; without it an nsqd of the cluster stands in."""


@pytest.mark.slow
async def test_a_driver_that_is_killed_again_and_again_under_live_writers_loses_nothing(
    spark: SparkSession, cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2)
    replay = Job(topic, tmp_path / "replay", **of(cluster), maxOffsetsPerTrigger="1000")
    address, plain, servers = await plain_nsqd(cluster)
    ways = {"delivery": "ack", "nsqd": address, "channel": "spark", "spool": f"{tmp_path}/spool", "msgTimeout": "5s"}
    spool = Job(plain, tmp_path / "spool_job", **ways, maxOffsetsPerTrigger="1000", fetchRetries="30")

    def run_and_kill() -> None:
        for _ in range(2 if FULL else 1):
            replay.hold()
            with running(replay, spool) as wait:
                wait(replay.is_held)
                wait(lambda: spool.planned > 0)
            assert replay.commits == 0, "the first batch is planned, and not done"
        replay.let_go()
        with running(replay, spool) as wait:
            wait(lambda: replay.planned > replay.commits >= 2)

    async with live_writer(topic, lookupd=cluster.lookupd) as stored, live_writer(plain, **servers) as stored_plain:
        await asyncio.to_thread(run_and_kill)
    await asyncio.to_thread(replay.finish, spark)
    await assert_all_and_each_once(cluster, topic, replay, stored)
    # What was under way to a killed driver comes again after msgTimeout, and is waited for.
    await asyncio.to_thread(spool.finish, spark)
    values = spool.values()
    sys.stdout.write(f"{len(stored_plain)} messages over a plain nsqd, {len(values) - len(set(values))} twice\n")
    assert sorted(set(values)) == stored_plain


async def plain_nsqd(cluster: ClusterUnderTest) -> tuple[str, str, dict[str, Any]]:
    """Return address and topic, with what a Producer needs to publish there."""
    if address := os.environ.get(NSQD_VARIABLE):
        return address, f"ct_{uuid.uuid4().hex[:12]}", {"nsqd": address}
    topic = await asyncio.to_thread(cluster.create_topic, 1, 1)
    # A channel that the first subscription made would begin at the end.
    async with AdminClient(cluster.lookupd) as admin:
        await admin.create_channel(topic, "spark")
    return await asyncio.to_thread(cluster.leader, topic, 0), topic, {"lookupd": cluster.lookupd}
