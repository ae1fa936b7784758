"""What goes back to nsqd: failed messages, and those that nobody answers; and what is kept there by TOUCH.

Part of the pure machine (``consumer.machine``), which adds the way of a message from its arrival to its FIN: no event
loop, no clock, no log.
"""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.consumer.inflight import (
    UNANSWERED,
    ReadPartition,
    Recipient,
    Subscription,
    WriteReady,
    WriteRequeue,
    WriteTouch,
    conn_of,
)
from nsq_ha.message import State
from nsq_ha.policy.redelivery import Finished, requeue_delay
from nsq_ha.policy.timing import QUICK_GAP
from nsq_ha.policy.touching import LONGEST_SHARE, gap, interval

if TYPE_CHECKING:
    from collections import deque

    from nsq_ha.consumer.flow import Flow
    from nsq_ha.consumer.pause import Pause
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.policy.redelivery import Stamp


CLOSED: Final = "the consumer was closed before it was answered"
"""Why the close returned a message."""

_SOON: Final = QUICK_GAP
"""Seconds after a cancellation within which a close means that it was a shutdown; less than any requeue delay."""


class Said(NamedTuple):
    """Write a line to the log, about the consumer as a whole."""

    is_warning: bool
    text: str


class HasFailed(NamedTuple):
    """Requeue a message whose block was cancelled: the consumer did not close soon after, so it was no shutdown."""

    message: Message


class Answering:
    """The messages of one consumer that somebody has, and their answers.

    Args:
        config: The consumer's options.
        queue: The messages that wait.
        pause: Pauses after failures.

    Attributes:
        config: The consumer's options.
        partitions: What is read, by number.
        queue: The messages that wait, the oldest first; some may be stale until :meth:`settle`.
        pause: Pauses after failures.
        finished_before: Messages whose FIN may have been without effect.
        deferred: Requeued messages that wait here, until when, and when to look at them.
        dirty: Connections that have something to write.
        actions: What to report or to do.
        wakes: A message may be taken now.
        has_stale: The queue has messages that are not to be handed out.
        has_freed: Messages were answered.
        has_paused: Messages wait in a pause: what cannot wait for its end goes back.
        touches: Messages that are being worked on are touched.
        touch_at: When to look at them.
        is_closing: Nothing is handed out any more.
        is_closed: Answers have no effect any more.
    """

    flow: Flow

    def __init__(self, config: ConsumerConfig, queue: deque[Message], pause: Pause) -> None:
        self.partitions: dict[int, ReadPartition] = {}
        self.queue: deque[Message] = queue
        self.pause: Pause = pause
        self.finished_before: Finished = Finished()
        self.deferred: dict[Message, tuple[float, float]] = {}
        self.dirty: dict[Subscription, None] = {}
        self.actions: list[NamedTuple] = []
        self.wakes: bool = False
        self.has_stale: bool = False
        self.has_freed: bool = False
        self.has_paused: bool = False
        self.touches: bool = config.auto_touch is not False
        self.touch_at: float = math.inf
        self.is_closing: bool = False
        self.is_closed: bool = False
        self.config: ConsumerConfig = config
        self._warned: frozenset[str] = frozenset()
        self._touched: float | None = None if config.auto_touch is True else float(config.auto_touch)

    # ------------------------------------------------------------ who has what

    @property
    def conns(self) -> list[Subscription]:
        """All connections; may be asked from any thread."""
        return [conn for partition in tuple(self.partitions.values()) for conn in partition.conns]

    def in_state(self, *states: State) -> list[Message]:
        """Return the messages in some states that have no answer yet; may be asked from any thread."""
        return [
            message
            for conn in self.conns
            for message in tuple(conn.messages.values())
            if message.state in states and not message.answered
        ]

    def handed_out(self) -> list[Message]:
        """Return the messages that handlers and tasks have, and may answer."""
        return [message for message in self.in_state(State.HANDED_OUT) if not taker_of(message).is_over]

    def is_given_up(self, message: Message) -> bool:
        """Return whether a message is being given up now."""
        if message.state is State.GIVING_UP:
            return True
        orphan = conn_of(message).partition.orphans.get(message.id)
        return orphan is not None and orphan[0] is message and orphan[1] is State.GIVING_UP

    @property
    def unanswered(self) -> list[Message]:
        """The messages that nobody has answered, without those that wait here for their REQ."""
        return self.in_state(*UNANSWERED)

    def held_bytes(self) -> int:
        """Return the bytes of all bodies that wait here, or were handed out; may be asked from any thread."""
        orphans = [each for one in tuple(self.partitions.values()) for each, _ in tuple(one.orphans.values())]
        return sum(len(message.body) for message in (*self.unanswered, *orphans))

    def expanded_bytes(self) -> int:
        """Return the bytes of bodies that were compressed, and are being worked on."""
        return sum(len(message.body) for message in self.handed_out() if message.compressed)

    # ------------------------------------------------------------ failures

    def pause_changed(self, has_changed: bool, now: float) -> None:
        """Follow a change of the pause."""
        if not has_changed:
            return
        self.flow.share(now)
        self.has_paused = self.pause.is_blocking
        self.wakes = True

    def failed(self, message: Message, now: float) -> None:
        """Record that the handler of a message failed."""
        self.pause_changed(self.pause.failed(message, now), now)

    def was_requeued(self, message: Message, delay: float | None, now: float) -> None:
        """Record a requeue by the application; without a delay the handler failed."""
        if self.is_given_up(message):  # on_give_up requeues it, or failed
            self.forget_test(message, now)
        elif delay is None:
            self.failed(message, now)
        else:
            self.pause_changed(self.pause.deferred(message, now), now)

    def forget_test(self, message: Message, now: float) -> None:
        """Record that no outcome of a message is to be expected."""
        self.pause_changed(self.pause.lost(message, now), now)

    def begin_give_up(self, message: Message, now: float) -> None:
        """Record that a message is being given up."""
        if message.state is State.HANDED_OUT:
            message.state = State.GIVING_UP
        self.forget_test(message, now)

    @staticmethod
    def is_held(message: Message) -> bool:
        """Return whether a message certainly gets an answer."""
        return message.state is State.GIVING_UP or (message.state is State.HANDED_OUT and taker_of(message).is_handler)

    # ------------------------------------------------------------ answers

    def _current(self, message: Message) -> Message | None:
        """Return the delivery that an answer is for: a later one in the queue, if nsqd has delivered the message again.

        None if nsqd expects no answer.
        """
        if message.state is not State.ORPHANED:
            return message
        for conn in conn_of(message).partition.conns:
            again = conn.messages.get(message.id)
            if again is not None and again.state is State.QUEUED and again.is_copy_of(message):
                return again
        return None

    def requeue(self, message: Message, delay: float | None, now: float) -> bool:
        """Requeue a message; return whether that has an effect.

        Args:
            message: The message.
            delay: Seconds until the redelivery. None for the option.
            now: The time.
        """
        again = self._current(message)
        if message.state is State.ORPHANED:
            conn_of(message).partition.orphans.pop(message.id, None)
        if again is None:
            return False
        conn = conn_of(again)
        self.was_late(message, conn, now)
        if again.state is State.QUEUED:
            self.has_stale = True
        again.answered = True
        given = delay
        if delay is None:
            delay = requeue_delay(self.config, message.attempts, is_ordered=conn.is_ordered)
        again.state = State.REQUEUED
        if conn.is_ordered and delay > 0:
            # Leave time for the REQ to arrive. Touch it at once, since handling may have used nearly all of its time.
            until = conn.arrival_of(again) + conn.max_msg_timeout - 2 * gap(None, conn.msg_timeout)
            self.deferred[again] = min(now + delay, until), now
            self.tick_deferred(now)
        else:
            self.write_requeue(again, delay, given)
        return True

    def write_requeue(self, message: Message, delay: float, given: float | None) -> None:
        """Write the REQ of a message."""
        conn = conn_of(message)
        if conn.may_repeat:
            conn.answered_first(message, is_finished=False)
        conn.messages.pop(message.id, None)
        conn.adopted.discard(message.id)
        conn.partition.counts.requeued += 1
        conn.commands.append(WriteRequeue(message.id, min(delay, conn.partition.longest_delay), message, given))
        self.dirty[conn] = None
        self.has_freed = True

    def touch(self, message: Message, now: float) -> bool:
        """Restart the message timeout; return whether that has an effect."""
        again = self._current(message)
        if again is None:
            return False
        conn = conn_of(again)
        if now <= again.deadline:  # else nsqd may have sent it again, and the TOUCH is for that delivery
            again.arrived_at = conn.arrival_of(again)
            again.deadline = conn.deadline_from(now)
        conn.touched_at = now
        conn.commands.append(WriteTouch(again.id, again))
        self.dirty[conn] = None
        return True

    def remember(self, partition: ReadPartition, message_id: bytes, stamp: Stamp, now: float) -> None:
        """Finish the next delivery of a message unhandled: the FIN may have been without effect."""
        if not self.is_closing:
            self.finished_before.remember(partition.number, message_id, stamp, now)

    def tick_deferred(self, now: float) -> None:
        """Look at the messages that wait for their REQ."""
        for message, (until, due_at) in tuple(self.deferred.items()):
            if now < due_at:
                continue
            if now < until:
                self.touch(message, now)
                self.deferred[message] = until, min(now + 2 * gap(None, conn_of(message).msg_timeout), until)
                continue
            del self.deferred[message]
            if message.answered:
                self.write_requeue(message, 0.0, None)
            else:  # its block was cancelled
                message.state = State.HANDED_OUT
                self.actions.append(HasFailed(message))

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
        self.touch_at = now + self.touch_gap(self.flow.msg_timeout)
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
        if conn.meta.is_partitioned and (not waits or conn.is_ordered or counts_attempt):
            self.leave_to_end(message)
        else:
            self.give_back(message, CLOSED, now)

    def leave_to_end(self, message: Message) -> None:
        """Leave a message unanswered: nsqd requeues it when the connection ends, and counts no attempt."""
        conn = conn_of(message)
        self.has_stale = self.has_stale or message.state is State.QUEUED
        conn.partition.orphans.pop(message.id, None)
        if conn.messages.get(message.id) is message:
            del conn.messages[message.id]
            conn.partition.counts.returned += 1
        message.answered, message.returned, message.state = True, CLOSED, State.REQUEUED
        self.has_freed = True

    def cut_off(self, conn: Subscription, now: float) -> None:
        """Requeue all that is unanswered on a connection that is about to end, and what still arrives."""
        conn.ready, conn.is_reading, conn.is_rejecting = 0, False, True
        for message in tuple(conn.messages.values()):
            if not message.answered:
                self.give_back(message, CLOSED, now)

    # ------------------------------------------------------------ warnings

    def was_late(self, message: Message, conn: Subscription, now: float) -> None:
        """Warn if a message is answered after its time because its handling took long."""
        if now > message.deadline and now - message.taken_at > conn.msg_timeout and message.taken_at:
            self.warn_of_long_work(conn.msg_timeout)

    def warn_of_waiting(self, timeout: float) -> None:
        """Warn, once, that messages wait too long."""
        self.warn_once(
            "waited",
            f"a message waited behind slow ones for longer than msg_timeout={timeout:g} s, so nsqd delivers it again:"
            f" raise concurrency= or msg_timeout= (up to nsqd's --max-msg-timeout), or lower max_in_flight=",
        )

    def warn_of_long_work(self, timeout: float) -> None:
        """Warn, once, that handling takes too long."""
        self.warn_once(
            "long work",
            f"handling a message takes longer than msg_timeout={timeout:g} s, so nsqd delivers it again."
            f" Raise msg_timeout= (up to nsqd's --max-msg-timeout), or touch() the message from time to time",
        )

    def warn_once(self, kind: str, text: str) -> None:
        """Warn if nothing of this kind was warned about."""
        if kind not in self._warned:
            self._warned |= {kind}
            self.actions.append(Said(is_warning=True, text=text))


def taker_of(message: Message) -> Recipient:
    """Return who got a message that is handed out."""
    taker: Recipient = message.taker  # type: ignore[assignment]  # nothing else is the taker of one
    return taker
