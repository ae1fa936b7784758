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

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from nsq_ha.errors import ConfigError
from nsq_ha.spark.cluster import Cluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.planner import Range, plan
from nsq_ha.spark.reader import RangeReader
from nsq_ha.spark.rows import Projection, default_schema

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class NsqDataSource(DataSource):
    """Topics as tables: one row a message, exactly once, by queue offsets.

    Columns: ``value`` binary, ``topic``, ``partition``, ``offset`` (bytes in the
    partition's queue), ``timestamp`` (of the publish at the server),
    ``raw_size``, ``message_id`` binary(16), ``trace_id`` (unsigned 64 bit, shown
    signed), ``attempts`` (of the read's own channel, so nearly always 1) and,
    with ``includeHeaders``, ``headers``. A schema of the user's own picks some of
    them. The options are listed in :data:`nsq_ha.spark.options.KNOWN`.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check the options that a read has.

        Raises:
            ConfigError: The message begins with the option's name.
        """
        super().__init__(options)
        self._read_options = ReadOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return ``nsq``."""
        return "nsq"

    def schema(self) -> str:
        """Return all columns, as Spark's DDL."""
        return default_schema(headers=self._read_options.include_headers)

    def reader(self, schema: StructType) -> NsqBatchReader:
        """Return the batch reader for the columns of ``schema``.

        Raises:
            ConfigError: A column is unknown or of another type.
        """
        return NsqBatchReader(self._read_options, Projection(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Refuse: there is no streaming read yet."""
        raise ConfigError("format 'nsq' reads batches only so far: use spark.read, not spark.readStream")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse: there is no writer yet."""
        raise ConfigError("format 'nsq' only reads so far: publish with nsq_ha.Producer")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Refuse: there is no writer yet."""
        raise ConfigError("format 'nsq' only reads so far: publish with nsq_ha.Producer")


class NsqBatchReader(DataSourceReader):
    """One batch read: planned on the driver, read in tasks."""

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        """Keep what both sides need."""
        self._options = options
        self._projection = projection

    def partitions(self) -> list[InputPartition]:
        """Ask the cluster for the ranges to read; one task each.

        Raises:
            NsqError: See :func:`nsq_ha.spark.planner.plan`.
        """
        with Cluster(self._options.lookupd) as cluster:
            return [InputPartition(part) for part in plan(self._options, cluster)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one range; gives Arrow record batches.

        Raises:
            NsqError: See :meth:`nsq_ha.spark.reader.RangeReader.batches`. Spark
                runs the task again where it is set to.
        """
        asked = partition.value
        # Spark invents one partition when there is none: the topic is empty.
        if not isinstance(asked, Range):
            return
        with Cluster(self._options.lookupd) as cluster:
            for rows in RangeReader(asked, self._options, cluster).batches():
                yield self._projection.batch(rows)
