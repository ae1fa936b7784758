"""End the publishes to one partition with receipts or errors, and log warnings about outages.

``producer.sender`` decides what an answer means for the connection;
``policy.timing`` decides when to warn.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from nsq_ha.base.resuming import detached, may_resume, resume
from nsq_ha.engine import observe
from nsq_ha.errors import NsqError, PublishError, RemoteProtocolError
from nsq_ha.message import Receipt
from nsq_ha.policy.lane import Lane, Stage
from nsq_ha.policy.timing import Outage
from nsq_ha.protocol.frames import OK

if TYPE_CHECKING:
    from nsq_ha.base.resuming import Waiting
    from nsq_ha.engine.observe import PartitionReports
    from nsq_ha.producer.limits import PendingPublish, PendingPublishes

log: logging.Logger = logging.getLogger("nsq_ha.producer")


class PublishCounts(msgspec.Struct):
    """Counts that only grow; the fields of :class:`~nsq_ha.stats.ProducerPartition` with the same names."""

    published: int = 0
    failed: int = 0
    uncertain: int = 0
    timed_out: int = 0
    retries: int = 0
    reconnects: int = 0

    def add(self, other: PublishCounts) -> None:
        """Add all counts of ``other``."""
        for name, count in msgspec.structs.asdict(other).items():
            setattr(self, name, getattr(self, name) + count)

    def failure(self, count: int, *, maybe_stored: bool) -> None:
        """Count ``count`` messages whose publish failed."""
        self.failed += count
        if maybe_stored:
            self.uncertain += count


class Outcomes:
    """Ends the publishes of one lane.

    Args:
        lane: The lane of the partition.
        topic: The partition's topic.
        partition: The partition's number.
        pending: Holds each publish until it ends.
        name: How errors name the partition. None for the topic and the number.

    Attributes:
        counts: Counts of the partition's publishes.
        nsqd: The address of the nsqd that was connected last.
    """

    def __init__(
        self,
        lane: Lane[PendingPublish],
        topic: str,
        partition: int,
        pending: PendingPublishes,
        *,
        name: str | None = None,
    ) -> None:
        self._lane = lane
        self._topic = topic
        self._partition = partition
        self._name = name
        self._pending = pending
        self.nsqd: str = ""
        self._shared: list[Receipt] = []
        self.counts: PublishCounts = PublishCounts()
        self._loop = pending.loop
        self._stored_for: list[Waiting] = []

    def connected(self, nsqd: str) -> None:
        """Set the nsqd address for receipts."""
        self.nsqd = nsqd
        self._shared = [Receipt(self._topic, self._partition, nsqd)]

    def all_stored(self, count: int) -> PendingPublish:
        """End the ``count`` (at least one) oldest unanswered publishes, answered by ``OK``; return the last.

        Call :meth:`resume` soon: some of their callers wait for that.

        Raises:
            RemoteProtocolError: ``OK`` does not fit one of them. That one and the
                later ones failed as uncertain; close the connection.
        """
        done = self._lane.all_answered(count)
        shared, usual = self._shared, self._pending.usual
        more = 0
        is_direct = may_resume(self._loop)
        for entry in done:
            if entry.is_plain and entry.attempts == 1 and entry.original is None:
                # Nothing distinguishes the receipts of such messages, so they share one.
                future = entry.future
                if entry.count > 1:
                    more += entry.count - 1
                if not future.done():
                    if is_direct and (waiting := detached(future)) is not None:
                        self._stored_for.append(waiting)
                    future.set_result(shared if entry.count == 1 else shared * entry.count)
                    if entry.timer is None:
                        del usual[entry]
                    else:
                        self._pending.forget(entry)
            else:
                try:
                    self._stored(entry, OK)
                except RemoteProtocolError as error:
                    # Answers and publishes may have been misaligned before; from here on they certainly are.
                    for doubtful in done[done.index(entry) :]:
                        self._fail_in_doubt(doubtful, error)
                    self.counts.published += done.index(entry) + more
                    raise
                more -= 1  # it was counted apart
        self.counts.published += count + more  # here, since counting each would take time
        return done[-1]

    def resume(self) -> None:
        """Resume callers of publishes that :meth:`all_stored` ended."""
        stored_for, self._stored_for = self._stored_for, []
        for waiting in stored_for:
            resume(waiting)

    def stored(self, answer: bytes) -> PendingPublish:
        """End the oldest unanswered publish with ``answer``; return it.

        Raises:
            RemoteProtocolError: The answer does not fit. The publish failed as
                uncertain; close the connection.
        """
        entry = self._lane.answered()
        try:
            self._stored(entry, answer)
        except RemoteProtocolError as error:
            self._fail_in_doubt(entry, error)
            raise
        return entry

    def stored_elsewhere(self, entry: PendingPublish, answer: bytes) -> None:
        """End ``entry``, which is unanswered in the lane, with the answer over another connection.

        Raises:
            RemoteProtocolError: The answer does not fit.
        """
        if not entry.future.done():
            self._stored(entry, answer)
            entry.give_up()  # it is not written again

    def _fail_in_doubt(self, entry: PendingPublish, error: RemoteProtocolError) -> None:
        entry.maybe_stored = True
        if not entry.is_ghost:
            self.fail(entry, error)

    def _stored(self, entry: PendingPublish, answer: bytes) -> None:
        if entry.original is not None:
            # It may have been written elsewhere since, and be stored there, too.
            entry.attempts = entry.original.attempts
        receipts = entry.receipts(answer, self._partition, self.nsqd)
        request = entry.original or entry
        if not request.is_counted:  # else another nsqd has acknowledged it, too
            request.is_counted = True
            self.counts.published += entry.count
        self._pending.stored(request, receipts)
        if answer != OK and observe.watched.is_any:
            observe.published(entry.topic, receipts, entry.began_ns)
        if entry.original is not None:
            # It was stored here after all: it need not be written again if it is still queued.
            entry.original.give_up()

    def fail(self, entry: PendingPublish, error: NsqError) -> None:
        """Fail ``entry``; the error says whether it may be stored."""
        if not entry.future.done():
            self.counts.failure(entry.count, maybe_stored=entry.maybe_stored)
        failed = PublishError(
            str(error),
            topic=self._topic,
            partition=self._partition,
            attempts=entry.attempts,
            maybe_stored=entry.maybe_stored,
            nsqd=self.nsqd if entry.attempts else None,
            name=self._name,
        )
        failed.__cause__ = error
        entry.fail(failed)

    def fail_all(self, error: NsqError, *, written: bool | None = None) -> None:
        """Fail publishes whose callers wait; those that were written and not answered may be stored.

        Args:
            error: Why.
            written: Whether to fail only those that were written, or only the others. None for all.
        """
        for entry in self._lane.pending():
            if not entry.given_up and written in (None, entry.stage is Stage.SENT):
                self.give_up(entry, error)

    def give_up(self, entry: PendingPublish, error: NsqError) -> None:
        """Fail a publish that is in the lane."""
        self._lane.give_up(entry)
        self.fail(entry, error)


class OutageLog:
    """Logs and reports when publishing to one partition keeps failing, and when it works again.

    Args:
        topic: The topic.
        partition: The partition. None for an nsqd of a plain cluster.
        reports: The partition's. None to report nothing.

    Attributes:
        is_on: Whether the last completed publish or the last attempt to write failed.
    """

    def __init__(self, topic: str, partition: int | None, reports: PartitionReports | None = None) -> None:
        self.is_on: bool = False
        self._reports = reports
        self._name, self._where, self._meanwhile = f"{topic}-{partition}", "", "publishes wait up to their time limit"
        self._extra: dict[str, object] = {"topic": topic, "partition": partition}
        if partition is None:
            self._name, self._where, self._extra = topic, "to an nsqd ", {"topic": topic}
            self._meanwhile = "publishes go to another one, or wait up to their time limit"
        self._outage = Outage()

    @property
    def since(self) -> float | None:
        """When the failures began, in the loop's time. None if there are none."""
        return self._outage.began_at

    def failed(self, now: float, error: NsqError) -> None:
        """Record a failure; warn if failures have lasted long enough."""
        self.is_on = True
        self._outage.failed(now)
        warned = self._outage.warning(now)
        if warned is None:
            log.debug("%s: %s", self._name, error)
            return
        log.warning(
            "%s: nothing published %sfor %.0f s (%d failures): %s; %s",
            self._name,
            self._where,
            warned.seconds,
            warned.failures,
            error,
            self._meanwhile,
            extra=self._extra,
        )
        if self._reports is not None:
            self._reports.stalled(warned, error)

    def recovered(self, now: float, nsqd: str) -> None:
        """Record that ``nsqd`` stored a publish; log it if the outage was warned about."""
        self.is_on = False
        over = self._outage.recovered(now)
        if over is not None:
            log.warning(
                "%s: publishing %sworks again after %.0f s (%d failures)",
                self._name,
                f"to nsqd {nsqd} " if self._where else "",
                over.seconds,
                over.failures,
                extra=self._extra,
            )
            if self._reports is not None:
                self._reports.recovered(over)
