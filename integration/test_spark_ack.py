"""``delivery=ack`` under kills: on an nsqd that is spoken to without partitions, all rows, some perhaps twice.

``NSQ_HA_TEST_NSQD`` (``host:port``) names a plain upstream nsqd; without it an nsqd of the cluster stands in.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from integration.jobs import Job, live_writer, wait_until
from nsq_ha.discovery.admin import AdminClient

if TYPE_CHECKING:
    from integration.cluster import ClusterUnderTest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

NSQD_VARIABLE: Final = "NSQ_HA_TEST_NSQD"


async def plain_nsqd(cluster: ClusterUnderTest) -> tuple[str, str, dict[str, Any]]:
    """Return address and topic, with what a Producer needs to publish there."""
    if address := os.environ.get(NSQD_VARIABLE):
        return address, f"ct_{uuid.uuid4().hex[:12]}", {"nsqd": address}
    topic = await asyncio.to_thread(cluster.create_topic, 1, 1)
    # A channel that the first subscription made would begin at the end.
    async with AdminClient(cluster.lookupd) as admin:
        await admin.create_channel(topic, "spark")
    return await asyncio.to_thread(cluster.leader, topic, 0), topic, {"lookupd": cluster.lookupd}


async def test_a_driver_that_is_killed_twice_over_a_plain_nsqd_loses_nothing(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    address, topic, servers = await plain_nsqd(cluster)
    plain = {"delivery": "ack", "nsqd": address, "channel": "spark", "spool": f"{tmp_path}/spool"}
    job = Job(topic, tmp_path, **plain, maxOffsetsPerTrigger="1000", fetchRetries="30")

    def run_and_kill(done: Callable[[], bool]) -> None:
        with job.running(now=False) as process:
            wait_until(process, done, job)

    async with live_writer(topic, **servers) as stored:
        await asyncio.to_thread(run_and_kill, lambda: job.planned > job.commits and job.planned >= 2)
        done = job.commits
        await asyncio.to_thread(run_and_kill, lambda: job.commits >= done + 2)
    await asyncio.to_thread(job.finish)
    values = job.values()
    sys.stdout.write(f"{len(stored)} messages, {len(values) - len(set(values))} of them twice\n")
    assert sorted(set(values)) == stored
