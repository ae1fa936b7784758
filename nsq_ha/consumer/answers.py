"""What an answer to a message means, and what becomes of messages that nobody will answer.

Part of the pure machine (``consumer.machine``), which adds arrival and handing out: no event loop, no clock, no log.
"""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.consumer.inflight import UNANSWERED, Conn, Partition, Requeue, Taker, Touch, conn_of, stamp_of
from nsq_ha.message import State
from nsq_ha.policy.redelivery import Finished, OrderedRequeue, requeue_delay
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

_SOON: Final = 0.25
"""Seconds after a cancellation within which a close means that it was a shutdown; less than any requeue delay."""


class Said(NamedTuple):
    """Write a line to the log, about the consumer as a whole."""

    is_warning: bool
    text: str


class FinishedAgain(NamedTuple):
    """Report a delivery that is finished unhandled, since the message was handled before."""

    message: Message


class HasFailed(NamedTuple):
    """Requeue a message whose block was cancelled: the consumer did not close soon after, so it was no shutdown."""

    message: Message


class _Deferred:
    """A requeued message that waits here for its REQ."""

    __slots__ = ("policy", "until")

    def __init__(self, until: float, policy: OrderedRequeue | None) -> None:
        self.until = until
        self.policy = policy


class Answers:
    """The messages of one consumer that somebody has, and their answers.

    Args:
        config: The consumer's options.
        queue: The messages that wait.
        pause: Pauses after failures.

    Attributes:
        partitions: What is read, by number.
        queue: The messages that wait, the oldest first; some may be stale until :meth:`settle`.
        pause: Pauses after failures.
        finished_before: Messages whose FIN may have been without effect.
        deferred: Requeued messages that wait here for their REQ.
        dirty: Connections that have something to write.
        actions: What to report or to do.
        wakes: A message may be taken now.
        has_stale: The queue has messages that are not to be handed out.
        has_freed: Messages were answered.
        touches: Messages that are being worked on are touched.
        touch_at: When to look at them.
        is_closing: Nothing is handed out any more.
        is_closed: Answers have no effect any more.
    """

    flow: Flow

    def __init__(self, config: ConsumerConfig, queue: deque[Message], pause: Pause) -> None:
        self.partitions: dict[int, Partition] = {}
        self.queue: deque[Message] = queue
        self.pause: Pause = pause
        self.finished_before: Finished = Finished()
        self.deferred: dict[Message, _Deferred] = {}
        self.dirty: dict[Conn, None] = {}
        self.actions: list[NamedTuple] = []
        self.wakes: bool = False
        self.has_stale: bool = False
        self.has_freed: bool = False
        self.touches: bool = config.auto_touch is not False
        self.touch_at: float = math.inf
        self.is_closing: bool = False
        self.is_closed: bool = False
        self._config = config
        self._warned: frozenset[str] = frozenset()
        self._over: set[int] = set()  # by id(): messages that nsqd keeps no longer
        self._touched: float | None = None if config.auto_touch is True else float(config.auto_touch)

    # ------------------------------------------------------------ who has what

    @property
    def conns(self) -> list[Conn]:
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
    def unanswered(self) -> int:
        """Number of messages that nobody has answered, without those that wait here for their REQ."""
        return sum(message.state in UNANSWERED for conn in self.conns for message in conn.messages.values())

    def held_bytes(self) -> int:
        """Return the bytes of all bodies that wait here, or were handed out; may be asked from any thread."""
        orphans = [each for one in tuple(self.partitions.values()) for each, _ in tuple(one.orphans.values())]
        return sum(len(message.body) for message in (*self.in_state(*UNANSWERED), *orphans))

    def expanded_bytes(self) -> int:
        """Return the bytes of bodies that were compressed, and are being worked on."""
        return sum(len(message.body) for message in self.handed_out() if message.compressed)

    # ------------------------------------------------------------ answers

    def finish(self, conn: Conn, message: Message) -> None:
        """Finish a message; all FINs of one turn are written together."""
        message.state = State.FINISHED
        if not conn.finished:
            self.dirty[conn] = None
        conn.messages.pop(message.id, None)
        conn.finished[message.id] = message.timestamp_ns, message.offset
        if message.deadline < conn.oldest[0]:
            conn.oldest = message.deadline, message.taken_at
        if conn.may_repeat:
            conn.answered_first(message, is_finished=True)
        if self.pause.records:
            conn.recorded.append(message)

    def written(self, conn: Conn, now: float, *, is_blocked: bool = False) -> list[bytes]:
        """Return the ids to finish over a connection: their FINs are written now.

        Args:
            conn: The connection.
            now: The time.
            is_blocked: The event loop stood still, so that nsqd may have closed the connection.
        """
        fins, deadline, taken_at = conn.write_finished()
        ids = list(fins)
        if is_blocked or now > deadline:
            if now > deadline and now - taken_at > conn.msg_timeout:
                self.warn_of_long_work(conn.msg_timeout)
            for message_id, stamp in fins.items():
                self.remember(conn.partition, message_id, stamp, now)
        else:
            conn.fins.sent(fins, now)
        if conn.adopted:
            conn.partition.counts.finished_unhandled += len(conn.adopted.intersection(ids))
            conn.adopted.difference_update(ids)
        self.has_freed = True
        if conn.recorded:
            recorded, conn.recorded = conn.recorded, []
            for message in recorded:
                self._settled(message, now)
        return ids

    def _settled(self, message: Message, now: float) -> None:
        """Let the pause know of a finished message."""
        self.pause_changed(self.pause.finished(message, now), now)

    def pause_changed(self, has_changed: bool, now: float) -> None:
        """Follow a change of the pause; the machine does."""
        raise NotImplementedError

    def finish_again(self, conn: Conn, message: Message) -> None:
        """Finish a delivery of a message that was handled before."""
        message.answered = True
        conn.partition.counts.finished_unhandled += 1
        self.finish(conn, message)
        self.actions.append(FinishedAgain(message))

    def finish_orphan(self, message: Message, now: float) -> None:
        """Finish the delivery that waits of a message that was finished late, or the next one."""
        partition = conn_of(message).partition
        again = self._current(message)
        if again is not None:
            self._was_late(message, conn_of(again), now)
            self.has_stale = again.answered = True
            self.finish(conn_of(again), again)
        else:
            partition.orphans.pop(message.id, None)
            self.remember(partition, message.id, stamp_of(message), now)
        if self.pause.records:
            self._settled(message, now)

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
        if again is None:
            conn_of(message).partition.orphans.pop(message.id, None)
            return False
        conn = conn_of(again)
        self._was_late(message, conn, now)
        if again.state is State.QUEUED:
            self.has_stale = True
        again.answered = True
        given = delay
        if delay is None:
            delay = requeue_delay(self._config, message.attempts, is_ordered=conn.is_ordered)
        again.state = State.REQUEUED
        if conn.is_ordered and delay > 0:
            policy = OrderedRequeue(
                now, delay, conn.arrived_at, msg_timeout=conn.msg_timeout, max_msg_timeout=conn.max_msg_timeout
            )
            self.deferred[again] = _Deferred(now, policy)
            self.tick_deferred(now)
        else:
            self._write_requeue(again, delay, given)
        return True

    def _write_requeue(self, message: Message, delay: float, given: float | None) -> None:
        conn = conn_of(message)
        if conn.may_repeat:
            conn.answered_first(message, is_finished=False)
        conn.messages.pop(message.id, None)
        conn.adopted.discard(message.id)
        conn.partition.counts.requeued += 1
        conn.commands.append(Requeue(message.id, min(delay, conn.partition.longest_delay), message, given))
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
        conn.commands.append(Touch(again.id, again))
        self.dirty[conn] = None
        return True

    def remember(self, partition: Partition, message_id: bytes, stamp: Stamp, now: float) -> None:
        """Finish the next delivery of a message unhandled: the FIN may have been without effect."""
        if not self.is_closing:
            self.finished_before.remember(partition.number, message_id, stamp, now)

    # ------------------------------------------------------------ messages that have not failed

    def give_back(self, message: Message, why: str, now: float) -> None:
        """Requeue an unanswered message that has not failed, without delay.

        Args:
            message: The message.
            why: Completes "the message was given back because ...", for an answer that comes later.
            now: The time.
        """
        self._was_late(message, conn_of(message), now)
        self.pause_changed(self.pause.lost(message, now), now)
        give_back(self, message, why)

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
            self.return_at_close(self._reopened(message, why), now)
        else:
            again = self._reopened(message, why)
            again.state = State.QUEUED
            self.queue.appendleft(again)
            self.pause_changed(self.pause.lost(message, now), now)
            self.wakes = True

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
            self.return_at_close(again, now)
        elif conn_of(again).messages.get(again.id) is again:
            again.state = State.REQUEUED
            self.deferred[again] = _Deferred(now + _SOON, None)
        else:
            conn_of(again).partition.orphans.pop(again.id, None)

    def tick_deferred(self, now: float) -> None:
        """Look at the messages that wait for their REQ."""
        for message, waits in tuple(self.deferred.items()):
            if now < waits.until:
                continue
            if waits.policy is None:
                del self.deferred[message]
                message.state = State.HANDED_OUT
                self.actions.append(HasFailed(message))
                continue
            look = waits.policy.look(now)
            if look.is_over:
                del self.deferred[message]
                self._write_requeue(message, 0.0, None)
            else:
                waits.until = look.again_at
                self.touch(message, now)

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
        due_at, self.touch_at = self.touch_at, now + self.touch_gap(self.flow.msg_timeout)
        over: set[int] = set()
        for message in self.handed_out():
            conn = conn_of(message)
            timeout, since = conn.msg_timeout, conn.arrival_of(message)
            ends_at, touched_at = since + conn.max_msg_timeout, message.deadline - (conn.deadline_from(0.0))
            if now >= ends_at:
                over.add(id(message))
                if id(message) not in self._over:
                    self._warn_of_the_end(message, conn.max_msg_timeout)
            elif touched_at + timeout < ends_at and due_at + interval(
                self._touched, timeout
            ) / 2 > touched_at + interval(self._touched, timeout):
                self.touch(message, now)
        self._over = over

    def _warn_of_the_end(self, message: Message, most: float) -> None:
        text = (
            f"handling {message!r} takes longer than {most:g} s, for which nsqd keeps a touched message at most"
            f" (-max-msg-timeout): it delivers the message again. Split the work, or finish the message before it"
        )
        self.actions.append(Said(is_warning="over" not in self._warned, text=text))
        self._warned |= {"over"}

    # ------------------------------------------------------------ closing

    def close(self) -> None:
        """Hand out nothing more, and ask for no more."""
        self.is_closing = True
        self.pause.close()
        self.flow.stop()
        for message, waits in tuple(self.deferred.items()):
            if waits.policy is None:  # its block was cancelled just now: this is a shutdown
                del self.deferred[message]
                message.state = State.HANDED_OUT
                taker = message.taker = Taker()
                taker.is_over = True
        self.wakes = True

    def returned(self) -> list[Message]:
        """Return the messages of tasks that leave or have ended, without those that an exception ended."""
        return [each for each in self.in_state(State.HANDED_OUT) if _is_left(taker_of(each), has_failed=False)]

    def return_failed(self, now: float) -> None:
        """Requeue the messages of tasks that an exception has ended."""
        for message in self.in_state(State.HANDED_OUT):
            if _is_left(taker_of(message), has_failed=True):
                self.give_back(message, CLOSED, now)

    def hand_back(self, message: Message, now: float, *, waits: bool) -> None:
        """Return a message of a closing consumer that nobody will answer.

        On the partitioned server, the end of the connection returns messages without counting an attempt. If the close
        waits for answers, they are requeued now, so that other consumers need not wait. Not on an ordered channel: that
        would lose the order. A plain nsqd returns nothing at that end.
        """
        conn = conn_of(message)
        if conn.is_returned_at_end and (not waits or conn.is_ordered):
            self.leave_to_end(message)
        elif message.state is State.QUEUED:
            self.give_back(message, CLOSED, now)
        else:
            self.return_at_close(message, now)

    def return_at_close(self, message: Message, now: float) -> None:
        """Return a message to nsqd, without counting an attempt if attempts matter.

        After a requeue nsqd redelivers it immediately and counts an attempt. The end of the connection, which comes
        within ``close_timeout``, counts none. A plain nsqd counts every delivery, and returns nothing at that end.
        """
        if self._config.max_attempts is not None and conn_of(message).is_returned_at_end:
            self.leave_to_end(message)
        else:
            self.give_back(message, CLOSED, now)

    def leave_to_end(self, message: Message) -> None:
        """Leave a message unanswered: nsqd requeues it when the connection ends, and counts no attempt."""
        conn = conn_of(message)
        self.has_stale |= message.state is State.QUEUED
        if conn.messages.get(message.id) is message:
            del conn.messages[message.id]
            conn.partition.counts.returned += 1
        message.answered, message.returned, message.state = True, CLOSED, State.REQUEUED
        self.has_freed = True

    def cut_off(self, conn: Conn, now: float) -> None:
        """Requeue all that is unanswered on a connection that is about to end."""
        for message in tuple(conn.messages.values()):
            if not message.answered:
                self.give_back(message, CLOSED, now)

    # ------------------------------------------------------------ warnings

    def _was_late(self, message: Message, conn: Conn, now: float) -> None:
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


def taker_of(message: Message) -> Taker:
    """Return who got a message that is handed out."""
    taker: Taker = message.taker  # type: ignore[assignment]  # nothing else is the taker of one
    return taker


def _is_left(taker: Taker, *, has_failed: bool) -> bool:
    return taker.is_over and taker.has_failed is has_failed


def give_back(answers: Answers, message: Message, why: str) -> None:
    """Requeue an unanswered message without delay, whatever its state."""
    conn = conn_of(message)
    answers.has_stale |= message.state is State.QUEUED
    message.answered, message.returned = True, why
    answers.deferred.pop(message, None)
    conn.partition.orphans.pop(message.id, None)
    if conn.messages.get(message.id) is message:
        message.state = State.REQUEUED
        answers._write_requeue(message, 0.0, 0.0)  # noqa: SLF001 - one unit
    else:
        message.state = State.ORPHANED
