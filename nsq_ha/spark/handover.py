"""Small micro-batches: read where they are planned, so that their rows go to Spark with the plan.

Owns the decision which micro-batches are small, and their reading in the driver's
process. To start a task in Python costs Spark more than to read some messages does,
so tasks are left to those that have enough to read.

The invariants: nothing is handed over but what the chain rule proved whole, and
what cannot be read here at once is read by tasks, with all their patience. So a loss
of data is never judged here.

**Source:** Spark reference 1.3, 4 ("trigger").
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.errors import NsqError
from nsq_ha.spark.reader import RangeReader

if TYPE_CHECKING:
    from nsq_ha.spark.cluster import Cluster
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.planner import Range
    from nsq_ha.spark.rows import Projection

log: Final = logging.getLogger("nsq_ha.spark")

MOST_RANGES: Final = 8
"""They are read one after the other, some milliseconds each; more are better read side by side, in tasks."""

PAUSE: Final = 30.0
"""Seconds for which tasks read everything, after what could not be read here."""

_PATIENCE: Final = 1.0


class Handover:
    """Reads small micro-batches of one query. Blocking; used from one thread.

    Args:
        options: Of the read.
        projection: The columns to build.
    """

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        # Here nothing is given up as lost: that is for tasks, which wait before they say so.
        patience = min(options.fetch_timeout, _PATIENCE)
        self._options = dataclasses.replace(options, fail_on_data_loss=True, fetch_timeout=patience, fetch_retries=0)
        self._is_divided = options.min_partitions is not None or options.max_records is not None
        self._projection = projection
        self._not_before = 0.0

    def wants(self, ranges: Sequence[Range]) -> bool:
        """Tell whether a micro-batch is to be read here; never where the user asks for a number of tasks."""
        if self._is_divided or not 0 < len(ranges) <= MOST_RANGES or time.monotonic() < self._not_before:
            return False
        return sum(part.end - part.start for part in ranges) <= self._options.driver_bytes

    def rows(self, ranges: Sequence[Range], cluster: Cluster) -> list[Any] | None:
        """Read ranges, one after the other.

        Returns:
            Arrow record batches with all their messages. None when that did not succeed at once.
        """
        try:
            return [
                self._projection.batch(rows)
                for part in ranges
                for rows in RangeReader(part, self._options, cluster).batches()
            ]
        except NsqError as error:
            log.info("tasks read what the driver could not: %s", error)
            self._not_before = time.monotonic() + PAUSE
            return None
