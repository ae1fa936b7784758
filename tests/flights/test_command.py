import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from examples.flights.audit import Audit
from examples.flights.spark_step import SparkReport
from examples.flights.stage import Demo, Report
from nsq_ha.devcluster import DevCluster
from tests.flights.conftest import Invoke
from tests.support.ports import nobody_listens

KEYS = {
    "ok",
    "published",
    "acknowledged",
    "consumed",
    "lost",
    "out_of_order",
    "repeated",
    "errors",
    "longest_publish_stall",
    "longest_consume_stall",
    "messages_per_second",
    "partitions",
    "leader_moves",
    "nodes_killed",
    "spark",
}


def audit_of(consumed: Iterable[int] = (1, 2, 3), *, failed: int = 0) -> Audit:
    """Books of 3 messages of one key."""
    audit = Audit(3)
    for now in range(3):
        number = audit.publish(now)
        if number <= failed:
            audit.fail(number, now, maybe_stored=False)
        else:
            audit.acknowledge(number, 0, "127.0.0.1:4150", now)
    for number in consumed:
        audit.consume(number, "N1", number - 1, 3)
    return audit


def report_of(audit: Audit, spark: SparkReport | None = None, **rest: Any) -> Report:  # noqa: ANN401
    return Report(audit, "flights", True, 4, 3, None, [], spark, **rest)


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """Put the report here that the demo is to end with."""
    reports: list[Report] = []

    async def run(self: Demo) -> Report:
        return reports[0]

    monkeypatch.setattr(Demo, "run", run)
    return reports


@pytest.mark.usefixtures("few_flights")
def test_on_a_cluster_it_ends_with_one_json_line(invoke: Invoke, cluster: DevCluster) -> None:
    done = invoke("--lookupd", cluster.lookupd[0], "--no-spark", "--json", "--months", "1-2", "--rate", "5000")
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert set(result) >= KEYS
    assert (result["ok"], result["published"], result["consumed"], result["lost"]) == (True, 800, 800, 0)
    assert (result["cluster"], result["leader_moves"], result["nodes_killed"]) == ("real", 0, 0)
    assert "created ordered topic nsq_ha_demo_" in done.stderr


@pytest.mark.usefixtures("few_flights")
def test_on_an_embedded_cluster_it_prints_a_table_and_its_events(invoke: Invoke) -> None:
    done = invoke("--no-spark", "--rate", "2000")
    assert done.exit_code == 0
    figures = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines() if len(line.split()) > 1)
    assert {figures[f" {row}"] for row in ("published", "acknowledged", "consumed")} == {"400"}
    assert {figures[f" {row}"] for row in ("lost", "out of order per key", "errors")} == {"0"}
    assert done.stdout.endswith("\nok: 400 flights of 40 aircraft came through, 0 lost, 0 out of order\n")
    events = done.stderr
    assert events.index("moved the leader of partition 1") < events.index("killed ") < events.index(" again")


@pytest.mark.parametrize(
    ("audit", "verdict"),
    [
        (audit_of((1, 2)), "FAILED: 1 lost, 0 out of order, 0 errors, 0 not acknowledged"),
        (audit_of((2, 1, 3)), "FAILED: 0 lost, 1 out of order, 0 errors, 0 not acknowledged"),
        (audit_of((2, 3), failed=1), "FAILED: 0 lost, 0 out of order, 1 errors, 1 not acknowledged"),
    ],
)
def test_whatever_is_wrong_is_exit_code_1(invoke: Invoke, ends_with: list[Report], audit: Audit, verdict: str) -> None:
    ends_with.append(report_of(audit))
    done = invoke()
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == verdict
    assert json.loads(invoke("--json").stdout)["ok"] is False


def test_a_cluster_that_does_not_answer_is_one_line(invoke: Invoke) -> None:
    with nobody_listens() as port:
        done = invoke("--lookupd", f"http://127.0.0.1:{port}", "--no-spark")
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_january_comes_through_a_moved_leader_and_a_killed_node() -> None:
    """The main job as a user runs it, Spark included; where Spark cannot run it says so."""
    ran = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--json"], capture_output=True, text=True, timeout=840, check=False
    )
    assert ran.returncode == 0, ran.stderr
    done = json.loads(ran.stdout)
    assert (done["published"], done["acknowledged"], done["consumed"]) == (27_004, 27_004, 27_004)
    assert (done["lost"], done["out_of_order"], done["errors"], done["foreign"]) == (0, 0, 0, 0)
    assert (done["leader_moves"], done["nodes_killed"], done["nodes_restarted"]) == (1, 1, 1)
    assert done["leader_changes_seen"] >= 1
    if done["spark"] is None:
        assert "install" in done["spark_missing"]
    else:
        assert done["spark"]["flights"] == 27_004
        assert len(done["spark"]["carriers"]) == 16
        assert [entry["partition"] for entry in done["spark"]["latency"]] == [0, 1, 2, 3, None]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--rate", "nan"),
        ("--stall-limit", "nan"),
        ("--months", "13"),
        ("--lookupd", ""),
        ("orders",),
    ],
)
def test_wrong_usage_ends_with_2(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    assert invoke(*arguments).exit_code == 2
