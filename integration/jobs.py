"""A stream as a program of its own, and writers beside it, for tests that kill the one or the servers of both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from nsq_ha import OutgoingMessage, Producer, Receipt

JOB = Path(__file__).with_name("spark_job.py")
LIMIT = 300.0
"""Seconds; generous, since starting Spark alone takes a minute on a busy machine."""


class Job:
    """The program, and where its files are."""

    def __init__(self, topic: str, folder: Path, **options: str) -> None:
        self.out = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self.options = {"topic": topic, "fetchTimeout": "2s", **options}
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
        """Read what there is now, in large batches, and end."""
        self.options["maxOffsetsPerTrigger"] = "200000"
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
        """Bodies, in order."""
        return sorted(row[2] for row in self.rows())

    def rows(self) -> list[tuple[int, int, bytes]]:
        """Partition, offset and body of what the sink has committed; files of broken batches lie beside it."""
        names: set[str] = set()
        for log in sorted((self.out / "_spark_metadata").glob("*")):
            if log.name.isdigit() or log.name.endswith(".compact"):
                for line in log.read_text().splitlines()[1:]:
                    names.add(json.loads(line)["path"])
        found: list[tuple[int, int, bytes]] = []
        for name in sorted(names):
            table: Any = pq.read_table(name.removeprefix("file://"))
            found += zip(*(table.column(each).to_pylist() for each in ("partition", "offset", "value")), strict=True)
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


async def publish(lookupd: Sequence[str], topic: str, bodies: list[bytes]) -> None:
    async with Producer(lookupd=lookupd) as producer:
        for start in range(0, len(bodies), 1000):
            lot = bodies[start : start + 1000]
            told = await producer.publish_many(topic, [OutgoingMessage(body, key=body) for body in lot])
            assert all(isinstance(receipt, Receipt) for receipt in told)


@contextlib.asynccontextmanager
async def live_writer(topic: str, **servers: Any) -> AsyncIterator[list[bytes]]:  # noqa: ANN401 - of the Producer
    """Publish while the block runs, through whatever comes; gives the bodies that are certainly stored."""
    stored: list[bytes] = []
    over = asyncio.Event()

    async def write() -> None:
        number = 0
        async with Producer(publish_timeout=120.0, **servers) as producer:
            while not over.is_set():
                lot = [b"%07d" % each for each in range(number, number + 50)]
                number += 50
                told = await producer.publish_many(topic, [OutgoingMessage(body, key=body) for body in lot])
                assert all(isinstance(receipt, Receipt) for receipt in told), told[0]
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
