"""MPUBs of one partition, encoded from rows, or from Arrow columns without a Python object per message.

:meth:`Block.of` accepts only rows that all go to one partition of a plain topic. It leaves
all others (headers, trace ids, keys, mixed partitions, rows that cannot be published) to
``row_converter``, which checks rows one by one.

**Source:** Spark design 2.3; server protocol 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from nsq_ha.protocol.encoding import encode_mpub, encode_mpub_ext, encode_mpub_of, encode_mpub_trace
from nsq_ha.spark.write.row_converter import OutgoingRow, TargetTopic, as_binary, columns_of

if TYPE_CHECKING:
    from nsq_ha.spark.options import WriteOptions

_SIZE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class EncodedMpub:
    """One encoded MPUB.

    Attributes:
        command: The bytes to send.
        rows: Number of messages.
        size: Bytes of their bodies.
        traced: Whether it is an ``MPUB_TRACE``, whose answer says where it is stored.
    """

    command: bytes
    rows: int
    size: int
    traced: bool = False


def encode(topic: str, partition: int, rows: Sequence[OutgoingRow], *, extended: bool, traced: bool) -> EncodedMpub:
    """Return the MPUB of rows of one partition.

    Raises:
        ConfigError: A message is larger than the server accepts.
    """
    if extended:
        command = encode_mpub_ext(topic, partition, [(row.ext, row.body) for row in rows])
    elif traced:
        command = encode_mpub_trace(topic, partition, [(row.trace_id, row.body) for row in rows])
    else:
        command = encode_mpub(topic, partition, [row.body for row in rows])
    return EncodedMpub(command, len(rows), sum(len(row.body) for row in rows), traced=traced and not extended)


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive messages of one partition, encoded as in an MPUB.

    Attributes:
        topic: The topic.
        partition: The partition.
        count: Number of messages.
    """

    topic: str
    partition: int
    count: int
    _bytes: memoryview
    _ends: memoryview

    @classmethod
    def of(cls, batch: Any, options: WriteOptions, targets: Mapping[str, TargetTopic]) -> Self | None:  # noqa: ANN401 - pyarrow has no types
        """Return a Block if all rows of a record batch go to one partition and fit a plain MPUB."""
        target = targets.get(options.topic or "")
        columns = columns_of(batch)
        if target is None or target.extended or options.trace or options.partitioner != "column" or not batch.num_rows:
            return None
        partition = _constant(columns.get("partition"))
        if partition is None or not 0 <= partition < target.partitions:
            return None
        bodies = as_binary(columns["value"])
        lengths = pc.binary_length(bodies)
        if bodies.null_count or not _are_publishable(lengths, options):
            return None
        joined = pc.binary_join_element_wise(_big_endian(lengths), bodies, pa.scalar(b"", pa.binary()))
        _, ends, data = joined.buffers()
        places = memoryview(ends).cast("B").cast("i")[joined.offset :]
        return cls(target.topic, partition, len(joined), memoryview(data), places)

    def mpub(self, start: int, stop: int, most_bytes: int) -> EncodedMpub | None:
        """Return messages ``[start, stop)`` as one MPUB. None if they take more than ``most_bytes``."""
        first, last = self._ends[start], self._ends[stop]
        rows = stop - start
        if last - first > most_bytes:
            return None
        command = encode_mpub_of(self.topic, self.partition, rows, bytes(self._bytes[first:last]))
        return EncodedMpub(command, rows, last - first - rows * _SIZE_BYTES)


def _constant(column: Any) -> int | None:  # noqa: ANN401
    """Return the value of a column if it is the same in all rows, otherwise None."""
    if column is None or column.null_count:
        return None
    found = pc.min_max(column).as_py()
    constant: int | None = found["min"] if found["min"] == found["max"] else None
    return constant


def _are_publishable(lengths: Any, options: WriteOptions) -> bool:  # noqa: ANN401
    """Return whether all bodies can be published, and MPUBs of ``batchMessages`` rows fit ``batchBytes``."""
    sizes = pc.min_max(lengths).as_py()
    most = options.batch_messages * (pc.mean(lengths).as_py() + _SIZE_BYTES)
    # An MPUB holds few large bodies, so there is nothing to gain, and copying all of them takes memory.
    return bool(sizes["min"] >= 1 and sizes["max"] <= options.max_message_bytes and most <= options.batch_bytes)


def _big_endian(lengths: Any) -> Any:  # noqa: ANN401
    """Return numbers in wire format: four bytes each, big-endian."""
    numbers = lengths.to_numpy().astype(">i4")
    return pa.Array.from_buffers(pa.binary(_SIZE_BYTES), len(numbers), [None, pa.py_buffer(numbers)]).cast(pa.binary())
