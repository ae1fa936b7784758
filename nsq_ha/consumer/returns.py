"""Connections that come and go, what goes back to nsqd unanswered, and what is kept there by TOUCH.

Part of the pure machine (``consumer.machine``): no event loop, no clock, no log.
"""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Final

from nsq_ha.consumer.answers import Answering, taker_of
from nsq_ha.consumer.inflight import ReadPartition, Recipient, Subscription, WriteReady, conn_of
from nsq_ha.message import State
from nsq_ha.policy.timing import QUICK_GAP
from nsq_ha.policy.touching import LONGEST_SHARE, gap, interval

if TYPE_CHECKING:
    from collections import deque

    from nsq_ha.consumer.pause import Pause
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig


CLOSED: Final = "the consumer was closed before it was answered"
"""Why the close returned a message."""

_SOON: Final = QUICK_GAP
"""Seconds after a cancellation within which a close means that it was a shutdown; less than any requeue delay."""


class Returns(Answering):
    """The messages of one consumer, those that are kept at nsqd by TOUCH and those that go back; args as before."""

    def __init__(self, config: ConsumerConfig, queue: deque[Message], pause: Pause) -> None:
        super().__init__(config, queue, pause)
        self._touched: float | None = None if config.auto_touch is True else float(config.auto_touch)

    # ------------------------------------------------------------ connections

    def opened(self, conn: Subscription, now: float) -> None:
        """Read from a connection from now on."""
        conn.is_reading = True
        conn.partition.conn = conn
        self.touch_at = min(self.touch_at, now + self.touch_gap(conn.msg_timeout))
        self.flow.joined(now)

    def replaced(self, conn: Subscription) -> None:
        """Keep the connection in use for answers only."""
        conn.ready, conn.is_reading = 0, False
        conn.commands = [each for each in conn.commands if not isinstance(each, WriteReady)]
        conn.partition.conn = None
        conn.partition.replaced.append(conn)

    def reject(self, conn: Subscription) -> None:
        """Requeue what still arrives, since the connection is about to end."""
        conn.ready, conn.is_reading, conn.is_rejecting = 0, False, True

    def lost(self, conn: Subscription, now: float) -> None:
        """Drop all answers over a connection: the server delivers its messages again."""
        partition = conn.partition
        if partition.conn is conn:
            partition.conn = None
        elif conn in partition.replaced:
            partition.replaced.remove(conn)
        if not conn.is_open:
            return
        conn.is_open = conn.is_reading = False
        self.dirty.pop(conn, None)
        for message in conn.messages.values():
            self._orphan(message, partition)
        for message_id, stamp in (*conn.fins.lost(now), *conn.finished.items()):
            self.remember(partition, message_id, stamp, now)
        partition.counts.returned += len(conn.messages)
        for ended in (conn.messages, conn.commands, conn.finished, conn.recorded, conn.adopted):
            ended.clear()
        conn.no_repeat()
        self.has_stale = True
        self.pause_changed(self.pause.left(now), now)
        self.flow.joined(now)

    def _orphan(self, message: Message, partition: ReadPartition) -> None:
        if self.is_held(message):
            partition.orphans[message.id] = message, message.state
        self.deferred.pop(message, None)
        message.state = State.ORPHANED

    def fin_refused(self, conn: Subscription, message_id: bytes, now: float) -> None:
        """Record that nsqd refused a FIN."""
        stamp = conn.fins.refused(message_id)
        if stamp is not None:
            self.remember(conn.partition, message_id, stamp, now)

    # ------------------------------------------------------------ messages that have not failed

    def give_back(self, message: Message, why: str, now: float) -> None:
        """Requeue an unanswered message that has not failed, without delay.

        Args:
            message: The message.
            why: Completes "the message was given back because ...", for an answer that comes later.
            now: The time.
        """
        self.was_late(message, conn_of(message), now)
        self.pause_changed(self.pause.lost(message, now), now)
        conn = conn_of(message)
        self.has_stale |= message.state is State.QUEUED
        message.answered, message.returned = True, why
        conn.partition.orphans.pop(message.id, None)
        if conn.messages.get(message.id) is message:
            message.state = State.REQUEUED
            self.write_requeue(message, 0.0, 0.0)
        else:
            message.state = State.ORPHANED

    def take_back(self, message: Message, why: str, now: float) -> None:
        """Take back a handed-out message that has not failed, and hand it out again without counting an attempt.

        Args:
            message: The message. Nothing happens if it is answered.
            why: Completes "the message was given back because ...", for an answer that comes later.
            now: The time.
        """
        if message.answered:
            return
        conn = conn_of(message)
        if message.state is State.ORPHANED or not conn.is_open or (now > message.deadline and not self.is_closing):
            self.give_back(message, why, now)
        elif self.is_closing:
            self.hand_back(self._reopened(message, why), now)
        else:
            again = self._reopened(message, why)
            again.state = State.QUEUED
            self.queue.appendleft(again)
            self.flow.taken -= 1
            self.pause_changed(self.pause.lost(message, now), now)
            self.wakes: bool = True

    def reopened(self, message: Message) -> Message:
        """Return an unanswered copy that takes the place of a message, for its answer later on."""
        again = copy(message)
        again.answered = False
        conn = conn_of(message)
        orphans = conn.partition.orphans
        if conn.messages.get(message.id) is message:
            conn.messages[message.id] = again
        elif message.id in orphans and orphans[message.id][0] is message:
            orphans[message.id] = again, orphans[message.id][1]
        return again

    def _reopened(self, message: Message, why: str) -> Message:
        """Return the same; late answers to the message itself have no effect."""
        again = self.reopened(message)
        message.answered, message.returned, message.state = True, why, State.ORPHANED
        return again

    def interrupted(self, message: Message, now: float) -> None:
        """Take back a message whose ``async with`` block was cancelled.

        If the consumer closes soon after, this was a shutdown and no failure. If not, it was a timeout or the like.
        """
        again = self._reopened(message, "the block around it was cancelled")
        if self.is_closing:
            self.hand_back(again, now)
        elif conn_of(again).messages.get(again.id) is again:
            again.state = State.REQUEUED
            self.deferred[again] = now + _SOON, now + _SOON
        else:
            conn_of(again).partition.orphans.pop(again.id, None)

    # ------------------------------------------------------------ touching

    def touch_gap(self, timeout: float) -> float:
        """Return the seconds between two looks at what is being worked on; infinite without the option."""
        return gap(self._touched, timeout) if self.touches else math.inf

    def touch_if_old(self, message: Message, now: float) -> None:
        """Touch a message that is handed out if it has waited for so long that the next look may be too late."""
        conn = conn_of(message)
        if now + self.touch_gap(conn.msg_timeout) > conn.arrival_of(message) + conn.msg_timeout * LONGEST_SHARE:
            self.touch(message, now)

    def tick_touches(self, now: float) -> None:
        """Touch what is being worked on, as far as nsqd keeps it."""
        due_at = self.touch_at
        self.touch_at: float = now + self.touch_gap(self.flow.msg_timeout)
        for message in self.handed_out():
            conn = conn_of(message)
            timeout, ends_at = conn.msg_timeout, conn.arrival_of(message) + conn.max_msg_timeout
            touched_at, every = message.deadline - conn.deadline_from(0.0), interval(self._touched, timeout)
            if now >= ends_at:
                self.warn_once(
                    "over",
                    f"handling {message!r} takes longer than {conn.max_msg_timeout:g} s, for which nsqd keeps a touched"
                    f" message at most (-max-msg-timeout): it delivers the message again. Split the work, or finish the"
                    f" message before it",
                )
            elif touched_at + timeout < ends_at and due_at + every / 2 > touched_at + every:
                self.touch(message, now)

    # ------------------------------------------------------------ closing

    def stop(self) -> None:
        """Hand out nothing more, and ask for no more."""
        self.is_closing = True
        self.pause.close()
        self.flow.stop()
        for message in tuple(self.deferred):
            if not message.answered:  # its block was cancelled just now: this is a shutdown
                del self.deferred[message]
                message.state = State.HANDED_OUT
                taker = message.taker = Recipient()
                taker.is_over = True
        self.wakes = True

    def return_left(self, now: float, *, waits: bool = True) -> None:
        """Return the messages of tasks that leave or have ended; those of tasks that an exception ended have failed."""
        for message in self.in_state(State.HANDED_OUT):
            taker = taker_of(message)
            if taker.is_over and taker.has_failed:
                self.give_back(message, CLOSED, now)
            elif taker.is_over:
                self.hand_back(message, now, waits=waits)

    def hand_back(self, message: Message, now: float, *, waits: bool = True) -> None:
        """Return a message of a closing consumer that nobody will answer.

        On the partitioned server, the end of the connection returns messages without counting an attempt. If the close
        waits for answers, they are requeued now, so that other consumers need not wait. Not on an ordered channel: that
        would lose the order; and not what was handed out, if attempts matter. A plain nsqd counts every delivery, and
        returns nothing at that end.
        """
        conn = conn_of(message)
        counts_attempt = message.state is not State.QUEUED and self.config.max_attempts is not None
        if conn.is_returned_at_end and (not waits or conn.is_ordered or counts_attempt):
            self.leave_to_end(message)
        else:
            self.give_back(message, CLOSED, now)

    def leave_to_end(self, message: Message) -> None:
        """Leave a message unanswered: nsqd requeues it when the connection ends, and counts no attempt."""
        conn = conn_of(message)
        self.has_stale: bool = self.has_stale or message.state is State.QUEUED
        conn.partition.orphans.pop(message.id, None)
        if conn.messages.get(message.id) is message:
            del conn.messages[message.id]
            conn.partition.counts.returned += 1
        message.answered, message.returned, message.state = True, CLOSED, State.REQUEUED
        self.has_freed = True

    def cut_off(self, conn: Subscription, now: float) -> None:
        """Requeue all that is unanswered on a connection that is about to end."""
        for message in tuple(conn.messages.values()):
            if not message.answered:
                self.give_back(message, CLOSED, now)
