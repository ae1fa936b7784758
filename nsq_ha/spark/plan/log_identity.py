"""Check that a partition's log is still the one that an offset was taken from, and handle data loss.

:class:`LogIdentity` asks the partition's leader for the message that the checkpoint has of
its log (``checkpoint.Mark``), whenever the log has changed since the last time: a real
cluster needs 3 s to delete, re-create and refill a topic. :class:`LossPolicy` decides whether to fail or continue
(``failOnDataLoss``), and where a partition continues. No message is ever read twice.

**Source:** Spark design 1.1, 1.5.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError, DataLossError, NsqError
from nsq_ha.spark.checkpoint import MARGIN, Mark, Origin, TopicPartition, is_of_another_log, to_json
from nsq_ha.spark.plan import metadata
from nsq_ha.spark.plan.boundaries import NotReadableError, no_progress, search_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsq_ha.admin.nsqd_http import StoredMessage
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import Cluster, Extent
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.plan.boundaries import BoundarySearch
    from nsq_ha.spark.plan.metadata import TopicSnapshot

log: Final = logging.getLogger("nsq_ha.spark")

FRESH: Final = 5.0
"""Seconds after a check in which a log that has not changed its length is not checked again."""

TICK: Final = 3.0
"""Seconds by which the measured difference of two clocks may be wrong, since they show whole seconds."""

SKEW_NS: Final = 1_000_000_000
"""Nanoseconds by which the clocks of two leaders of a partition may differ. No topic is re-created as quickly."""

RENEWED_EACH: Final = 60.0
"""Seconds after which a newer message marks a log: retention deletes the old ones, but not within this time."""

CONTINUE: Final = "set failOnDataLoss=false to continue with what is left"
CHANGED: Final = (
    "the checkpoint was changed, or it belongs to another log: restore it, or give the query a new checkpointLocation"
    " and startingOffsets"
)


class LogIdentity:
    """Remembers which partitions still have the same log. Blocking; used from one thread.

    Args:
        options: The options of the read.
        cluster: The cluster.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._confirmed: dict[TopicPartition, tuple[Node, Extent, float]] = {}
        self._marked_at: dict[TopicPartition, float] = {}

    def is_lost(self, snapshot: TopicSnapshot, partition: int, at: float, offset: int, origin: Origin) -> bool:
        """Return whether ``offset`` was taken from another log.

        Args:
            snapshot: A snapshot of the topic.
            partition: The partition.
            at: When the snapshot was taken, by the monotonic clock.
            offset: An offset from the checkpoint.
            origin: The origin of the checkpoint's offsets. If it is unknown, this asks nothing.

        Raises:
            NsqError: Not known yet: the decisive message cannot be read, or the leader gave no usable answer.
                Do not read from ``offset`` before it is known.
        """
        place = snapshot.topic, partition
        node, extent = snapshot.leaders[partition], snapshot.extents[partition]
        before = self._confirmed.pop(place, None)
        if before is None or before[:2] != (node, extent) or at - before[2] >= FRESH:
            search = search_in(snapshot, partition, self._options, self._cluster)
            if self._is_another(search, offset, origin):
                return True
            before = node, extent, at
        self._confirmed[place] = before
        return False

    def mark(self, snapshot: TopicSnapshot, partition: int, offset: int, known: Mark | None) -> Mark | None:
        """Return a message by which the log is known again: now and then a newer one, since old ones are deleted.

        Args:
            snapshot: A snapshot of the topic.
            partition: The partition.
            offset: An offset of this log; all messages before it were read.
            known: The mark so far.

        Raises:
            DataLossError: No message begins at ``offset``.
            NsqError: An error that retries cannot fix.
        """
        place, now = (snapshot.topic, partition), time.monotonic()
        if known is not None and now - self._marked_at.get(place, -RENEWED_EACH) < RENEWED_EACH:
            return known
        search = search_in(snapshot, partition, self._options, self._cluster)
        try:
            if (found := search.boundary_at(offset)) is not None:
                self._marked_at[place] = now
            elif known is None:
                found = search.oldest()
        except NsqError as error:
            if not error.retriable:
                raise
            return known
        return known if found is None else Mark(found.offset, found.timestamp_ns)

    def resumes_at(self, snapshot: TopicSnapshot, partition: int, origin: Origin) -> int:
        """Return where to continue, without repeating a message, in a log that ends before the offset reached.

        Returns:
            The first message of a log that was created after the offsets were taken. The end of any other log,
            since its messages may have been read before it lost its tail.

        Raises:
            NsqError: Not known yet, as for :meth:`is_lost`.
        """
        extent, mark = snapshot.extents[partition], origin.marks.get((snapshot.topic, partition))
        search = search_in(snapshot, partition, self._options, self._cluster)
        if mark is not None and extent.start <= mark.offset < extent.end:
            return extent.end if self._holds(search, mark) else extent.start
        if (mark is None and origin.planned is None) or extent.start == extent.end:
            return extent.end
        oldest = search.first_at(extent.start)
        if mark is not None and oldest is not None and oldest.offset <= mark.offset:
            # In one log a message is not younger than a later one, except by what the clocks of two leaders differ.
            is_younger = oldest.timestamp_ns > mark.written_ns + SKEW_NS
        else:
            is_younger = origin.planned is not None and self._is_younger(oldest, search.node, origin.planned, TICK)
        return extent.start if is_younger else extent.end

    def _is_another(self, search: BoundarySearch, offset: int, origin: Origin) -> bool:
        """Return whether the log is not the one of the origin, as far as that can be known."""
        mark = origin.marks.get((search.topic, search.partition))
        if mark is not None and mark.offset >= search.extent.start:
            return not self._holds(search, mark)
        if origin.planned is None or offset <= search.extent.start:
            return False
        try:
            last = search.before(offset)
        except NotReadableError:
            # The last message is the best evidence; while it cannot be read, the first one may suffice.
            if self._is_younger(search.oldest(), search.node, origin.planned, MARGIN):
                return True
            raise
        return self._is_younger(last, search.node, origin.planned, MARGIN)

    @staticmethod
    def _holds(search: BoundarySearch, mark: Mark) -> bool:
        """Return whether the marked message is in the log."""
        found = search.first_at(mark.offset)
        return found is not None and (found.offset, found.timestamp_ns) == mark

    def _is_younger(self, message: StoredMessage | None, node: Node, planned: int, margin: float) -> bool:
        """Return whether a message was written after ``planned``, allowing for the node's clock."""
        if message is None or not is_of_another_log(message.timestamp_ns, planned, 0.0, margin):
            return False
        clock = self._cluster.clock(node)
        ahead = 0.0 if clock is None else clock - time.time()
        return is_of_another_log(message.timestamp_ns, planned, ahead, margin)


class LossPolicy:
    """Handles lost messages of one query. Blocking; used from one thread.

    Args:
        options: The options of the read.
        cluster: The cluster.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._identity = LogIdentity(options, cluster)
        self._reported: set[TopicPartition] = set()
        self._is_warned = False

    def check(self, places: Mapping[TopicPartition, int]) -> None:
        """Check that the offsets of a checkpoint are those of this query.

        Raises:
            ConfigError: They are of another query; or some of them are of topics that this one no longer reads, and
                data loss is not allowed.
        """
        others = [place for place in places if not self._options.reads(*place)]
        if not others:
            return
        named = (f"{topic}-{number}" if self._options.assign else repr(topic) for topic, number in others)
        names = ", ".join(dict.fromkeys(named))
        if len(others) == len(places):
            raise ConfigError(
                f"the checkpoint is that of another query: it has offsets of {names}, but this query reads "
                f"{self._options.choice}: give each query a checkpointLocation of its own"
            )
        text = f"the checkpoint also has offsets of {names}, which this query no longer reads"
        if self._options.fail_on_data_loss:
            rest = json.dumps(to_json({place: offset for place, offset in places.items() if place not in others}))
            raise ConfigError(
                f"{text}: read it as before, or give the query a new checkpointLocation and, to continue with the "
                f"others, startingOffsets={rest}"
            )
        if not self._is_warned:
            self._is_warned = True
            log.warning("%s; they stay there", text)

    def lose(self, topic: str, partition: int, loss: str, remedy: str = CONTINUE) -> None:
        """Raise :class:`DataLossError`, or warn once about the partition if data loss is allowed."""
        text = f"{topic}-{partition}: {loss}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; {remedy}")
        if (topic, partition) not in self._reported:
            self._reported.add((topic, partition))
            log.warning("%s; continuing with what is left", text)

    def mark(self, snapshot: TopicSnapshot, partition: int, offset: int, known: Mark | None) -> Mark | None:
        """Return :meth:`LogIdentity.mark`; report that no message begins at ``offset``."""
        try:
            return self._identity.mark(snapshot, partition, offset, known)
        except DataLossError as error:
            self.lose(snapshot.topic, partition, str(error), CHANGED)
            return None

    def restart(
        self, snapshot: TopicSnapshot, partition: int, at: float, start: int | None, origin: Origin
    ) -> int | None:
        """Return the offset to go back to if ``start`` was taken from another log, otherwise None.

        Args:
            snapshot: A snapshot of the topic.
            partition: The partition.
            at: When the snapshot was taken, by the monotonic clock.
            start: An offset from the checkpoint; None for a new partition.
            origin: The origin of the checkpoint's offsets.

        Raises:
            DataLossError: It was taken from another log, and data loss is not allowed.
            NsqError: Not known yet.
        """
        extent, place = snapshot.extents[partition], (snapshot.topic, partition)
        if start is None:
            return None
        if extent.end >= start:
            return extent.start if self._is_lost(snapshot, partition, at, start, origin) else None
        if not self._is_shorter(place, start):
            return None
        found = self._identity.resumes_at(snapshot, partition, origin)
        log.warning("%s-%d: continuing at offset %d of a log that ends at %d", *place, found, extent.end)
        return found

    def is_lost_for_sure(self, snapshot: TopicSnapshot, partition: int, at: float, offset: int, origin: Origin) -> bool:
        """Return whether ``offset`` was taken from another log; wait until that is known.

        Without a leader this returns False, since the task waits for one. The arguments are those of :meth:`restart`.

        Raises:
            DataLossError: It was taken from another log, and data loss is not allowed.
            NsqError: It is not known within the patience of the read.
        """
        until = time.monotonic() + self._options.patience
        while partition in snapshot.extents:
            try:
                return self._is_lost(snapshot, partition, at, offset, origin)
            except NsqError as error:
                if not error.retriable:
                    raise
                if time.monotonic() >= until:
                    raise no_progress(f"{snapshot.topic}-{partition}", self._options.patience, error) from error
            time.sleep(metadata.PAUSE)
            with contextlib.suppress(NsqError):
                snapshot = metadata.available_snapshot(snapshot.topic, self._options, self._cluster)
                at = time.monotonic()
        return False

    def _is_lost(self, snapshot: TopicSnapshot, partition: int, at: float, offset: int, origin: Origin) -> bool:
        """Return whether ``offset`` was taken from another log; raise if data loss is not allowed.

        Raises:
            DataLossError: It was taken from another log, and data loss is not allowed.
            NsqError: Not known yet. Continuing would silently lose the messages before ``offset``, since the next
                offsets are from the new log.
        """
        if not self._identity.is_lost(snapshot, partition, at, offset, origin):
            return False
        loss = f"the topic was re-created: the offset {offset} was taken from an earlier log"
        self.lose(snapshot.topic, partition, loss)
        return True

    def _is_shorter(self, place: TopicPartition, start: int) -> bool:
        """Return whether the log still ends before ``start`` after a while; raise if data loss is not allowed.

        Only a leader's answer counts; without one, nothing is lost yet.
        """
        topic, partition = place
        until = time.monotonic() + self._options.fetch_timeout
        end: int | None = None
        while True:
            try:
                extent = metadata.available_snapshot(topic, self._options, self._cluster).extents.get(partition)
                end = None if extent is None else extent.end
            except NsqError as error:
                if not error.retriable:
                    raise
                end = None
            if end is not None and end >= start:
                return False
            if time.monotonic() >= until:
                break
            time.sleep(metadata.PAUSE)
        if end is None:
            return False
        self.lose(topic, partition, f"the log ends at {end}, before the offset {start} reached: re-created, or cut")
        return True
