"""Streams in a cluster that changes under them: leaders that move and die, and partitions that are added."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from integration.jobs import Job, live_writer, wait_until
from integration.replays import assert_each_once, of

if TYPE_CHECKING:
    from integration.cluster import ClusterUnderTest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]


@contextlib.contextmanager
def in_a_running_query(job: Job) -> Iterator[Callable[[], None]]:
    """Run the job; gives a function that waits until some batches more are done."""
    with job.running(now=False) as process:

        def batches() -> None:
            done = job.commits
            wait_until(process, lambda: job.commits >= done + 3, job)

        batches()
        yield batches


async def under_fire(cluster: ClusterUnderTest, topic: str, folder: Path, change: Callable[[], object]) -> None:
    """Change the cluster in a running query with a live writer; the stream must have the log, each row once."""
    job = Job(topic, folder, **of(cluster), maxOffsetsPerTrigger="1000", arrowBatchRows="200", fetchRetries="60")

    def run() -> None:
        with in_a_running_query(job) as batches:
            change()
            batches()

    async with live_writer(topic, lookupd=cluster.lookupd) as stored:
        await asyncio.to_thread(run)
    await asyncio.to_thread(job.finish)
    assert sorted(set(job.values())) == stored
    await assert_each_once(cluster, topic, job)


async def test_a_leader_that_moves_inside_a_query_changes_no_row(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2)
    await under_fire(cluster, topic, tmp_path, lambda: cluster.move_leader(topic, 0))


@pytest.mark.faults
async def test_a_leader_that_dies_inside_a_query_changes_no_row(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 3)

    def kill() -> None:
        leader = cluster.leader(topic, 0)
        cluster.kill_node(leader)
        try:
            wait_for_another(cluster, topic, leader)
        finally:
            cluster.start_node(leader)

    await under_fire(cluster, topic, tmp_path, kill)


def wait_for_another(cluster: ClusterUnderTest, topic: str, old: str) -> None:
    until = time.monotonic() + 120.0
    while True:
        # Between two leaders there is none.
        with contextlib.suppress(KeyError, AssertionError):
            if cluster.leader(topic, 0) != old:
                return
        assert time.monotonic() < until
        threading.Event().wait(0.2)


async def test_partitions_that_are_added_inside_a_query_are_read_from_their_beginning(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 1, 1)
    await under_fire(cluster, topic, tmp_path, lambda: cluster.expand(topic, 2))
