"""All decisions about the messages of a consumer: who has one, what is handed out, what an answer means.

No event loop, no clock, no chance, no log. Inputs are method calls with the time. Outputs are attributes that the owner
drains after each input, when it has called :meth:`ConsumerMachine.settle`:

* ``dirty``: connections with something to write, in ``commands`` and ``finished``.
* ``actions``: what to report or to do.
* ``wakes``: a message may be taken now that could not before.
* ``wake_at``: when to call :meth:`ConsumerMachine.tick`.

``consumer.subscriptions`` decides about connections.

Who owns what: a partition has its connection, a connection has its messages by id and its RDY, the consumer has the
queue. A message knows its connection, by its source, and has one state.

The invariants, for all inputs in any order:

* An answer goes only over a connection that has delivered the message, and only while that is open.
* A message whose message timeout has passed in the queue is not handed out.
* A handler is not called for a message that another handler has at that moment, nor for one that was finished here and
  whose FIN may have been without effect. A delivery of such a message is answered as the handler answers.
* At most ``max_in_flight`` messages are with handlers and tasks, also while RDY moves from one nsqd to another.
* Messages are compared by id and time of publish, never by the id alone.

Source: server failures 3.10, 4.3.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.consumer.answers import Answering
from nsq_ha.consumer.flow import Flow
from nsq_ha.consumer.inflight import IN_TIME, NEVER, WriteRequeue, conn_of, stamp_of
from nsq_ha.consumer.pause import WHY, Pause
from nsq_ha.consumer.subscriptions import Subscriptions
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.message import Message, State
from nsq_ha.policy.ready import LOOK_INTERVAL
from nsq_ha.policy.redelivery import MOST_UNSETTLED

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.inflight import Recipient, Subscription
    from nsq_ha.options.config import ConsumerConfig

_QUEUED: Final = State.QUEUED
_HANDED_OUT: Final = State.HANDED_OUT

_LEAST_MARGIN: Final = 16
"""Number of messages above the granted ones that is always tolerated."""

MARGIN_BYTES: Final = 64 * 1024 * 1024
"""Bytes of bodies beyond ``max_in_flight_bytes`` that are on their way when RDY is lowered: more than sockets hold."""


class FinishedCopy(NamedTuple):
    """Report a delivery that is finished unhandled, since the message was handled before."""

    message: Message


class Flooded(NamedTuple):
    """Close a connection: nsqd ignores RDY."""

    conn: Subscription
    reason: RemoteProtocolError


class ConsumerMachine(Answering):
    """The messages of one consumer.

    Args:
        config: The consumer's options.
        chance: Returns a number from 0 to 1.
        now: The time.
        topic: The topic.

    Attributes:
        flow: How many messages are asked for.
        subscriptions: The connections.
        is_run: Handlers take the messages.
        wake_at: When to call :meth:`tick`.
    """

    def __init__(self, config: ConsumerConfig, chance: Callable[[], float], now: float, topic: str = "") -> None:
        queue: deque[Message] = deque()
        pause = Pause(config.handler_backoff, chance, queue)
        super().__init__(config, queue, pause)
        self.flow: Flow = Flow(config, self.partitions, queue, pause, self.dirty, now)
        self.subscriptions: Subscriptions = Subscriptions(config, topic, self, chance)
        self.is_run: bool = False
        self.wake_at: float = math.inf
        self._has_excess = False  # more messages are in flight than may be with handlers
        self._looked_at = -math.inf
        self._turn_at, self._turn_since = math.inf, 0.0

    # ------------------------------------------------------------ arrival

    def arrived(self, conn: Subscription, messages: list[Message], sent_at: float, now: float) -> None:
        """Take the messages of one read.

        Args:
            conn: Their connection.
            messages: The messages.
            sent_at: When they may have been sent: earlier than ``now`` if the event loop stood still.
            now: The time.
        """
        if conn.is_rejecting:
            conn.commands.extend(WriteRequeue(message.id, 0.0) for message in messages)
            self.dirty[conn] = None
            return
        if conn.may_repeat and not (messages := conn.without_repeat(messages)):
            self.dirty[conn] = None
            return
        count, queue, held = len(messages), self.queue, conn.messages
        conn.delivered += count
        conn.partition.counts.delivered += count
        if queue and now > queue[0].deadline:
            self._expire(now)
        partition, deadline = conn.partition, sent_at + IN_TIME * conn.msg_timeout
        is_doubtful = conn.is_ordered or bool(self.finished_before.known or partition.orphans or partition.replaced)
        kept: list[Message] = []
        for message in messages:
            message.deadline = deadline
            if is_doubtful and self._is_known(conn, message, now):
                continue
            before = held.get(message.id)
            if before is None or self._takes_the_place(conn, before, message, now):
                held[message.id] = message
                kept.append(message)
        conn.peak = max(conn.peak, len(held))
        if len(held) > conn.ready or len(self.partitions) > 1:
            self.end_flood(conn, now)
            self._weigh(now)
        if not kept:
            return
        size, flow = len(kept[-1].body), self.flow
        if size > flow.usual_bytes or flow.is_resting or not flow.handlers:
            flow.arrived(size, now)
        queue.extend(kept)
        self.has_paused |= self.pause.is_blocking

    def end_flood(self, conn: Subscription, now: float) -> None:
        """End a connection over which clearly more comes than RDY allows, by number or by size.

        What nsqd has timed out does not count, since it may send as much again.
        """
        if len(conn.messages) <= conn.ready:
            return
        held, most = [message for message in conn.messages.values() if now <= message.deadline], conn.most
        is_number_allowed = len(held) <= most + max(_LEAST_MARGIN, most // 4)
        if is_number_allowed and sum(len(message.body) for message in held) <= self.flow.max_bytes + MARGIN_BYTES:
            return
        reason = RemoteProtocolError(
            f"{conn.source.nsqd} ignores RDY: {len(held)} messages are in flight, RDY is {conn.ready} and was"
            f" {most} at most"
        )
        self.actions.append(Flooded(conn, reason))

    def _weigh(self, now: float) -> None:
        """Look whether more is in flight than may be with handlers and tasks at once: RDY may have moved."""
        self._has_excess = self._has_excess or 0 < self.flow.max_in_flight < self.flow.counted(now)

    def _is_known(self, conn: Subscription, message: Message, now: float) -> bool:
        """Return whether a message was finished before, or somebody has it who certainly answers it."""
        partition, stamp = conn.partition, stamp_of(message)
        if conn.is_ordered and conn.fins.arrived(message.id, stamp, message.attempts, now):
            self.remember(partition, message.id, stamp, now)
        if self._is_adopted(conn, message):
            return True
        if not self.finished_before.claim(partition.number, message.id, stamp, now):
            return False
        self.finish_again(conn, message)
        return True

    def _is_adopted(self, conn: Subscription, message: Message) -> bool:
        """Let the answer to a message of a lost or replaced connection be the answer to its copy on this one.

        Returns:
            False if nobody has the message who certainly answers it.
        """
        partition = conn.partition
        orphan, state = partition.orphans.get(message.id, (None, _HANDED_OUT))
        if orphan is not None and message.is_copy_of(orphan):
            del partition.orphans[message.id]
        else:
            others = [other for each in partition.replaced if (other := each.messages.get(message.id)) is not None]
            orphan = next((each for each in others if each.is_copy_of(message) and self.is_held(each)), None)
            if orphan is None:
                return False
            state = orphan.state
            del conn_of(orphan).messages[orphan.id]
            partition.counts.timed_out += 1
        orphan.source, orphan.state, orphan.deadline, orphan.arrived_at = conn.source, state, message.deadline, 0.0
        conn.messages[orphan.id] = orphan
        conn.adopted.add(orphan.id)
        return True

    def _takes_the_place(self, conn: Subscription, before: Message, message: Message, now: float) -> bool:
        """Record that nsqd uses an id again that is in flight here; return whether to queue the later delivery."""
        conn.partition.counts.timed_out += 1
        if (self.is_held(before) or before.state is State.REQUEUED) and message.is_copy_of(before):
            is_late = now > before.deadline  # else nsqd repeats it by itself, as after a change of the leader
            before.deadline = message.deadline  # its answer answers this one, too
            if is_late and before.state is _HANDED_OUT:
                self.warn_of_long_work(conn.msg_timeout)
            return False
        self._supersede(before)
        return True

    def _supersede(self, before: Message) -> None:
        """Let a delivery have no answer any more, since nsqd has delivered the message again."""
        self.has_stale |= before.state is _QUEUED
        self.deferred.pop(before, None)
        before.state = State.ORPHANED

    def _expire(self, now: float) -> None:
        """Drop the messages at the head whose time has passed: the server delivers them again, perhaps just now."""
        queue, count, timeout = self.queue, 0, self.flow.msg_timeout
        while queue and now > queue[0].deadline:
            count += self._drop(queue.popleft(), now)
        if count and self.flow.handlers:
            self.warn_of_waiting(timeout)
        elif count:
            self.warn_once(
                "unread",
                f"{count} messages waited for longer than msg_timeout={timeout:g} s, since no task takes"
                f" them: nsqd delivers them again and again, and counts each time as an attempt. Iterate, call run()"
                f" or close the consumer",
            )

    def _drop(self, message: Message, now: float) -> bool:
        """Forget a message that the server no longer expects to be answered; return whether it was waiting."""
        if message.state is not _QUEUED:
            return False
        message.state = State.ORPHANED
        conn = conn_of(message)
        del conn.messages[message.id]
        conn.partition.counts.timed_out += 1
        self.flow.freed(now)
        return True

    # ------------------------------------------------------------ handing out

    def take(self, taker: Recipient, now: float) -> Message | None:
        """Hand out the next message. None if there is none, or none may be handed out now."""
        queue, pause, flow = self.queue, self.pause, self.flow
        while queue:
            is_gated = self._has_excess or pause.is_blocking or self.is_closing or flow.rate is not None
            if is_gated and not self._may_take(now):
                return None
            message = queue.popleft()
            if message.state is not _QUEUED:
                continue
            if now > message.deadline:
                self.warn_of_waiting(conn_of(message).msg_timeout)
                self._drop(message, now)
                continue
            message.state = _HANDED_OUT
            message.taker = taker
            message.taken_at = now
            flow.taken += 1
            if now >= flow.check_at:
                flow.handed_out(now)
            if pause.is_active and pause.handed_out(message, now):
                self.has_paused = True
                flow.share(now)
            if self.touches:
                self.touch_if_old(message, now)
            return message
        return None

    def _may_take(self, now: float) -> bool:
        """Return whether the next message may be handed out."""
        if self.is_closing or self.pause.is_blocking:
            return False
        if self._has_excess:
            most, in_flight = self.flow.max_in_flight, self.flow.in_flight
            self._has_excess = 0 < most < in_flight
            if self._has_excess and (self.has_stale or in_flight - len(self.queue) >= most):  # counting them takes long
                held = (*self.handed_out(), *self.in_state(State.GIVING_UP))
                if sum(now <= message.deadline for message in held) >= most:
                    return False
        rate = self.flow.rate
        if rate is not None and self.queue[0].state is _QUEUED:
            wait = rate.take(now)
            if wait:
                if self._turn_at == math.inf:
                    self._turn_at, self._turn_since = now + wait, now
                return False
        return True

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
            self.pause_changed(self.pause.lost(message, now), now)
            if self.finished_before.claim(conn.partition.number, message.id, stamp_of(message), now):
                self.finish_again(conn, again)  # whoever got it earlier has finished it meanwhile
                return
            again.state = _QUEUED
            self.queue.appendleft(again)
            self.flow.taken -= 1
            self.wakes = True

    # ------------------------------------------------------------ finishing

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
            sent = conn.fins
            sent.writes.append((now, fins))
            sent.count += len(fins)
            if sent.count > MOST_UNSETTLED:
                sent.forget_oldest()
        if conn.adopted:
            conn.partition.counts.finished_unhandled += len(conn.adopted.intersection(ids))
            conn.adopted.difference_update(ids)
        self.has_freed = True
        if conn.recorded:
            recorded, conn.recorded = conn.recorded, []
            for message in recorded:
                self.pause_changed(self.pause.finished(message, now), now)
        return ids

    def finish_again(self, conn: Subscription, message: Message) -> None:
        """Finish a delivery of a message that was handled before."""
        message.answered = True
        counts, before = conn.partition.counts, conn.messages.get(message.id)
        counts.finished_unhandled += 1
        if before is not None and before is not message:
            counts.timed_out += 1
            self._supersede(before)
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

    # ------------------------------------------------------------ the end, and the pause

    def close(self, now: float) -> None:
        """Hand out nothing more, and ask for no more."""
        self.stop()
        self.subscriptions.close(now)

    def _return_waiting(self, now: float) -> None:
        """Give back what cannot wait for the end of the pause."""
        for message in self.pause.too_long(now):
            self.give_back(message, WHY, now)
        self.prune()

    # ------------------------------------------------------------ settings

    def set_max_in_flight(self, count: int, now: float) -> None:
        """Change ``max_in_flight``; 0 pauses."""
        self.flow.set(count, now)
        self._weigh(now)
        self.wakes = True

    def limit_rate(self, per_second: float | None, now: float) -> None:
        """Change ``max_rate``."""
        for message in self.flow.limit_rate(per_second, now):
            self.give_back(message, "max_rate was lowered", now)
        self.prune()
        self._turn_at = math.inf
        self.wakes = True

    # ------------------------------------------------------------ time

    def tick(self, now: float, *, is_awaited: bool) -> None:
        """Do what is due; call this at ``wake_at``.

        Args:
            now: The time.
            is_awaited: Somebody waits for a message.
        """
        self._looked_at = now
        if now >= self._turn_at:
            self.flow.limited_seconds += now - self._turn_since
            self._turn_at = math.inf
            self.wakes = True
        if now >= self.pause.wake_at:
            self.pause_changed(self.pause.tick(now), now)
            self._return_waiting(now)
        self.tick_deferred(now)
        if now >= self.touch_at:
            self.tick_touches(now)
        self.wakes: bool = self.wakes or self._has_excess
        self.flow.tick(now, is_awaited=is_awaited)
        if now >= self.subscriptions.wake_at:
            self.subscriptions.tick(now)

    def settle(self, now: float) -> None:
        """Complete one input, or several of the same moment; this sets :attr:`wake_at`."""
        flow = self.flow
        if self.has_freed:
            self.has_freed: bool = False
            if flow.is_limited or flow.is_raise_due:
                flow.freed(now)
        if self.has_paused:  # when the message that failed has gone back
            self.has_paused: bool = False
            self._return_waiting(now)
        if self.has_stale:
            self.prune()
        if self.pause.reports:
            reports, self.pause.reports = self.pause.reports, []
            self.actions.extend(reports)
        if now >= flow.wake_at:
            flow.tick(now, is_awaited=False)
        waits = min(due_at for _, due_at in self.deferred.values()) if self.deferred else math.inf
        over = LOOK_INTERVAL + self._looked_at if self._has_excess and self.queue else math.inf
        due_at = self.subscriptions.wake_at
        self.wake_at = min(flow.wake_at, self.pause.wake_at, self._turn_at, self.touch_at, waits, over, due_at)

    def prune(self) -> None:
        """Remove from the queue what is not to be handed out any more."""
        if self.has_stale:
            self.has_stale: bool = False
            kept = [message for message in self.queue if message.state is _QUEUED]
            self.queue.clear()
            self.queue.extend(kept)
