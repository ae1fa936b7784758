"""A stream, here or as a program of its own, and writers beside it, for tests of what happens to either."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.cluster import ClusterUnderTest
from integration.spark_job import begin
from nsq_ha import OutgoingMessage, Producer, Receipt
from nsq_ha.spark.checkpoint import undated
from tests.support.spark_queries import STARTS, TOO_SLOW, run_to_end

JOB = Path(__file__).with_name("spark_job.py")
LIMIT = 300.0
"""Seconds; generous, since starting Spark alone takes a minute on a busy machine."""

GIVEN_ON = 15.0
"""Seconds after which what a held task of a sink has given on is stored, or will not be."""


class Job:
    """The stream, and where its files are. It is run in this process, or as a program that may be killed."""

    def __init__(self, topic: str, folder: Path, **options: str) -> None:
        self.topic = topic
        self.folder = folder
        self.options = {"topic": topic, "fetchTimeout": "2s", **options}
        self.sink: dict[str, str] | None = None
        # How much the topic of the sink holds. A task of a sink has given rows on when they are there.
        self.count: Callable[[], int] = lambda: 1
        self._counted = 0
        self._held_at = 0.0
        folder.mkdir(exist_ok=True)

    def start(self, spark: SparkSession, *, now: bool) -> StreamingQuery:
        """Run it here."""
        return begin(spark, self.options, str(self.folder), now=now, sink=self.sink)

    def drain(self, spark: SparkSession) -> list[dict[str, Any]]:
        """Read what there is now, here; gives the progress of each batch that had rows."""
        return run_to_end(lambda: self.start(spark, now=True))

    def finish(self, spark: SparkSession) -> None:
        """Read what there is now, in large batches."""
        self.options["maxOffsetsPerTrigger"] = "200000"
        self.drain(spark)

    def is_held(self) -> bool:
        """Tell whether a task waits with the first of its rows; see ``spark_job``."""
        if not (self.folder / "held").exists():
            return False
        self._held_at = self._held_at or time.monotonic()
        # What a task has given on may wait in a buffer of Spark's until it gives more.
        return self.count() > self._counted or time.monotonic() - self._held_at > GIVEN_ON

    def hold(self) -> None:
        """Have the tasks of the next run wait, until they are killed or :meth:`let_go`."""
        self._held_at = 0.0
        self._counted = self.count() if self.sink is not None else 0
        (self.folder / "hold").touch()
        (self.folder / "held").unlink(missing_ok=True)

    def let_go(self) -> None:
        """Let the tasks go on."""
        (self.folder / "hold").unlink()

    @contextlib.contextmanager
    def running(self, spark: SparkSession) -> Iterator[Callable[[], None]]:
        """Run it here, until the block ends; gives a function that waits until some batches more are done."""
        query = self.start(spark, now=False)

        def check() -> None:
            assert query.exception() is None, str(query.exception())
            assert query.isActive

        def batches() -> None:
            done = self.commits
            wait_until(lambda: self.commits >= done + 3, check)

        try:
            batches()
            yield batches
        finally:
            query.stop()

    @property
    def commits(self) -> int:
        """Micro-batches that are done."""
        return _batches(self.folder / "checkpoint" / "commits")

    @property
    def planned(self) -> int:
        """Micro-batches that were begun."""
        return _batches(self.folder / "checkpoint" / "offsets")

    def forget(self) -> None:
        """Have the checkpoint not know that its last micro-batch is done, as after a driver that died just then."""
        folder = self.folder / "checkpoint" / "commits"
        last = str(self.commits - 1)
        (folder / last).unlink()
        (folder / f".{last}.crc").unlink(missing_ok=True)

    def ends(self) -> list[dict[str, int]]:
        """Return where each micro-batch ends, by partition, in their order; Spark deletes the files of old ones."""
        found = self.folder / "checkpoint" / "offsets"
        entries = sorted((path for path in found.glob("*") if path.name.isdigit()), key=lambda path: int(path.name))
        each = [undated(json.loads(path.read_text().splitlines()[-1])) for path in entries]
        return [next(iter(offsets.values())) for offsets in each]

    def values(self) -> list[bytes]:
        """Bodies, in order."""
        return sorted(row[2] for row in self.rows())

    def rows(self) -> list[tuple[int, int, bytes]]:
        """Partition, offset and body of what the sink has committed; files of broken batches lie beside it."""
        return [row for files in self.batches() for rows in files for row in rows]

    def batches(self) -> list[list[list[tuple[int, int, bytes]]]]:
        """Return the same by micro-batch and file, in the order of Spark's log."""
        logs = [path for path in (self.folder / "out" / "_spark_metadata").glob("*") if path.stem.isdigit()]
        named: dict[str, None] = {}
        found = []
        for log in sorted(logs, key=lambda path: (int(path.stem), path.suffix)):
            # A compact one repeats all earlier ones.
            each = [json.loads(line)["path"] for line in log.read_text().splitlines()[1:]]
            found.append([_table(name) for name in each if name not in named])
            named |= dict.fromkeys(each)
        return found


def _table(name: str) -> list[tuple[int, int, bytes]]:
    table: Any = pq.read_table(name.removeprefix("file://"))
    return list(zip(*(table.column(each).to_pylist() for each in ("partition", "offset", "value")), strict=True))


def begun(streams: str, log: Path) -> subprocess.Popen[bytes]:
    """Start the program of some jobs, in a process group of its own; it adds to the log."""
    with log.open("a") as output:
        return subprocess.Popen(
            [sys.executable, str(JOB), streams],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(JOB.parents[1])},
            start_new_session=True,
        )


@contextlib.contextmanager
def running(*jobs: Job) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Run jobs in a program of its own, which is killed at the end with all its processes; gives a way to wait."""
    asked = [{"options": job.options, "folder": str(job.folder), "sink": job.sink} for job in jobs]
    log = jobs[0].folder / "log"
    said_before = len(log.read_text()) if log.exists() else 0
    process = begun(json.dumps(asked), log)
    starts = 1

    def check() -> None:
        nonlocal process, starts, said_before
        if process.poll() is None:
            return
        said = log.read_text()
        # Whole stack traces: Spark's are long, and the cause stands above what ended the program.
        assert TOO_SLOW in said[said_before:], said[-40_000:]
        assert starts < STARTS, said[-40_000:]
        starts, said_before = starts + 1, len(said)
        kill_all_of(process)
        process = begun(json.dumps(asked), log)

    try:
        yield lambda done: wait_until(done, check)
    finally:
        kill_all_of(process)


def kill_all_of(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and the processes that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def _batches(folder: Path) -> int:
    """How many there were; Spark deletes the files of old ones."""
    return max((int(path.name) + 1 for path in folder.glob("*") if path.name.isdigit()), default=0)


def wait_until(done: Callable[[], bool], check: Callable[[], None] = lambda: None) -> None:
    """Block until ``done``; ``check`` raises when there is nothing to wait for any more."""
    until = time.monotonic() + LIMIT
    while not done():
        check()
        assert time.monotonic() < until, "it takes too long"
        threading.Event().wait(0.02)


async def numbered_topic(cluster: ClusterUnderTest, count: int) -> str:
    """Create a topic of two partitions that holds ``count`` numbered messages, half in each."""
    topic = await asyncio.to_thread(cluster.create_topic, 2, 2)
    async with Producer(lookupd=cluster.lookupd) as producer:
        sent = [OutgoingMessage(b"%06d" % number, partition=number % 2) for number in range(count)]
        assert all(isinstance(receipt, Receipt) for receipt in await producer.publish_many(topic, sent))
    return topic


async def publish(lookupd: Sequence[str], topic: str, bodies: list[bytes]) -> None:
    async with Producer(lookupd=lookupd) as producer:
        for start in range(0, len(bodies), 1000):
            lot = bodies[start : start + 1000]
            receipts = await producer.publish_many(topic, [OutgoingMessage(body, key=body) for body in lot])
            assert all(isinstance(receipt, Receipt) for receipt in receipts)


@contextlib.asynccontextmanager
async def live_writer(topic: str, **servers: Any) -> AsyncIterator[list[bytes]]:  # noqa: ANN401 - of the Producer
    """Publish while the block runs, through whatever comes; gives the bodies that are certainly stored."""
    stored: list[bytes] = []
    over = asyncio.Event()
    keyed = "nsqd" not in servers  # a plain nsqd has no partitions

    async def write() -> None:
        number = 0
        async with Producer(publish_timeout=120.0, **servers) as producer:
            while not over.is_set():
                lot = [b"%07d" % each for each in range(number, number + 50)]
                number += 50
                receipts = await producer.publish_many(
                    topic, [OutgoingMessage(body, key=body if keyed else None) for body in lot]
                )
                assert all(isinstance(receipt, Receipt) for receipt in receipts), receipts[0]
                stored.extend(lot)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await over.wait()

    writer = asyncio.create_task(write())
    try:
        yield stored
    finally:
        over.set()
        await writer
