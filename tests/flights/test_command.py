import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from examples.flights import flights
from examples.flights.audit import Audit
from examples.flights.command import Display, progress_bars
from examples.flights.delays import Delays
from examples.flights.flight_stream import StreamReport, StreamState
from examples.flights.flights import Flight
from examples.flights.spark_step import PartitionLatency, SparkReport, about_latency
from examples.flights.stage import Demo, DemoOptions, Report
from nsq_ha.devcluster import DevCluster
from nsq_ha.spark.lag import PartitionLag, StreamLag
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


@pytest.fixture
def few_flights(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Flight(f"N{number % 40}", ("flight", "carrier"), (str(number), "UA")) for number in range(400)]
    monkeypatch.setattr(flights, "read", lambda months: rows * len(months))


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


def test_what_spark_found_is_shown(invoke: Invoke, ends_with: list[Report]) -> None:
    carriers = {"UA": Delays(2, 4, 5, 2, -6, 1), "B6": Delays(1)}
    latency = (PartitionLatency(0, 3, 0, 1.5, 2.0, 2.5, 1234.5), PartitionLatency(None, 3, 0, 1.5, 2.0, 2.5, 1234.5))
    ends_with.append(report_of(audit_of(), SparkReport("flights", 1, 3, 3, 0, 0, carriers, latency, 2.0, "4.3.0")))
    done = invoke().stdout
    assert "Spark 4.3.0 read 3 messages in one batch (2.0 s)" in done
    assert "\n3 messages with 3 flights\n" in done
    assert f"\n{about_latency(1000.0, 1.5)}\n" in done
    rows = [line.split() for line in done.splitlines()]
    assert ["UA", "2", "1.2", "-3.0", "50.0%"] in rows
    assert ["B6", "1", "-", "-", "-"] in rows
    assert ["all", "3", "1.5", "2.0", "2.5", "1,234.5"] in rows
    assert json.loads(invoke("--json").stdout)["spark"]["carriers"][0]["carrier"] == "UA"


def test_deliveries_messages_and_flights_are_distinguished(invoke: Invoke, ends_with: list[Report]) -> None:
    audit = audit_of((1, 2, 2, 3, 3))
    found = SparkReport("flights", 1, 5, 3, 1, 1, {}, (), 2.0, "4.3.0", {"lost": 0, "repeated": 1}, "demo-report.html")
    ends_with.append(report_of(audit, found))
    done = invoke().stdout
    assert ["repeated", "deliveries", "2"] in [line.split() for line in done.splitlines()]
    assert "5 messages with 3 flights, 1 stored again after a lost answer, 1 without a flight\n" in done
    assert "every message's life: demo-report.html (1 repeated: delivered again after they were finished)\n" in done


def test_three_equal_sums_are_the_verdict_of_a_stream(invoke: Invoke, ends_with: list[Report]) -> None:
    ends_with.append(report_of(audit_of(), stream=StreamReport(20, 1234, 2.5, SUMS, SUMS, SUMS)))
    done = invoke("--spark", "stream")
    assert done.exit_code == 0
    assert "streamed in 20 micro-batches, at most 1,234 flights behind, done 2.5 s after the last flight" in " ".join(
        done.stdout.split()
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    sums = ["7", "15", "77", "3"]
    for source in (["streaming", "query"], ["batch", "read"], ["data", "file"]):
        assert [*source, *sums] in rows
    assert done.stdout.endswith("0 lost, 0 out of order; stream, batch and file have the same sums\n")
    assert json.loads(invoke("--json").stdout)["stream"]["differing"] == []


def test_a_cluster_that_does_not_answer_is_one_line(invoke: Invoke) -> None:
    with nobody_listens() as port:
        done = invoke("--lookupd", f"http://127.0.0.1:{port}", "--no-spark")
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1


SUMS = {"UA": Delays(2, 2, 5, 1, -3, 0), "B6": Delays(1), "AA": Delays(4, 4, 10, 4, 80, 3)}
LAG = StreamLag(None, "q", 3, "", 1, None, (PartitionLag("t", 0, 1_500_000, 2_000_000), PartitionLag("t", 1, 0, 0)))


@pytest.mark.parametrize("width", [60, 80])
async def test_on_a_terminal_the_stream_has_a_table_and_a_bar(width: int) -> None:
    console = Console(force_terminal=True, width=width, height=24, record=True)
    running = Demo(DemoOptions(spark="stream"), show=print)
    running.audit, running.stream = audit_of(), StreamState(SUMS, 2, 4, LAG)
    with progress_bars(console) as progress:
        assert progress is not None
        Display(running, progress).refresh()
        progress.refresh()
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["AA", "4", "2.5", "min", "20.0", "min", "75.0%"] in lines
    assert ["B6", "1", "-", "-", "-"] in lines
    assert ["all", "7", "2.5", "min", "15.4", "min", "60.0%"] in lines
    assert ["0", "1.50", "MB", "2.00", "MB", "0.50", "MB"] in lines
    assert any(line[:1] == ["streamed"] and "2/3" in line for line in lines)


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


def test_make_demo_runs_it() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.flights", "--help"], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.startswith("Usage: make demo [OPTIONS]\n")
    assert "\t@$(bin)/python -m examples.flights $(ARGS)\n" in Path("Makefile").read_text("utf-8")
