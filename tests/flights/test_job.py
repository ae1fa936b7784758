from examples.flights.flights import Flight
from examples.flights.job import Job, JobOptions
from nsq_ha.devcluster import DevCluster


async def test_errors_are_counted_and_reported(cluster: DevCluster, topic: str) -> None:
    events: list[str] = []
    rows = [Flight("N1", ("tailnum",), ("x" * 1024 * 1024,)), Flight("N1", ("tailnum",), ("y",))]
    job = Job(cluster.lookupd, topic, rows, JobOptions(), tell=events.append)
    await job.run()
    assert (job.audit.failed, job.audit.maybe_stored, job.audit.consumed) == (1, 0, 1)
    assert not job.audit.is_clean
    assert events[0].startswith("error: a message of ")
