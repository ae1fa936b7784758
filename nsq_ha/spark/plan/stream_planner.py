"""Plan the micro-batches of a stream: the offsets in Spark's checkpoint, and the ranges between them.

The planner remembers the state of the partitions between micro-batches.
``checkpoint`` defines the form of the offsets and of their time, which ``stream``
adds.

The invariants: an offset goes back only after data loss that is explicitly allowed,
in a separate step that reads nothing and is marked in the checkpoint; a partition
whose leader does not answer, or cannot find its newest messages yet, waits and does
not stop the others; a new partition begins at its earliest message. A query with an
end (:meth:`StreamPlanner.prepare_target`) reaches it or fails: no temporary error
makes it end earlier.

**Source:** Spark reference 1.5, 2.1 ("Driver side", "Limits").
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.errors import NoLeaderError, NsqError, TopicNotFoundError
from nsq_ha.spark.checkpoint import OffsetJson, TopicPartition, from_json, planned_at, restarted_in, to_json
from nsq_ha.spark.plan import metadata
from nsq_ha.spark.plan.batch_planner import Bounds, Range, divide, goes_back
from nsq_ha.spark.plan.boundaries import Backlog, no_progress, search_in
from nsq_ha.spark.plan.log_identity import LossPolicy

if TYPE_CHECKING:
    from nsq_ha.spark.cluster import Cluster
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.plan.boundaries import BoundarySearch
    from nsq_ha.spark.plan.metadata import TopicSnapshot

log: Final = logging.getLogger("nsq_ha.spark")


class StreamPlanner:
    """Plans the micro-batches of one query. Blocking; used from one thread.

    Args:
        options: Options of the read.
        cluster: The cluster; :meth:`close` closes it.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._initial: OffsetJson | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._seen: dict[str, TopicSnapshot] = {}
        self._seen_at = 0.0
        self._silent_since: float | None = None
        self._moved_at = time.monotonic()
        self._losses = LossPolicy(options, cluster)
        self._held_since: dict[TopicPartition, float] = {}

    @property
    def cluster(self) -> Cluster:
        """The cluster, for reads in the same process and thread."""
        return self._cluster

    def close(self) -> None:
        """Close the connections to the cluster."""
        self._cluster.close()

    def initial(self) -> OffsetJson:
        """Return where a new query begins; the same at each call.

        Raises:
            NsqError: As :func:`nsq_ha.spark.plan.batch_planner.plan`.
        """
        if self._initial is None:
            found: dict[TopicPartition, int] = {}
            for seen in self._look(complete=True):
                for partition in seen.leaders:
                    search = search_in(seen, partition, self._options, self._cluster)
                    found[seen.topic, partition] = Bounds(search, self._options).starting()
            self._initial = to_json(found)
        return self._initial

    def latest(self, start: Mapping[str, Any] | None, *, limited: bool = True) -> OffsetJson:
        """Return the end of the next micro-batch; ``start`` itself if there is nothing to read.

        Args:
            start: The start of the micro-batch; None if Spark does not provide it.
            limited: Whether the limits of the options apply.

        Raises:
            DataLossError: A log ends before ``start`` or is another one, and ``failOnDataLoss`` is true.
            NsqError: No nsqlookupd answers within the patience of the read, or the query has
                an end and makes no progress towards it for this time.
        """
        begin, planned = from_json(start or {}), planned_at(start or {})
        until = time.monotonic() + self._options.patience
        while True:
            ends, back, held = self._next(begin, planned, limited=limited)
            self._warn_of(held)
            if ends != begin:
                self._moved_at = time.monotonic()
            elif held:
                self._stand_still(held, until)
                if self._target is not None:
                    continue
            return to_json(ends, back)

    def report(self) -> OffsetJson:
        """Return where the logs ended when last seen, for Spark's progress; makes no request."""
        return to_json({place: extent.end for place, (_, extent) in _places(self._seen.values()).items()})

    def prepare_target(self) -> None:
        """Fix the end of a query that reads what there is now and then stops.

        Raises:
            NsqError: A partition has no leader for longer than the patience of the read.
        """
        self._target = {}
        for seen in self._look(complete=True):
            # Up to the end, readable or not: tasks wait for the rest.
            self._target |= {(seen.topic, partition): extent.end for partition, extent in seen.extents.items()}

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        """Return the ranges of one micro-batch, which may have been planned before a restart.

        Raises:
            ConfigError: The batch ends before it begins, without an allowed data loss: it would repeat messages.
            DataLossError: Messages of the batch are deleted, or the log is another one, and ``failOnDataLoss`` is true.
            NsqError: As :meth:`latest`; or it remains unknown whether a log is the same.
        """
        begin, until, restarted = from_json(start), from_json(end), restarted_in(end)
        snapshots = {seen.topic: seen for seen in self._look()}
        ranges: list[Range] = []
        searches: dict[TopicPartition, BoundarySearch] = {}
        for (topic, partition), stop in sorted(until.items()):
            seen = snapshots.get(topic)
            if seen is None:
                self._losses.lose(topic, partition, "the topic is gone")
                continue
            if (topic, partition) in restarted:
                continue
            first = self._first((topic, partition), begin, stop, seen)
            if first >= stop or self._losses.is_lost_for_sure(seen, partition, self._seen_at, stop, planned_at(end)):
                continue
            node = seen.leaders.get(partition)
            ranges.append(Range(topic, partition, first, stop, node, seen.meta.ordered, seen.meta.extend_support))
            if node is not None:
                searches[topic, partition] = search_in(seen, partition, self._options, self._cluster)
        return divide(ranges, self._options, searches)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Set the channel of ``reportChannel`` to the committed offsets; a failure is only logged."""
        channel = self._options.report_channel
        if channel is None:
            return
        known = _places(self._seen.values())
        for place, offset in from_json(end).items():
            if place not in known:
                continue
            topic, partition = place
            node, extent = known[place]
            try:
                if extent.start <= offset:
                    self._cluster.open_channel(topic, partition, node, channel, offset)
            except NsqError as error:
                log.warning("%s-%d: reportChannel %r is not updated: %s", topic, partition, channel, error)

    def _look(self, *, complete: bool = False) -> list[TopicSnapshot]:
        """Return a snapshot of each topic, not older than ``metadataRefresh``; a new one if it must be complete."""
        if not complete and time.monotonic() - self._seen_at < self._options.metadata_refresh:
            return list(self._seen.values())
        options, cluster = self._options, self._cluster
        if complete:
            topics = metadata.topics_of(options, cluster, options.patience)
            return self._saw([metadata.complete_snapshot(topic, options, cluster) for topic in topics])
        while True:
            try:
                topics = metadata.topics_of(options, cluster)
                return self._saw([seen for topic in topics if (seen := self._snapshot(topic)) is not None])
            except NsqError as error:
                if not error.retriable or self._is_silent_too_long(error):
                    raise
            if self._seen:
                return list(self._seen.values())

    def _saw(self, found: list[TopicSnapshot]) -> list[TopicSnapshot]:
        self._silent_since = None
        self._seen = {seen.topic: seen for seen in found}
        self._seen_at = time.monotonic()
        return found

    def _snapshot(self, topic: str) -> TopicSnapshot | None:
        try:
            return metadata.available_snapshot(topic, self._options, self._cluster)
        except TopicNotFoundError:
            # A deleted topic that was read before is handled with its offsets; it may be one of many.
            options = self._options
            if topic in self._seen or options.subscribe_pattern is not None or not options.fail_on_data_loss:
                return None
            raise

    def _is_silent_too_long(self, error: NsqError) -> bool:
        """Record that no nsqlookupd answers; return whether this has lasted longer than the patience of the read."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            log.warning("no new state of the topics, planning with the last known one: %s", error)
        time.sleep(metadata.PAUSE)
        return now - self._silent_since >= self._options.patience

    def _next(
        self, begin: Mapping[TopicPartition, int], planned: int | None, *, limited: bool
    ) -> tuple[dict[TopicPartition, int], Mapping[TopicPartition, int], Mapping[TopicPartition, NsqError]]:
        """Return the ends of the next micro-batch, intended steps back, and why other partitions cannot advance."""
        snapshots = self._look()
        ends, back, unsure = self._ends(begin, snapshots, planned)
        held: Mapping[TopicPartition, NsqError] = {}
        if limited:
            ends, held = self._limited(begin, ends, {seen.topic: seen for seen in snapshots})
        for place, end in ends.items():
            if end < begin.get(place, end):
                raise goes_back(f"{place[0]}-{place[1]}", begin[place], end)
        return ends | back, back, {**held, **unsure}

    def _stand_still(self, held: Mapping[TopicPartition, NsqError], until: float) -> None:
        """Wait a moment; raise if a query with an end has waited long enough."""
        (topic, partition), error = next(iter(held.items()))
        now = time.monotonic()
        if self._target is not None and now >= until:
            raise no_progress(f"{topic}-{partition}", self._options.patience, error) from error
        log.info("no new batch: %s", error)
        time.sleep(metadata.PAUSE)

    def _warn_of(self, held: Mapping[TopicPartition, NsqError]) -> None:
        """Warn once about each partition without progress within the patience of the read."""
        now = time.monotonic()
        self._held_since = {place: self._held_since.get(place, now) for place in held}
        for (topic, partition), since in self._held_since.items():
            if now - since >= self._options.patience:
                log.warning("%s-%d makes no progress: %s", topic, partition, held[topic, partition])
                self._held_since[topic, partition] = math.inf

    def _ends(
        self, begin: Mapping[TopicPartition, int], snapshots: Iterable[TopicSnapshot], planned: int | None
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], dict[TopicPartition, NsqError]]:
        """Return the end of each partition's log as far as this query may read it.

        Returns:
            The ends; the offsets to go back to where the log is another one; and partitions where that is not known.
        """
        ends = dict(begin)
        known = _places(snapshots)
        by_topic = {seen.topic: seen for seen in snapshots}
        back: dict[TopicPartition, int] = {}
        unsure: dict[TopicPartition, NsqError] = {}
        for place in begin:
            if place[0] not in {topic for topic, _ in known} and place[0] not in self._seen:
                self._losses.lose(*place, "the topic is gone")
        for place, (_, extent) in known.items():
            try:
                at = self._losses.restart(by_topic[place[0]], place[1], self._seen_at, begin.get(place), planned)
            except NsqError as error:
                if not error.retriable:
                    raise
                unsure[place] = error
                continue
            if at is not None:
                # A step without rows: after it, the log and its end are like any other.
                back[place] = at
                if self._target is not None:
                    self._target[place] = extent.end
            elif extent.end >= begin.get(place, 0):
                ends[place] = extent.end
            # Otherwise one answer was wrong; ask again next time.
        if self._target is not None:
            ends = self._up_to_target(begin, ends)
        stay = {place: begin[place] for place in back.keys() | unsure.keys()}
        return ends | stay, back, unsure

    def _up_to_target(
        self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return the ends of a query with an end, even for partitions without a leader: tasks wait for one."""
        targets = self._target or {}
        found: dict[TopicPartition, int] = {}
        for place in ends.keys() | targets.keys():
            target, start = targets.get(place), begin.get(place)
            if target is not None and (start is None or target > start):
                found[place] = target
            elif start is not None:
                found[place] = start
        return found

    def _first(self, place: TopicPartition, begin: Mapping[TopicPartition, int], stop: int, seen: TopicSnapshot) -> int:
        """Return where a range begins: later than planned if data is lost."""
        topic, partition = place
        extent = seen.extents.get(partition)
        earliest = 0 if extent is None else extent.start
        start = begin.get(place, earliest)
        if start > stop:
            raise goes_back(f"{topic}-{partition}", start, stop)
        if start < earliest and start < stop:
            gone = min(earliest, stop) - start
            self._losses.lose(
                topic, partition, f"{gone} bytes from offset {start} on are deleted, the log begins at {earliest}"
            )
            return min(earliest, stop)
        return start

    def _limited(
        self,
        begin: Mapping[TopicPartition, int],
        ends: dict[TopicPartition, int],
        snapshots: Mapping[str, TopicSnapshot],
    ) -> tuple[dict[TopicPartition, int], Mapping[TopicPartition, NsqError]]:
        """Return ends within the limits of the options, and the partitions that cannot advance now."""
        options = self._options
        limits = options.max_offsets_per_trigger, options.max_bytes_per_trigger, options.min_offsets_per_trigger
        if limits == (None, None, None):
            return ends, {}
        searches: dict[TopicPartition, BoundarySearch] = {}
        starts: dict[TopicPartition, int] = {}
        held: dict[TopicPartition, NsqError] = {}
        for place, end in ends.items():
            seen = snapshots.get(place[0])
            if seen is None or begin.get(place) == end:
                continue
            if place[1] not in seen.extents:
                held[place] = NoLeaderError(f"{place[0]}-{place[1]}: its leader does not answer, or there is none")
                continue
            search = search_in(seen, place[1], options, self._cluster)
            start = begin.get(place, search.extent.start)
            if start < end:
                starts[place] = start
                searches[place] = dataclasses.replace(search, extent=dataclasses.replace(search.extent, end=end))
        backlog = Backlog(options, searches, starts, held)
        if self._may_wait() and backlog.is_too_little():
            return dict(begin), {}
        within = ends | backlog.ends()
        for place in backlog.held:
            # A partition that was never read has no offset yet; it will begin at its earliest message.
            del within[place]
            if place in begin:
                within[place] = begin[place]
        return within, backlog.held

    def _may_wait(self) -> bool:
        """Return whether this query may wait for more messages before it plans a batch."""
        return self._target is None and time.monotonic() - self._moved_at < self._options.max_trigger_delay


def _places(snapshots: Iterable[TopicSnapshot]) -> dict[TopicPartition, tuple[Any, Any]]:
    return {
        (seen.topic, partition): (node, seen.extents[partition])
        for seen in snapshots
        for partition, node in seen.leaders.items()
    }
