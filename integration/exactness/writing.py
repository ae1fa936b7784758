"""Play one scenario that writes to a topic: rows of a topic or of files, faults, and what the topic holds at last.

What is written twice is in the topic twice, with the same id, so the rows are compared after ``drop_repeats``: each
body as often as in the source, and the bodies of each key in its order.
"""

import asyncio
import collections
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from integration.cluster import ClusterUnderTest, TopicOptions
from integration.exactness.playing import Result, trouble, whole_log
from integration.exactness.scenario import PARTITIONS, SinkScenario
from integration.exactness.verdict import Row, Verdict, described
from integration.exactness.writer import Writer
from integration.jobs import Job
from integration.replays import of
from nsq_ha import OutgoingMessage
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.functions import drop_repeats

KEYS: Final = 20
"""An even number, so that all messages of a key are in one partition of the source."""
REPLICAS: Final = 3
APART: Final = 7.0
"""Seconds between two topics: one that is created soon after another may stay without leaders for long, so time
itself is waited for."""


class KeyedWriter(Writer):
    """Publishes messages with a key, some of which equal the one before of their key: they are still two rows."""

    pause: ClassVar[float] = 1.0  # each message is asked for twice, in the source and where it went

    def _next(self) -> OutgoingMessage:
        number, self._number = self._number, self._number + 1
        turn = number // KEYS
        shown = number - KEYS if turn % 7 == 3 else number
        size = self._chance.randrange(self._scenario.largest - 11) if shown == number else self._sizes[shown % KEYS]
        self._sizes[number % KEYS] = size
        return OutgoingMessage(b"%03d %07d" % (number % KEYS, shown) + b"x" * size, partition=number % PARTITIONS)

    def __init__(self, scenario: SinkScenario, topic: str, lookupd: Sequence[str]) -> None:
        super().__init__(scenario, topic, lookupd)
        self._sizes = [0] * KEYS


class FileWriter(KeyedWriter):
    """Writes such messages to Parquet files, of which Spark reads the older ones first."""

    def __init__(self, scenario: SinkScenario, folder: Path) -> None:
        super().__init__(scenario, "", ("http://127.0.0.1:1",))
        self._folder = folder
        self._began = time.time() - 100_000
        self._files = 0
        folder.mkdir()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    async def _publish(self, messages: list[OutgoingMessage]) -> None:
        first = len(self.acknowledged)
        bodies = [each.body for each in messages]
        table = pa.table({"number": pa.array(range(first, first + len(bodies)), pa.int64()), "value": bodies})
        # Spark takes no file whose name begins so.
        unfinished = self._folder / "_unfinished"
        pq.write_table(table, unfinished)
        self._files += 1
        os.utime(unfinished, (self._began + self._files,) * 2)
        unfinished.rename(self._folder / f"{self._files:06}.parquet")
        self.acknowledged += [(each.partition or 0, each.body) for each in messages]


async def play_sink(scenario: SinkScenario, cluster: ClusterUnderTest, spark: SparkSession, folder: Path) -> Result:
    """Play a scenario with topics of its own."""
    began = time.monotonic()
    options: TopicOptions = {"ordered": scenario.kind == "ordered", "extended": scenario.kind == "extended"}
    source, writer = "", None
    if scenario.source == "nsq":
        source = await asyncio.to_thread(cluster.create_topic, PARTITIONS, REPLICAS)
        writer = KeyedWriter(scenario, source, cluster.lookupd)
        await asyncio.sleep(APART)
    target = await asyncio.to_thread(cluster.create_topic, PARTITIONS, REPLICAS, **options)
    files = folder / "files"
    job = Job(source, folder / "job", **of(cluster), maxOffsetsPerTrigger=str(scenario.limit), fetchRetries="60")
    job.topic = target
    job.count = lambda: _count(cluster, target)
    job.sink = {"lookupd": ",".join(cluster.lookupd), "topic": target, "partitions": str(PARTITIONS)}
    if scenario.way == "batches":
        job.sink["tasks"] = str(scenario.tasks[0])
    if scenario.source == "parquet":
        job.sink |= {"path": str(files), "files": str(scenario.limit)}
        writer = FileWriter(scenario, files)
    assert writer is not None
    async with writer:
        await writer.write(scenario.messages, scenario.lot if scenario.source == "nsq" else max(scenario.lot, 50))
        async with writer.writing():
            await asyncio.to_thread(trouble(scenario), job, spark, cluster)
        if scenario.way == "batches":
            job.sink["tasks"] = str(scenario.tasks[1])
        job.sink["files"] = "1000"
        await asyncio.to_thread(job.finish, spark)
        acknowledged = writer.acknowledged
    given = acknowledged
    if source:
        # A publish in doubt may be in the source twice; then it is two rows.
        given = [(partition, body) for partition, _, body in await asyncio.to_thread(whole_log, cluster, source)]
    log = await asyncio.to_thread(whole_log, cluster, target)
    kept = await asyncio.to_thread(_kept, spark, cluster, target)
    return Result(
        scenario=scenario,
        verdict=judge_sink([body for _, body in given], log, kept),
        acknowledged=len(given),
        stored=len(log),
        rows=len(kept),
        batches=job.commits,
        fresh=False,
        seconds=time.monotonic() - began,
    )


def _count(cluster: ClusterUnderTest, topic: str) -> int:
    """Return how many messages the leaders of a topic hold."""
    with BlockingCluster(cluster.lookupd) as asked:
        return sum(asked.extents(topic, node)[each].messages for each, node in asked.view(topic).leaders.items())


def _kept(spark: SparkSession, cluster: ClusterUnderTest, topic: str) -> list[Row]:
    """Return the rows of a topic, without those that are there again."""
    frame = spark.read.format("nsq").options(lookupd=",".join(cluster.lookupd), topic=topic).load()
    rows = drop_repeats(frame).select("partition", "offset", "value").collect()
    return sorted((row.partition, row.offset, bytes(row.value)) for row in rows)


def judge_sink(source: Sequence[bytes], log: Sequence[Row], kept: Sequence[Row]) -> Verdict:
    """Compare.

    Args:
        source: The bodies of the source, those of each key in its order.
        log: What the topic holds.
        kept: The rows of the topic without repeats, in the order of each partition's log.
    """
    wanted, found = collections.Counter(source), collections.Counter(body for _, _, body in kept)
    stored = {body for _, _, body in log}
    orders = [_by_key(source), _by_key(body for _, _, body in kept)]
    return described(
        {
            "lost": list((wanted - found).elements()),
            "missing": [body for body in wanted if body not in stored],
            "foreign": list[object](set(kept) - set(log)) + [body for body in stored if body not in wanted],
            "repeated": list((found - wanted).elements()),
            "disordered": [key for key in orders[0] if orders[0][key] != orders[1].get(key)],
        }
    )


def _by_key(bodies: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = collections.defaultdict(list)
    for body in bodies:
        found[body[:3]].append(body)
    return found
