"""Streams that are killed: workers in the middle of a read, whole drivers between and inside batches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from nsq_ha import OutgoingMessage, Producer, Receipt

if TYPE_CHECKING:
    from integration.cluster import ClusterUnderTest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

JOB = Path(__file__).with_name("spark_job.py")
LIMIT = 150.0


class Job:
    """The program, and where its files are."""

    def __init__(self, cluster: ClusterUnderTest, topic: str, folder: Path, **options: str) -> None:
        self.out = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self.options = {
            "lookupd": ",".join(cluster.lookupd),
            "topic": topic,
            "startingOffsets": "earliest",
            "fetchTimeout": "2s",
            **options,
        }
        self.log = folder / "log"

    @contextlib.contextmanager
    def running(self, *, now: bool) -> Iterator[subprocess.Popen[str]]:
        """Run it in a process group of its own, which is killed at the end."""
        told = {"options": self.options, "out": str(self.out), "checkpoint": str(self.checkpoint), "now": now}
        environment = {**os.environ, "PYTHONPATH": str(JOB.parents[1])}
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, str(JOB), json.dumps(told)],
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)

    def finish(self) -> None:
        """Read what there is now and end."""
        with self.running(now=True) as process:
            assert process.wait(LIMIT) == 0, self.log.read_text()[-4000:]

    @property
    def commits(self) -> int:
        """Micro-batches that are done."""
        return len([path for path in (self.checkpoint / "commits").glob("*") if path.name.isdigit()])

    @property
    def planned(self) -> int:
        """Micro-batches that were begun."""
        return len([path for path in (self.checkpoint / "offsets").glob("*") if path.name.isdigit()])

    def values(self) -> list[bytes]:
        """Rows of the files that the sink has committed; files of broken batches lie beside them."""
        names: set[str] = set()
        for log in sorted((self.out / "_spark_metadata").glob("*")):
            if log.name.isdigit() or log.name.endswith(".compact"):
                for line in log.read_text().splitlines()[1:]:
                    names.add(json.loads(line)["path"])
        found: list[bytes] = []
        for name in sorted(names):
            table: Any = pq.read_table(name.removeprefix("file://"), columns=["value"])
            found += table.column("value").to_pylist()
        return found


def wait_until(process: subprocess.Popen[str], done: Callable[[], bool], job: Job) -> None:
    until = time.monotonic() + LIMIT
    while not done():
        assert process.poll() is None, job.log.read_text()[-4000:]
        assert time.monotonic() < until, job.log.read_text()[-4000:]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Python workers of the job: descendants of its process that run tasks."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found[int(entry.name)] = parent, (entry / "cmdline").read_text()

    def is_ours(number: int) -> bool:
        while number in found and number > 1:
            if number == process.pid:
                return True
            number = found[number][0]
        return False

    # Workers are forks of the daemon, so their parent is one too.
    return [
        number
        for number, (parent, command) in found.items()
        if "pyspark.daemon" in command and "pyspark.daemon" in found.get(parent, (0, ""))[1] and is_ours(number)
    ]


async def publish(cluster: ClusterUnderTest, topic: str, bodies: list[bytes]) -> None:
    async with Producer(lookupd=cluster.lookupd) as producer:
        for start in range(0, len(bodies), 1000):
            lot = bodies[start : start + 1000]
            told = await producer.publish_many(topic, [OutgoingMessage(body, key=body) for body in lot])
            assert all(isinstance(receipt, Receipt) for receipt in told)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers in /proc")
async def test_a_worker_that_is_killed_in_the_middle_of_a_read_changes_no_row(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2)
    bodies = [b"%06d" % number + b"x" * 200 for number in range(60_000)]
    await publish(cluster, topic, bodies)
    job = Job(cluster, topic, tmp_path, maxOffsetsPerTrigger="30000", arrowBatchRows="200")
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


async def test_a_driver_that_is_killed_twice_under_a_live_writer_changes_no_row(
    cluster: ClusterUnderTest, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2)
    bodies: list[bytes] = []
    over = asyncio.Event()

    async def write() -> None:
        async with Producer(lookupd=cluster.lookupd) as producer:
            while not over.is_set():
                lot = [b"%07d" % (len(bodies) + number) for number in range(200)]
                told = await producer.publish_many(topic, [OutgoingMessage(body, key=body) for body in lot])
                assert all(isinstance(receipt, Receipt) for receipt in told)
                bodies.extend(lot)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await over.wait()

    job = Job(cluster, topic, tmp_path, maxOffsetsPerTrigger="3000")
    writer = asyncio.create_task(write())
    try:

        def run_and_kill(done: Callable[[], bool]) -> None:
            with job.running(now=False) as process:
                wait_until(process, done, job)

        # Once with a batch that is planned and not done, once between batches.
        await asyncio.to_thread(run_and_kill, lambda: job.planned > job.commits and job.planned >= 2)
        done = job.commits
        await asyncio.to_thread(run_and_kill, lambda: job.commits >= done + 2)
    finally:
        over.set()
        await writer
    await asyncio.to_thread(job.finish)
    assert sorted(job.values()) == bodies
