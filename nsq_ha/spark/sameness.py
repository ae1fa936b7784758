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

from nsq_ha.spark.checkpoint import Place, is_of_another_log
from nsq_ha.spark.planner import positions

if TYPE_CHECKING:
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import Cluster, Extent
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.survey import Survey

FRESH: Final = 5.0
"""Seconds between two looks that need no question; in so little hardly a topic is deleted, made and filled again."""


class Sameness:
    """Remembers of which partitions it is known. Blocking; used from one thread.

    Args:
        options: Of the read.
        cluster: Whom to ask.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._sure: dict[Place, tuple[Node, Extent, float]] = {}

    def is_lost(self, seen: Survey, partition: int, at: float, offset: int, planned: int | None) -> bool:
        """Tell whether the log is another one than ``offset`` was taken of, as far as it can be told.

        Args:
            seen: A look at the topic that has the partition.
            partition: The partition.
            at: When that look was, by the monotonic clock.
            offset: An offset from the checkpoint.
            planned: When it was taken. None when that is not known: nothing is asked then.

        Raises:
            NsqError: The leader gave no usable answer; look it up again.
        """
        place = seen.topic, partition
        node, extent = seen.leaders[partition], seen.extents[partition]
        before = self._sure.pop(place, None)
        if before is not None and before[0] == node and before[1].end <= extent.end and at - before[2] < FRESH:
            self._sure[place] = node, extent, at
            return False
        if planned is not None and offset > extent.start:
            log = positions(seen, partition, self._options, self._cluster)
            last = log.before(offset)
            # The last one tells most; while it cannot be read yet the first one may tell as well.
            known = last or log.oldest()
            if known is not None and is_of_another_log(known.timestamp_ns, planned, 0.0):
                clock = self._cluster.clock(node)
                ahead = 0.0 if clock is None else clock - time.time()
                if is_of_another_log(known.timestamp_ns, planned, ahead):
                    return True
            if last is None:
                # Not sure: the next look asks again.
                return False
        self._sure[place] = node, extent, at
        return False
