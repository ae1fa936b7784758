"""Plan one batch read: the start and end of each partition, and the ranges to read.

Each offset of a plan is a message boundary, because only then can the chain rule
check the first and the last message of a range too.

**Source:** Spark design 1.1, 1.5, 2.1.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsq_ha.errors import ConfigError, DataLossError, NsqError
from nsq_ha.spark import logger
from nsq_ha.spark.checkpoint import TopicPartition
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.options.values import EARLIEST, LATEST, ByPartition, OffsetBound
from nsq_ha.spark.plan.metadata import TopicSnapshot, complete_snapshot, topics_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import BlockingCluster
    from nsq_ha.spark.plan.boundaries import PartitionLog


@dataclass(frozen=True, slots=True)
class Range:
    """The messages with ``start <= offset < end`` of one partition; one task reads them.

    Attributes:
        topic: The topic.
        partition: The partition.
        start: Offset of the first message, in bytes of the partition's queue.
        end: Offset after the last message.
        leader: The leader at the time of the plan, as a hint. None if there was none.
        ordered: Whether the topic accepts only ordered subscriptions.
        extended: Whether its messages carry extension headers.

    Raises:
        ConfigError: The range ends before it starts, which would repeat messages.
    """

    topic: str
    partition: int
    start: int
    end: int
    leader: Node | None
    ordered: bool
    extended: bool

    def __post_init__(self) -> None:
        """Check that the range does not end before it starts."""
        if not 0 <= self.start <= self.end:
            raise goes_back(f"{self.topic}-{self.partition}", self.start, self.end)

    @property
    def name(self) -> str:
        """The range, for error messages and logs."""
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def goes_back(name: str, start: int, end: int, unit: str = "offset") -> ConfigError:
    """Return the error for a plan that ends before it starts."""
    return ConfigError(
        f"{name}: the plan goes back from {unit} {start} to {end}, which would repeat messages; if the checkpoint "
        "says so, it belongs to another log or a faulty version: start with a new checkpoint and a new output"
    )


def plan(options: ReadOptions, cluster: BlockingCluster) -> list[Range]:
    """Return the ranges of a batch read: one per partition unless they are split, without empty ones.

    Args:
        options: The options of the read.
        cluster: The cluster.

    Raises:
        ConfigError: An offset names a partition that does not exist, or lies inside
            the last message; or the topic accepts registered channels only.
        DataLossError: A range is not, or no longer, in the log and ``failOnDataLoss`` is true.
        TopicNotFoundError: No nsqlookupd knows a topic.
        NoLeaderError: A partition has no leader for ``fetchTimeout`` times (``fetchRetries`` + 1).
        LookupUnavailableError: No nsqlookupd answers for this time.
        ResponseTimeoutError: A leader does not find a start or an end for this time.
    """
    ranges: list[Range] = []
    logs: dict[TopicPartition, PartitionLog] = {}
    for topic in topics_of(options, cluster, options.patience):
        snapshot = complete_snapshot(topic, options, cluster)
        for partition, log in sorted(snapshot.logs.items()):
            bounds = Bounds(log, options)
            start, end = bounds.starting(), bounds.ending()
            if start > end:
                raise ConfigError(
                    f"option {bounds.ending_option!r}: {log.name} ends at {end}, before its start {start}"
                )
            if start < end:
                ranges.append(range_of(snapshot, partition, start, end))
                logs[log.place] = log
    return divide(ranges, options, logs)


def range_of(snapshot: TopicSnapshot, partition: int, start: int, end: int) -> Range:
    """Return a range of a partition, which may have no leader now."""
    log, meta = snapshot.logs.get(partition), snapshot.meta
    leader = None if log is None else log.node
    return Range(snapshot.topic, partition, start, end, leader, meta.ordered, meta.extend_support)


def divide(ranges: Sequence[Range], options: ReadOptions, logs: Mapping[TopicPartition, PartitionLog]) -> list[Range]:
    """Split ranges for ``minPartitions`` and ``maxRecordsPerPartition`` at message boundaries.

    If messages of a range cannot be read yet, this waits, as the task would. A range
    whose boundaries are not found in time is not split; its task reports the error.

    Args:
        ranges: The ranges to read.
        options: Options of the read.
        logs: The logs of the partitions; a range without one is not split.
    """
    wanted, total = options.min_partitions or 0, sum(part.end - part.start for part in ranges)
    if (wanted <= len(ranges) and options.max_records_per_partition is None) or not total:
        return list(ranges)
    found: list[Range] = []
    # One time limit for all: new messages of one partition are flushed while this waits for another one.
    until = time.monotonic() + options.patience
    for part in ranges:
        log = logs.get((part.topic, part.partition))
        pieces = max(1, -(-wanted * (part.end - part.start) // total)) if wanted > len(ranges) else 1
        cuts = [] if log is None else _cuts(log, part, pieces, options.max_records_per_partition, until)
        bounds = [part.start, *cuts, part.end]
        found += [dataclasses.replace(part, start=low, end=high) for low, high in itertools.pairwise(bounds)]
    return found


def _cuts(log: PartitionLog, part: Range, pieces: int, rows: int | None, until: float) -> list[int]:
    try:
        return log.patiently(lambda current: current.cuts(part.start, part.end, pieces, rows), until)
    except NsqError as error:
        if not error.retriable:
            raise
        logger.warning("%s is not split: %s", log.name, error)
        return []


def _named(end: str, times: int | ByPartition) -> str:
    """Return the option that set a time."""
    return f"{end}Timestamp" if isinstance(times, int) else f"{end}OffsetsByTimestamp"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Finds start and end of one partition's range within the patience of the read; raises as :func:`plan`."""

    log: PartitionLog
    options: ReadOptions

    def starting(self) -> int:
        """Return the first offset, a boundary."""
        options, start = self.options, self.log.extent.start
        if options.starting_times is not None:
            is_strict = options.starting_offsets_by_timestamp_strategy == "error"
            return self._at_time(options.starting_times, start, is_strict=is_strict)
        return self._at_offset("startingOffsets", options.starting_offsets, EARLIEST)

    def ending(self) -> int:
        """Return the offset after the last message, a boundary."""
        if self.options.ending_times is not None:
            return self._at_time(self.options.ending_times, self.log.extent.end)
        return self._at_offset("endingOffsets", self.options.ending_offsets, LATEST)

    @property
    def ending_option(self) -> str:
        """The option that set the end."""
        times = self.options.ending_times
        return "endingOffsets" if times is None else _named("ending", times)

    def _at_time(self, times: int | ByPartition, otherwise: int, *, is_strict: bool = False) -> int:
        """Return the boundary at a time; ``otherwise`` if there is no time, the log's end if all messages are older.

        If ``is_strict``, it is an error that all messages are older.
        """
        log = self.log
        time_ms = times if isinstance(times, int) else times.get(log.topic, {}).get(log.partition)
        if time_ms is None:
            return otherwise
        found = log.patiently(lambda current: current.at_time(time_ms))
        if found is None and is_strict:
            raise ConfigError(
                f"option {_named('starting', times)!r}: {log.name} has no message from {time_ms} (ms since 1970) on; an"
                " earlier time, or startingOffsetsByTimestampStrategy=latest, starts the read"
            )
        return log.extent.end if found is None else found

    def _at_offset(self, option: str, bound: OffsetBound, default: int) -> int:
        """Return the boundary at or after an offset; a bound of the log if it is not in there and loss is allowed."""
        if isinstance(bound, str):
            offset = LATEST if bound == "latest" else EARLIEST
        else:
            offset = bound.get(self.log.topic, {}).get(self.log.partition, default)
        extent, name = self.log.extent, self.log.name
        if offset in (EARLIEST, LATEST):
            return extent.start if offset == EARLIEST else extent.end
        if extent.start <= offset <= extent.end:
            found = self.log.patiently(lambda current: current.boundary(offset))
            if found is None:
                raise ConfigError(
                    f"option {option!r}: no message of {name} begins at or after offset {offset}, "
                    f"though the log ends at {extent.end}"
                )
            return found
        # A log that ends before the offset was re-created or lost its tail: this never means "no data".
        problem = f"option {option!r}: offset {offset} of {name} is not in the log [{extent.start}, {extent.end})"
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{problem}: choose another offset, or set failOnDataLoss=false to read what is left")
        otherwise = extent.start if default == EARLIEST or offset < extent.start else extent.end
        logger.warning("%s; using %d, %d bytes away", problem, otherwise, abs(otherwise - offset))
        return otherwise
