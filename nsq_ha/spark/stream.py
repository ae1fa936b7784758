"""``spark.readStream.format("nsq")``: what Spark calls, and nothing more.

Owns the class that PySpark keeps in one long-lived process per query for the
driver's questions, and copies to the workers for reading. So the connection to
the cluster is made where it is needed and never travels. ``stop`` is not called
by PySpark, so nothing depends on it.

**Source:** Spark reference 2.1, 3.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from nsq_ha.spark.ack_planner import AckPlanner
from nsq_ha.spark.checkpoint import dated, undated
from nsq_ha.spark.cluster import Cluster
from nsq_ha.spark.handover import Handover
from nsq_ha.spark.stream_planner import StreamPlanner
from nsq_ha.spark.tasks import read_range

if TYPE_CHECKING:
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.rows import Projection


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of one query: planned on the driver, read in tasks."""

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        """Keep what both sides need."""
        self._options = options
        self._projection = projection
        self._planning: StreamPlanner | AckPlanner | None = None
        self._begun: dict[str, Any] | None = None
        self._told: dict[str, Any] | None = None
        self._handover = Handover(options, projection)
        self._handed: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        """Leave the driver's connections behind."""
        return {**self.__dict__, "_planning": None, "_handed": []}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return where a new query begins."""
        self._begun = self._dated(self._planner.initial(), self._begun)
        return self._begun

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends, within the limits."""
        end = self._planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))
        self._told = self._dated(end, start, self._told)
        return self._told

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options; where several are set the planner keeps them all."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_offsets is None else ReadMinRows(options.min_offsets)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the logs end, for the lag in Spark's progress."""
        offsets: dict[str, Any] = dict(self._planner.report())
        # Who has caught up finds the same as at the batch's end.
        return self._told if self._told is not None and undated(self._told) == offsets else offsets

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where the query will end."""
        self._planner.prepare_target()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of one micro-batch, one task each; a small one is read here, and its rows go along."""
        planner = self._planner
        if isinstance(planner, AckPlanner):
            return [InputPartition(part) for part in planner.ranges(start, end)]
        ranges = planner.ranges(start, end)
        if _HAS_ROWS_WITH_PLANS and self._handover.wants(ranges):
            rows = self._handover.rows(ranges, planner.cluster)
            if rows is not None:
                self._handed, self.__class__ = rows, _Handing
                # Should Spark have lost the rows by the time it needs them, a task reads the same ranges.
                return [InputPartition(tuple(ranges))]
        return [InputPartition(part) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one range; gives Arrow record batches."""
        return read_range(partition.value, self._options, self._projection)

    def commit(self, end: dict[str, Any]) -> None:
        """Show progress on the channel of ``reportChannel``, or delete the spool files that are done with."""
        self._planner.commit(end)

    def stop(self) -> None:
        """Close the driver's connections."""
        if self._planning is not None:
            self._planning.close()
            self._planning = None

    def _dated(self, offsets: Mapping[str, Any], *known: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what Spark keeps: offsets of a log with their time; a spool tells by itself whose it is."""
        return dict(offsets) if self._options.delivery == "ack" else dated(offsets, time.time(), *known)

    @property
    def _planner(self) -> StreamPlanner | AckPlanner:
        if self._planning is None:
            options = self._options
            is_ack = options.delivery == "ack"
            self._planning = AckPlanner(options) if is_ack else StreamPlanner(options, Cluster(options.lookupd))
        return self._planning


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands in for a reader that could not be created; every method raises the reason.

    Args:
        reason: Why there is no reader.
    """

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Raise the reason."""
        raise self._reason

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Raise the reason."""
        raise self._reason

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the reason."""
        raise self._reason

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise the reason."""
        raise self._reason

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise the reason."""
        raise self._reason

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the reason."""
        raise self._reason


_Wrapper: Any = getattr(datasource_internal, "_SimpleStreamReaderWrapper", object)
_HAS_ROWS_WITH_PLANS: Final = hasattr(_Wrapper, "getCache")


class _Handing(NsqStreamReader, _Wrapper):  # type: ignore[misc]
    """The reader between two questions of PySpark's: for a plan, and for the rows that go with it.

    PySpark has a way to give rows with a plan, and asks only its own wrapper of
    simple readers for them. To be one all the time would give up the report of
    the lag, which it does not ask a wrapper for.
    """

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:  # noqa: N802
        """Give the rows of the plan that was just made."""
        self.__class__ = NsqStreamReader  # type: ignore[assignment]
        rows, self._handed = self._handed, []
        return iter(rows)
