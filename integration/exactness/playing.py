"""Play one scenario on a cluster: publish, query, kill, publish, query, and compare."""

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.processes import workers
from integration.cluster import NODE_VARIABLE, ClusterUnderTest, TopicOptions, replace_leader
from integration.exactness.log import log_of
from integration.exactness.scenario import PARTITIONS, Scenario, SinkScenario
from integration.exactness.verdict import Row, Verdict, judge
from integration.exactness.writer import Writer
from integration.holding import run_held, running_held
from integration.jobs import Job, running, wait_until
from integration.replays import is_fresh, of
from nsq_ha.admin import AdminClient
from nsq_ha.admin.nsqd_http import NsqdHttp
from nsq_ha.policy.topology import Node
from nsq_ha.spark.cluster import BlockingCluster
from tests.support.spark_queries import TOO_SLOW

SYNC_EVERY: Final = 100_000
"""Messages that may wait unflushed; more than a run publishes."""
REPLICAS: Final = 3
Trouble = Callable[[Job, "SparkSession", "ClusterUnderTest"], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run.

    Attributes:
        scenario: What was done.
        verdict: What is wrong.
        acknowledged: Messages whose publish succeeded.
        stored: Messages of the log; more if a publish in doubt is there twice.
        rows: Rows of the stream.
        batches: Its micro-batches.
        fresh: Whether the server could not find the newest message when the last query began.
        seconds: For all.
    """

    scenario: Scenario | SinkScenario
    verdict: Verdict
    acknowledged: int
    stored: int
    rows: int
    batches: int
    fresh: bool
    seconds: float


def obstacle(scenario: Scenario | SinkScenario, cluster: ClusterUnderTest, *, is_real: bool) -> str:
    """Say why a scenario cannot be played; empty if it can."""
    kills = scenario.fault in ("leader", "follower")
    if kills and is_real and not os.environ.get(NODE_VARIABLE):
        return f"killing a {scenario.fault} needs {NODE_VARIABLE}"
    if kills and cluster.nodes < REPLICAS:
        return f"killing a {scenario.fault} needs {REPLICAS} nsqds"
    if scenario.fault == "worker" and not Path("/proc/self/stat").exists():
        return "killing a worker needs /proc"
    return ""


async def play(scenario: Scenario, cluster: ClusterUnderTest, spark: SparkSession, folder: Path) -> Result:
    """Play a scenario with a topic of its own."""
    began = time.monotonic()
    options: TopicOptions = {"ordered": scenario.kind == "ordered", "extended": scenario.kind == "extended"}
    if scenario.fresh:
        options["sync_every"] = SYNC_EVERY
    topic = await asyncio.to_thread(cluster.create_topic, PARTITIONS, REPLICAS, **options)
    job = Job(topic, folder, **of(cluster), **scenario.options, arrowBatchRows="50", fetchRetries="60")
    async with Writer(scenario, topic, cluster.lookupd) as writer:
        await writer.write(scenario.messages, scenario.lot)
        async with writer.writing():
            await asyncio.to_thread(trouble(scenario), job, spark, cluster)
        await writer.write(scenario.fresh, 1)
        fresh = await asyncio.to_thread(is_fresh, cluster, topic)
        await asyncio.to_thread(job.drain, spark)
        acknowledged = writer.acknowledged
    log = await asyncio.to_thread(whole_log, cluster, topic)
    batches = job.batches()
    return Result(
        scenario=scenario,
        verdict=judge(acknowledged, log, batches, cut=bool(scenario.cut)),
        acknowledged=len(acknowledged),
        stored=len(log),
        rows=sum(len(rows) for files in batches for rows in files),
        batches=job.commits,
        fresh=fresh,
        seconds=time.monotonic() - began,
    )


# ---------------------------------------------------------------- faults


def _nothing(job: Job, spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """Let a query come to its end while messages are published; another one goes on behind it."""
    job.drain(spark)


def _repeat(job: Job, spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """Let a query come to its end, and forget that its last micro-batch is done: the next one repeats it."""
    job.drain(spark)
    job.forget()


def _kill_workers(job: Job, spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """Kill the workers in the middle of their tasks."""

    def kill() -> None:
        found = workers()
        assert found, "no worker to kill"
        for worker in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)

    try:
        run_held(job, spark, kill)
    except Exception as error:
        # Spark gave a new worker too little time to start; the next query goes on from the checkpoint.
        if TOO_SLOW not in str(error):
            raise


def _kill_driver_early(job: Job, spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """Kill a driver in the middle of its first micro-batch."""
    job.hold()
    with running(job) as wait:
        wait(job.is_held)
    job.let_go()


def _kill_driver_late(job: Job, spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """Kill a driver in a later micro-batch, which is planned and not committed."""
    with running(job) as wait:
        wait(lambda: job.planned > job.commits >= 1)


def _kill_leader(job: Job, spark: SparkSession, cluster: ClusterUnderTest, *, after: int) -> None:
    """Kill the leader of a partition while tasks are in the middle, and start it when another node leads.

    Some micro-batches are done before: ``after``.

    What the stopped tasks have not read yet, and the ranges of tasks that have not begun, can only come from the next
    leader.
    """
    with running_held(job, spark) as wait:
        wait(job.is_held)
        if after:
            job.let_go()
            wait(lambda: job.commits >= after)
            job.hold()
            wait(job.is_held)
        assert job.planned > job.commits
        replace_leader(cluster, job.topic, 0, job.let_go)
        done = job.commits
        wait(lambda: job.commits >= done + 3)


def _kill_follower(job: Job, spark: SparkSession, cluster: ClusterUnderTest) -> None:
    """Kill a node that only follows, and start it when micro-batches end behind what its leader could not commit.

    Until the leader does without it, for some 20 s, what is published is written and not committed.
    """
    with running(job) as wait:
        wait(lambda: job.commits >= 1)
        leaders = {cluster.leader(job.topic, partition) for partition in range(PARTITIONS)}
        held = asyncio.run(_holders(cluster, job.topic))
        follower = next((each for each in held if each not in leaders), None) or held[-1]
        cluster.kill_node(follower)
        try:
            done = job.commits
            wait(lambda: job.commits >= done + 3)
            cluster.await_writable()
        finally:
            cluster.start_node(follower)
        done = job.commits
        wait(lambda: job.commits >= done + 1)


async def _holders(cluster: ClusterUnderTest, topic: str) -> list[str]:
    """Return the TCP addresses of the nodes that hold partition 0, its leader first."""
    async with AdminClient(cluster.lookupd) as admin:
        leader = (await admin.describe(topic)).view.leaders[0]
    async with NsqdHttp(leader) as nsqd:
        parts = [each.split(":") for each in await nsqd.replicas(topic, 0)]
    return sorted((f"{host}:{port}" for host, _, port, *_ in parts), key=lambda each: each != leader.address)


def trouble(scenario: Scenario | SinkScenario) -> Trouble:
    """Return what runs the first query of a scenario."""
    driver = _kill_driver_early if scenario.early else _kill_driver_late
    leader = functools.partial(_kill_leader, after=0 if scenario.early else 2)
    faults: dict[str, Trouble] = {
        "none": _nothing,
        "repeat": _repeat,
        "worker": _kill_workers,
        "driver": driver,
        "leader": leader,
        "follower": _kill_follower,
    }
    return faults[scenario.fault]


# ---------------------------------------------------------------- the log


def whole_log(cluster: ClusterUnderTest, topic: str) -> list[Row]:
    """Ask the leaders for each message by its number: nothing of the reader under test has a part in that."""
    leaders, newest = _extents(cluster, topic)
    return [
        row
        for partition, node in leaders.items()
        for row in log_of(node.host, node.http_port, topic, partition, newest[partition])
    ]


def _extents(cluster: ClusterUnderTest, topic: str) -> tuple[dict[int, Node], dict[int, int]]:
    """Return leaders and numbers of the newest messages, by partition, once these can be found."""
    wait_until(lambda: not is_fresh(cluster, topic))
    newest: dict[int, int] = {}
    with BlockingCluster(cluster.lookupd) as asked:

        def is_known() -> bool:
            leaders = asked.view(topic).leaders
            found = {number: asked.extents(topic, node).get(number) for number, node in leaders.items()}
            newest.update({number: each.messages for number, each in found.items() if each is not None})
            return len(newest) == PARTITIONS

        wait_until(is_known)  # an nsqd may have lost a partition that the nsqlookupds still name
        return dict(asked.view(topic).leaders), newest
