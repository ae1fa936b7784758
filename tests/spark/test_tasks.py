"""What a reading task does to the process it runs in."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, StructField, StructType

from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range
from nsq_ha.spark.read.columns import Projection
from nsq_ha.spark.read.range_reader import RangeReader, read_ranges
from tests.spark.logs import message

if TYPE_CHECKING:
    import pytest

    from nsq_ha.message import Message

READ = (
    (Range("orders", 0, 0, 60, None, ordered=False, extended=False),),
    ReadOptions(lookupd=("http://127.0.0.1:1",), topics=("orders",)),
    Projection(StructType([StructField("value", BinaryType())])),
)


def test_a_task_lets_python_look_for_cycles_less_often_and_undoes_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def batches(_: RangeReader) -> Iterator[list[Message]]:
        yield [message(0, 60)]
        raise ConnectionError

    monkeypatch.setattr(RangeReader, "batches", batches)
    before = gc.get_threshold()
    task = read_ranges(*READ)
    assert next(task).num_rows == 1
    assert gc.get_threshold()[0] > before[0]
    with contextlib.suppress(ConnectionError):
        next(task)
    assert gc.get_threshold() == before
    # Spark may leave one that it needs no more of.
    left = read_ranges(*READ)
    next(left)
    left.close()  # type: ignore[attr-defined]
    assert gc.get_threshold() == before
