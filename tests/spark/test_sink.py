"""How the rows of a task become MPUBs: within both limits, and in the order of each partition."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from nsq_ha.spark.options import WriteOptions
from nsq_ha.spark.write import partition_writer
from nsq_ha.spark.write.partition_writer import PartitionWritten, TaskWriter
from nsq_ha.spark.write.row_converter import RowConverter, TargetTopic, TraceIds

if TYPE_CHECKING:
    from nsq_ha.spark.cluster import BlockingCluster
    from nsq_ha.spark.write.partition_writer import EncodedMpub

TARGETS = {"orders": TargetTopic("orders", 3, ordered=False, extended=False)}
MOST, LARGEST = 50, 2048


class Sent:
    """In the place of a partition's writer: keeps what it is given."""

    batches: list[tuple[int, EncodedMpub]]

    def __init__(self, topic: str, partition: int, *_: object) -> None:
        self.partition = partition
        self.written = PartitionWritten()

    def send(self, batch: EncodedMpub) -> None:
        self.batches.append((self.partition, batch))

    def settle(self) -> None:
        pass


def rows_in_runs(run: int, size: int) -> list[tuple[int, bytes]]:
    """Return partitions and bodies."""
    return [(number // run % 3, b"%04d" % number + bytes(size)) for number in range(600)]


@pytest.mark.parametrize(
    ("run", "size"), [(1, 5), (40, 5), (600, 5), (200, 400), (31, 100), (600, 60), (600, 3000), (33, 50)]
)
def test_batches_keep_both_limits_and_the_order_of_each_partition(
    run: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_writer, "PartitionWriter", Sent)
    monkeypatch.setattr(Sent, "batches", [], raising=False)
    asked = {"lookupd": "127.0.0.1:4161", "batchMessages": str(MOST), "batchBytes": str(LARGEST)}
    options = WriteOptions.parse(asked)
    converter = RowConverter(options, TARGETS, lambda topic: TARGETS[topic], TraceIds("run", 0), {})
    task = TaskWriter(options, converter, cast("BlockingCluster", None))
    rows = rows_in_runs(run, size)
    dice = random.Random(run)
    given = 0
    while given < len(rows):
        lot = rows[given : given + dice.randint(1, 150)]
        columns = {"value": [body for _, body in lot], "partition": [partition for partition, _ in lot]}
        task.add(pa.RecordBatch.from_pydict({**columns, "topic": ["orders"] * len(lot)}))
        given += len(lot)
    task.finish()

    for partition in range(3):
        sent = b"".join(batch.command for at, batch in Sent.batches if at == partition)
        wanted = [body for at, body in rows if at == partition]
        found = [sent.find(body) for body in wanted]
        assert -1 not in found
        assert found == sorted(found)
    assert sum(batch.rows for _, batch in Sent.batches) == len(rows)
    assert all(batch.rows <= MOST for _, batch in Sent.batches)
    assert all(batch.size <= LARGEST or batch.rows == 1 for _, batch in Sent.batches)
    # Full ones are full: only the last of a partition may be half empty.
    fullest = min(MOST, max(1, LARGEST // (4 + size + 16)))
    assert len(Sent.batches) <= -(-len(rows) // fullest) + 3
