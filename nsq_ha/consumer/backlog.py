"""Messages that wait in the consumer, and those whose handling takes long.

The server's clock for a message starts when it sends the message. This module
keeps the queue short if handling is slow, and recognises the copies that the
server sends of messages whose time has passed here.

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
import contextlib
import logging
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from nsq_ha.consumer.delivery import Delivery
from nsq_ha.consumer.watched import Watched, finish_copy
from nsq_ha.events import FinishedAgain
from nsq_ha.observe import SILENT
from nsq_ha.policy.backlog import QUICK, Ages, Pace
from nsq_ha.policy.redelivery import Finished

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Collection, Iterator

    from nsq_ha.consumer.attempts import AttemptPolicy
    from nsq_ha.consumer.clock import LoopClock
    from nsq_ha.consumer.flow import Flow
    from nsq_ha.consumer.messages import Iterations
    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.identity import Identity
    from nsq_ha.message import Message
    from nsq_ha.observe import Observer

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

IN_TIME: Final = 0.95
"""Share of the message timeout that counts: the server's clock started before the message arrived."""

_WINDOW: Final = 0.01
"""Seconds of quick iteration that are measured together."""

_SAMPLE: Final = 16
"""Messages after which the speed of an iteration is measured, if no others arrive meanwhile."""

_EXPIRY_SHARE: Final = 0.1
"""Share of the message timeout between two checks for messages whose time has passed in the queue."""

_AFTER_LOSS: Final = 60.0
"""Seconds after a lost connection for which each message is compared with what was finished."""


class Running(Protocol):
    """A call of ``run``."""

    def handled(self, copy: Message) -> Message | None:
        """Return the message whose handler is running and that ``copy`` is a delivery of. None if there is none."""


class Backlog:
    """The queue of one consumer.

    Args:
        name: Topic and channel, for the log.
        inbox: The queue.
        messages: Hands out what is in it.
        attempts: Decides whether a message is given up.
        flow: Asks for messages; for few of them until the handlers' speed is known.
        clock: The event loop's.
        observer: The consumer's.

    Attributes:
        handler_calls: Number of calls of handlers whose time was recorded.
        handler_seconds: How long they took together.
        is_held_back: Check each message: after failures not all are handed out.
        msg_timeout: The shortest of all connections, in seconds.
        on_handed_out: Called with each message that is handed out with a check, and with its arrival time.
        on_finished: Called with each finished message that was handed out with a check.
        on_requeued: Called with each such message that is requeued, and with its delay.
    """

    def __init__(  # noqa: PLR0917 - the parts of one consumer
        self,
        name: str,
        inbox: deque[Message],
        messages: Iterations,
        attempts: AttemptPolicy,
        flow: Flow,
        clock: LoopClock,
        observer: Observer = SILENT,
    ) -> None:
        self._observer = observer
        self._handlers = 0
        self.handler_calls: int = 0
        self.handler_seconds: float = 0.0
        self.is_held_back: bool = False
        self.on_handed_out: Callable[[Message, float], None] = lambda _message, _arrived_at: None
        self.on_finished: Callable[[Message], None] = lambda _: None
        self.on_requeued: Callable[[Message, float | None], None] = lambda _message, _delay: None
        self.msg_timeout: float = 60.0
        self._partitions = 0
        self._runs: set[Running] = set()
        self._clock = clock
        self._name = name
        self._inbox = inbox
        self._messages = messages
        # Redelivered messages are compared with those that are being worked on.
        self._fine_below = min(attempts.fine_below, 2)
        self.gives_up: Callable[[Message], bool] = attempts.gives_up
        self._flow = flow
        self._pace = Pace()
        self._ages = Ages()
        self._finished = Finished()
        self._arrived = 0
        self._handed_out = 0
        self._window: tuple[float, int] | None = None
        self._careful_until = 0.0
        self._expiry_check_at = 0.0
        self._is_expiring = False
        self._is_careful = True
        self._checks_all = False
        self._warned: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        messages.fine_below = 0

    def start(self) -> None:
        """Start, in the running event loop."""
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self.review()

    # -- the queue

    def arrived(self, count: int) -> bool:
        """Record that ``count`` messages arrived; call this before they are put into the queue.

        Returns:
            Whether the event loop was blocked until now. If so, let it turn before more work begins.
        """
        now = monotonic()
        waiting = len(self._inbox)
        if waiting and now >= self._expiry_check_at:
            self._expire(now)
            waiting = len(self._inbox)
        sent_at = self._clock.arrival(now)
        self._ages.arrived(sent_at, count, waiting)
        arrived = self._arrived
        if self._window is None:
            self._window = (now, arrived - waiting)
        elif not self._handlers:
            self._measure(now, waiting, in_hand=1)
        self._arrived = arrived + count
        return sent_at != now

    def _expire(self, now: float) -> None:
        """Drop the messages at the head whose time has passed: the server delivers them again, perhaps just now."""
        before = len(self._inbox)
        self._is_expiring = True  # what arrives now is in flight and not in the queue yet, so a review would miscount
        try:
            while self._inbox:
                age = now - self._ages.head(len(self._inbox))
                if age <= IN_TIME * _timeout(self._inbox[0].source):
                    break
                self.drop(self._inbox.popleft())
        finally:
            self._is_expiring = False
        dropped = before - len(self._inbox)
        self._arrived -= dropped  # they were not handled
        self._expiry_check_at = now + self.msg_timeout * _EXPIRY_SHARE
        if dropped and self._handlers:
            self._warn_of_waiting(self.msg_timeout)
        elif dropped:
            self._warn_once(
                "unread",
                f"{dropped} messages waited for longer than msg_timeout={self.msg_timeout:g} s, since no task takes"
                f" them: nsqd delivers them again and again, and counts each time as an attempt. Iterate, call run()"
                f" or close the consumer",
            )

    def freed(self) -> None:
        """Record that messages were answered."""
        if self._is_careful and not self._handlers and not self._is_expiring and not self._flow.gathers():
            self.review()

    def joined(self, subscriptions: Collection[Subscription]) -> None:
        """Record that one of ``subscriptions`` is now subscribed."""
        deliveries = [one.delivery for one in subscriptions if one.delivery is not None]
        self.msg_timeout = min((one.msg_timeout for one in deliveries if one.is_alive), default=60.0)
        self._partitions = len(deliveries)
        self.review()

    @contextlib.contextmanager
    def used_by(self, run: Running, handlers: int) -> Iterator[None]:
        """Count the handlers of a call of ``run`` while the block runs."""
        self._runs.add(run)
        self._handlers += handlers
        self.review()  # each handler can begin one more
        try:
            yield
        finally:
            self._runs.discard(run)
            self._handlers -= handlers
            self.review()

    def emptied(self) -> None:
        """Record that the queue is empty and a task waits for messages."""
        if self._window is not None:
            if not self._handlers:
                now = monotonic()
                if self._is_careful or now - self._window[0] >= _WINDOW:  # with RDY 1, this is for each message
                    self._measure(now, 0, in_hand=0)
            self._window = None

    def unmeasured(self) -> None:
        """Do not take the messages that left the queue just now for handled ones."""
        self._window = None

    def lost(self, before: int) -> None:
        """Record that messages of a lost connection were removed from the queue, which held ``before``."""
        self._ages.removed(before, len(self._inbox))
        self._window = None
        if self._finished:
            self._careful_until = monotonic() + _AFTER_LOSS
        self.review()

    def next_arrived_at(self) -> float:
        """Return when the message that was just taken from the head arrived."""
        return self._ages.head(len(self._inbox) + 1)

    def put_back(self, message: Message, arrived_at: float) -> None:
        """Put a message that was taken but not handed out back at the head."""
        self._inbox.appendleft(message)
        self._ages.put_back(arrived_at, len(self._inbox))

    def take_back(self, message: Message) -> bool:
        """Put a handed-out message back at the head; return False if only the server can deliver it again."""
        source, now = message.source, monotonic()
        if isinstance(source, Watched):
            if source.has_copies:  # its time has passed: the server expects the answer to a copy
                return False
            message.source = source.origin
            arrived_at = min(now, source.deadline - IN_TIME * _timeout(source.origin))
        else:  # messages are not watched if a full queue is handled within this time
            arrived_at = now - min(QUICK, _timeout(source) / 4)
        self.put_back(message, arrived_at)
        return True

    def is_wanted(self, message: Message, arrived_at: float) -> bool:
        """Return whether to hand out a message; one that is not wanted is dropped or answered."""
        source, now = message.source, monotonic()
        if not getattr(source, "is_alive", True):
            return False
        if now - arrived_at > IN_TIME * _timeout(source):
            # The server has taken it back, or does so now, and delivers it again.
            self._warn_of_waiting(_timeout(source))
            self.drop(message)
            return False
        if self._finished and self._finished.claim(message.identity, now):
            self._finish_again(message)
            return False
        for run in self._runs:
            handled = run.handled(message)
            if handled is not None:
                watched = self._watch(handled, now, now)
                watched.add_copy(message)
                if watched.origin is source:  # it was not lost with its connection
                    self._warn_of_long_work(source)
                return False
        return True

    def _finish_again(self, copy: Message) -> None:
        log.info("%r was handled before, but its FIN was without effect: finishing this copy unhandled", copy)
        source = copy.source
        self._observer.event(
            FinishedAgain(
                topic=source.topic,
                channel=source.channel,
                partition=source.partition,
                nsqd=source.nsqd,
                internal_id=copy.internal_id,
                trace_id=copy.trace_id,
                attempts=copy.attempts,
            )
        )
        finish_copy(copy)

    def unsettled(self, message: Identity) -> None:
        """Finish the next copy of a message unhandled: it was finished, and the FIN may have been without effect."""
        now = monotonic()
        self._finished.remember(message, now)
        self._careful_until = now + _AFTER_LOSS
        self.review()

    def hand_out(self, message: Message, arrived_at: float) -> None:
        """Record that a message is handed out."""
        if not self._is_careful:
            return
        now = monotonic()
        self._watch(message, now, arrived_at)
        self.on_handed_out(message, arrived_at)
        self._handed_out += 1
        if not self._handlers and self._handed_out % _SAMPLE == 0:
            self._measure(now, len(self._inbox), in_hand=1)
        else:
            self.review()

    def drop(self, message: Message) -> None:
        """Forget a message that the server no longer expects to be answered."""
        dropped = getattr(message.source, "dropped", None)
        if dropped is not None:
            dropped()

    # -- measuring

    def handled(self, count: int, seconds: float) -> None:
        """Record that one handler took ``seconds`` for ``count`` messages."""
        self.handler_calls += count
        self.handler_seconds += seconds
        self._pace.took(count, seconds)
        self.review()

    def took_long(self, message: Message, began: float, handler: str) -> None:
        """Record that handling ``message`` took long; call this before it is answered."""
        if self._clock.blocked_for(monotonic()):
            self._clock.suspect = handler
        if not message.answered:
            self._watch(message, began, began)

    def check_all(self) -> None:
        """Check each message from now on, whatever its attempts."""
        self._checks_all = True
        self._messages.fine_below = 0

    def review(self) -> None:
        """Update how many messages to ask for, and whether to check each one."""
        most = self._flow.max_in_flight
        handlers = max(self._handlers, 1)
        is_quick = self._pace.is_quick(self.msg_timeout, handlers, most)
        is_careful = not is_quick or self.is_held_back or (bool(self._finished) and monotonic() < self._careful_until)
        if is_careful is not self._is_careful:
            self._is_careful = is_careful
            self._messages.fine_below = 0 if is_careful or self._checks_all else self._fine_below
        if is_quick:
            self._flow.limit_to(None)
            return
        waiting = self._pace.waiting(self.msg_timeout, handlers)
        if self._pace.seconds is None:
            waiting = max(waiting, self._partitions)  # else some partitions would have to take turns
        in_hand = max(self._handlers, self._flow.in_flight - len(self._inbox))
        # An iterating task works on the last message that it got, or has put it aside and wants the next one.
        self._flow.limit_to(in_hand + max(waiting, 0 if self._handlers else 1))

    def _measure(self, now: float, waiting: int, in_hand: int) -> None:
        if self._window is None:
            return
        began, taken_before = self._window
        if not self._is_careful and now - began < _WINDOW:
            return
        # The last message handed out is still being handled, unless a task waits for the next one.
        done = self._arrived - waiting - taken_before - in_hand
        if done > 0:
            self._window = (now, taken_before + done)
            self._pace.took(done, now - began)
            self.review()

    # -- answers of watched messages

    def arrived_before(self, message: Message, handed_out_after: float) -> float:
        """Return when a message arrived, or an earlier time.

        Args:
            message: The message.
            handed_out_after: It was not handed out before this time, unless it is watched.
        """
        source = message.source
        if isinstance(source, Watched):
            return min(source.taken_at, source.deadline - IN_TIME * _timeout(source.origin))
        return handed_out_after - min(QUICK, _timeout(source) / 4)  # as in take_back()

    def watch(self, message: Message, arrived_at: float) -> None:
        """Watch a message, since its handling takes long."""
        self._watch(message, arrived_at, arrived_at)

    def _watch(self, message: Message, taken_at: float, arrived_at: float) -> Watched:
        source = message.source
        if isinstance(source, Watched):
            return source
        watched = Watched(source, self, taken_at, arrived_at + IN_TIME * _timeout(source))
        message.source = watched
        return watched

    def call(self, answer: object, *arguments: object) -> bool:
        """Return False in the event loop's thread; in another one schedule ``answer`` there and return True."""
        if get_ident() == self._thread or self._loop is None or not callable(answer):
            return False
        try:
            self._loop.call_soon_threadsafe(answer, *arguments)
        except RuntimeError:  # the loop is closed: the source reports that the answer came too late
            return False
        return True

    def finished(self, watched: Watched, message: Message) -> None:
        """Record that a watched message is finished; its FIN is on its way."""
        now = monotonic()
        self._warn_if_late(watched, now)
        is_alive = watched.is_alive
        if now > watched.deadline or not is_alive or self._clock.blocked_for(now):
            copies = [queued for queued in self._inbox if queued.is_copy_of(message)]
            for copy in copies:
                self._inbox.remove(copy)
                watched.add_copy(copy)
            if copies:
                self._ages.removed(len(self._inbox) + len(copies), len(self._inbox))
            self._finished.remember(message.identity, now)
            if not is_alive:
                self._careful_until = now + _AFTER_LOSS
        elif isinstance(watched.origin, Delivery):
            watched.origin.may_be_refused(message)
        self.on_finished(message)

    def requeued(self, watched: Watched, message: Message, delay: float | None) -> None:
        """Record that a watched message is requeued."""
        self._warn_if_late(watched, monotonic())
        self.on_requeued(message, delay)

    def _warn_if_late(self, watched: Watched, now: float) -> None:
        if now - watched.taken_at > _timeout(watched.origin) and now > watched.deadline:
            self._warn_of_long_work(watched.origin)

    def _warn_of_waiting(self, timeout: float) -> None:
        self._warn_once(
            "waited",
            f"a message waited behind slow ones for longer than msg_timeout={timeout:g} s, so nsqd delivers it again:"
            f" raise concurrency= or msg_timeout= (up to nsqd's --max-msg-timeout), or lower max_in_flight=",
        )

    def _warn_of_long_work(self, source: object) -> None:
        self._warn_once(
            "long work",
            f"handling a message takes longer than msg_timeout={_timeout(source):g} s, so nsqd delivers it again."
            f" Raise msg_timeout= (up to nsqd's --max-msg-timeout), or touch() the message from time to time",
        )

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("%s: %s", self._name, text)


def _timeout(source: object) -> float:
    timeout: float = getattr(source, "msg_timeout", 60.0)
    return timeout
