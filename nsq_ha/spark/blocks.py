"""Rows that all go to one partition of a plain topic, as MPUBs made in Arrow: without a Python object for each.

Owns the recognition of such rows and their bytes. Everything else (headers, trace ids,
keys, mixed partitions, rows that cannot be published) is left to ``outgoing``, which
looks at rows one by one and says what is wrong with them.

**Source:** Spark reference 2.3; protocol reference 6 (``MPUB``).
"""

from __future__ import annotations

import array
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from nsq_ha.protocol import MAX_MESSAGE_BYTES, encode_mpub_of
from nsq_ha.spark.outgoing import as_binary, columns_of
from nsq_ha.spark.publish import Batch

if TYPE_CHECKING:
    from nsq_ha.spark.options import WriteOptions
    from nsq_ha.spark.outgoing import Target

_SIZE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Block:
    """Messages of one partition in a row, as they stand in an MPUB.

    Attributes:
        topic: The topic.
        partition: The partition.
        count: How many.
    """

    topic: str
    partition: int
    count: int
    _bytes: memoryview
    _ends: memoryview

    @classmethod
    def of(cls, batch: Any, options: WriteOptions, targets: Mapping[str, Target]) -> Self | None:  # noqa: ANN401 - pyarrow has no types
        """Return the block that a ``pyarrow.RecordBatch`` is. None when it is none, or not surely one."""
        target = targets.get(options.topic or "")
        columns = columns_of(batch)
        if target is None or target.extended or options.trace or options.partitioner != "column" or not batch.num_rows:
            return None
        partition = _only(columns.get("partition"))
        if partition is None or not 0 <= partition < target.partitions:
            return None
        bodies = as_binary(columns["value"])
        lengths = pc.binary_length(bodies)
        if bodies.null_count or not _are_fit(lengths, options):
            return None
        joined = pc.binary_join_element_wise(_words(lengths), bodies, pa.scalar(b"", pa.binary()))
        _, ends, data = joined.buffers()
        places = memoryview(ends).cast("B").cast("i")[joined.offset :]
        return cls(target.topic, partition, len(joined), memoryview(data), places)

    def mpub(self, start: int, stop: int, most_bytes: int) -> Batch | None:
        """Return messages ``[start, stop)`` as one MPUB. None when they take more than ``most_bytes``."""
        first, last = self._ends[start], self._ends[stop]
        rows = stop - start
        if last - first > most_bytes:
            return None
        command = encode_mpub_of(self.topic, self.partition, rows, bytes(self._bytes[first:last]))
        return Batch(command, rows, last - first - rows * _SIZE_BYTES)


def _only(column: Any) -> int | None:  # noqa: ANN401
    """Return the one value that a column has in all rows."""
    if column is None or column.null_count:
        return None
    found = pc.min_max(column).as_py()
    only: int | None = found["min"] if found["min"] == found["max"] else None
    return only


def _are_fit(lengths: Any, options: WriteOptions) -> bool:  # noqa: ANN401
    """Tell whether all bodies can be published, and MPUBs hold as many rows as they may."""
    sizes = pc.min_max(lengths).as_py()
    most = options.batch_messages * (pc.mean(lengths).as_py() + _SIZE_BYTES)
    # Of large ones an MPUB holds few, so there is nothing to gain, and to copy all of them at once takes memory.
    return bool(sizes["min"] >= 1 and sizes["max"] <= MAX_MESSAGE_BYTES and most <= options.batch_bytes)


def _words(lengths: Any) -> Any:  # noqa: ANN401
    """Return numbers as the wire has them, four bytes each, the highest first."""
    numbers = array.array("i", memoryview(lengths.buffers()[1]).cast("B").cast("i")[lengths.offset :][: len(lengths)])
    if sys.byteorder == "little":
        numbers.byteswap()
    words = pa.Array.from_buffers(pa.binary(_SIZE_BYTES), len(numbers), [None, pa.py_buffer(numbers.tobytes())])
    return words.cast(pa.binary())
