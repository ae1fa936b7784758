"""The messages of one consumer from their arrival to their answer: deadlines, copies, and answers without effect.

The server's clock for a message starts when it sends the message. This module
recognises the copies that the server sends of messages whose time has passed here.

The invariants:

* A message whose message timeout has passed in the queue is not handed out. If nothing takes messages, such ones leave
  the queue when others arrive, so that it holds no more than is in flight.
* A handler is not called for a message that another call of ``run`` handles at that moment, nor for one that was
  finished here and whose FIN may have been without effect.
* A message is compared by its identity, never by its id alone: a copy that is finished unhandled is a copy.
* While handling is quick, there is no extra work per message.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from nsq_ha.base.clock import monotonic
from nsq_ha.consumer.delivery import (
    CLOSED,
    Returned,
    delivery_of,
    facts,
    finish_copy,
    give_back,
    leave_to_end,
    reopened,
    source_of,
    warn_of_no_effect,
)
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.events import FinishedAgain
from nsq_ha.message import Message, Watch
from nsq_ha.policy.backlog import QUICK
from nsq_ha.policy.redelivery import MOST_REMEMBERED, Finished
from nsq_ha.policy.timing import FewLines
from nsq_ha.policy.touching import Held, Touches, gap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsq_ha.base.identity import MessageIdentity
    from nsq_ha.consumer.clock import LoopClock
    from nsq_ha.consumer.delivery import Delivery
    from nsq_ha.consumer.giving_up import GivingUp
    from nsq_ha.consumer.pace import ConsumerPace
    from nsq_ha.consumer.queue import MessageQueue
    from nsq_ha.options.config import ConsumerConfig

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

IN_TIME: Final = 0.95
"""Share of the message timeout that counts: the server's clock started before the message arrived."""

_EXPIRY_SHARE: Final = 0.1
"""Share of the message timeout between two checks for messages whose time has passed in the queue."""

_SOON: Final = 0.25
"""Seconds after a cancellation within which a close means that it was a shutdown; less than any requeue delay."""


class Keeper(Protocol):
    """Holds messages that were handed out; ``consumer.inbox.Messages`` implements it."""

    def forget_first(self) -> bool:
        """Drop references to the first messages, as far as they are answered; return whether others are left."""


class Ledger:
    """The messages in flight of one consumer. Its connections report their answers here.

    Args:
        name: Topic and channel.
        config: The consumer's options.
        queue: The messages that wait.
        pace: Asks for messages.
        giving_up: Decides whether a message is given up.
        clock: The event loop's.
        observer: The consumer's.

    Attributes:
        topic: The topic.
        channel: The channel.
        config: The consumer's options.
        handled: The messages whose handlers are running, by the tasks that run them.
        changed: Set when a subscription or the unanswered messages have changed.
        closing: Set when no more messages are handed out.
        keeping: The iterators of tasks that hold several messages; they drop those that are answered.
        is_watched: Whether ``changed`` is set for answers, too, since somebody waits for them.
        are_lost: The consumer has closed, so answers have no effect. Earlier losses come from a lost connection, as in
            any failover.
    """

    def __init__(  # noqa: PLR0917 - the parts of one consumer
        self,
        name: str,
        config: ConsumerConfig,
        queue: MessageQueue,
        pace: ConsumerPace,
        giving_up: GivingUp,
        clock: LoopClock,
        observer: Observer = SILENT,
    ) -> None:
        self.topic: str
        self.channel: str
        self.topic, _, self.channel = name.partition("/")
        self.config: ConsumerConfig = config
        self.handled: dict[asyncio.Task[object], Message] = {}
        self.changed: asyncio.Event = asyncio.Event()
        self.closing: asyncio.Event = asyncio.Event()
        self.are_lost: bool = False
        self.is_watched: bool = False
        self.keeping: set[Keeper] = set()
        self._name = name
        self._counts_attempts = config.max_attempts is not None
        self._queue = queue
        self._pace = pace
        self._backoff = pace.backoff
        self._giving_up = giving_up
        self._clock = clock
        self._observer = observer
        self._finished = Finished()
        self._finished_again = FewLines()  # after a connection is lost, there may be a thousand
        self._expiry_check_at = 0.0
        self._is_left_due = False
        self._queued: set[MessageIdentity] | None = None  # in this turn
        self._warned: frozenset[str] = frozenset()
        # By id(): messages whose block was just cancelled, with the timers that requeue them.
        self._interrupted: dict[int, tuple[Message, asyncio.TimerHandle]] = {}

    # -- arrival and hand-out

    def arrived(self, messages: list[Message]) -> bool:
        """Put the messages of one read into the queue.

        Returns:
            Whether the event loop was blocked until now. If so, let it turn before more work begins.
        """
        now, queue = monotonic(), self._queue
        expired = self._expired(now) if queue.messages and now >= self._expiry_check_at else ()
        sent_at = self._clock.arrival(now)
        self._pace.arrived(now, len(messages))
        queue.ages.arrived(sent_at, len(messages), len(queue.messages))
        queue.unseen.extend(messages)
        self._queued = None
        for message in expired:
            drop(message)
        is_blocked = sent_at != now
        if is_blocked:  # their nsqds may have closed the connections meanwhile, and deliver them again
            self._pace.be_careful(now + QUICK)
        return is_blocked

    def _expired(self, now: float) -> list[Message]:
        """Take the messages whose time has passed from the head: the server delivers them again, perhaps just now."""
        messages, timeout = self._queue.messages, self._pace.msg_timeout
        expired: list[Message] = []
        while messages and now - self._queue.ages.head(len(messages)) > IN_TIME * source_of(messages[0]).msg_timeout:
            expired.append(messages.popleft())
        self._pace.dropped(len(expired))
        self._expiry_check_at = now + timeout * _EXPIRY_SHARE
        if expired and self._pace.handlers:
            self._warn_of_waiting(timeout)
        elif expired:
            self._warn_once(
                "unread",
                f"{len(expired)} messages waited for longer than msg_timeout={timeout:g} s, since no task takes"
                f" them: nsqd delivers them again and again, and counts each time as an attempt. Iterate, call run()"
                f" or close the consumer",
            )
        return expired

    def is_wanted(self, message: Message, arrived_at: float) -> bool:
        """Return whether to hand out a message; one that is not wanted is dropped or answered."""
        source, now = source_of(message), monotonic()
        if not source.is_alive:
            return False
        if now - arrived_at > IN_TIME * source.msg_timeout:
            # The server has taken it back, or does so now, and delivers it again.
            self._warn_of_waiting(source.msg_timeout)
            drop(message)
            return False
        if self._finished and self._finished.claim(message.identity, now):
            self._finish_again(message)
            return False
        for handled in self.handled.values():
            if message.is_copy_of(handled):
                _add_copy(self.watch(handled, now), message)
                if handled.source is source:  # it was not lost with its connection
                    self._warn_of_long_work(source.msg_timeout)
                return False
        return True

    def _finish_again(self, copy: Message) -> None:
        if (more := self._finished_again.take(monotonic())) is not None:
            log.info(
                "%r was handled before, but its FIN was without effect: finishing this copy unhandled%s", copy, more
            )
        self._observer.event(FinishedAgain(**facts(copy)))
        finish_copy(copy)

    def handed_out(self, message: Message, arrived_at: float) -> None:
        """Record that a message is handed out with a check."""
        now = monotonic()
        self.watch(message, now, arrived_at)
        self._pace.handed_out(now)

    def watch(self, message: Message, taken_at: float, arrived_at: float | None = None) -> Watch:
        """Watch a message, since its handling may take long.

        Args:
            message: The message.
            taken_at: When it was handed out.
            arrived_at: When it arrived. None for ``taken_at``.
        """
        if message.watch is None:
            since = taken_at if arrived_at is None else arrived_at
            message.watch = Watch(taken_at, since + IN_TIME * source_of(message).msg_timeout)
        return message.watch

    def took_long(self, message: Message, began: float, handler: str) -> None:
        """Record that handling ``message`` took long; call this before it is answered."""
        if self._clock.blocked_for(monotonic()):
            self._clock.suspect = handler
        if not message.answered:
            self.watch(message, began)

    def arrived_before(self, message: Message, handed_out_after: float) -> float:
        """Return when a message arrived, or an earlier time.

        Args:
            message: The message.
            handed_out_after: It was not handed out before this time, unless it is watched.
        """
        timeout, watch = source_of(message).msg_timeout, message.watch
        if watch is not None:
            return min(watch.taken_at, watch.deadline - IN_TIME * timeout)
        return handed_out_after - min(QUICK, timeout / 4)  # as in _put_back()

    def left(self) -> None:
        """Record that a connection was lost: its messages are not handed out, since the server delivers them again.

        With many partitions they leave the queue in the next turn: all may have been led by an nsqd that stops.
        """
        if not self._pace.has_many:
            self._have_left()
        elif not self._is_left_due:
            self._is_left_due = True
            self._pace.be_careful(monotonic() + QUICK)  # until then they are noticed one by one
            asyncio.get_running_loop().call_soon(self._have_left)

    def _have_left(self) -> None:
        self._is_left_due = False
        self._queue.remove(lambda message: not source_of(message).is_alive)
        if not self.closing.is_set():
            lost = (message.id for message in self.handled.values() if not source_of(message).is_alive)
            self._queue.suspects.update(lost)
            self._pace.left()

    def _remember(self, message: MessageIdentity, now: float) -> None:
        """Finish the next copy of a message unhandled: it was finished, and the FIN may have been without effect."""
        suspects = self._queue.suspects
        self._finished.remember(message, now)
        suspects.add(message.id)
        if len(suspects) > 2 * MOST_REMEMBERED:
            suspects.clear()
            suspects.update(self._finished.ids(), (message.id for message in self.handled.values()))

    # -- answers, as deliveries report them

    def freed(self) -> None:
        """Record that messages were answered."""
        self._pace.freed()
        if self.keeping:
            self.keeping = {iterator for iterator in self.keeping if iterator.forget_first()}
        if self.is_watched:
            self.changed.set()

    def finished(self, message: Message, watch: Watch, delivery: Delivery) -> None:
        """Record that a watched message is finished; its FIN follows."""
        now = monotonic()
        if self._takes_copies(message, watch, now):
            self._remember(message.identity, now)
        else:
            delivery.may_be_refused(message)
        self._backoff.finished(message)

    def requeued(self, message: Message, delay: float | None) -> bool:
        """Record that a message is requeued, with the delay that was given; return whether it is given up instead."""
        if message.watch is not None:  # nsqd takes the REQ for the copy that it has sent
            self._takes_copies(message, message.watch, monotonic())
        if self._giving_up.has(message):  # the application's on_give_up requeues it, or failed
            self._backoff.taken_back(message)
            return False
        self._backoff.requeued(message, delay)
        return self._giving_up.gives_up(message)

    def _takes_copies(self, message: Message, watch: Watch, now: float) -> bool:
        """Return whether the server may have sent a message again; let its answer answer copies in the queue, too."""
        self._warn_if_late(message, watch, now)
        is_late = now > watch.deadline or not source_of(message).is_alive or bool(self._clock.blocked_for(now))
        if is_late and self._may_be_queued(message):
            for copy_of_it in self._queue.remove(message.is_copy_of):
                _add_copy(watch, copy_of_it)
        return is_late

    def _may_be_queued(self, message: Message) -> bool:
        """Return whether a copy waits; thousands may be answered late in one turn, and only the first looks at all."""
        if self._queued is None:
            self._queued = {waiting.identity for waiting in self._queue.unseen}
            asyncio.get_running_loop().call_soon(self._forget_queued)
        return message.identity in self._queued

    def _forget_queued(self) -> None:
        self._queued = None

    def given_back(self, message: Message) -> None:
        """Record that a message that has not failed goes back to the server."""
        self._warn_if_late(message, message.watch, monotonic())
        self._backoff.taken_back(message)

    def unsettled(self, message: MessageIdentity) -> None:
        """Finish the next copy of a message unhandled: it was finished, and the FIN may have been without effect."""
        if not self.closing.is_set():
            self._remember(message, monotonic())

    def late(self, message: Message, answer: str) -> None:
        """Record, from any thread, that a message was answered after its connection ended, and how."""
        if self.are_lost and not self._giving_up.has(message):
            advice = ". Answer messages before the consumer closes, or raise close_timeout"
            warn_of_no_effect(message, answer, "the consumer has closed", advice)

    def close(self) -> None:
        """Hand out no more messages."""
        self.is_watched = True
        self.closing.set()

    # -- messages that come back

    def take_back(self, message: Message, why: str) -> None:
        """Take back a handed-out message that has not failed, and hand it out again without counting an attempt.

        Args:
            message: The message. Nothing happens if it is answered.
            why: Completes "the message was given back because ...", for an answer that comes later.
        """
        if not message.answered:
            self._return(_reopened(message, why), why)

    def interrupted(self, message: Message) -> bool:
        """Take back a message whose ``async with`` block was cancelled; return True.

        If the consumer closes soon after, this was a shutdown and no failure. If not, it was a timeout or the like.
        """
        again = _reopened(message, "the block around it was cancelled")
        if self.closing.is_set():
            self._return(again, CLOSED)
        else:
            timer = asyncio.get_running_loop().call_later(_SOON, self._has_failed, again)
            self._interrupted[id(again)] = again, timer
        return True

    def _has_failed(self, message: Message) -> None:
        del self._interrupted[id(message)]
        if not message.answered:  # else the end returned it
            message.requeue()

    def _return(self, message: Message, why: str) -> None:
        is_alive = source_of(message).is_alive
        if is_alive and self.closing.is_set():
            self.return_at_close(message)
            self.changed.set()
        elif is_alive and self._put_back(message):
            self._backoff.taken_back(message)
            self._queue.wake()
        else:
            give_back(message, why)

    def _put_back(self, message: Message) -> bool:
        """Put a handed-out message back at the head; return False if only the server can deliver it again."""
        now, watch = monotonic(), message.watch
        if watch is not None and watch.copies:  # its time has passed: the server expects the answer to a copy
            return False
        timeout = source_of(message).msg_timeout
        age = min(QUICK, timeout / 4)  # messages are watched if a full queue is not handled within this time
        self._queue.put_back(message, now - age if watch is None else min(now, watch.deadline - IN_TIME * timeout))
        message.watch = None
        return True

    def return_at_close(self, message: Message) -> None:
        """Return a message of a closing consumer to nsqd, without counting an attempt if attempts matter.

        After a requeue nsqd redelivers it immediately and counts an attempt. The end of the connection, which comes
        within ``close_timeout``, counts none. A plain nsqd counts every delivery, and returns nothing at that end.
        """
        if self._counts_attempts and is_returned_at_end(message):
            leave_to_end(message)
        else:
            give_back(message, CLOSED)

    @property
    def cancelled(self) -> list[Message]:
        """The messages whose block was just cancelled."""
        return [message for message, _ in tuple(self._interrupted.values())]

    def uninterrupted(self) -> list[Message]:
        """Return the messages whose block was just cancelled, and no longer requeue them."""
        messages = self.cancelled
        for _, timer in self._interrupted.values():
            timer.cancel()
        self._interrupted.clear()
        return messages

    # -- warnings

    def _warn_if_late(self, message: Message, watch: Watch | None, now: float) -> None:
        timeout = source_of(message).msg_timeout
        if watch is not None and now - watch.taken_at > timeout and now > watch.deadline:
            self._warn_of_long_work(timeout)

    def _warn_of_waiting(self, timeout: float) -> None:
        self._warn_once(
            "waited",
            f"a message waited behind slow ones for longer than msg_timeout={timeout:g} s, so nsqd delivers it again:"
            f" raise concurrency= or msg_timeout= (up to nsqd's --max-msg-timeout), or lower max_in_flight=",
        )

    def _warn_of_long_work(self, timeout: float) -> None:
        self._warn_once(
            "long work",
            f"handling a message takes longer than msg_timeout={timeout:g} s, so nsqd delivers it again."
            f" Raise msg_timeout= (up to nsqd's --max-msg-timeout), or touch() the message from time to time",
        )

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned |= {kind}
            log.warning("%s: %s", self._name, text)


class AutoTouch:
    """Touches the messages of one consumer that are being worked on; ``policy.touching`` decides when.

    These are the messages of running handlers, and those that a running task got by iterating and has not answered.
    One timer serves all of them. Without the option there is no timer, and no cost.

    Args:
        name: Topic and channel, for the log.
        seconds: Seconds between two TOUCHes of a message. None for half of the message timeout.
        held: Returns the messages that are being worked on.
        ledger: Knows the arrival times of messages.
        pace: Knows the message timeout.
    """

    def __init__(
        self,
        name: str,
        seconds: float | None,
        held: Callable[[], Iterable[Message]],
        ledger: Ledger,
        pace: ConsumerPace,
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._held = held
        self._ledger = ledger
        self._pace = pace
        self._touches: Touches[tuple[MessageIdentity, int]] = Touches(seconds)
        self._looked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_warned = False

    def start(self) -> None:
        """Start, in the running event loop."""
        self._looked_at = monotonic()
        self._plan()

    def joined(self) -> None:
        """Record that the message timeout may be shorter from now on."""
        if self._timer is not None and self._timer.when() > self._next_at():
            self._timer.cancel()
            self._plan()

    def _plan(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._next_at(), self._turn)

    def _next_at(self) -> float:
        return asyncio.get_running_loop().time() + gap(self._seconds, self._pace.msg_timeout)

    def stop(self) -> None:
        """Touch nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def handed_out(self, message: Message, arrived_at: float) -> None:
        """Touch a message at once if it waited for long; called for those whose arrival time is known."""
        delivery, now = delivery_of(message), monotonic()
        if delivery is None or self._timer is None:
            return
        held = Held(arrived_at, delivery.msg_timeout, delivery.max_msg_timeout)
        if self._touches.is_urgent(now, held):
            self._touches.touched(now, _key(message), held)
            message.source.touch(message)

    def _turn(self) -> None:
        now = monotonic()
        messages: dict[tuple[MessageIdentity, int], Message] = {}
        held: dict[tuple[MessageIdentity, int], Held] = {}
        for message in self._held():
            delivery = delivery_of(message)
            if delivery is None or message.answered or not (delivery.is_alive or delivery.open_copies(message.watch)):
                continue
            arrived_at = self._ledger.arrived_before(message, self._looked_at)
            messages[_key(message)] = message
            held[_key(message)] = Held(arrived_at, delivery.msg_timeout, delivery.max_msg_timeout)
        due = self._touches.look(now, held)
        for key in due.touched:
            self._ledger.watch(messages[key], held[key].arrived_at)
            messages[key].source.touch(messages[key])  # a thread may answer it just now, so touch() might raise
        for key in due.over:
            self._warn(messages[key], held[key].max_msg_timeout)
        self._looked_at = now
        self._plan()

    def _warn(self, message: Message, most: float) -> None:
        level = logging.DEBUG if self._is_warned else logging.WARNING
        self._is_warned = True
        log.log(
            level,
            "%s: handling %r takes longer than %g s, for which nsqd keeps a touched message at most (-max-msg-timeout):"
            " it delivers the message again. Split the work, or finish the message before it",
            self._name,
            message,
            most,
        )


def drop(message: Message) -> None:
    """Forget a message that the server no longer expects to be answered."""
    delivery = delivery_of(message)
    if delivery is not None:
        delivery.dropped()


def is_returned_at_end(message: Message) -> bool:
    """Return whether nsqd requeues the message when its connection ends."""
    delivery = delivery_of(message)
    return delivery is None or delivery.is_returned_at_end


def _add_copy(watch: Watch, copy: Message) -> None:
    """Keep a copy until the answer; it replaces those from the same connection, and from lost ones."""
    for older in [one for one in watch.copies if one.source is copy.source or not source_of(one).is_alive]:
        watch.copies.remove(older)
        drop(older)
    watch.copies.append(copy)


def _reopened(message: Message, why: str) -> Message:
    """Return an unanswered copy, so that late answers to the original have no effect."""
    again = reopened(message)
    message.answered = True
    message.source = Returned(source_of(message), why)
    return again


def _key(message: Message) -> tuple[MessageIdentity, int]:
    return message.identity, message.attempts
