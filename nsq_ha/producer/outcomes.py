"""How the publishes to one partition ended, told to their callers.

Owns receipts and errors. What follows from an answer for the connection is
``producer.sender``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha import tracelog
from nsq_ha.errors import PublishError, RemoteProtocolError
from nsq_ha.message import Receipt
from nsq_ha.policy.lane import Stage
from nsq_ha.producer.outgoing import Plain, PlainBatch
from nsq_ha.protocol import OK

if TYPE_CHECKING:
    from nsq_ha.errors import NsqError
    from nsq_ha.policy.lane import Entry, Lane
    from nsq_ha.producer.line import Line
    from nsq_ha.producer.outgoing import Outgoing
    from nsq_ha.producer.under_way import UnderWay


class Outcomes:
    """Takes the publishes of one lane to their ends."""

    def __init__(
        self,
        lane: Lane[Outgoing],
        topic: str,
        partition: int,
        under_way: UnderWay,
        line: Line,
    ) -> None:
        """Create it for one partition.

        Args:
            lane: The partition's lane.
            topic: The topic.
            partition: The partition.
            under_way: The producer's pending publishes.
            line: Publishes that wait for space in front of the lane.
        """
        self._lane = lane
        self._topic = topic
        self._partition = partition
        self._under_way = under_way
        self._line = line
        self._nsqd = ""
        self._shared: list[Receipt] = []

    def connected(self, nsqd: str) -> None:
        """Note the address of who answers from now on."""
        self._nsqd = nsqd
        self._shared = [Receipt(self._topic, self._partition, nsqd)]

    def all_stored(self, count: int, *, apart: bool = False) -> Entry[Outgoing]:
        """End the ``count`` oldest unanswered publishes (at least one) as answered with ``OK``; return the last.

        Raises:
            RemoteProtocolError: ``OK`` is not an answer to one of them. It and those
                behind it were reported as uncertain; close the connection.
        """
        done = self._lane.all_answered(count, apart=apart)
        shared, usual = self._shared, self._under_way.usual
        freed = 0
        for entry in done:
            if (type(entry) is Plain or type(entry) is PlainBatch) and entry.attempts == 1 and entry.timeout is None:
                # All that is known of one such message is the same as of the others, so they share a receipt.
                future = entry.future
                if not future.done():
                    future.set_result(shared if entry.count == 1 else shared * entry.count)
                    del usual[entry]
                    freed += entry.size
            else:
                try:
                    self._stored(entry, OK)
                except RemoteProtocolError as error:
                    # Answers and publishes are misaligned, since here at the latest.
                    for doubtful in done[done.index(entry) :]:
                        self._in_doubt(doubtful, error)
                    self._under_way.free(freed)
                    raise
        if freed:
            self._line.free(freed)
        return done[-1]

    def stored(self, answer: bytes, *, apart: bool = False) -> Entry[Outgoing]:
        """End the oldest unanswered publish as answered; return it.

        Raises:
            RemoteProtocolError: The answer does not fit the publish, which was
                reported as uncertain; close the connection.
        """
        entry = self._lane.answered(apart=apart)
        try:
            self._stored(entry, answer)
        except RemoteProtocolError as error:
            self._in_doubt(entry, error)
            raise
        return entry

    def _in_doubt(self, entry: Entry[Outgoing], error: RemoteProtocolError) -> None:
        entry.maybe_stored = True
        if not entry.is_ghost:
            self.fail(entry, error)

    def _stored(self, entry: Entry[Outgoing], answer: bytes) -> None:
        item = entry.item
        receipts = item.receipts(answer, self._partition, self._nsqd, entry.attempts)
        self._under_way.stored((item,), receipts)
        if answer != OK:
            _log(item, receipts)
        if entry.is_ghost:
            # It is stored after all: its copy need not be written, where it is not yet.
            item.give_up()

    def fail(self, entry: Entry[Outgoing], error: NsqError) -> None:
        """Tell the caller of ``entry`` that it failed, and what is known of its storage."""
        failed = PublishError(
            str(error),
            topic=self._topic,
            partition=self._partition,
            attempts=entry.attempts,
            maybe_stored=entry.maybe_stored,
        )
        failed.__cause__ = error
        entry.item.fail(failed)

    def fail_all(self, error: NsqError) -> None:
        """Fail everything that is queued or unanswered here; what is unanswered may be stored."""
        for entry in self._lane.pending():
            if not entry.given_up:
                self.give_up(entry, error)
        self._fail_line(error)

    def fail_unwritten(self, error: NsqError) -> None:
        """Fail what is not on its way at this moment."""
        for entry in self._lane.pending():
            if entry.stage is not Stage.SENT:
                self.give_up(entry, error)
        self._fail_line(error)

    def fail_unanswered(self, error: NsqError) -> None:
        """Fail publishes that were written and not answered; they may be stored."""
        for entry in self._lane.pending():
            if entry.stage is Stage.SENT and not entry.given_up:
                self.give_up(entry, error)

    def _fail_line(self, error: NsqError) -> None:
        for outgoing in tuple(self._line.waiting):
            self.leave_line(outgoing, error)

    def leave_line(self, outgoing: Outgoing, error: NsqError) -> None:
        """Fail a publish that waits for space."""
        self._line.remove(outgoing)
        self.fail(outgoing, error)

    def give_up(self, entry: Entry[Outgoing], error: NsqError) -> None:
        """Fail one that its lane holds."""
        self._lane.give_up(entry)
        self.fail(entry, error)


def _log(outgoing: Outgoing, receipts: list[Receipt]) -> None:
    """Write the trace log's lines, for answers that tell an offset."""
    if tracelog.switch.is_on(outgoing.topic):
        for receipt in receipts:
            if receipt.offset is not None:
                tracelog.log_publish(receipt, outgoing.began_ns)
