"""What an answer to a message means, and what becomes of messages that nobody will answer.

Part of the pure machine (``consumer.machine``), which adds arrival and handing out: no event loop, no clock, no log.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from nsq_ha.consumer.inflight import (
    NEVER,
    UNANSWERED,
    ReadPartition,
    Recipient,
    Subscription,
    WriteRequeue,
    WriteTouch,
    conn_of,
    stamp_of,
)
from nsq_ha.message import State
from nsq_ha.policy.redelivery import Finished, requeue_delay
from nsq_ha.policy.touching import gap

if TYPE_CHECKING:
    from collections import deque

    from nsq_ha.consumer.flow import Flow
    from nsq_ha.consumer.pause import Pause
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.policy.redelivery import Stamp


class Said(NamedTuple):
    """Write a line to the log, about the consumer as a whole."""

    is_warning: bool
    text: str


class FinishedCopy(NamedTuple):
    """Report a delivery that is finished unhandled, since the message was handled before."""

    message: Message


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
        touches: Messages that are being worked on are touched.
        touch_at: When to look at them.
        is_closing: Nothing is handed out any more.
        is_closed: Answering have no effect any more.
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
        self.touches: bool = config.auto_touch is not False
        self.touch_at: float = math.inf
        self.is_closing: bool = False
        self.is_closed: bool = False
        self.config: ConsumerConfig = config
        self._warned: frozenset[str] = frozenset()

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

    def finish(self, conn: Subscription, message: Message) -> None:
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

    def written(self, conn: Subscription, now: float) -> list[bytes]:
        """Return the ids to finish over a connection: their FINs are written now."""
        fins, (deadline, taken_at) = conn.finished, conn.oldest
        conn.finished, conn.oldest = {}, NEVER
        ids = list(fins)
        if now > deadline:
            if now - taken_at > conn.msg_timeout:
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
                self.pause_changed(self.pause.finished(message, now), now)
        return ids

    def pause_changed(self, has_changed: bool, now: float) -> None:
        """Follow a change of the pause; the machine does."""
        raise NotImplementedError

    def finish_again(self, conn: Subscription, message: Message) -> None:
        """Finish a delivery of a message that was handled before."""
        message.answered = True
        conn.partition.counts.finished_unhandled += 1
        self.finish(conn, message)
        self.actions.append(FinishedCopy(message))

    def finish_orphan(self, message: Message, now: float) -> None:
        """Finish the delivery that waits of a message that was finished late, or the next one."""
        partition = conn_of(message).partition
        again = self._current(message)
        partition.orphans.pop(message.id, None)
        if again is not None:
            self.was_late(message, conn_of(again), now)
            self.has_stale = again.answered = True
            self.finish(conn_of(again), again)
        else:
            self.remember(partition, message.id, stamp_of(message), now)
        if self.pause.records:
            self.pause_changed(self.pause.finished(message, now), now)

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
