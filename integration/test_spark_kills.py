"""Streams that are killed: workers in the middle of a read, whole drivers between and inside batches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.jobs import LIMIT, Job, live_writer, publish, wait_until, workers_of
from integration.replays import assert_each_once, of

if TYPE_CHECKING:
    from integration.cluster import ClusterUnderTest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers in /proc")
async def test_a_worker_that_is_killed_in_the_middle_of_a_read_changes_no_row(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2)
    bodies = [b"%06d" % number + b"x" * 200 for number in range(60_000)]
    await publish(cluster.lookupd, topic, bodies)
    job = Job(topic, tmp_path, **of(cluster), maxOffsetsPerTrigger="30000", arrowBatchRows="200")
    killed: list[int] = []

    def run() -> None:
        with job.running(now=True) as process:
            # Inside the first batch: it is planned, and not done.
            wait_until(process, lambda: job.planned > 0 and bool(workers_of(process)), job)
            for worker in workers_of(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
                    killed.append(worker)
            assert process.wait(LIMIT) == 0, job.log.read_text()[-4000:]

    await asyncio.to_thread(run)
    assert killed
    assert sorted(job.values()) == bodies


@pytest.mark.parametrize("where", ["in the first batch", "later"])
async def test_a_driver_that_is_killed_twice_under_a_live_writer_changes_no_row(
    cluster: ClusterUnderTest, tmp_path: Path, where: str
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2)
    job = Job(topic, tmp_path, **of(cluster), maxOffsetsPerTrigger="1000")

    def run_and_kill(done: Callable[[], bool]) -> None:
        with job.running(now=False) as process:
            wait_until(process, done, job)

    async with live_writer(topic, lookupd=cluster.lookupd) as stored:
        if where == "later":
            # Once with a batch that is planned and not done, once between batches.
            await asyncio.to_thread(run_and_kill, lambda: job.planned > job.commits and job.planned >= 2)
            done = job.commits
            await asyncio.to_thread(run_and_kill, lambda: job.commits >= done + 2)
        else:
            for _ in range(2):
                await asyncio.to_thread(run_and_kill, lambda: job.planned > 0)
    await asyncio.to_thread(job.finish)
    assert sorted(set(job.values())) == stored
    await assert_each_once(cluster, topic, job)
