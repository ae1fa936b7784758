"""Driver side of a stream: the offsets that Spark writes into its checkpoint, and the ranges between them.

This module keeps what is known about the partitions between micro-batches.
``checkpoint`` defines the form of the offsets and the time in them, which
``stream`` adds.

The invariants: an offset never goes back, except for data loss that is explicitly
allowed, in a step of its own that reads nothing and is marked in the checkpoint; a
partition whose leader does not answer, or cannot find its newest messages yet,
waits and does not stop the others; a new one begins at its earliest message. A
query with an end (:meth:`StreamPlanner.prepare_target`) reaches it or fails: no
temporary error makes it end earlier.

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
from nsq_ha.spark.checkpoint import Offsets, Place, from_json, planned_at, restarted_in, to_json
from nsq_ha.spark.limits import Backlog
from nsq_ha.spark.losses import Losses
from nsq_ha.spark.planner import Bounds, Range, divide, goes_back, positions
from nsq_ha.spark.positions import no_progress
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
        self._losses = Losses(options, cluster)
        self._held_since: dict[Place, float] = {}

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
        """Return the end of the next micro-batch; ``start`` itself if there is nothing to read.

        Args:
            start: Its start; None if Spark does not say.
            limited: Whether the limits of the options apply.

        Raises:
            DataLossError: A log ends before ``start`` or is another one, and ``failOnDataLoss`` is true.
            NsqError: No nsqlookupd answers within the patience of the read, or the query has
                an end and makes no progress towards it for so long.
        """
        begin, planned = from_json(start or {}), planned_at(start or {})
        until = time.monotonic() + self._options.patience
        while True:
            ends, back, held = self._next(begin, planned, limited=limited)
            self._note(held)
            if ends != begin:
                self._moved_at = time.monotonic()
            elif held:
                self._stand_still(held, until)
                if self._target is not None:
                    continue
            return to_json(ends, back)

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
            # To the end, readable or not: tasks wait for the rest.
            self._target |= {(seen.topic, partition): extent.end for partition, extent in seen.extents.items()}

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        """Return the ranges of one micro-batch, also of one that was planned before a restart.

        Raises:
            ConfigError: The batch ends before it begins, and no loss of data was allowed there: it would repeat
                messages.
            DataLossError: What the batch needs is cleaned, or of another log, and ``failOnDataLoss`` is true.
            NsqError: As :meth:`latest`; or it is not known for so long whether a log is the same.
        """
        begin, until, restarted = from_json(start), from_json(end), restarted_in(end)
        surveys = {seen.topic: seen for seen in self._look()}
        ranges: list[Range] = []
        places: dict[Place, Positions] = {}
        for (topic, partition), stop in sorted(until.items()):
            seen = surveys.get(topic)
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
                places[topic, partition] = positions(seen, partition, self._options, self._cluster)
        return divide(ranges, self._options, places)

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
        options, cluster = self._options, self._cluster
        if whole_ones:
            topics = topics_of(options, cluster, options.patience)
            return self._saw([whole(topic, options, cluster) for topic in topics])
        while True:
            try:
                topics = topics_of(options, cluster)
                return self._saw([seen for topic in topics if (seen := self._glance(topic)) is not None])
            except NsqError as error:
                if not error.retriable or self._is_at_an_end(error):
                    raise
            if self._seen:
                return list(self._seen.values())

    def _saw(self, found: list[Survey]) -> list[Survey]:
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
        return now - self._silent_since >= self._options.patience

    def _next(
        self, begin: Mapping[Place, int], planned: int | None, *, limited: bool
    ) -> tuple[dict[Place, int], Mapping[Place, int], Mapping[Place, NsqError]]:
        """Return the ends of the next micro-batch, intended steps back, and why other partitions cannot move on."""
        surveys = self._look()
        ends, back, unsure = self._ends(begin, surveys, planned)
        held: Mapping[Place, NsqError] = {}
        if limited:
            ends, held = self._limited(begin, ends, {seen.topic: seen for seen in surveys})
        for place, end in ends.items():
            if end < begin.get(place, end):
                raise goes_back(f"{place[0]}-{place[1]}", begin[place], end)
        return ends | back, back, {**held, **unsure}

    def _stand_still(self, held: Mapping[Place, NsqError], until: float) -> None:
        """Wait a moment; raise if a query with an end has waited long enough."""
        (topic, partition), error = next(iter(held.items()))
        now = time.monotonic()
        if self._target is not None and now >= until:
            raise no_progress(f"{topic}-{partition}", self._options.patience, error) from error
        log.info("no new batch: %s", error)
        time.sleep(PAUSE)

    def _note(self, held: Mapping[Place, NsqError]) -> None:
        """Warn once about each partition without progress within the patience of the read."""
        now = time.monotonic()
        self._held_since = {place: self._held_since.get(place, now) for place in held}
        for (topic, partition), since in self._held_since.items():
            if now - since >= self._options.patience:
                log.warning("%s-%d makes no progress: %s", topic, partition, held[topic, partition])
                self._held_since[topic, partition] = math.inf

    def _ends(
        self, begin: Mapping[Place, int], surveys: Iterable[Survey], planned: int | None
    ) -> tuple[dict[Place, int], dict[Place, int], dict[Place, NsqError]]:
        """Return the end of each partition's log as far as this query may read it.

        Returns:
            The ends; where partitions go back to, whose log is another one; and those of which that is not known yet.
        """
        ends = dict(begin)
        known = _places(surveys)
        by_topic = {seen.topic: seen for seen in surveys}
        back: dict[Place, int] = {}
        unsure: dict[Place, NsqError] = {}
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
                # A step without rows: from there on the log is as any other, and so is its end.
                back[place] = at
                if self._target is not None:
                    self._target[place] = extent.end
            elif extent.end >= begin.get(place, 0):
                ends[place] = extent.end
            # Else one answer was wrong; the next one will show.
        if self._target is not None:
            ends = self._up_to_target(begin, ends)
        stay = {place: begin[place] for place in back.keys() | unsure.keys()}
        return ends | stay, back, unsure

    def _up_to_target(self, begin: Mapping[Place, int], ends: Mapping[Place, int]) -> dict[Place, int]:
        """Return the ends of a query with an end; also where a leader does not answer now: tasks wait for it."""
        targets = self._target or {}
        found: dict[Place, int] = {}
        for place in ends.keys() | targets.keys():
            target, start = targets.get(place), begin.get(place)
            if target is not None and (start is None or target > start):
                found[place] = target
            elif start is not None:
                found[place] = start
        return found

    def _first(self, place: Place, begin: Mapping[Place, int], stop: int, seen: Survey) -> int:
        """Return where a range begins, which may be later than planned where data is lost."""
        topic, partition = place
        extent = seen.extents.get(partition)
        earliest = 0 if extent is None else extent.start
        start = begin.get(place, earliest)
        if start > stop:
            raise goes_back(f"{topic}-{partition}", start, stop)
        if start < earliest and start < stop:
            gone = min(earliest, stop) - start
            self._losses.lose(
                topic, partition, f"{gone} bytes from offset {start} are cleaned, the log begins at {earliest}"
            )
            return min(earliest, stop)
        return start

    def _limited(
        self, begin: Mapping[Place, int], ends: dict[Place, int], surveys: Mapping[str, Survey]
    ) -> tuple[dict[Place, int], Mapping[Place, NsqError]]:
        """Return ends within the limits of the options, and the partitions that cannot move on now."""
        options = self._options
        if options.max_offsets is None and options.max_bytes is None and options.min_offsets is None:
            return ends, {}
        places: dict[Place, Positions] = {}
        starts: dict[Place, int] = {}
        held: dict[Place, NsqError] = {}
        for place, end in ends.items():
            seen = surveys.get(place[0])
            if seen is None or begin.get(place) == end:
                continue
            if place[1] not in seen.extents:
                held[place] = NoLeaderError(f"no leader of {place[0]}-{place[1]} answers")
                continue
            found = positions(seen, place[1], options, self._cluster)
            start = begin.get(place, found.extent.start)
            if start < end:
                starts[place] = start
                places[place] = dataclasses.replace(found, extent=dataclasses.replace(found.extent, end=end))
        backlog = Backlog(options, places, starts, held)
        if self._may_wait() and backlog.is_too_little():
            return dict(begin), {}
        within = ends | backlog.ends()
        for place in backlog.held:
            # One that was never read has no offset yet, and begins later at its earliest message.
            del within[place]
            if place in begin:
                within[place] = begin[place]
        return within, backlog.held

    def _may_wait(self) -> bool:
        """Return whether this query may wait for more messages before it plans a batch."""
        return self._target is None and time.monotonic() - self._moved_at < self._options.max_delay


def _places(surveys: Iterable[Survey]) -> dict[Place, tuple[Any, Any]]:
    return {
        (seen.topic, partition): (node, seen.extents[partition])
        for seen in surveys
        for partition, node in seen.leaders.items()
    }
