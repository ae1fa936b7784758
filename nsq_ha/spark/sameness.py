"""Whether the log of a partition is still the one that an offset was taken of.

Owns the question to the partition's leader, and when it is worth asking: on the
first look, after one that missed the partition, after a while without a look, and
when the log was seen to shrink or to go to another leader. So triggers that follow
each other ask nothing: between two of them a new log is short, and its end tells.

**Source:** Spark reference 1.1 (``message/get``), 1.5 ("Topic deleted and re-created").
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nsq_ha.spark.checkpoint import MARGIN, Place, is_of_another_log
from nsq_ha.spark.planner import positions
from nsq_ha.spark.positions import NotReadableError

if TYPE_CHECKING:
    from nsq_ha.discovery.nsqd_http import StoredMessage
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import Cluster, Extent
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.survey import Survey

FRESH: Final = 5.0
"""Seconds between two looks that need no question; in so little hardly a topic is deleted, made and filled again."""

TICK: Final = 3.0
"""Seconds by which the measured difference of two clocks may be wrong, since they show whole seconds."""


class Sameness:
    """Remembers which partitions still have the same log. Blocking; used from one thread.

    Args:
        options: The options of the read.
        cluster: The cluster.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._sure: dict[Place, tuple[Node, Extent, float]] = {}

    def is_lost(self, seen: Survey, partition: int, at: float, offset: int, planned: int | None) -> bool:
        """Return whether ``offset`` was taken from another log.

        Args:
            seen: A survey of the topic.
            partition: The partition.
            at: When the survey was made, by the monotonic clock.
            offset: An offset from the checkpoint.
            planned: When it was taken; None if unknown, and then nothing is asked.

        Raises:
            NsqError: Not known yet: the decisive message cannot be read, or the leader gave no usable answer.
                Do not read from ``offset`` before it is known.
        """
        place = seen.topic, partition
        node, extent = seen.leaders[partition], seen.extents[partition]
        before = self._sure.pop(place, None)
        if before is not None and before[0] == node and before[1].end <= extent.end and at - before[2] < FRESH:
            self._sure[place] = node, extent, at
            return False
        if planned is not None and offset > extent.start:
            log = positions(seen, partition, self._options, self._cluster)
            try:
                last = log.before(offset)
            except NotReadableError:
                # The last message is the best evidence; while it cannot be read, the first one may do.
                if self._is_younger(log.oldest(), node, planned, MARGIN):
                    return True
                raise
            if self._is_younger(last, node, planned, MARGIN):
                return True
        self._sure[place] = node, extent, at
        return False

    def resumes_at(self, seen: Survey, partition: int, planned: int | None) -> int:
        """Return where to continue in a log that ends before the offset reached, without repeating a message.

        Returns:
            The first message of a log that was created after ``planned``. The end of any other one, since its
            messages may have been read before it lost its tail.

        Raises:
            NsqError: Not known yet, as for :meth:`is_lost`.
        """
        extent = seen.extents[partition]
        if planned is None or extent.start == extent.end:
            return extent.end
        log = positions(seen, partition, self._options, self._cluster)
        oldest = log.first_at(extent.start)
        return extent.start if self._is_younger(oldest, log.node, planned, TICK) else extent.end

    def _is_younger(self, message: StoredMessage | None, node: Node, planned: int, margin: float) -> bool:
        """Return whether a message was written after ``planned``, allowing for the node's clock."""
        if message is None or not is_of_another_log(message.timestamp_ns, planned, 0.0, margin):
            return False
        clock = self._cluster.clock(node)
        ahead = 0.0 if clock is None else clock - time.time()
        return is_of_another_log(message.timestamp_ns, planned, ahead, margin)
