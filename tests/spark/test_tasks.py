"""What a task does to the process it runs in, and leaves for the next one."""

import contextlib
import gc
from collections.abc import Iterator

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from nsq_ha.message import Message
from nsq_ha.spark.cluster import BlockingCluster, worker_cluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range
from nsq_ha.spark.read.columns import Projection
from nsq_ha.spark.read.range_reader import RangeReader, read_ranges
from tests.spark.logs import message

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


def test_tasks_of_a_worker_share_connections_and_a_failure_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[BlockingCluster] = []
    original = BlockingCluster.close

    def close(self: BlockingCluster) -> None:
        closed.append(self)
        original(self)

    monkeypatch.setattr(BlockingCluster, "close", close)
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    with worker_cluster(("http://a:1",)) as first:
        pass
    with worker_cluster(("http://a:1",)) as again, worker_cluster(("http://a:1",)) as beside:
        assert again is first
        assert beside is not first
    assert closed == [beside], "of one kind one is kept"
    with worker_cluster(("http://b:1",)) as other:
        pass
    assert closed == [beside, first]
    with pytest.raises(ValueError, match="failed"), worker_cluster(("http://b:1",)) as broken:
        raise ValueError("failed")
    assert broken is other
    assert closed == [beside, first, other]
    monkeypatch.delenv("SPARK_REUSE_WORKER")
    with worker_cluster(("http://a:1",)) as alone:
        pass
    assert closed[-1] is alone
