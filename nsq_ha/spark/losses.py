"""Handle offsets of a stream whose messages are gone, or whose log is another one.

This module decides between an error and continuing (``failOnDataLoss``), and where
a partition continues; no message is ever read twice.

**Source:** Spark reference 1.5.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import DataLossError, NsqError
from nsq_ha.spark.positions import no_progress
from nsq_ha.spark.sameness import Sameness
from nsq_ha.spark.survey import PAUSE, glance

if TYPE_CHECKING:
    from nsq_ha.spark.checkpoint import Place
    from nsq_ha.spark.cluster import Cluster
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.survey import Survey

log: Final = logging.getLogger("nsq_ha.spark")


class Losses:
    """Judges the logs of one query. Blocking; used from one thread.

    Args:
        options: The options of the read.
        cluster: The cluster.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._sameness = Sameness(options, cluster)
        self._reported: set[Place] = set()

    def lose(self, topic: str, partition: int, said: str) -> None:
        """Raise :class:`DataLossError`, or warn once about the partition if data loss is allowed."""
        text = f"{topic}-{partition}: {said}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss=false to go on with what is left")
        if (topic, partition) not in self._reported:
            self._reported.add((topic, partition))
            log.warning("%s; going on with what is left", text)

    def restart(self, seen: Survey, partition: int, at: float, start: int | None, planned: int | None) -> int | None:
        """Return the offset to go back to if ``start`` was taken from another log, else None.

        Args:
            seen: A survey of the topic.
            partition: The partition.
            at: When the survey was made, by the monotonic clock.
            start: An offset from the checkpoint; None for a new partition.
            planned: When it was taken; None if unknown.

        Raises:
            DataLossError: It was, and that is an error.
            NsqError: Not known yet.
        """
        extent, place = seen.extents[partition], (seen.topic, partition)
        if start is None:
            return None
        if extent.end >= start:
            return extent.start if self._is_lost(seen, partition, at, start, planned) else None
        if not self._is_shorter(place, start):
            return None
        found = self._sameness.resumes_at(seen, partition, planned)
        log.warning("%s-%d: going on at offset %d of a log that ends at %d", *place, found, extent.end)
        return found

    def is_lost_for_sure(self, seen: Survey, partition: int, at: float, offset: int, planned: int | None) -> bool:
        """Return whether ``offset`` was taken from another log; wait until that is known.

        Without a leader this returns False: the task waits for one. The arguments are those of :meth:`restart`.

        Raises:
            DataLossError: It was, and that is an error.
            NsqError: That is not known within the patience of the read.
        """
        until = time.monotonic() + self._options.patience
        look = seen
        while partition in look.extents:
            try:
                return self._is_lost(look, partition, at, offset, planned)
            except NsqError as error:
                if not error.retriable:
                    raise
                if time.monotonic() >= until:
                    raise no_progress(f"{seen.topic}-{partition}", self._options.patience, error) from error
            time.sleep(PAUSE)
            with contextlib.suppress(NsqError):
                look, at = glance(seen.topic, self._options, self._cluster), time.monotonic()
        return False

    def _is_lost(self, seen: Survey, partition: int, at: float, offset: int, planned: int | None) -> bool:
        """Return whether ``offset`` was taken from another log; raise if that is an error.

        Raises:
            DataLossError: It was, and that is an error.
            NsqError: Not known yet. To read on would silently lose the messages before ``offset``, since the next
                offsets are from the new log.
        """
        if not self._sameness.is_lost(seen, partition, at, offset, planned):
            return False
        said = f"the log holds messages before the offset {offset} that are younger than it: the topic was re-created"
        self.lose(seen.topic, partition, said)
        return True

    def _is_shorter(self, place: Place, start: int) -> bool:
        """Return whether the log still ends before ``start`` after a while; raise if that is an error.

        Only a leader's answer counts; without one, nothing is lost yet.
        """
        topic, partition = place
        until = time.monotonic() + self._options.fetch_timeout
        end: int | None = None
        while True:
            try:
                extent = glance(topic, self._options, self._cluster).extents.get(partition)
                end = None if extent is None else extent.end
            except NsqError as error:
                if not error.retriable:
                    raise
                end = None
            if end is not None and end >= start:
                return False
            if time.monotonic() >= until:
                break
            time.sleep(PAUSE)
        if end is None:
            return False
        self.lose(topic, partition, f"the log ends at {end}, before the offset {start} reached: re-created, or cut")
        return True
