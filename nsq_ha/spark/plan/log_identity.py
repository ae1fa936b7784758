"""Check that a partition's log is still the one that an offset was taken from, and handle data loss.

:class:`LossPolicy` asks the partition's leader for the message that the checkpoint has of
its log (``checkpoint.Mark``), whenever the log has changed since the last time: a real
cluster needs 3 s to delete, re-create and refill a topic. It decides whether to fail or continue
(``failOnDataLoss``), and where a partition continues. No message is ever read twice.

**Source:** Spark design 1.1, 1.5.
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError, DataLossError, NsqError
from nsq_ha.spark import logger
from nsq_ha.spark.checkpoint import MARGIN, Mark, Origin, TopicPartition, is_of_another_log, to_json
from nsq_ha.spark.plan.boundaries import NotReadableError, PartitionLog, retried
from nsq_ha.spark.plan.metadata import available_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsq_ha.admin.nsqd_http import StoredMessage
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import BlockingCluster
    from nsq_ha.spark.options import ReadOptions


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


class LossPolicy:
    """Remembers which partitions of one query still have the same log, and handles lost messages.

    Blocking; used from one thread.

    Args:
        options: The options of the read.
        cluster: The cluster.
    """

    def __init__(self, options: ReadOptions, cluster: BlockingCluster) -> None:
        self._options = options
        self._cluster = cluster
        self._confirmed: dict[TopicPartition, PartitionLog] = {}
        self._marked_at: dict[TopicPartition, float] = {}
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
            logger.warning("%s; they stay there", text)

    def lose(self, place: TopicPartition, loss: str, remedy: str = CONTINUE) -> None:
        """Raise :class:`DataLossError`, or warn once about the partition if data loss is allowed."""
        text = f"{place[0]}-{place[1]}: {loss}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; {remedy}")
        if place not in self._reported:
            self._reported.add(place)
            logger.warning("%s; continuing with what is left", text)

    def mark(self, log: PartitionLog, offset: int, known: Mark | None) -> Mark | None:
        """Return a message by which the log is known again: now and then a newer one, since old ones are deleted.

        Args:
            log: The log.
            offset: An offset of this log; all messages before it were read. If no message begins there, report that.
            known: The mark so far.

        Raises:
            DataLossError: No message begins at ``offset``, and data loss is not allowed.
            NsqError: An error that retries cannot fix.
        """
        now = time.monotonic()
        if known is not None and now - self._marked_at.get(log.place, -RENEWED_EACH) < RENEWED_EACH:
            return known
        try:
            if (found := log.boundary_at(offset)) is not None:
                self._marked_at[log.place] = now
            elif known is None:
                found = log.oldest()
        except DataLossError as error:
            self.lose(log.place, str(error), CHANGED)
            return None
        except NsqError as error:
            if not error.retriable:
                raise
            return known
        return known if found is None else Mark(found.offset, found.timestamp_ns)

    def restart(self, log: PartitionLog, start: int | None, origin: Origin) -> int | None:
        """Return the offset to go back to if ``start`` was taken from another log, otherwise None.

        Args:
            log: The log.
            start: An offset from the checkpoint; None for a new partition.
            origin: The origin of the checkpoint's offsets.

        Raises:
            DataLossError: It was taken from another log, and data loss is not allowed.
            NsqError: Not known yet.
        """
        if start is None:
            return None
        if not (self._is_lost(log, start, origin) if log.extent.end >= start else self._is_shorter(log.place, start)):
            return None
        found = self._resumes_at(log, origin)
        logger.warning("%s: continuing at offset %d of a log that ends at %d", log.name, found, log.extent.end)
        return found

    def is_lost_for_sure(self, log: PartitionLog | None, offset: int, origin: Origin) -> bool:
        """Return whether ``offset`` was taken from another log; wait until that is known.

        Without a leader, and so without a log, this returns False, since the task waits for one. The arguments are
        those of :meth:`restart`.

        Raises:
            DataLossError: It was taken from another log, and data loss is not allowed.
            NsqError: It is not known within the patience of the read.
        """
        if log is None:
            return False
        place: TopicPartition = log.place
        current: PartitionLog | None = log

        def look_again() -> None:
            nonlocal current
            with contextlib.suppress(NsqError):
                current = self._current(place)

        patience = self._options.patience
        return retried(
            lambda: current is not None and self._is_lost(current, offset, origin),
            time.monotonic() + patience,
            meanwhile=look_again,
            late=(log.name, patience),
        )

    def _current(self, place: TopicPartition) -> PartitionLog | None:
        """Return the log as its leader reports it now. None if no leader does."""
        return available_snapshot(place[0], self._options, self._cluster).logs.get(place[1])

    def _is_lost(self, log: PartitionLog, offset: int, origin: Origin) -> bool:
        """Return whether ``offset`` was taken from another log; raise if data loss is not allowed.

        If the origin is unknown, this asks nothing.

        Raises:
            DataLossError: It was taken from another log, and data loss is not allowed.
            NsqError: Not known yet: the decisive message cannot be read, or the leader gave no usable answer.
                Continuing would silently lose the messages before ``offset``, since the next offsets are from the new
                log.
        """
        before = self._confirmed.pop(log.place, None)
        is_same = before is not None and (before.node, before.extent) == (log.node, log.extent)
        if before is None or not is_same or log.seen_at - before.seen_at >= FRESH:
            if self._is_another(log, offset, origin):
                loss = f"the topic was re-created: the offset {offset} was taken from an earlier log"
                self.lose(log.place, loss)
                return True
            before = log
        self._confirmed[log.place] = before
        return False

    def _resumes_at(self, log: PartitionLog, origin: Origin) -> int:
        """Return where to continue, without repeating a message, in a log that has lost messages, or is another one.

        Returns:
            The first message of a log that was created after the offsets were taken. The end of any other log,
            since its messages may have been read before it lost its tail.

        Raises:
            NsqError: Not known yet, as for :meth:`_is_lost`.
        """
        extent, mark, skew = log.extent, origin.marks.get(log.place), SKEW_NS
        if mark is not None and extent.start <= mark.offset < extent.end:
            if self._holds(log, mark):
                return extent.end
            # The log was created again, or lost its tail, and other messages have filled it: the clocks decide alone.
            skew = 0
        if (mark is None and origin.planned is None) or extent.start == extent.end:
            return extent.end
        oldest = log.first_at(extent.start)
        if mark is not None and oldest is not None and oldest.offset <= mark.offset:
            # In one log a message is not younger than a later one, except by what the clocks of two leaders differ.
            is_younger = oldest.offset == mark.offset or oldest.timestamp_ns > mark.written_ns + skew
        else:
            is_younger = origin.planned is not None and self._is_younger(oldest, log.node, origin.planned, TICK)
        return extent.start if is_younger else extent.end

    def _is_another(self, log: PartitionLog, offset: int, origin: Origin) -> bool:
        """Return whether the log is not the one of the origin, as far as that can be known."""
        mark = origin.marks.get(log.place)
        if mark is not None and mark.offset >= log.extent.start:
            return not self._holds(log, mark)
        if origin.planned is None or offset <= log.extent.start:
            return False
        try:
            last = log.before(offset)
        except NotReadableError:
            # The last message is the best evidence; while it cannot be read, the first one may suffice.
            if self._is_younger(log.oldest(), log.node, origin.planned, MARGIN):
                return True
            raise
        return self._is_younger(last, log.node, origin.planned, MARGIN)

    @staticmethod
    def _holds(log: PartitionLog, mark: Mark) -> bool:
        """Return whether the marked message is in the log."""
        found = log.first_at(mark.offset)
        return found is not None and (found.offset, found.timestamp_ns) == mark

    def _is_younger(self, message: StoredMessage | None, node: Node, planned: int, margin: float) -> bool:
        """Return whether a message was written after ``planned``, allowing for the node's clock."""
        if message is None or not is_of_another_log(message.timestamp_ns, planned, 0.0, margin):
            return False
        clock = self._cluster.clock(node)
        ahead = 0.0 if clock is None else clock - time.time()
        return is_of_another_log(message.timestamp_ns, planned, ahead, margin)

    def _is_shorter(self, place: TopicPartition, start: int) -> bool:
        """Return whether the log still ends before ``start`` after a while; raise if data loss is not allowed.

        Only a leader's answer counts; without one, nothing is lost yet.
        """
        end: int | None = None

        def reaches() -> bool:
            nonlocal end
            end = None
            if (log := self._current(place)) is not None:
                end = log.extent.end
            if end is None or end < start:
                raise NotReadableError(f"{place[0]}-{place[1]}: the offset {start} is not reached")
            return True

        try:
            return not retried(reaches, time.monotonic() + self._options.fetch_timeout)
        except NsqError as error:
            if not error.retriable:
                raise
        if end is None:
            return False
        self.lose(place, f"the log ends at {end}, before the offset {start} reached: re-created, or cut")
        return True
