"""The demo's last step: delays from the topic, latencies from the trace log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from examples.flights import spark_step
from examples.flights.spark_step import PageOptions, PartitionLatency, about_latency
from nsq_ha.errors import SparkUnavailableError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from nsq_ha.devcluster import DevCluster
    from tests.spark.conftest import Publish

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FLIGHTS: list[tuple[str | None, int | None, int | None]] = [
    ("UA", 0, 10),
    ("UA", 4, 20),
    ("UA", None, None),
    ("B6", -3, -15),
    (None, 1, 2),
]


def flight(number: int) -> bytes:
    carrier, departed, arrived = FLIGHTS[number]
    given = {"run": "r1", "number": number, "carrier": carrier, "dep_delay": departed, "arr_delay": arrived}
    return json.dumps(given).encode()


@pytest.fixture
def topic(dev_cluster: DevCluster, publish: Publish) -> str:
    """Five flights, one of them twice, and two messages that are no flights."""
    topic = dev_cluster.create_topic("step", 2, ordered=True)
    publish(topic, 0, [flight(0), flight(1), flight(1), b"no JSON \xff"])
    publish(topic, 1, [flight(2), flight(3), flight(4), b'{"number": null}'])
    return topic


@pytest.fixture
def trace_log(topic: str, tmp_path: Path) -> Path:
    """A hundred messages on each of two partitions: 1 ms .. 100 ms, and 2 ms each; one never delivered."""
    lines: list[dict[str, object]] = []
    for partition in (0, 1):
        for number in range(1, 101):
            internal_id = partition << 50 | number + 1
            place = {"topic": topic, "partition": partition, "internal_id": internal_id, "trace_id": 2**64 - 1}
            took = number if partition == 0 else 2
            lines += [
                {"event": "publish", "time_ns": 10**18, **place},
                # Delivered again later: the first delivery counts.
                {"event": "delivery", "time_ns": 10**18 + took * 10**6 + 5 * 10**9, "channel": "c", **place},
                {"event": "delivery", "time_ns": 10**18 + took * 10**6, "channel": "c", **place},
                {"event": "finish", "time_ns": 10**18 + 9 * 10**9, "channel": "c", **place},
            ]
    lines.append({"event": "publish", "time_ns": 10**18, "topic": topic, "partition": 1, "internal_id": 1 << 50 | 999})
    lines.append({"event": "publish", "time_ns": 10**18, "topic": "another", "partition": 0, "internal_id": 2})
    path = tmp_path / "trace log [1]{2}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "cut off in the mid")
    return path


@pytest.mark.slow
def test_the_whole_step(spark: SparkSession, dev_cluster: DevCluster, topic: str, trace_log: Path) -> None:
    page = trace_log.with_name("page.html")
    options = PageOptions(page, None, ((1e9, "nsqd-0 killed"),))
    report = spark_step.run(spark, dev_cluster.lookupd, topic, trace_log, options)
    assert (report.topic, report.partitions, report.rows) == (topic, 2, 8)
    assert (report.flights, report.repeated, report.foreign) == (5, 1, 2)
    carriers = json.loads(json.dumps(report.as_dict()))["carriers"]
    assert [tuple(each.values()) for each in carriers] == [
        ("UA", 3, 2, 2.0, 15.0, 0.5),
        ("?", 1, 1, 1.0, 2.0, 0.0),
        ("B6", 1, 1, -3.0, -15.0, 0.0),
    ]
    assert list(carriers[0]) == ["carrier", "flights", "arrived", "mean_dep_delay", "mean_arr_delay", "late_share"]
    assert report.latency == (
        PartitionLatency(0, 100, 0, 50.0, 95.0, 99.0, 100.0),
        PartitionLatency(1, 100, 1, 2.0, 2.0, 2.0, 2.0),
        PartitionLatency(None, 200, 1, 2.0, 90.0, 98.0, 100.0),
    )
    assert report.read_seconds > 0
    # Each was given out once more after its finish, in the log that this test made up.
    assert report.anomalies == {"lost": 0, "repeated": 0, "out_of_order": 0, "gap": 0}
    assert report.page == str(page)
    shown = page.read_text(encoding="utf-8")
    held = "8 messages with 5 flights, 1 stored again after a lost answer, 2 without a flight"
    assert report.contents == held
    assert f"<p>Spark read {held}. Most flights are of UA 3, " in shown
    assert about_latency(None, None) in shown
    assert shown.count(">nsqd-0 killed</text>") == 2


def test_a_missing_trace_log_is_reported_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spark_step.run(None, "127.0.0.1:1", "step", tmp_path / "nothing")  # type: ignore[arg-type]  # unused


def test_a_missing_java_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailableError, match="needs Java 17 or newer"):
        spark_step.start()
