"""What a reading task does, of a batch or of a stream; and what all tasks do to their process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.spark.ack_planner import SpoolPart
from nsq_ha.spark.cluster import Cluster
from nsq_ha.spark.planner import Range
from nsq_ha.spark.reader import RangeReader
from nsq_ha.spark.spool import read_file

if TYPE_CHECKING:
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.rows import Projection

_COLLECTED_EACH: Final = 100_000  # objects made; a search costs as much as reading 700 messages does


def read_range(asked: object, options: ReadOptions, projection: Projection) -> Iterator[Any]:
    """Read one range, or some files of a spool; gives Arrow record batches.

    Args:
        asked: The range, several of them, or the files. Spark invents an empty task where nothing was planned.
        options: Of the read.
        projection: The columns to build.

    Raises:
        DataLossError: A spool file cannot be read.
        NsqError: See :meth:`nsq_ha.spark.reader.RangeReader.batches`. Spark
            runs the task again where it is set to.
    """
    if isinstance(asked, SpoolPart):
        yield from (projection.stored(read_file(path)) for path in asked.paths)
    ranges = asked if isinstance(asked, tuple) else (asked,) if isinstance(asked, Range) else ()
    if not ranges:
        return
    with seldom_collected(), Cluster(options.lookupd) as cluster:
        for part in ranges:
            for rows in RangeReader(part, options, cluster).batches():
                yield projection.batch(rows)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Let Python look for cycles less often: messages and rows have none, and by their number it looks all the time."""
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], _COLLECTED_EACH) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
