"""The memory of a reading task: bounded, whatever the size of the messages."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.cluster import ClusterUnderTest
from nsq_ha import OutgoingMessage, Producer
from nsq_ha.spark.connection import IN_FLIGHT_BYTES
from nsq_ha.spark.read.range_reader import BATCH_BYTES

pytestmark = pytest.mark.timeout(900)

JOB = Path(__file__).with_name("memory_job.py")
MEGABYTE = 1024 * 1024
LARGEST = MEGABYTE - 1024
"""Near the server's limit for one message."""


@pytest.mark.few(1)
@pytest.mark.parametrize(("size", "count"), [(LARGEST, 300), (200, 100_000)], ids=["1 MB", "200 B"])
async def test_a_task_keeps_what_is_under_way_and_one_batch(
    cluster: ClusterUnderTest, producer: Producer, capsys: pytest.CaptureFixture[str], size: int, count: int
) -> None:
    topic = await asyncio.to_thread(cluster.create_topic, 1, 1)
    step = max(1, min(1000, 4 * MEGABYTE // size))
    for start in range(0, count, step):
        await producer.publish_many(topic, [OutgoingMessage(bytes(size))] * min(step, count - start))
    given = {"lookupd": ",".join(cluster.lookupd), "topic": topic}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(JOB), json.dumps(given)],
        capture_output=True,
        check=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(JOB.parents[1])},
    )
    found = json.loads(done.stdout)
    assert found["rows"] >= count
    with capsys.disabled():
        sys.stdout.write(f"\n{count} x {size} B: {found['before'] >> 20} MiB before, {found['grown'] >> 20} more\n")
    # What is in flight, and a batch as messages, as Arrow and as what it is copied from while it grows; the allocator
    # keeps as much again. With 1 MB a message that is less than what was read.
    assert found["grown"] < 2 * (IN_FLIGHT_BYTES + 4 * BATCH_BYTES)
