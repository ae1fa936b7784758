"""The MPUBs of a task: each partition's messages are whole and in order, within the limits of an MPUB."""

from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.protocol import Mpub
from nsq_ha.protocol.server.decoder import decode_commands
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import WriteOptions
from nsq_ha.spark.write import partition_writer
from nsq_ha.spark.write.partition_writer import EncodedMpub, PartitionWritten, TaskWriter
from nsq_ha.spark.write.row_converter import RowConverter, TargetTopic, TraceIds

PLAIN = TargetTopic("orders", 3, ordered=True, extended=False)
MOST, LARGEST = 40, 2048


def options(**more: str) -> WriteOptions:
    limits = {"batchMessages": str(MOST), "batchBytes": str(LARGEST)}
    return WriteOptions.parse({"lookupd": "127.0.0.1:4161", "topic": "orders", **limits, **more})


def batch(bodies: list[bytes | None], partitions: list[int | None], kind: Any = None) -> Any:  # noqa: ANN401
    values = pa.array(bodies, pa.binary())
    columns = {"value": values if kind is None else values.cast(kind), "partition": pa.array(partitions, pa.int32())}
    return pa.RecordBatch.from_pydict(columns)


class Sent:
    """In the place of a partition's writer: keeps what it is given."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.mpubs: list[Mpub] = []
        self.written = PartitionWritten()

    def send(self, sent: EncodedMpub) -> None:
        (mpub,) = decode_commands(sent.command)
        assert isinstance(mpub, Mpub)
        assert (mpub.topic, mpub.partition) == ("orders", self.partition)
        assert (sent.rows, sent.size) == (len(mpub.bodies), sum(map(len, mpub.bodies)))
        self.mpubs.append(mpub)

    def settle(self) -> None:
        pass


def published(batches: list[Any], given_options: WriteOptions) -> dict[int, list[Mpub]]:
    """Write batches as a task does; gives the MPUBs of each partition."""
    targets = {"orders": PLAIN}
    rows = RowConverter(given_options, targets, lambda topic: targets[topic], TraceIds("run/0", 0), {})
    writers = {number: Sent(number) for number in range(3)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_writer, "PartitionWriter", lambda _, partition, *__: writers[partition])
        task = TaskWriter(given_options, rows, cast("BlockingCluster", None))
        for each in batches:
            task.add(each)
        task.finish()
    return {number: each.mpubs for number, each in writers.items()}


SIZES = st.one_of(st.integers(1, 60), st.integers(1, 60), st.integers(1, LARGEST + 900))
LOTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3 * MOST), SIZES), min_size=1, max_size=6)


@given(lots=LOTS, string=st.booleans())
def test_the_messages_of_each_partition_are_whole_and_in_order(
    lots: list[tuple[int, int, int]], *, string: bool
) -> None:
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    batches = []
    for number, (partition, count, size) in enumerate(lots):
        bodies = [b"%d.%d" % (number, row) + b"x" * (size + row % 2) for row in range(count)]
        expected[partition] += bodies
        # As Spark may give it: a part of a larger one.
        whole = batch([b"before", *bodies], [partition] * (count + 1), pa.string() if string else None)
        batches.append(whole.slice(1))
    found = published(batches, options())
    for partition, mpubs in found.items():
        assert [body for mpub in mpubs for body in mpub.bodies] == expected[partition]
        assert all(len(mpub.bodies) <= MOST for mpub in mpubs)
        assert all(sum(map(len, mpub.bodies)) <= LARGEST or len(mpub.bodies) == 1 for mpub in mpubs)
