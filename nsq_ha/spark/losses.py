"""What becomes of a stream's offsets when their messages are gone, or their log is another one.

Owns the decision between an error and going on (``failOnDataLoss``), and where a
partition goes on: never so that a message is read twice.

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
        options: Of the read.
        cluster: Whom to ask.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._sameness = Sameness(options, cluster)
        self._reported: set[Place] = set()

    def lose(self, topic: str, partition: int, said: str) -> None:
        """Raise :class:`DataLossError`; if losing messages is allowed, warn about the partition once instead."""
        text = f"{topic}-{partition}: {said}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss=false to go on with what is left")
        if (topic, partition) not in self._reported:
            self._reported.add((topic, partition))
            log.warning("%s; going on with what is left", text)

    def restart(self, seen: Survey, partition: int, at: float, start: int | None, planned: int | None) -> int | None:
        """Return where a partition goes back to if its log is not the one that ``start`` was taken of, else None.

        Args:
            seen: A look at the topic that has the partition.
            partition: The partition.
            at: When that look was, by the monotonic clock.
            start: An offset from the checkpoint. None for a partition that has none.
            planned: When it was taken. None when that is not known.

        Raises:
            DataLossError: It is not, and that is an error.
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
        """Return whether the log is another one than ``offset`` was taken of; wait until that is known.

        Without a leader this returns False: the task waits for one. The arguments are those of :meth:`restart`.

        Raises:
            DataLossError: It is, and that is an error.
            NsqError: It is not known for longer than the read is patient.
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
        """Return whether the log is another one than ``offset`` was taken of; raise if that is an error.

        Raises:
            DataLossError: It is, and that is an error.
            NsqError: Not known yet. To read on would lose the messages before ``offset`` for good, and in silence: the
                next offsets are of the new log.
        """
        if not self._sameness.is_lost(seen, partition, at, offset, planned):
            return False
        said = f"the log holds messages before the offset {offset} that are younger than it: the topic was made anew"
        self.lose(seen.topic, partition, said)
        return True

    def _is_shorter(self, place: Place, start: int) -> bool:
        """Tell whether the log still ends before ``start`` after a while; raise if it does and that is an error.

        Only a leader's answer counts: without one nothing is lost yet.
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
        self.lose(topic, partition, f"the log ends at {end}, before the offset {start} reached: made anew, or cut")
        return True
