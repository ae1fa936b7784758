"""``format("nsq")`` of ``spark.read`` and ``spark.readStream``: the data source and the readers that Spark calls.

They hold options and a projection but no connection, since Spark pickles them between the
processes of the driver and the workers. ``plan`` does the work on the driver, ``read`` in
the tasks. Filters stay with Spark.

The first action on what ``load()`` returns plans the ranges, and Spark keeps them for it and
for all frames and views that are made of it: its end stays where it was. ``load()`` again
reads anew.

PySpark keeps the reader of a stream in one long-lived process per query for the driver's calls, and
pickles it to the workers for reading. So the reader connects to the cluster when needed,
and pickles no connection. PySpark does not call ``stop``, so nothing depends on it.

**Source:** Spark design 2.1, 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nsq_ha.options.checks import MAX_INT64
from nsq_ha.spark.ack.planner import AckPlanner
from nsq_ha.spark.ack.spool import read_file
from nsq_ha.spark.checkpoint import dated, undated
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import KNOWN, ReadOptions
from nsq_ha.spark.plan.batch_planner import plan
from nsq_ha.spark.plan.stream_planner import StreamPlanner
from nsq_ha.spark.pyspark_private import ReturnsRows, reason_first
from nsq_ha.spark.read.columns import Projection, default_schema
from nsq_ha.spark.read.range_reader import DriverRead, read_ranges

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class NsqDataSource(DataSource):
    """Topics as tables: one row per message, exactly once, by queue offsets.

    Columns: ``key`` binary, ``value`` binary, ``topic``, ``partition``, ``offset``
    (bytes in the partition's queue), ``timestamp`` (of the publish at the server),
    ``raw_size``, ``message_id`` binary(16), ``trace_id`` (unsigned 64 bit, shown
    signed), ``attempts`` (of the read's own channel, so nearly always 1) and,
    with ``includeHeaders``, ``headers``. A schema selects some of them. The options
    are in :data:`nsq_ha.spark.options.KNOWN`.
    """

    @classmethod
    def name(cls) -> str:
        """Return ``nsq``."""
        return "nsq"

    @reason_first()
    def schema(self) -> str:
        """Return all columns as Spark DDL.

        Raises:
            ConfigError: An option is wrong; the message begins with its name. All methods raise it.
        """
        given = {name.lower(): value.strip() for name, value in self.options.items()}
        headers = KNOWN["includeHeaders"].parse(given.get("includeheaders", "false"))
        kind = KNOWN["headersAs"].parse(given.get("headersas", "map"))
        return default_schema(headers=headers, as_array=kind == "array")

    @reason_first()
    def reader(self, schema: StructType) -> NsqBatchReader:
        """Return the batch reader for the columns of ``schema``.

        Raises:
            ConfigError: A column is unknown or has a wrong type.
        """
        return NsqBatchReader(ReadOptions.parse(self.options), Projection(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream; its first call raises the errors of :meth:`reader`.

        If creating the reader fails, PySpark still calls ``stop()`` on it and reports its own
        UnboundLocalError. So this method always returns a reader.
        """
        try:
            return NsqStreamReader(ReadOptions.parse(self.options, "stream"), Projection(schema))
        except Exception as error:  # noqa: BLE001 - raised again where PySpark reports it
            return RefusedStreamReader(error)

    @reason_first()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch.

        Raises:
            ConfigError: A column is missing, unknown or has a wrong type, or the mode is ``overwrite``.
        """
        from nsq_ha.spark.sink import NsqBatchWriter  # noqa: PLC0415

        return NsqBatchWriter(self.options, schema, overwrite=overwrite)

    @reason_first()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream; raises as :meth:`writer`."""
        from nsq_ha.spark.sink import NsqStreamWriter  # noqa: PLC0415

        return NsqStreamWriter(self.options, schema, overwrite=overwrite)


class NsqBatchReader(DataSourceReader):
    """One batch read: planned on the driver, read in tasks."""

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        self._options = options
        self._projection = projection

    @reason_first()
    def partitions(self) -> list[InputPartition]:
        """Ask the cluster for the ranges to read, one task each.

        Raises:
            NsqError: See :func:`nsq_ha.spark.plan.batch_planner.plan`.
        """
        with BlockingCluster(self._options.lookupd) as cluster:
            return [InputPartition((part,)) for part in plan(self._options, cluster)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the range of one task; yield Arrow record batches."""
        # Spark starts a task without a value if there is nothing to read.
        with reason_first():
            yield from read_ranges(partition.value or (), self._options, self._projection)


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
        """Return a limit if the options have any; :meth:`latestOffset` gets it back, and the planner applies all."""
        options = self._options
        return ReadMaxRows(options.max_offsets_per_trigger or MAX_INT64) if options.is_limited else ReadAllAvailable()

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
        part = partition.value or ()  # Spark starts a task without a value if there is nothing to read
        with reason_first():
            if self._options.delivery == "ack":
                yield from (self._projection.stored(read_file(path)) for path in part)
            else:
                yield from read_ranges(part, self._options, self._projection)

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
