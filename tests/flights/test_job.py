import asyncio
from collections.abc import Callable

import pytest

from examples.flights.faults import FaultScript
from examples.flights.flights import Flight
from examples.flights.job import Job, JobOptions
from nsq_ha import Producer, ServerError
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import NoLeaderError


def job_of(
    cluster: DevCluster, topic: str, rows: list[Flight], tell: Callable[[str], None] = print, **options: float
) -> Job:
    return Job(cluster.lookupd, topic, rows, JobOptions(**options), tell=tell)  # type: ignore[arg-type]


async def test_everything_comes_through(cluster: DevCluster, topic: str, rows: list[Flight]) -> None:
    job = job_of(cluster, topic, rows, in_flight=50)
    await job.run()
    audit = job.audit
    assert audit.is_clean
    assert (audit.published, audit.acknowledged, audit.consumed, audit.keys) == (400, 400, 400, 40)
    assert set(audit.leaders) == {0, 1}
    assert job.has_ended


async def test_a_second_run_on_the_topic_is_not_disturbed_by_the_first(
    cluster: DevCluster, topic: str, rows: list[Flight]
) -> None:
    for _ in range(2):
        job = job_of(cluster, topic, rows[:50])
        await job.run()
        assert (job.audit.consumed, job.audit.repeated) == (50, 0)
        assert job.audit.is_clean


@pytest.mark.slow
async def test_messages_of_others_are_counted_apart(cluster: DevCluster, topic: str, rows: list[Flight]) -> None:
    job = job_of(cluster, topic, rows, rate=100)  # so slow that it runs on until the strangers' messages came
    async with Producer(lookupd=cluster.lookupd) as stranger:
        await stranger.publish(topic, b"before the job", key="x")  # connected: the job need not wait long
        running = asyncio.create_task(job.run())
        await job.reached(0.01)
        foreign = (b"no JSON", b'{"run":"no UTF-8: \xff"}', b'{"later":' + b"[" * 100_000)
        for body in foreign:
            await stranger.publish(topic, body, key="x")
        await stranger.publish(topic, b'{"run":"other","number":1,"key":"N1","sequence":0}', key="N1")
    await running
    assert job.audit.foreign == len(foreign) + 1
    assert job.audit.is_clean


async def test_faults_leave_every_key_in_order(cluster: DevCluster, topic: str, rows: list[Flight]) -> None:
    events: list[str] = []
    job = job_of(cluster, topic, rows, events.append, rate=80)  # so slow that it runs on long after the faults
    faults = FaultScript(cluster, job, tell=lambda text, _: events.append(text))
    script = asyncio.create_task(faults.run())
    await job.run()
    await script
    assert job.audit.is_clean
    assert (faults.leader_moves, faults.nodes_killed, faults.nodes_restarted) == (1, 1, 1)
    assert job.audit.leader_changes >= 1
    assert [line.split()[0] for line in events if not line.startswith("partition")] == ["moved", "killed", "started"]


STALL = 12
"""A busy machine has held up the first acknowledgements for more than 5 s."""


@pytest.mark.slow
async def test_a_job_that_moves_no_more_gives_up(cluster: DevCluster, topic: str, rows: list[Flight]) -> None:
    events: list[str] = []
    job = job_of(cluster, topic, rows, events.append, stall_limit=STALL, rate=1000)
    running = asyncio.create_task(job.run())
    await job.reached(0.2)
    cluster.refuse_writes()
    try:
        await running
    finally:
        cluster.refuse_writes(refuse=False)
    assert events[-1] == f"gave up: no progress for {STALL} s"
    assert 80 <= job.audit.acknowledged < 400
    assert not job.audit.is_clean
    assert job.audit.lost == 0
    # Counted from when the next publish was pending, which is after the last progress.
    assert job.audit.publish_stall.longest > STALL / 2


async def test_a_cancelled_job_wakes_its_script(cluster: DevCluster, topic: str, rows: list[Flight]) -> None:
    job = job_of(cluster, topic, rows, rate=10)  # the first fault is 6 s after the cancellation
    faults = FaultScript(cluster, job, tell=print)
    script = asyncio.create_task(faults.run())
    running = asyncio.create_task(job.run())
    await job.reached(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(5):
        await script
    assert (faults.leader_moves, faults.nodes_killed) == (0, 0)


@pytest.mark.slow
async def test_a_topic_that_cannot_be_subscribed_is_reported(cluster: DevCluster, rows: list[Flight]) -> None:
    with pytest.raises(NoLeaderError, match="could be subscribed within 1 s"):
        await job_of(cluster, "demo_nowhere", rows, stall_limit=1).run()


async def test_a_refused_subscription_ends_the_job(cluster: DevCluster, rows: list[Flight]) -> None:
    topic = cluster.create_topic("demo_registered", 1, 3, ordered=True, disable_channel_auto_create=True)
    with pytest.raises(ServerError, match="E_SUB_CHANNEL_NOT_REGISTERED"):
        await job_of(cluster, topic, rows, stall_limit=5).run()


async def test_errors_are_counted_and_reported(cluster: DevCluster, topic: str) -> None:
    events: list[str] = []
    rows = [Flight("N1", ("tailnum",), ("x" * 1024 * 1024,)), Flight("N1", ("tailnum",), ("y",))]
    job = job_of(cluster, topic, rows, events.append)
    await job.run()
    assert (job.audit.failed, job.audit.maybe_stored, job.audit.consumed) == (1, 0, 1)
    assert not job.audit.is_clean
    assert events[0].startswith("error: a message of ")
