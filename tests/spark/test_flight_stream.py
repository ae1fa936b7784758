"""The demo's streaming query: the same sums as a batch read and as the data file, whatever dies meanwhile."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.flights import flights, stage
from examples.flights.delays import by_carrier
from examples.flights.faults import DemoEvent
from examples.flights.flights import Flight
from examples.flights.job import JobOptions
from examples.flights.stage import Demo, DemoOptions
from nsq_ha.devcluster import DevCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COLUMNS = ("carrier", "dep_delay", "arr_delay")
ROWS = [
    Flight(f"N{number % 40}", COLUMNS, (("UA", "B6", "AA")[number % 3], str(number % 50), str(number % 70 - 20)))
    for number in range(400)
]
LIMIT = 300.0
"""Spark may be slow to start its workers."""


@pytest.mark.slow
async def test_stream_batch_and_file_have_the_same_sums_when_a_node_dies(
    spark: SparkSession, dev_cluster: DevCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.asynccontextmanager
    async def embedded() -> AsyncIterator[DevCluster]:
        yield dev_cluster

    monkeypatch.setattr(stage, "_embedded", embedded)
    monkeypatch.setattr(flights, "read", lambda months: ROWS)
    events: list[DemoEvent] = []
    options = DemoOptions(spark="stream", report=tmp_path / "page.html", job=JobOptions(rate=500, stall_limit=LIMIT))
    demo = Demo(options, show=events.append, session=spark)
    report = await demo.run()
    assert report.spark_error is None
    assert report.stream is not None
    assert report.stream.streamed == report.stream.batch == report.stream.file == by_carrier(ROWS)
    assert report.is_clean
    assert report.as_dict()["nodes_killed"] == 1
    # A batch has at most a hundred messages, and a repeated one adds nothing.
    assert report.stream.batches >= 4
    assert demo.stream is not None
    assert demo.stream.flights == 400
    assert any(event.text.startswith("the stream has 400 flights and is 0 behind") for event in events)
    assert not spark.streams.active
