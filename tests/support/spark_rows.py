"""What a reader of Spark's takes from a subscription, as messages, and from a copy, as entries."""

from collections.abc import Iterator

from nsq_ha.message import Message
from nsq_ha.spark.pull.calls import Pulled
from nsq_ha.spark.read.bulk.entries import entries_of
from nsq_ha.spark.read.range_reader import RangeReader


def entries(answer: Pulled | str) -> list[tuple[int, bytes]]:
    """Return offset and messages of each entry of an answer."""
    assert isinstance(answer, Pulled), answer
    places = zip(*(of.tolist() for of in entries_of(answer)), strict=True)
    return [(offset, bytes(answer.data[begin : begin + size])) for offset, size, begin in places]


def delivered(reader: RangeReader) -> Iterator[list[Message]]:
    """Yield the batches of a reader, which must not copy: a copy has no messages."""
    reader._copies = False  # noqa: SLF001 - as with fetch=subscribe
    for rows in reader.batches():
        assert isinstance(rows, list)
        yield rows
