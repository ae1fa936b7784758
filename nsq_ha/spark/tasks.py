"""What a reading task does, of a batch or of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nsq_ha.spark.cluster import Cluster
from nsq_ha.spark.planner import Range
from nsq_ha.spark.reader import RangeReader

if TYPE_CHECKING:
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.rows import Projection


def read_range(asked: object, options: ReadOptions, projection: Projection) -> Iterator[Any]:
    """Read one range; gives Arrow record batches.

    Args:
        asked: The range. Spark invents an empty task where nothing was planned.
        options: Of the read.
        projection: The columns to build.

    Raises:
        NsqError: See :meth:`nsq_ha.spark.reader.RangeReader.batches`. Spark
            runs the task again where it is set to.
    """
    if not isinstance(asked, Range):
        return
    with Cluster(options.lookupd) as cluster:
        for rows in RangeReader(asked, options, cluster).batches():
            yield projection.batch(rows)
