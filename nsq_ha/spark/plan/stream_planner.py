"""Plan the micro-batches of a stream: the offsets in Spark's checkpoint, and the ranges between them.

The planner remembers the state of the partitions between micro-batches.
``checkpoint`` defines the form of the offsets and of their time, which ``source``
adds.

The invariants: an offset goes back only after data loss that is explicitly allowed,
in a separate step that reads nothing and is marked in the checkpoint; a partition
whose leader does not answer, or cannot find its newest messages yet, waits and does
not stop the others; a new partition begins at its earliest message. A query with an
end (:meth:`StreamPlanner.prepare_target`) reaches it or fails: no temporary error
makes it end earlier.

**Source:** Spark design 1.5, 2.1.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsq_ha.errors import NoLeaderError, NsqError
from nsq_ha.spark import logger
from nsq_ha.spark.checkpoint import OLD, Mark, OffsetJson, Origin, TopicPartition, from_json, special_in, to_json
from nsq_ha.spark.plan import boundaries
from nsq_ha.spark.plan.batch_planner import Bounds, Range, divide, goes_back, range_of
from nsq_ha.spark.plan.boundaries import PartitionLog, Unread, no_progress, retried
from nsq_ha.spark.plan.log_identity import LossPolicy
from nsq_ha.spark.plan.metadata import Snapshots, available_snapshot

if TYPE_CHECKING:
    from nsq_ha.spark.cluster import BlockingCluster
    from nsq_ha.spark.options import ReadOptions


GONE: Final = "the topic is gone: no nsqlookupd lists it"


class NextBatch(NamedTuple):
    """A micro-batch that is being planned.

    Attributes:
        ends: Where it ends in each partition.
        restarts: The offsets to go back to, where the log is another one.
        stopped: Why other partitions cannot advance now.
    """

    ends: dict[TopicPartition, int]
    restarts: dict[TopicPartition, int]
    stopped: Mapping[TopicPartition, NsqError]


class StreamPlanner:
    """Plans the micro-batches of one query. Blocking; used from one thread.

    Args:
        options: Options of the read.
        cluster: The cluster; :meth:`close` closes it.

    Attributes:
        cluster: The cluster, for reads in the same process and thread.
        marks: Messages by which the logs of the offsets that were returned last are known again, for the checkpoint.
    """

    def __init__(self, options: ReadOptions, cluster: BlockingCluster) -> None:
        self.cluster = cluster
        self.marks: Mapping[TopicPartition, Mark] = {}
        self._options = options
        self._initial: OffsetJson | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._snapshots = Snapshots(options, cluster)
        self._advanced_at = time.monotonic()
        self._losses = LossPolicy(options, cluster)
        self._stopped_since: dict[TopicPartition, float] = {}
        self._lacking_since: dict[TopicPartition, float] | None = None  # before the first plan

    def close(self) -> None:
        """Close the connections to the cluster."""
        self.cluster.close()

    def initial(self) -> OffsetJson:
        """Return where a new query begins; the same at each call.

        Raises:
            NsqError: As :func:`nsq_ha.spark.plan.batch_planner.plan`.
        """
        if self._initial is None:
            found: dict[TopicPartition, int] = {}
            self._snapshots.complete()
            for place, each in self._snapshots.logs().items():
                found[place] = Bounds(each, self._options).starting()
            self._initial = to_json(found)
            self.marks = self._marks(found, {})
        return self._initial

    def latest(self, start: Mapping[str, Any] | None, *, limited: bool = True) -> OffsetJson:
        """Return the end of the next micro-batch; ``start`` itself if there is nothing to read.

        Args:
            start: The start of the micro-batch; None if Spark does not provide it.
            limited: Whether the limits of the options apply.

        Raises:
            ConfigError: ``start`` is of another query.
            DataLossError: A log ends before ``start`` or is another one, and ``failOnDataLoss`` is true.
            NsqError: No nsqlookupd answers within the patience of the read, or the query has
                an end and makes no progress towards it for this time.
        """
        begin, origin = from_json(start or {}), Origin.of(start or {})
        self._losses.check(begin)
        until = time.monotonic() + self._options.patience
        while True:
            batch = self._next(begin, origin, limited=limited)
            self._warn_of(batch.stopped)
            if batch.ends != begin or batch.restarts:
                self._advanced_at = time.monotonic()
                moved = {place: begin.get(place) for place, end in batch.ends.items() if begin.get(place) != end}
                known = {place: mark for place, mark in origin.marks.items() if place not in batch.restarts}
                self.marks = self._marks(moved | batch.restarts, known)
            elif batch.stopped:
                self._pause(batch.stopped, until)
                if self._target is not None:
                    continue
            return to_json(batch.ends, batch.restarts)

    def report(self) -> OffsetJson:
        """Return where the logs ended when last seen, for Spark's progress; makes no request.

        Partitions whose leaders did not answer are listed under :data:`~nsq_ha.spark.checkpoint.OLD`, too.
        """
        ends, logs = self._snapshots.ends(), self._snapshots.logs()
        return to_json(ends, {place: end for place, end in ends.items() if place not in logs}, OLD)

    def prepare_target(self) -> None:
        """Fix the end of a query that reads what there is now and then stops.

        Raises:
            NsqError: A partition has no leader for longer than the patience of the read.
        """
        self._snapshots.complete()
        # Up to the end, readable or not: tasks wait for the rest.
        self._target = {place: each.extent.end for place, each in self._snapshots.logs().items()}

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        """Return the ranges of one micro-batch, which may have been planned before a restart.

        Raises:
            ConfigError: The batch is of another query, or ends before it begins, without an allowed data loss: it would
                repeat messages.
            DataLossError: Messages of the batch are deleted, or the log is another one, and ``failOnDataLoss`` is true.
            NsqError: As :meth:`latest`; or it remains unknown whether a log is the same, or where it begins.
        """
        begin, until, restarted, origin = from_json(start), from_json(end), special_in(end), Origin.of(end)
        self._losses.check(until)
        snapshots, unsure = self._snapshots.recent(until), self._lacking(until)
        ranges: list[Range] = []
        for place, stop in sorted(until.items()):
            if not self._options.reads(*place):
                continue
            snapshot = snapshots.get(place[0])
            if snapshot is None:
                self._losses.lose(place, GONE)
                continue
            if place in restarted or (place not in unsure and place[1] >= snapshot.meta.partition_num):
                continue
            known = snapshot.logs.get(place[1])
            if known is None and place not in begin:
                limit = time.monotonic() + self._options.patience
                known = retried(partial(self._found, place), limit)
            first = self._first(place, begin, stop, known)
            if first < stop and not self._losses.is_lost_for_sure(known, stop, origin):
                ranges.append(range_of(snapshot, place[1], first, stop))
        return divide(ranges, self._options, self._snapshots.logs())

    def commit(self, end: Mapping[str, Any]) -> None:
        """Set the channel of ``reportChannel`` to the committed offsets; a failure is only logged."""
        channel = self._options.report_channel
        if channel is None:
            return
        logs = self._snapshots.logs()
        for place, offset in from_json(end).items():
            if (known := logs.get(place)) is None:
                continue
            try:
                if known.extent.start <= offset:
                    self.cluster.open_channel(*place, known.node, channel, offset)
            except NsqError as error:
                logger.warning("%s: reportChannel %r is not updated: %s", known.name, channel, error)

    def _next(self, begin: Mapping[TopicPartition, int], origin: Origin, *, limited: bool) -> NextBatch:
        """Return the next micro-batch."""
        self._snapshots.recent(begin)
        logs = self._snapshots.logs()
        readable = self._readable(begin, logs, origin)
        ends, stopped = readable.ends, readable.stopped
        if limited:
            ends, waiting = self._limited(begin, ends, logs)
            stopped = {**waiting, **stopped}
        for place, end in ends.items():
            if end < begin.get(place, end):
                raise goes_back(f"{place[0]}-{place[1]}", begin[place], end)
        return NextBatch(ends | readable.restarts, readable.restarts, stopped)

    def _marks(
        self, read_to: Mapping[TopicPartition, int | None], known: Mapping[TopicPartition, Mark]
    ) -> Mapping[TopicPartition, Mark]:
        """Return the known marks, or newer ones of the partitions in ``read_to``; None is the start of the log."""
        found, logs = dict(known), self._snapshots.logs()
        for place, offset in read_to.items():
            if (each := logs.get(place)) is None:
                continue
            first = each.extent.start if offset is None else offset
            if (mark := self._losses.mark(each, first, known.get(place))) is not None:
                found[place] = mark
        return found

    def _pause(self, stopped: Mapping[TopicPartition, NsqError], until: float) -> None:
        """Wait a moment; raise if a query with an end has waited long enough."""
        (topic, partition), error = next(iter(stopped.items()))
        now = time.monotonic()
        if self._target is not None and now >= until:
            raise no_progress(f"{topic}-{partition}", self._options.patience, error) from error
        logger.info("no new batch: %s", error)
        time.sleep(boundaries.PAUSE)

    def _warn_of(self, stopped: Mapping[TopicPartition, NsqError]) -> None:
        """Warn once about each partition without progress within the patience of the read."""
        now = time.monotonic()
        self._stopped_since = {place: self._stopped_since.get(place, now) for place in stopped}
        for (topic, partition), since in self._stopped_since.items():
            if now - since >= self._options.patience:
                logger.warning("%s-%d makes no progress: %s", topic, partition, stopped[topic, partition])
                self._stopped_since[topic, partition] = math.inf

    def _readable(
        self, begin: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, PartitionLog], origin: Origin
    ) -> NextBatch:
        """Return a micro-batch up to the end of each partition's log, as far as this query may read it."""
        ends = dict(begin)
        restarts: dict[TopicPartition, int] = {}
        unsure = self._lacking(begin)
        for place in begin:
            if place[0] not in self._snapshots.last and self._options.reads(*place):
                self._losses.lose(place, GONE)
        for place, known in logs.items():
            extent = known.extent
            try:
                at = self._losses.restart(known, begin.get(place), origin)
            except NsqError as error:
                if not error.retriable:
                    raise
                unsure[place] = error
                continue
            if at is not None:
                # A step without rows: after it, the log and its end are like any other.
                restarts[place] = at
                if self._target is not None:
                    self._target[place] = extent.end
            elif extent.end >= begin.get(place, 0):
                ends[place] = extent.end
            # Otherwise one answer was wrong; ask again next time.
        if self._target is not None:
            ends = self._up_to_target(begin, ends)
        stay = {place: begin[place] for place in restarts.keys() | unsure.keys()}
        return NextBatch(ends | stay, restarts, unsure)

    def _lacking(self, begin: Mapping[TopicPartition, int]) -> dict[TopicPartition, NsqError]:
        """Return the partitions beyond those of their topic; lose them if this stays so for the patience of the read.

        An nsqlookupd may hear late of partitions that were added. But those of the first plan are older than the query,
        and so lost at once: the nsqlookupds that answered agree, or nothing would be known of the topic.
        """
        found: dict[TopicPartition, NsqError] = {}
        since: dict[TopicPartition, float] = {}
        known = self._lacking_since
        now = time.monotonic()
        for place in begin:
            snapshot = self._snapshots.last.get(place[0])
            if snapshot is None or place[1] < snapshot.meta.partition_num or not self._options.reads(*place):
                continue
            since[place] = -math.inf if known is None else known.get(place, now)
            text = f"topic {place[0]!r} has only {snapshot.meta.partition_num} partitions"
            if now - since[place] >= self._options.patience:
                self._losses.lose(place, text)
            else:
                found[place] = NoLeaderError(f"{place[0]}-{place[1]}: {text}")
        self._lacking_since = since
        return found

    def _up_to_target(
        self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the ends of a query with an end, even for partitions without a leader: tasks wait for one."""
        targets = {} if self._target is None else self._target
        found: dict[TopicPartition, int] = {}
        for place in ends.keys() | targets.keys():
            target, start = targets.get(place), begin.get(place)
            if target is None and start is not None and ends[place] > start:
                # The list of a pattern's topics was incomplete when the targets were set.
                target = targets[place] = ends[place]
            if target is not None and (start is None or target > start):
                found[place] = target
            elif start is not None:
                found[place] = start
        return found

    def _found(self, place: TopicPartition) -> PartitionLog:
        """Return the log of a partition, which alone says where one begins that the query has not read."""
        found = available_snapshot(place[0], self._options, self.cluster).logs.get(place[1])
        if found is None:
            raise _leaderless(place)
        return found

    def _first(
        self, place: TopicPartition, begin: Mapping[TopicPartition, int], stop: int, known: PartitionLog | None
    ) -> int:
        """Return where a range begins: later than planned if data is lost."""
        earliest = 0 if known is None else known.extent.start
        start = begin.get(place, earliest)
        if start > stop:
            raise goes_back(f"{place[0]}-{place[1]}", start, stop)
        if start < earliest and start < stop:
            gone = min(earliest, stop) - start
            self._losses.lose(place, f"{gone} bytes from offset {start} on are deleted, the log begins at {earliest}")
            return min(earliest, stop)
        return start

    def _limited(
        self,
        begin: Mapping[TopicPartition, int],
        ends: dict[TopicPartition, int],
        logs: Mapping[TopicPartition, PartitionLog],
    ) -> tuple[dict[TopicPartition, int], Mapping[TopicPartition, NsqError]]:
        """Return ends within the limits of the options, and the partitions that cannot advance now."""
        options = self._options
        if not options.is_limited:
            return ends, {}
        unread: dict[TopicPartition, PartitionLog] = {}
        starts: dict[TopicPartition, int] = {}
        waiting: dict[TopicPartition, NsqError] = {}
        for place, end in ends.items():
            if place[0] not in self._snapshots.last or begin.get(place) == end:
                continue
            if (known := logs.get(place)) is None:
                waiting[place] = _leaderless(place)
                continue
            start = begin.get(place, known.extent.start)
            if start < end:
                starts[place] = start
                unread[place] = dataclasses.replace(known, extent=dataclasses.replace(known.extent, end=end))
        backlog = Unread(options, unread, starts, waiting)
        may_wait = self._target is None and time.monotonic() - self._advanced_at < options.max_trigger_delay
        if may_wait and backlog.is_too_little():
            return dict(begin), {}
        within = ends | backlog.ends()
        # A partition that was never read has no offset yet; it will begin at its earliest message.
        held = {place: begin[place] for place in backlog.held if place in begin}
        return {place: end for place, end in within.items() if place not in backlog.held} | held, backlog.held


def _leaderless(place: TopicPartition) -> NoLeaderError:
    return NoLeaderError(f"{place[0]}-{place[1]}: its leader does not answer, or there is none")
