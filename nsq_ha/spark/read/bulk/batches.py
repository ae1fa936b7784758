"""Build Arrow record batches from messages as they are stored, without an object per message.

The columns are those of ``columns``, with the same values. Only messages with extension headers are decoded one by one,
and only for the columns ``key`` and ``headers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from nsq_ha.errors import LocalProtocolError
from nsq_ha.message import Message
from nsq_ha.protocol.stored import HEAD_BYTES
from nsq_ha.spark.read.columns import COLUMNS

if TYPE_CHECKING:
    from nsq_ha.spark.read.bulk.cutting import Numbers, Rows
    from nsq_ha.spark.read.columns import Column, Projection

_HEAD_AND_VERSION: Final = HEAD_BYTES + 1
_FIRST_ATTEMPT: Final = 1  # a stored message was not delivered yet; a new channel would deliver it for the first time


class _NoDelivery:
    """Stands for the subscription of a message that was copied, not delivered."""

    topic = channel = nsqd = ""
    partition = 0

    def finish(self, message: Message) -> None:
        """Refuse."""
        raise LocalProtocolError("a message that was copied cannot be finished")

    def requeue(self, message: Message, delay: float | None) -> None:
        """Refuse."""
        raise LocalProtocolError("a message that was copied cannot be requeued")

    def touch(self, message: Message) -> None:
        """Refuse."""
        raise LocalProtocolError("a message that was copied cannot be touched")


_NEVER_DELIVERED: Final = _NoDelivery()


class Stored:
    """Rows to build columns from.

    Args:
        rows: The messages; at least one.
        topic: Their topic.
        partition: Their partition.
    """

    def __init__(self, rows: Rows, topic: str, partition: int) -> None:
        self.rows = rows
        self.topic = topic
        self.partition = partition
        headers, bodies = rows.bodies()
        self.headers: Numbers = headers
        self.bodies: Numbers = bodies
        self.count: int = len(rows)

    def slices(self, begins: Numbers, ends: Numbers) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return parts of the data as binary, a copy; every second slice between the bounds is one."""
        bounds = np.empty(2 * self.count + 1, np.int32)
        bounds[:-1:2], bounds[1::2], bounds[-1] = begins, ends, ends[-1]
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.rows.data)]
        whole = pa.Array.from_buffers(pa.binary(), 2 * self.count, buffers)
        return whole.take(pa.array(np.arange(0, 2 * self.count, 2, dtype=np.int32)))

    def values(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the bodies."""
        return self.slices(self.bodies, self.rows.starts + self.rows.sizes)

    def ids(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the ids: the server's number and the trace id."""
        ids = np.ascontiguousarray(self.rows.heads["id"])
        return pa.Array.from_buffers(pa.binary(16), self.count, [None, pa.py_buffer(ids)]).cast(pa.binary())

    def decoded(self, column: Column) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return a column that depends on the extension headers."""
        # An empty header is one, too.
        has = self.bodies - self.rows.starts > _HEAD_AND_VERSION
        if not has.any():
            return pa.nulls(self.count, column.arrow_type)
        bounds = zip(has.tolist(), self.headers.tolist(), self.bodies.tolist(), strict=True)
        made = column.build([self._message(slice(begin, end) if is_there else None) for is_there, begin, end in bounds])
        return made if isinstance(made, pa.Array) else pa.array(made, column.arrow_type)

    def _message(self, header: slice | None) -> Message:
        ext = None if header is None else self.rows.data[header].tobytes()
        return Message(b"", b"", _FIRST_ATTEMPT, 0, _NEVER_DELIVERED, ext=ext)

    def repeated(self, value: object, kind: object) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Return the same value for all rows."""
        return pa.repeat(pa.scalar(value, kind), self.count)


_BUILD: Final[Mapping[str, Callable[[Stored], Any]]] = MappingProxyType(
    {
        "value": Stored.values,
        "topic": lambda stored: stored.repeated(stored.topic, pa.string()),
        "partition": lambda stored: stored.repeated(stored.partition, pa.int32()),
        "offset": lambda stored: pa.array(stored.rows.offsets),
        "timestamp": lambda stored: pa.array(
            stored.rows.heads["timestamp"].astype(np.int64) // 1000, COLUMNS["timestamp"].arrow_type
        ),
        "raw_size": lambda stored: pa.array(stored.rows.sizes.astype(np.int32)),
        "message_id": Stored.ids,
        "trace_id": lambda stored: pa.array(stored.rows.heads["trace"].astype(np.int64)),
        "attempts": lambda stored: stored.repeated(_FIRST_ATTEMPT, pa.int16()),
    }
)


def batch(rows: Rows, topic: str, partition: int, projection: Projection) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Return one ``pyarrow.RecordBatch`` of the messages; there must be at least one.

    Raises:
        DamagedLogError: An extension header is longer than its message.
    """
    stored = Stored(rows, topic, partition)
    # A map and an array of headers look the same to Arrow's buffers, so the type that was asked for must build them.
    arrays = [
        _BUILD[name](stored) if name in _BUILD else stored.decoded(column)
        for name, column in zip(projection.names, projection.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=projection.arrow_schema())
