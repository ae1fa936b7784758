"""``spark.read.format("nsq")``: what Spark calls, and nothing more.

Owns the classes that PySpark's Python data source API asks for; they hold
options and a projection, no connection, since Spark pickles them between the
driver's and the workers' processes. The work is ``planner`` on the driver and
``reader`` in the tasks.

A batch read plans its ranges each time that Spark plans the query: with a live
writer and ``endingOffsets=latest`` two actions on one DataFrame may see
different ends. Give the end as JSON where that matters.

**Source:** Spark reference 2.1, 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nsq_ha.spark import values
from nsq_ha.spark.cluster import Cluster
from nsq_ha.spark.filters import Narrowed
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.planner import plan
from nsq_ha.spark.rows import Projection, default_schema
from nsq_ha.spark.tasks import read_range

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter, Filter
    from pyspark.sql.types import StructType


class NsqDataSource(DataSource):
    """Topics as tables: one row a message, exactly once, by queue offsets.

    Columns: ``value`` binary, ``topic``, ``partition``, ``offset`` (bytes in the
    partition's queue), ``timestamp`` (of the publish at the server),
    ``raw_size``, ``message_id`` binary(16), ``trace_id`` (unsigned 64 bit, shown
    signed), ``attempts`` (of the read's own channel, so nearly always 1) and,
    with ``includeHeaders``, ``headers``. A schema of the user's own picks some of
    them. Which options there are is in :data:`nsq_ha.spark.options.KNOWN`.
    """

    @classmethod
    def name(cls) -> str:
        """Return ``nsq``."""
        return "nsq"

    def schema(self) -> str:
        """Return all columns, as Spark's DDL.

        Raises:
            ConfigError: An option is wrong; the message begins with its name. As all methods here.
        """
        given = {name.lower(): value for name, value in self.options.items()}
        told = {"includeHeaders": given["includeheaders"].strip()} if "includeheaders" in given else {}
        return default_schema(headers=values.flag(told, "includeHeaders", default=False))

    def reader(self, schema: StructType) -> NsqBatchReader:
        """Return the batch reader for the columns of ``schema``.

        Raises:
            ConfigError: A column is unknown or of another type.
        """
        options = ReadOptions.parse(self.options)
        # A class with pushFilters makes every read fail where Spark's switch for it is off.
        kind = NsqFilteredReader if options.pushdown else NsqBatchReader
        return kind(options, Projection(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream; its first call raises the errors of :meth:`reader`.

        If creating the reader fails, PySpark still calls ``stop()`` on it and reports an
        UnboundLocalError of its own. So a reader is always returned.
        """
        from nsq_ha.spark.stream import NsqStreamReader, RefusedStreamReader  # noqa: PLC0415 - needs PySpark 4.2

        try:
            return NsqStreamReader(ReadOptions.parse(self.options, "stream"), Projection(schema))
        except Exception as error:  # noqa: BLE001 - raised again where PySpark reports it
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch.

        Raises:
            ConfigError: A column is missing, unknown or of another type, or mode ``overwrite`` is asked for.
        """
        from nsq_ha.spark.sink import NsqBatchWriter  # noqa: PLC0415

        return NsqBatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a stream; errors as for :meth:`writer`."""
        from nsq_ha.spark.sink import NsqStreamWriter  # noqa: PLC0415

        return NsqStreamWriter(self.options, schema, overwrite=overwrite)


class NsqBatchReader(DataSourceReader):
    """One batch read: planned on the driver, read in tasks."""

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        """Keep what both sides need."""
        self._options = options
        self._projection = projection
        self._narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        """Ask the cluster for the ranges to read; one task each.

        Raises:
            NsqError: See :func:`nsq_ha.spark.planner.plan`.
        """
        with Cluster(self._options.lookupd) as cluster:
            return [InputPartition(part) for part in plan(self._options, cluster, self._narrowed)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one range; gives Arrow record batches."""
        return read_range(partition.value, self._options, self._projection)


class NsqFilteredReader(NsqBatchReader):
    """A batch read that takes Spark's filters for a hint what not to read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the ranges; every filter is given back, so that Spark still applies it row by row."""
        self._narrowed = Narrowed.of(filters)
        return filters
