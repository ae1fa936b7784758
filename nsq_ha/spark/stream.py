"""``spark.readStream.format("nsq")``: the stream reader that Spark calls.

PySpark keeps the reader in one long-lived process per query for the driver's calls, and
pickles it to the workers for reading. So the reader connects to the cluster when needed,
and pickles no connection. PySpark does not call ``stop``, so nothing depends on it.

**Source:** Spark design 2.1, 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from nsq_ha.spark.ack.planner import AckPlanner
from nsq_ha.spark.ack.spool import SpoolPart, read_file
from nsq_ha.spark.checkpoint import dated, undated
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.plan.stream_planner import StreamPlanner
from nsq_ha.spark.pyspark_private import ReturnsRows
from nsq_ha.spark.read.range_reader import DriverRead, read_ranges
from nsq_ha.spark.reasons import reason_first

if TYPE_CHECKING:
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.read.columns import Projection


class NsqStreamReader(ReturnsRows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of one query: planned on the driver, read in tasks."""

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection
        self._planning: StreamPlanner | AckPlanner | None = None
        self._begun: dict[str, Any] | None = None
        self._latest: dict[str, Any] | None = None
        self._driver_read = DriverRead(options, projection)
        self._rows = []

    def __getstate__(self) -> dict[str, Any]:
        """Pickle no connections."""
        return {**self.__dict__, "_planning": None, "_rows": []}

    @reason_first()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return where a new query begins."""
        self._begun = self._dated(self._planner.initial(), self._begun)
        return self._begun

    @reason_first()
    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends, within the limits."""
        end = self._planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))
        self._latest = self._dated(end, start, self._latest)
        return self._latest

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one limit of the options; the planner applies all limits."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        least = options.min_offsets_per_trigger
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    @reason_first()
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the logs end, for the lag in Spark's progress."""
        offsets: dict[str, Any] = dict(self._planner.report())
        # With the time of the batch's end, if the query has caught up.
        return self._latest if self._latest is not None and undated(self._latest) == offsets else offsets

    @reason_first()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where the query ends."""
        self._planner.prepare_target()

    @reason_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of a micro-batch, one task each; read a small one here and return its rows too."""
        planner = self._planner
        if isinstance(planner, AckPlanner):
            return [InputPartition(part) for part in planner.ranges(start, end)]
        ranges = planner.ranges(start, end)
        if self._driver_read.wants(ranges):
            rows = self._driver_read.rows(ranges, planner.cluster)
            if rows is not None:
                self.return_rows(rows)
                # If Spark has lost the rows when it needs them, a task reads the same ranges.
                return [InputPartition(tuple(ranges))]
        return [InputPartition((part,)) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the ranges or spool files of one task; yield Arrow record batches.

        Raises:
            DataLossError: A spool file cannot be read.
            NsqError: See :meth:`nsq_ha.spark.read.range_reader.RangeReader.batches`.
        """
        part = partition.value
        with reason_first():
            if isinstance(part, SpoolPart):
                yield from (self._projection.stored(read_file(path)) for path in part.paths)
            else:
                # Spark starts a task without a value if there is nothing to read.
                yield from read_ranges(part or (), self._options, self._projection)

    @reason_first()
    def commit(self, end: dict[str, Any]) -> None:
        """Set the channel of ``reportChannel`` to the committed offsets, or delete committed spool files."""
        self._planner.commit(end)

    def stop(self) -> None:
        """Close the driver's connections."""
        if self._planning is not None:
            self._planning.close()
            self._planning = None

    def _dated(self, offsets: Mapping[str, Any], *known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the offsets for Spark's checkpoint with their origin; those of a spool have an id instead."""
        planner = self._planner
        if isinstance(planner, AckPlanner):
            return dict(offsets)
        return dated(offsets, time.time(), *known, marks=planner.marks)

    @property
    def _planner(self) -> StreamPlanner | AckPlanner:
        if self._planning is None:
            options = self._options
            is_ack = options.delivery == "ack"
            self._planning = AckPlanner(options) if is_ack else StreamPlanner(options, BlockingCluster(options.lookupd))
        return self._planning


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands in for a reader that could not be created; every method raises the reason.

    Args:
        reason: Why there is no reader.
    """

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    @reason_first()
    def _refuse(self, *_: Any, **__: Any) -> NoReturn:  # noqa: ANN401 - overrides all signatures
        raise self._reason.with_traceback(None)  # or it would grow with each call

    initialOffset: Callable[..., NoReturn] = _refuse  # noqa: N815 - Spark's names, here and below
    latestOffset: Callable[..., NoReturn] = _refuse  # noqa: N815
    getDefaultReadLimit: Callable[..., NoReturn] = _refuse  # noqa: N815
    partitions: Callable[..., NoReturn] = _refuse
    read: Callable[..., NoReturn] = _refuse
    prepareForTriggerAvailableNow: Callable[..., NoReturn] = _refuse  # noqa: N815
