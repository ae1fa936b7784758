"""Rows that stop on their way: a test says what happens while tasks are in the middle of their reads."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.cluster import ClusterUnderTest
from integration.jobs import Job, wait_until
from nsq_ha.admin import AdminClient
from nsq_ha.admin.nsqd_http import NsqdHttp
from nsq_ha.errors import NsqError

ROWS_A_STEP = "spark.sql.execution.arrow.maxRecordsPerBatch"


def run_held(job: Job, spark: SparkSession, happen: Callable[[], None]) -> None:
    """Run the job to its end; ``happen`` is called once, while tasks have given their first rows on and no more.

    What the server has to send must be more than fits into the sockets on the way: some dozen megabytes.
    """
    with _started(job, spark, now=True) as query:
        _wait_in(query, job.is_held)
        happen()
        job.let_go()
        assert query.awaitTermination(300), "the query does not come to its end"


@contextlib.contextmanager
def running_held(job: Job, spark: SparkSession) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """Run the job until the block ends; gives a way to wait. Tasks stop with their first rows as ``job.hold`` says."""
    with _started(job, spark, now=False) as query:
        yield lambda done: _wait_in(query, done)


@contextlib.contextmanager
def _started(job: Job, spark: SparkSession, *, now: bool) -> Iterator[StreamingQuery]:
    job.hold()
    # Else Spark gathers all that there is before it gives the first rows on.
    spark.conf.set(ROWS_A_STEP, "20")
    try:
        query = job.start(spark, now=now)
        try:
            yield query
        finally:
            query.stop()
    finally:
        spark.conf.unset(ROWS_A_STEP)


def _wait_in(query: StreamingQuery, done: Callable[[], bool]) -> None:
    """Wait for something that happens while a query runs."""
    wait_until(lambda: done() or not query.isActive)
    assert query.isActive, str(query.exception())


def delete_channels(cluster: ClusterUnderTest, topic: str) -> int:
    """Delete the channels of all that reads a topic; gives how many there were."""

    async def delete() -> int:
        async with AdminClient(cluster.lookupd) as admin:
            description = await admin.describe(topic)
        count = 0
        for part in description.partitions:
            if part.leader is None or part.stats is None:
                continue
            async with NsqdHttp(part.leader) as nsqd:
                for channel in part.stats.channels:
                    # It may have gone by itself.
                    with contextlib.suppress(NsqError):
                        await nsqd.change_channel("delete", topic, part.partition, channel.name)
                        count += 1
        return count

    return asyncio.run(delete())
