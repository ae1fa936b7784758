"""Driver side of a stream: the offsets that Spark writes into its checkpoint, and the ranges between them.

Owns what is known of the partitions between micro-batches. The form of the offsets
is of ``checkpoint``, and so is the time that they carry: it is used here where it is
told, and put there by ``stream``.

The invariants: an offset never goes back, but for data loss that is allowed by
name; a partition whose leader does not answer stands still and stops nobody; one
that was never seen before begins at its earliest message.

**Source:** Spark reference 1.5, 2.1 ("Driver side", "Limits").
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.errors import DataLossError, NsqError, TopicNotFoundError
from nsq_ha.spark.checkpoint import Offsets, Place, from_json, planned_at, to_json
from nsq_ha.spark.planner import Bounds, Range, divide, positions
from nsq_ha.spark.positions import shares
from nsq_ha.spark.sameness import Sameness
from nsq_ha.spark.survey import PAUSE, Survey, glance, topics_of, whole

if TYPE_CHECKING:
    from nsq_ha.spark.cluster import Cluster
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.positions import Positions

log: Final = logging.getLogger("nsq_ha.spark")


class StreamPlanner:
    """Plans the micro-batches of one query. Blocking; used from one thread.

    Args:
        options: Of the read.
        cluster: Whom to ask; :meth:`close` closes it.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._initial: Offsets | None = None
        self._target: dict[Place, int] | None = None
        self._seen: dict[str, Survey] = {}
        self._seen_at = 0.0
        self._silent_since: float | None = None
        self._moved_at = time.monotonic()
        self._reported: set[Place] = set()
        self._sameness = Sameness(options, cluster)

    @property
    def cluster(self) -> Cluster:
        """Whom it asks; for whoever reads in the same process and thread."""
        return self._cluster

    def close(self) -> None:
        """Close the connections to the cluster."""
        self._cluster.close()

    def initial(self) -> Offsets:
        """Return where a new query begins; the same however often Spark asks.

        Raises:
            NsqError: As :func:`nsq_ha.spark.planner.plan`.
        """
        if self._initial is None:
            found: dict[Place, int] = {}
            for seen in self._look(whole_ones=True):
                for partition in seen.leaders:
                    place = positions(seen, partition, self._options, self._cluster)
                    found[seen.topic, partition] = Bounds(place, self._options).starting()
            self._initial = to_json(found)
        return self._initial

    def latest(self, start: Mapping[str, Any] | None, *, limited: bool = True) -> Offsets:
        """Return where the next micro-batch ends; ``start`` itself when there is nothing to read.

        Args:
            start: Where it begins. None when Spark does not tell.
            limited: Whether the limits of the options count.

        Raises:
            DataLossError: A log ends before ``start`` or is another one, and ``failOnDataLoss`` is true.
            NsqError: No nsqlookupd answers for longer than the read is patient.
        """
        begin = from_json(start or {})
        surveys = self._look()
        ends = self._ends(begin, surveys, planned_at(start or {}))
        if limited:
            ends = self._limited(begin, ends, {seen.topic: seen for seen in surveys})
        if ends != begin:
            self._moved_at = time.monotonic()
        return to_json(ends)

    def report(self) -> Offsets:
        """Return where the logs end, for Spark's progress; what is known, without asking anew."""
        return to_json({place: extent.end for place, (_, extent) in _places(self._seen.values()).items()})

    def prepare_target(self) -> None:
        """Fix the end of a query that reads what there is now and then stops.

        Raises:
            NsqError: A partition has no leader for longer than the read is patient.
        """
        self._target = {}
        for seen in self._look(whole_ones=True):
            self._target |= {(seen.topic, partition): extent.end for partition, extent in seen.extents.items()}

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        """Return the ranges of one micro-batch, also of one that was planned before a restart.

        Raises:
            DataLossError: What the batch needs is cleaned, or of another log, and ``failOnDataLoss`` is true.
            NsqError: As :meth:`latest`.
        """
        begin, until = from_json(start), from_json(end)
        surveys = {seen.topic: seen for seen in self._look()}
        ranges: list[Range] = []
        places: dict[Place, Positions] = {}
        for (topic, partition), stop in sorted(until.items()):
            seen = surveys.get(topic)
            if seen is None:
                self._lose(topic, partition, "the topic is gone")
                continue
            first = self._first((topic, partition), begin, stop, seen)
            if first >= stop or (partition in seen.extents and self._is_lost(seen, partition, stop, planned_at(end))):
                continue
            node = seen.leaders.get(partition)
            ranges.append(Range(topic, partition, first, stop, node, seen.meta.ordered, seen.meta.extend_support))
            if node is not None:
                places[topic, partition] = positions(seen, partition, self._options, self._cluster)
        try:
            return divide(ranges, self._options, places)
        except NsqError as error:
            log.info("ranges stay uncut: %s", error)
            return ranges

    def commit(self, end: Mapping[str, Any]) -> None:
        """Set the channel of ``reportChannel`` to what Spark has done; a failure is only logged."""
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
                log.warning("reportChannel %r is not set on %s-%d: %s", channel, topic, partition, error)

    def _look(self, *, whole_ones: bool = False) -> list[Survey]:
        """Return a survey of each topic; one of ``metadataRefresh`` ago will do, unless they must be whole."""
        if not whole_ones and time.monotonic() - self._seen_at < self._options.metadata_refresh:
            return list(self._seen.values())
        try:
            topics = topics_of(self._options, self._cluster)
            if whole_ones:
                found = [whole(topic, self._options, self._cluster, self._options.patience) for topic in topics]
            else:
                found = [seen for topic in topics if (seen := self._glance(topic)) is not None]
        except NsqError as error:
            if not error.retriable or self._is_at_an_end(error):
                raise
            return list(self._seen.values())
        self._silent_since = None
        self._seen = {seen.topic: seen for seen in found}
        self._seen_at = time.monotonic()
        return found

    def _glance(self, topic: str) -> Survey | None:
        try:
            return glance(topic, self._options, self._cluster)
        except TopicNotFoundError:
            # A topic that was read and is gone is judged where its offsets are: it may only be one of many.
            if topic in self._seen or self._options.pattern is not None or not self._options.fail_on_data_loss:
                return None
            raise

    def _is_at_an_end(self, error: NsqError) -> bool:
        """Note that nobody answers, and tell whether that has lasted too long."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            log.warning("planning goes on with what is known: %s", error)
        time.sleep(PAUSE)
        return not self._seen or now - self._silent_since >= self._options.patience

    def _ends(self, begin: Mapping[Place, int], surveys: Iterable[Survey], planned: int | None) -> dict[Place, int]:
        """Return the end of each partition's log, as far as this query may read it."""
        ends = dict(begin)
        known = _places(surveys)
        by_topic = {seen.topic: seen for seen in surveys}
        anew: dict[Place, int] = {}
        for place in begin:
            if place[0] not in {topic for topic, _ in known} and place[0] not in self._seen:
                self._lose(*place, "the topic is gone")
        for place, (_, extent) in known.items():
            start = begin.get(place)
            if start is not None and extent.end < start:
                self._confirm_loss(place, start)
            elif start is not None and self._is_lost(by_topic[place[0]], place[1], start, planned):
                # A step without rows, back to where the new log begins: from there on it is as any other.
                anew[place] = extent.start
            ends[place] = extent.end
        if self._target is not None:
            for place in set(ends) | set(self._target):
                target, start = self._target.get(place), begin.get(place)
                if target is not None:
                    # Also where the leader does not answer just now: to stand still would end the query too early.
                    # Only a log that was made anew has its target before the start.
                    is_anew = place in known and start is not None and known[place][1].end < start
                    ends[place] = target if start is None or target > start or is_anew else start
                elif start is not None:
                    ends[place] = start
                else:
                    ends.pop(place, None)
        return ends | anew

    def _is_lost(self, seen: Survey, partition: int, offset: int, planned: int | None) -> bool:
        """Raise when the log is another one than ``offset`` was taken of, and that is an error; else tell it."""
        try:
            if not self._sameness.is_lost(seen, partition, self._seen_at, offset, planned):
                return False
        except NsqError as error:
            # A leader that went since the look; the next look asks the next one.
            log.info("%s-%d: not known whether the log is the same: %s", seen.topic, partition, error)
            return False
        said = f"the log holds messages before the offset {offset} that are younger than it: the topic was made anew"
        self._lose(seen.topic, partition, said)
        return True

    def _confirm_loss(self, place: Place, start: int) -> None:
        """Raise when the log still ends before ``start`` after a while, and that is an error."""
        topic, partition = place
        until = time.monotonic() + self._options.fetch_timeout
        while True:
            extent = glance(topic, self._options, self._cluster).extents.get(partition)
            if extent is not None and extent.end >= start:
                return
            if time.monotonic() >= until:
                break
            time.sleep(PAUSE)
        end = "nowhere" if extent is None else extent.end
        self._lose(topic, partition, f"the log ends at {end}, before the offset {start} reached: made anew, or cut")

    def _first(self, place: Place, begin: Mapping[Place, int], stop: int, seen: Survey) -> int:
        """Return where a range begins, which may be later than planned where data is lost."""
        topic, partition = place
        extent = seen.extents.get(partition)
        earliest = 0 if extent is None else extent.start
        start = begin.get(place, earliest)
        if start > stop:
            # Only planned after a loss that was allowed: the log was made anew.
            return min(earliest, stop)
        if start < earliest and start < stop:
            gone = min(earliest, stop) - start
            self._lose(topic, partition, f"{gone} bytes from offset {start} are cleaned, the log begins at {earliest}")
            return min(earliest, stop)
        return start

    def _lose(self, topic: str, partition: int, said: str) -> None:
        text = f"{topic}-{partition}: {said}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss=false to go on with what is left")
        if (topic, partition) not in self._reported:
            self._reported.add((topic, partition))
            log.warning("%s; going on with what is left", text)

    def _limited(
        self, begin: Mapping[Place, int], ends: dict[Place, int], surveys: Mapping[str, Survey]
    ) -> dict[Place, int]:
        """Return ends that keep ``maxOffsetsPerTrigger``, ``maxBytesPerTrigger`` and ``minOffsetsPerTrigger``."""
        options = self._options
        if options.max_offsets is None and options.max_bytes is None and options.min_offsets is None:
            return ends
        if self._target is not None:
            surveys = {seen.topic: seen for seen in self._look(whole_ones=True)}
        backlog: dict[Place, Positions] = {}
        for (topic, partition), end in ends.items():
            seen = surveys.get(topic)
            if seen is not None and partition in seen.extents:
                place = positions(seen, partition, options, self._cluster)
                extent = dataclasses.replace(place.extent, end=end)
                if begin.get((topic, partition), extent.start) < end:
                    backlog[topic, partition] = dataclasses.replace(place, extent=extent)
        starts = {place: begin.get(place, found.extent.start) for place, found in backlog.items()}
        try:
            if self._is_to_wait(backlog, starts):
                return dict(begin)
            return ends | self._cut(backlog, starts, ends)
        except NsqError as error:
            if not error.retriable:
                raise
            # A leader went between two questions: the next call asks the next one.
            log.info("no new batch: %s", error)
            time.sleep(PAUSE)
            return dict(begin)

    def _cut(
        self, backlog: Mapping[Place, Positions], starts: Mapping[Place, int], ends: Mapping[Place, int]
    ) -> dict[Place, int]:
        cut = {place: ends[place] for place in backlog}
        if (rows := self._options.max_offsets) is not None:
            waiting = {place: found.rows_behind(starts[place]) for place, found in backlog.items()}
            for place, share in shares(rows, waiting).items():
                if share < waiting[place]:
                    cut[place] = min(cut[place], backlog[place].after_rows(starts[place], share))
        if (count := self._options.max_bytes) is not None:
            sizes = {place: ends[place] - starts[place] for place in backlog}
            for place, share in shares(count, sizes).items():
                if share < sizes[place]:
                    cut[place] = min(cut[place], backlog[place].after_bytes(starts[place], share))
        return cut

    def _is_to_wait(self, backlog: Mapping[Place, Positions], starts: Mapping[Place, int]) -> bool:
        least = self._options.min_offsets
        if least is None or self._target is not None or time.monotonic() - self._moved_at >= self._options.max_delay:
            return False
        return sum(found.rows_behind(starts[place]) for place, found in backlog.items()) < least


def _places(surveys: Iterable[Survey]) -> dict[Place, tuple[Any, Any]]:
    return {
        (seen.topic, partition): (node, seen.extents[partition])
        for seen in surveys
        for partition, node in seen.leaders.items()
    }
