"""``spark.read.format("nsq")``: the data source and the batch reader that Spark calls.

They hold options and a projection but no connection, since Spark pickles them between the
processes of the driver and the workers. ``plan`` does the work on the driver, ``read`` in
the tasks. Filters stay with Spark.

The first action on what ``load()`` returns plans the ranges, and Spark keeps them for it and
for all frames and views that are made of it: its end stays where it was. ``load()`` again
reads anew.

**Source:** Spark design 2.1, 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import KNOWN, ReadOptions
from nsq_ha.spark.plan.batch_planner import plan
from nsq_ha.spark.read.columns import Projection, default_schema
from nsq_ha.spark.read.range_reader import read_ranges
from nsq_ha.spark.reasons import reason_first

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
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
        from nsq_ha.spark.stream import NsqStreamReader, RefusedStreamReader  # noqa: PLC0415 - batches do not need it

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
