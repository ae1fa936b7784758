"""``df.write.format("nsq")`` and ``df.writeStream.format("nsq")``: the classes that Spark calls.

The driver checks options, columns and topics; ``write`` publishes the rows of one task. At
least once: a task that runs again publishes again, since NSQ has no transactions. Trace ids
that stay the same in a repeated task let readers drop repeats
(:func:`nsq_ha.spark.functions.drop_repeats`).

**Source:** Spark design 2.3.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nsq_ha.errors import ConfigError, NoLeaderError
from nsq_ha.spark import logger
from nsq_ha.spark.cluster import BlockingCluster, worker_cluster
from nsq_ha.spark.options import ReadOptions, WriteOptions
from nsq_ha.spark.options.names import wrong
from nsq_ha.spark.plan.metadata import complete_snapshot
from nsq_ha.spark.pyspark_private import SPECULATES, reason_first, task_ids
from nsq_ha.spark.read.columns import COLUMNS as READ_COLUMNS
from nsq_ha.spark.write.partition_writer import PartitionWritten, TaskWriter
from nsq_ha.spark.write.row_converter import COLUMNS, BadRows, RowConverter, TargetTopic, TraceIds

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_IDS: Final = ("bigint", "int", "string", "binary")


@dataclass
class TaskWritten(WriterCommitMessage):
    """The result of one task: acknowledged messages by topic and partition, and bad rows."""

    parts: Mapping[tuple[str, int], PartitionWritten]
    bad: BadRows = field(default_factory=BadRows)


class _Writer:
    """Publishes, at least once: the common part of batch and stream; pickled to the tasks.

    Raises:
        ConfigError: An option, a column or the topic is wrong.
        NsqError: The topic does not exist, or no server answers.
    """

    _is_stream = False

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("mode 'overwrite': a topic cannot be emptied: use mode('append')")
        self._options = WriteOptions.parse(options)
        self._columns = tuple(schema.fieldNames())
        self._run = uuid.uuid4().hex
        self._ignored = check_columns(schema, self._options)
        self._targets: dict[str, TargetTopic] = {}
        # Spark creates a writer for the plan and another one for the commit of each micro-batch.
        with worker_cluster(self._options.lookupd) as cluster:
            if self._options.topic is not None:
                self._targets[self._options.topic] = self._checked_target(self._options.topic, cluster)
            if (dead_letters := self._options.dead_letter_topic) is not None:
                self._targets[dead_letters] = self._target(dead_letters, cluster)
        if not self._is_stream:
            self._warn()
        elif self._options.write_id is not None:
            raise wrong("writeId", "is for batch writes; a stream has the ids of its query and micro-batches")

    @reason_first()
    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        """Publish the rows of one task.

        Raises:
            PublishError: A batch could not be stored within ``publishTimeout``.
            ConfigError: A row cannot be published.
            ServerError: The server refuses permanently.
        """
        number, query, batch_id = task_ids()
        origin = {"write": self._run, "query": query, "batch": batch_id, "task": number}
        with worker_cluster(self._options.lookupd) as cluster:
            find = partial(self._checked_target, cluster=cluster)
            rows = RowConverter(self._options, self._targets, find, self._ids(number, query, batch_id), origin)
            task = TaskWriter(self._options, rows, cluster)
            try:
                for batch in iterator:
                    task.add(batch)
                return TaskWritten(task.finish(), rows.bad)
            finally:
                task.close()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        """Log the counts of the write."""
        if batchId == 0:
            self._warn()
        _log(_name(batchId), messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        """Log the counts of messages that stay published: they cannot be withdrawn."""
        _log(f"aborted {_name(batchId)}, whose published messages stay published", messages)

    def _checked_target(self, topic: str, cluster: BlockingCluster) -> TargetTopic:
        target = self._target(topic, cluster)
        check_target(target, self._columns, self._options)
        return target

    def _target(self, topic: str, cluster: BlockingCluster) -> TargetTopic:
        needs = ReadOptions(lookupd=self._options.lookupd, topics=(topic,), channel="any")
        found = complete_snapshot(topic, needs, cluster, self._options.publish_timeout)
        if found.meta.partition_num < 1:
            raise NoLeaderError(f"no nsqlookupd named a partition of topic {topic!r}")
        leaders = {number: log.node for number, log in found.logs.items()}
        return TargetTopic(topic, found.meta.partition_num, found.meta.ordered, found.meta.extend_support, leaders)

    def _ids(self, task: int, query: str | None, batch: str | None) -> TraceIds:
        """Return a task's trace ids.

        A stream keeps its id over restarts, so repeats have the same ids. Each batch write has its own, since one
        ``foreachBatch`` may have two.
        """
        options = self._options
        if not self._is_stream or not options.trace or options.trace_id_column is not None:
            return TraceIds(options.write_id or self._run, task)
        if not query or not batch:
            # Ids would repeat in another micro-batch, and drop_repeats would delete rows that are not repeated.
            raise ConfigError(
                "option 'trace': Spark did not provide the query and micro-batch of this task (local properties "
                "sql.streaming.queryId and streaming.sql.batchId), so it has no trace ids that stay the same when the "
                "task runs again; set 'traceIdColumn' to a column with your own ids, or write without 'trace'"
            )
        return TraceIds(f"{query}/{batch}", task)

    def _warn(self) -> None:
        if os.environ.get(SPECULATES, "false").lower() == "true":
            logger.warning("spark.speculation=true: a second copy of a task publishes its rows twice: set it to false")
        if self._ignored:
            logger.warning("a write has no use for the columns %s of a read: ignored", ", ".join(self._ignored))
        for topic, target in self._targets.items():
            # On an ordered topic a key is required for the order, so nobody expects to read it again.
            if "key" in self._columns and not target.extended and not target.ordered:
                logger.warning(
                    "topic %r: column 'key' chooses the partition but is not stored, since the topic is not extended: "
                    "readers get no key",
                    topic,
                )


class NsqBatchWriter(_Writer, DataSourceArrowWriter):
    """Publishes a batch, at least once."""


class NsqStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes micro-batches, at least once."""

    _is_stream = True


def check_columns(schema: StructType, options: WriteOptions) -> list[str]:
    """Check the columns of a DataFrame that is to be written; return those of a read that a write ignores.

    Raises:
        ConfigError: ``value`` is missing, a column is unknown or has a wrong type, or trace ids would be positions.
    """
    known = dict(COLUMNS)
    if options.trace_id_column is not None:
        allowed = known.get(options.trace_id_column, _IDS)
        known[options.trace_id_column] = tuple(kind for kind in allowed if kind in _IDS) or _IDS
    names = schema.fieldNames()
    ignored = [name for name in names if name in READ_COLUMNS.keys() - known.keys()]
    for column in (column for column in schema.fields if column.name not in ignored):
        kind = re.sub(r"decimal\(\d+,0\)", "decimal(p,0)", column.dataType.simpleString())
        if column.name not in known:
            raise ConfigError(f"column {column.name!r} is not a column of a write; these are: {', '.join(known)}")
        if kind not in known[column.name]:
            raise ConfigError(f"column {column.name!r} is {kind}; it must be {' or '.join(known[column.name])}")
    for needed in ("value", options.trace_id_column, None if options.topic else "topic"):
        if needed is not None and needed not in names:
            raise ConfigError(f"column {needed!r} is missing" + (", and so is option 'topic'" * (needed == "topic")))
    if options.trace and options.trace_id_column is None and not _are_placed(names, options):
        raise ConfigError(
            "option 'trace': nothing says what a row is, and its number in the task may be another one if the task "
            "runs again: set 'traceIdColumn' to a column that does, such as nsq_ha.spark.functions.row_id() for rows "
            "of NSQ or Kafka, or place the rows with nsq_ha.spark.functions.by_partition"
        )
    return ignored


def check_target(target: TargetTopic, columns: Sequence[str], options: WriteOptions) -> None:
    """Check that the columns suit the topic.

    Raises:
        ConfigError: Headers or tags for a topic that is not extended, a key that would be lost, or an ordered topic
            without keys or partitions.
    """
    if not target.extended and (used := {"headers", "tag"} & set(columns)):
        raise ConfigError(f"topic {target.topic!r} is not extended, so it accepts no {' and no '.join(sorted(used))}")
    if not target.extended and not target.ordered and options.partitioner == "roundrobin" and "key" in columns:
        raise ConfigError(
            f"column 'key' would be lost: partitioner=roundrobin does not use it, and topic {target.topic!r} is not "
            "extended, so no header can hold it; drop the column, choose another partitioner, or write to an extended "
            "topic"
        )
    if target.ordered and not _are_placed(columns, options):
        raise ConfigError(
            f"topic {target.topic!r} is ordered: add a column 'key' or 'partition', see nsq_ha.spark.functions"
        )


def _are_placed(columns: Sequence[str], options: WriteOptions) -> bool:
    """Return whether columns choose the partition of each row."""
    placed = {"key"} if options.partitioner in ("murmur3", "javahash") else {"key", "partition"}
    return options.partitioner != "roundrobin" and not placed.isdisjoint(columns)


def _name(batch: int | None) -> str:
    return "batch" if batch is None else f"micro-batch {batch}"


def _log(what: str, messages: list[WriterCommitMessage | None]) -> None:
    tasks = [task for task in messages if isinstance(task, TaskWritten)]
    parts = [part for task in tasks for part in task.parts.items()]
    rows, size, doubtful = (sum(getattr(part, name) for _, part in parts) for name in ("rows", "size", "doubtful"))
    bad = BadRows()
    for task in tasks:
        bad.add(task.bad)
    level = logging.WARNING if doubtful or bad.first else logging.INFO
    places = {place for place, _ in parts}
    text = "%s: %d messages of %d bytes to %d partitions in %d tasks; %d of them may be stored twice%s"
    logger.log(level, text, what, rows, size, len(places), len(messages), doubtful, bad)
