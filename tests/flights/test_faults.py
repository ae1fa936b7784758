"""The script of faults against a cluster that only notes what is done to it."""

import pytest

from examples.flights import faults
from examples.flights.faults import FaultScript
from examples.flights.job import Job, JobOptions


class Notes:
    """Stands in for a cluster."""

    def __init__(self, leader: str | None = "nsqd-0") -> None:
        self.done: list[str] = []
        self._leader = leader

    def leader(self, topic: str, partition: int, /) -> str | None:
        return self._leader

    def move_leader(self, topic: str, partition: int, /) -> str:
        self.done.append(f"move {topic}-{partition}")
        return "nsqd-1"

    def kill(self, name: str, /) -> None:
        self.done.append(f"kill {name}")

    def start(self, name: str, /) -> None:
        self.done.append(f"start {name}")


class Told:
    """The texts of the events, and the names of their marks."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.marks: list[str] = []

    def __call__(self, text: str, mark: str = "", /) -> None:
        self.texts.append(text)
        self.marks.append(mark)


def job_at(share: float) -> Job:
    job = Job([], "flights", [], JobOptions(), tell=print)
    job.audit.total = 100
    job.audit.acknowledged = round(share * 100)
    return job


async def test_each_step_waits_for_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "RESTART_LIMIT", 0.01)
    cluster, told = Notes(), Told()
    await FaultScript(cluster, job_at(0.6), tell=told).run()  # type: ignore[arg-type]  # what it uses of a cluster
    assert cluster.done == ["move flights-1", "kill nsqd-0", "start nsqd-0"]
    assert told.texts == [
        "moved the leader of partition 1: nsqd-0 -> nsqd-1",
        "killed nsqd-0, which led partition 0",
        "started nsqd-0 again",
    ]
    assert told.marks == ["leader 1 moved", "nsqd-0 killed", "nsqd-0 started"]


async def test_nobody_is_killed_where_nobody_leads() -> None:
    cluster, told = Notes(leader=None), Told()
    run = FaultScript(cluster, job_at(1.0), tell=told)  # type: ignore[arg-type]
    await run.run()
    assert run.nodes_killed == 0
    assert told.texts[-1] == "partition 0 has no leader to kill"
