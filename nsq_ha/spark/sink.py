"""``df.write.format("nsq")`` and ``df.writeStream.format("nsq")``: what Spark calls.

Owns a task's run over its rows: messages of one partition are gathered into
MPUBs and sent in order. At least once: a task that runs again publishes again,
and NSQ has no transactions. Trace ids that are the same on a repetition let
readers drop repeats (:func:`nsq_ha.spark.functions.drop_repeats`).

**Source:** Spark reference 2.3.
"""

from __future__ import annotations

import itertools
import logging
import operator
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nsq_ha.errors import ConfigError, NoLeaderError
from nsq_ha.spark.bad_rows import BadRows
from nsq_ha.spark.blocks import Block
from nsq_ha.spark.cluster import Cluster
from nsq_ha.spark.options import ReadOptions, WriteOptions
from nsq_ha.spark.outgoing import Identity, Row, Rows, Target, check_columns, check_target, encode, key_is_not_stored
from nsq_ha.spark.publish import PartitionWriter, Written
from nsq_ha.spark.survey import whole
from nsq_ha.spark.tasks import seldom_collected

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql.types import StructType

log: Final = logging.getLogger("nsq_ha.spark")

_ROOM: Final = 16  # bytes a message takes in an MPUB beside body and header, at most
_LONG: Final = 32  # rows of one partition from which on they are looked at together
_PLACE: Final = operator.itemgetter(0, 1)
_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass
class TaskWritten(WriterCommitMessage):
    """What one task wrote, by topic and partition, and its bad rows."""

    parts: Mapping[tuple[str, int], Written]
    bad: BadRows = field(default_factory=BadRows)


class _Writer:
    """The part that batch and stream share; pickled to the tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        """Check options, columns and topic on the driver.

        Raises:
            ConfigError: Something of them does not fit.
            NsqError: The topic is not there, or nobody answers.
        """
        if overwrite:
            raise ConfigError("mode 'overwrite': a topic cannot be emptied; use mode('append')")
        self._options = WriteOptions.parse(options)
        self._columns = tuple(schema.fieldNames())
        self._run = uuid.uuid4().hex
        check_columns(schema, self._options)
        self._targets: dict[str, Target] = {}
        if self._options.topic is not None:
            with Cluster(self._options.lookupd) as cluster:
                self._add_target(self._options.topic, cluster)
        if self._options.dead_letters is not None:
            with Cluster(self._options.lookupd) as cluster:
                self._targets[self._options.dead_letters] = self._target(self._options.dead_letters, cluster)

    def write(self, iterator: Iterator[Any]) -> TaskWritten:
        """Publish the rows of one task.

        Raises:
            PublishError: A batch could not be stored within ``publishTimeout``.
            ConfigError: A row cannot be published.
            ServerError: The server refuses for good.
        """
        with seldom_collected(), Cluster(self._options.lookupd) as cluster:
            task = _Task(self._options, cluster)
            rows = Rows(self._options, self._targets, self._identity())
            try:
                for batch in iterator:
                    self._add(batch, task, rows, cluster)
                return TaskWritten(task.finish(self._targets), rows.bad)
            finally:
                task.close()

    def _add(self, batch: Any, task: _Task, rows: Rows, cluster: Cluster) -> None:  # noqa: ANN401 - pyarrow has no types
        """Publish a record batch: what fills whole MPUBs of one partition at one go, the rest row by row."""
        block = Block.of(batch, self._options, self._targets)
        if block is not None:
            lacking = min(task.lacking(block), block.count)
            task.add(self._rows(rows, batch.slice(0, lacking), cluster), self._targets)
            sent = task.send_whole(block, lacking, self._targets)
            rows.passed(sent)
            batch = batch.slice(lacking + sent)
        if batch.num_rows:
            task.add(self._rows(rows, batch, cluster), self._targets)

    def _rows(self, rows: Rows, batch: Any, cluster: Cluster) -> Iterator[Row]:  # noqa: ANN401 - pyarrow has no types
        while True:
            try:
                return rows.of(batch)
            except KeyError as missing:
                self._add_target(missing.args[0], cluster)

    def _add_target(self, topic: str, cluster: Cluster) -> None:
        target = self._target(topic, cluster)
        check_target(target, self._columns, self._options)
        self._targets[topic] = target

    def _target(self, topic: str, cluster: Cluster) -> Target:
        needs = ReadOptions(lookupd=self._options.lookupd, topics=(topic,), channel="any")
        meta = whole(topic, needs, cluster, self._options.publish_timeout).meta
        if meta.partition_num < 1:
            raise NoLeaderError(f"topic {topic!r} has no partitions")
        return Target(topic, meta.partition_num, meta.ordered, meta.extend_support)

    def _identity(self) -> Identity:
        """Return the identity of a task. Each write has its own: two in one ``foreachBatch`` must not share ids."""
        context = _task_context()
        return Identity(self._run, "0", 0 if context is None else context.partitionId())

    def _warn_of_keys(self) -> None:
        for topic in [topic for topic, target in self._targets.items() if key_is_not_stored(target, self._columns)]:
            log.warning(
                "column 'key' chooses the partition and is not stored: topic %r is not extended, so rows that are read "
                "again have no key",
                topic,
            )


class NsqBatchWriter(_Writer, DataSourceArrowWriter):
    """Publishes a batch, at least once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        self._warn_of_keys()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what was written."""
        _log("batch", messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what is published nevertheless: nothing can take it back."""
        _log("aborted batch, which stays published as far as it came", messages)


class NsqStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes micro-batches, at least once."""

    def _identity(self) -> Identity:
        """Return the identity of a task. A stream's id outlives the driver, so a repeated batch has the same ids."""
        context = _task_context()
        task = 0 if context is None else context.partitionId()
        if not self._options.trace or self._options.trace_column is not None:
            # No ids are made of it.
            return Identity(self._run, "0", task)
        if context is None:
            return Identity.of_stream(None, None, task)
        return Identity.of_stream(context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID), task)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what was written."""
        if batchId == 0:
            self._warn_of_keys()
        _log(f"micro-batch {batchId}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what is published nevertheless: nothing can take it back."""
        _log(f"aborted micro-batch {batchId}, which stays published as far as it came", messages)


class _Task:
    """The open partitions of one task."""

    def __init__(self, options: WriteOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._writers: dict[tuple[str, int], PartitionWriter] = {}
        self._waiting: dict[tuple[str, int], list[Row]] = {}
        self._sizes: dict[tuple[str, int], int] = {}

    def add(self, rows: Iterator[Row], targets: Mapping[str, Target]) -> None:
        """Take rows; what fills an MPUB is sent."""
        for place, run in itertools.groupby(rows, _PLACE):
            held = self._waiting.setdefault(place, [])
            part = list(run)
            while part:
                # Rows that Spark has sorted by partition come in long runs: these fill an MPUB at one go.
                fitting = part[: self._options.batch_messages - len(held)]
                if len(fitting) < _LONG or not self._hold(place, fitting):
                    fitting = part[:_LONG]
                    self._hold_each(place, fitting, targets)
                held = self._waiting[place]
                part = part[len(fitting) :]

    def lacking(self, block: Block) -> int:
        """Return how many rows fill what already waits for the block's partition; 0 when nothing does."""
        held = len(self._waiting.get((block.topic, block.partition), ()))
        return self._options.batch_messages - held if held else 0

    def send_whole(self, block: Block, start: int, targets: Mapping[str, Target]) -> int:
        """Send messages of a block from ``start`` on, as far as they fill MPUBs; tells how many."""
        place, most = (block.topic, block.partition), self._options.batch_messages
        if len(self._waiting.get(place, ())) >= most:
            self._send(place, targets)
        at = start
        # What waits stands before these.
        while not self._waiting.get(place) and at + most <= block.count:
            batch = block.mpub(at, at + most, self._options.batch_bytes)
            if batch is None:
                break
            self._writer(place).send(batch)
            at += most
        return at - start

    def _hold(self, place: tuple[str, int], rows: list[Row]) -> bool:
        """Keep rows for the next MPUB, unless they are too large for one together with what waits."""
        size = self._sizes.get(place, 0) + sum([len(row[2]) + len(row[4]) for row in rows]) + _ROOM * len(rows)
        if size > self._options.batch_bytes:
            return False
        self._waiting[place] += rows
        self._sizes[place] = size
        return True

    def _hold_each(self, place: tuple[str, int], rows: list[Row], targets: Mapping[str, Target]) -> None:
        """Keep rows one by one; what fills an MPUB is sent."""
        most, largest = self._options.batch_messages, self._options.batch_bytes
        held = self._waiting[place]
        for row in rows:
            size = len(row[2]) + len(row[4]) + _ROOM
            if len(held) >= most or (held and self._sizes[place] + size > largest):
                self._send(place, targets)
                held = self._waiting[place]
            held.append(row)
            self._sizes[place] = self._sizes.get(place, 0) + size

    def finish(self, targets: Mapping[str, Target]) -> Mapping[tuple[str, int], Written]:
        """Send what is left and wait for all answers."""
        for place in list(self._waiting):
            self._send(place, targets)
        for writer in self._writers.values():
            writer.settle()
        return {place: writer.written for place, writer in self._writers.items()}

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _send(self, place: tuple[str, int], targets: Mapping[str, Target]) -> None:
        rows, self._waiting[place], self._sizes[place] = self._waiting[place], [], 0
        if not rows:
            return
        topic, partition = place
        batch = encode(topic, partition, rows, extended=targets[topic].extended, traced=self._options.trace)
        self._writer(place).send(batch)

    def _writer(self, place: tuple[str, int]) -> PartitionWriter:
        writer = self._writers.get(place)
        if writer is None:
            writer = self._writers[place] = PartitionWriter(*place, self._options, self._cluster)
        return writer


def _log(what: str, messages: list[WriterCommitMessage | None]) -> None:
    parts = [part for told in messages if isinstance(told, TaskWritten) for part in told.parts.items()]
    rows, size = sum(part.rows for _, part in parts), sum(part.size for _, part in parts)
    doubtful = sum(part.doubtful for _, part in parts)
    bad = BadRows()
    for told in messages:
        if isinstance(told, TaskWritten):
            bad.add(told.bad)
    level = logging.WARNING if doubtful or bad.first else logging.INFO
    log.log(
        level,
        "%s: %d messages of %d bytes to %d partitions in %d tasks; %d of them were sent again in doubt%s",
        what,
        rows,
        size,
        len({place for place, _ in parts}),
        len(messages),
        doubtful,
        bad,
    )


def _task_context() -> TaskContext | None:
    from pyspark import TaskContext  # noqa: PLC0415 - only a task has one

    return TaskContext.get()
