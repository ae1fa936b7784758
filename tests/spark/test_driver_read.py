"""Small micro-batches: which are read by the driver, what becomes of a failure, and that PySpark takes their rows."""

import io
import json
import pickle
import struct
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.python_streaming_source_runner import (
    NON_EMPTY_PYARROW_RECORD_BATCHES,
    PREFETCHED_RECORDS_NOT_FOUND,
    partitions_func,
)
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import DataLossError, NsqError, ResponseTimeoutError
from nsq_ha.message import Message
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range
from nsq_ha.spark.read import range_reader
from nsq_ha.spark.read.columns import Projection
from nsq_ha.spark.read.range_reader import MOST_RANGES, PAUSE, DriverRead
from nsq_ha.spark.source import NsqDataSource, NsqStreamReader
from tests.spark.conftest import Publish
from tests.spark.logs import message
from tests.spark.streams import numbered, spread

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SCHEMA = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])
KIB = 1024


def ranges(count: int, size: int) -> list[Range]:
    return [Range("t", number, 0, size, None, ordered=False, extended=False) for number in range(count)]


def driver_read(**options: str) -> DriverRead:
    given = {"lookupd": "127.0.0.1:4161", "topic": "t", **options}
    return DriverRead(ReadOptions.parse(given, "stream"), Projection(SCHEMA))


@pytest.mark.parametrize(
    ("options", "asked", "wanted"),
    [
        ({}, ranges(1, 64 * KIB), True),
        ({}, ranges(1, 64 * KIB + 1), False),
        ({}, ranges(2, 32 * KIB), True),
        ({}, ranges(3, 32 * KIB), False),
        ({}, ranges(MOST_RANGES, 60), True),
        ({}, ranges(MOST_RANGES + 1, 60), False),
        ({}, [], False),
        ({"driverBytes": "1m"}, ranges(2, 512 * KIB), True),
        ({"driverBytes": "0"}, ranges(1, 60), False),
        ({"minPartitions": "1"}, ranges(1, 60), False),
        ({"maxRecordsPerPartition": "10"}, ranges(1, 60), False),
    ],
)
def test_which_micro_batches_are_small(options: dict[str, str], asked: list[Range], *, wanted: bool) -> None:
    assert driver_read(**options).wants(asked) is wanted


@pytest.mark.parametrize("failure", [ResponseTimeoutError("slow"), DataLossError("gone")])
def test_what_cannot_be_read_at_once_is_left_to_tasks_and_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, failure: NsqError
) -> None:
    now = 1000.0
    asked_with: list[ReadOptions] = []

    class Failing:
        def __init__(self, _: Range, options: ReadOptions, *__: object) -> None:
            asked_with.append(options)

        def batches(self) -> Iterator[list[Message]]:
            yield [message(0, 60)]
            raise failure

    monkeypatch.setattr(range_reader, "RangeReader", Failing)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    tried = driver_read(failOnDataLoss="false", fetchTimeout="20s")
    assert tried.rows(ranges(2, 120), object()) is None  # type: ignore[arg-type]
    (options,) = asked_with
    assert options.fail_on_data_loss, "a reader that may leave something out would do so after a second"
    assert options.patience == 1.0
    assert not tried.wants(ranges(1, 60)), "not again at once: each try may take its whole patience"
    now += PAUSE
    assert tried.wants(ranges(1, 60))


def travelled(data: bytes) -> Any:  # noqa: ANN401
    return pickle.loads(data)  # noqa: S301


def number(answers: io.BytesIO) -> int:
    (found,) = struct.unpack(">i", answers.read(4))
    return int(found)


def planned(reader: NsqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> tuple[list[Any], list[Any] | None]:
    """Let PySpark's own code ask for a plan; gives the partitions and the rows that came with it."""
    texts = [json.dumps(offsets).encode() for offsets in (start, end)]
    questions = io.BytesIO(b"".join(struct.pack(">i", len(text)) + text for text in texts))
    answers = io.BytesIO()
    partitions_func(reader, NsqDataSource({}), SCHEMA, 10_000, questions, answers)
    answers.seek(0)
    parts = [travelled(answers.read(number(answers))) for _ in range(number(answers))]
    status = number(answers)
    if status == PREFETCHED_RECORDS_NOT_FOUND:
        return parts, None
    assert status == NON_EMPTY_PYARROW_RECORD_BATCHES
    number(answers)
    return parts, pa.ipc.open_stream(answers).read_all().to_pylist()


def test_pyspark_takes_the_rows_of_a_small_micro_batch_with_its_plan(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish
) -> None:
    topic = dev_cluster.create_topic("handed", 2)
    spread(publish, topic, numbered(20))
    given = {"lookupd": ",".join(dev_cluster.lookupd), "topic": topic, "startingOffsets": "earliest"}
    given["metadataRefresh"] = "0"
    reader = NsqStreamReader(ReadOptions.parse(given, "stream"), Projection(SCHEMA))
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    parts, rows = planned(reader, start, end)
    assert rows is not None
    assert [row["value"] for row in rows] == numbered(20)[::2] + numbered(20)[1::2]
    # To PySpark it is again a reader that reports its lag, and that travels without rows.
    assert type(reader) is NsqStreamReader
    assert reader.reportLatestOffset() == end
    assert numbered(1)[0] not in pickle.dumps(reader)
    # Rows that Spark has lost are read by the one task that it planned.
    (part,) = parts
    assert [row for batch in reader.read(part) for row in batch.to_pylist()] == rows
    assert planned(reader, end, end) == ([], None)
    # A large one has a task for each partition.
    spread(publish, topic, [b"x" * 1000] * 100)
    parts, rows = planned(reader, end, reader.latestOffset(end))
    assert ([part.value[0].partition for part in parts], rows) == ([0, 1], None)
    reader.stop()
