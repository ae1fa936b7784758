"""A topic's log as the replay reads it, for tests to compare with; no Spark runs here."""

import asyncio
import sys
from collections.abc import Callable

from integration.cluster import ClusterUnderTest
from integration.jobs import Job
from nsq_ha.message import Message
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range, plan
from nsq_ha.spark.read.range_reader import RangeReader
from tests.support.spark_rows import delivered

Rows = dict[Range, list[Message]]


def replay(lookupd: tuple[str, ...], topic: str, between: Callable[[Range], None] | None = None, **more: str) -> Rows:
    """Read a whole topic, blocking; ``between`` is called once a partition, after its first portion."""
    given = {"lookupd": ",".join(lookupd), "topic": topic, "arrowBatchRows": "100", **more}
    options = ReadOptions.parse(given)
    rows: Rows = {}
    with BlockingCluster(options.lookupd) as cluster:
        for part in plan(options, cluster):
            rows[part] = []
            for batch in delivered(RangeReader(part, options, cluster)):
                if between is not None and not rows[part]:
                    between(part)
                rows[part] += batch
    return rows


def is_fresh(cluster: ClusterUnderTest, topic: str) -> bool:
    """Tell whether the newest message of a partition cannot be found yet; one that changes its leader is left out."""
    with BlockingCluster(cluster.lookupd) as asked:
        leaders = asked.view(topic).leaders
        extents = {each: asked.extents(topic, node).get(each) for each, node in leaders.items()}
        newest = {each: extent.messages for each, extent in extents.items() if extent is not None}
        return any(asked.stored(topic, each, leaders[each], "count", number) is None for each, number in newest.items())


def assert_chains(rows: Rows) -> None:
    for part, messages in rows.items():
        position = part.start
        for message in messages:
            assert (message.offset, message.raw_size is not None) == (position, True)
            position += message.raw_size or 0
        assert position == part.end


def of(cluster: ClusterUnderTest) -> dict[str, str]:
    """Return the options of a stream of all that a cluster has of its topic."""
    return {"lookupd": ",".join(cluster.lookupd), "startingOffsets": "earliest"}


async def assert_all_and_each_once(cluster: ClusterUnderTest, topic: str, job: Job, stored: list[bytes]) -> None:
    """Compare what a stream gave with what a live writer stored, and with the log."""
    values = job.values()
    sys.stdout.write(f"{len(stored)} messages, {len(values)} rows, {job.commits} batches\n")
    assert sorted(set(values)) == stored
    await assert_each_once(cluster, topic, job)


async def assert_each_once(cluster: ClusterUnderTest, topic: str, job: Job) -> None:
    """Compare what a stream gave with the log: a publish in doubt may be stored twice, and each is one row then."""
    log = await asyncio.to_thread(replay, cluster.lookupd, topic)
    assert_chains(log)
    wanted = [(row.partition, row.offset, row.body) for messages in log.values() for row in messages]
    assert sorted(job.rows()) == sorted(wanted)
