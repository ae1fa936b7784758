"""The rows that a reader of Spark's takes from a subscription, as messages."""

from collections.abc import Iterator

from nsq_ha.message import Message
from nsq_ha.spark.read.range_reader import RangeReader


def delivered(reader: RangeReader) -> Iterator[list[Message]]:
    """Yield the batches of a reader, which must not copy: a copy has no messages."""
    reader._copies = False  # noqa: SLF001 - as with fetch=subscribe
    for rows in reader.batches():
        assert isinstance(rows, list)
        yield rows
