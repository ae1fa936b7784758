import asyncio
from collections.abc import Callable

from examples.flights.faults import FaultScript
from examples.flights.flights import Flight
from examples.flights.job import Job, JobOptions
from nsq_ha.devcluster import DevCluster


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


async def test_errors_are_counted_and_reported(cluster: DevCluster, topic: str) -> None:
    events: list[str] = []
    rows = [Flight("N1", ("tailnum",), ("x" * 1024 * 1024,)), Flight("N1", ("tailnum",), ("y",))]
    job = job_of(cluster, topic, rows, events.append)
    await job.run()
    assert (job.audit.failed, job.audit.maybe_stored, job.audit.consumed) == (1, 0, 1)
    assert not job.audit.is_clean
    assert events[0].startswith("error: a message of ")
