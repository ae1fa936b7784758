"""The queue of one consumer: takes messages from subscriptions, and hands them to iterators and handlers.

The invariant: a message is handed out only while its connection is open. Messages of a lost connection are removed from
the queue, since the server delivers them again.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from typing import TYPE_CHECKING, Final

from nsq_ha.consumer.backlog import Backlog
from nsq_ha.consumer.backoff import HandlerBackoff
from nsq_ha.consumer.clock import Heartbeats, LoopClock
from nsq_ha.consumer.closing import CLOSED, LateAnswers, Returned, drain
from nsq_ha.consumer.flow import Flow
from nsq_ha.consumer.messages import Iterations
from nsq_ha.consumer.touching import AutoTouch
from nsq_ha.consumer.wakeup import Arrivals
from nsq_ha.consumer.watched import delivery_of
from nsq_ha.errors import BodyError, ClosedError, ConfigError
from nsq_ha.observe import SILENT
from nsq_ha.protocol.body_codec import MARK, decompress_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.attempts import AttemptPolicy
    from nsq_ha.consumer.delivery import Delivery
    from nsq_ha.consumer.handling import Handling
    from nsq_ha.consumer.messages import Messages
    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.errors import NsqError
    from nsq_ha.identity import Identity
    from nsq_ha.message import Message
    from nsq_ha.observe import Observer
    from nsq_ha.options.config import ConsumerConfig

_SOON: Final = 0.25
"""Seconds after a cancellation within which a close means that it was a shutdown; less than any requeue delay."""


class ConsumerInbox:
    """The messages that a consumer has received, and the tasks that take them.

    Implements ``consumer.messages.Owner`` and ``consumer.closing.Holders``.

    Args:
        name: Topic and channel.
        config: The consumer's options.
        attempts: Decides whether a message is given up.
        check_loop: Raises if the running event loop is not the consumer's.
        observer: The consumer's.

    Attributes:
        name: Topic and channel.
        observer: The consumer's.
        subscriptions: One for each partition that is read.
        waiting: Messages that arrived and were not handed out. Empty while closing.
        flow: Asks for messages.
        backlog: Watches messages that wait, and those whose handling takes long.
        backoff: Holds messages back after failures.
        clock: The event loop's.
        heartbeats: How often nsqd should send heartbeats.
        gives_up: Starts to give up a requeued message if that was its last attempt; returns whether it was.
        late: Called, from any thread, with a message that is answered after its connection ended, and with the answer.
        changed: Set when a subscription or the unanswered messages have changed.
        closing: Set when no more messages are handed out.
        died: Why the consumer's own task died. None if it did not.
    """

    def __init__(
        self,
        name: str,
        config: ConsumerConfig,
        attempts: AttemptPolicy,
        check_loop: Callable[[], None],
        observer: Observer = SILENT,
    ) -> None:
        self.name = name
        self.observer = observer
        self.subscriptions: dict[int, Subscription] = {}
        self.waiting: deque[Message] = deque()
        self.flow: Flow = Flow(config.max_in_flight, config.max_in_flight_bytes, self.subscriptions)
        self.gives_up: Callable[[Message], bool] = attempts.gives_up
        self.late: LateAnswers = LateAnswers(attempts.is_exempt)
        self.heartbeats: Heartbeats = Heartbeats(name, config.heartbeat_interval, observer)
        self.clock: LoopClock = LoopClock(self.heartbeats.blocked)
        self.changed: asyncio.Event = asyncio.Event()
        self.closing: asyncio.Event = asyncio.Event()
        self.died: BaseException | None = None
        self._is_open = False  # started, and neither closing nor refused: one look for each read instead of three
        self._looks = False  # for compressed bodies among the messages that arrive
        self._is_expanding = False
        self._max_decompressed_bytes = config.max_decompressed_bytes
        self._attempts = attempts
        self._queue = self.waiting  # until it closes
        self._arrivals = Arrivals()
        self._iterations = Iterations(self.waiting, attempts.fine_below, self, check_loop)
        self._handlings: set[Handling] = set()
        # Messages of tasks that close the consumer and so cannot answer: requeue the first ones; the others go back
        # without counting an attempt.
        self._abandoned: list[Message] = []
        self._left: list[Message] = []
        # By id(): messages whose block was just cancelled, with the timers that requeue them.
        self._interrupted: dict[int, tuple[Message, asyncio.TimerHandle]] = {}
        self._failure: NsqError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.backlog: Backlog = Backlog(name, self.waiting, self._iterations, attempts, self.flow, self.clock, observer)
        self.backoff: HandlerBackoff = HandlerBackoff(
            name, config, attempts, self.backlog, self.waiting, self.flow.share, self._arrivals.wake, observer
        )
        self.flow.backoff, self.flow.on_gathered = self.backoff, self._share_with_new_ones
        self.backlog.on_finished, self.backlog.on_requeued = self.backoff.finished, self.backoff.requeued
        attempts.on_failed = self.backoff.failed
        self._touching: AutoTouch | None = None
        if config.auto_touch is not False:
            seconds = None if config.auto_touch is True else config.auto_touch
            self._touching = AutoTouch(name, seconds, self._held, self.backlog)
            self.backlog.on_handed_out = self._touching.handed_out

    @property
    def failure(self) -> NsqError | None:
        """An error that retrying cannot fix. None if there is none."""
        return self._failure

    @property
    def given_up(self) -> int:
        """Number of messages that were given up."""
        return self._attempts.given_up

    def start(self) -> None:
        """Start, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self.clock.start()
        self.backlog.start()
        if self._touching is not None:
            self._touching.start()

    def check_open(self) -> asyncio.AbstractEventLoop:
        """Return the event loop.

        Raises:
            NsqError: nsqd refused, and retrying cannot help.
            ClosedError: The consumer is closed, or was not started.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # or it would grow with each call
        if self._loop is None:
            raise ClosedError("use the consumer with 'async with'")
        if self.closing.is_set():
            raise ClosedError("the consumer is closed") from self.died
        return self._loop

    # -- what subscriptions report

    def arrived(self, messages: list[Message]) -> None:
        """Take the messages of one read."""
        self.flow.seen(len(messages[-1].body))
        if self._looks and any(message.ext is not None and MARK in message.ext for message in messages):
            self._looks = False  # looking at each arrival is over: each message is looked at when it is handed out
            self._is_expanding = True
            self.backlog.check_all()
        is_blocked = self.backlog.arrived(len(messages))
        self._queue.extend(messages)
        messages.clear()  # else their bodies would stay in memory until the next read
        if is_blocked:  # answer heartbeats first
            self._arrivals.wake()
        else:
            self._arrivals.wake_now()

    def look_for_compressed(self) -> None:
        """Decompress bodies, since messages of the topic have headers, which may say that a body is compressed."""
        self._looks = not self._is_expanding

    def freed(self) -> None:
        """Record that a message was answered."""
        self.flow.freed()
        self.backlog.freed()
        if not self._is_open and self.closing.is_set():
            self.changed.set()

    def requeued(self, message: Message, delay: float | None) -> None:
        """Record that a message is requeued, with the delay that was given."""
        self.backoff.requeued(message, delay)

    def unsettled(self, message: Identity) -> None:
        """Record a message whose FIN may have been without effect."""
        if not self.closing.is_set():
            self.backlog.unsettled(message)

    def joined(self) -> None:
        """Record that a subscription succeeded."""
        self.changed.set()
        if not self.flow.gathers():
            self._share_with_new_ones()

    def _share_with_new_ones(self) -> None:
        self.backlog.joined(self.subscriptions.values())
        if self._touching is not None:
            self._touching.joined()
        self.flow.share()

    def left(self) -> None:
        """Record that a connection is no longer subscribed."""
        self.changed.set()
        alive = [message for message in self._queue if getattr(message.source, "is_alive", True)]
        before = len(self._queue)
        self._queue.clear()
        self._queue.extend(alive)
        if not self.closing.is_set():
            self.backlog.lost(before)
            self.backoff.left(self.subscriptions)
            if not self.flow.gathers():
                self.flow.share()

    def refused(self, error: NsqError) -> None:
        """Record an error that retrying cannot fix; the application's next call raises it."""
        self._failure = error
        self._is_open = False
        self.changed.set()
        self._arrivals.wake()

    # -- handing out messages

    def iterate(self) -> Messages:
        """Return the current task's iterator.

        Raises:
            ConfigError: ``run`` takes the messages.
        """
        if self._loop is None:
            return self._iterations.new()
        self.check_iterable()
        return self._iterations.of_task()

    def messages(self) -> Messages:
        """Return an iterator for handlers."""
        return self._iterations.new()

    def check_free(self) -> None:
        """Check that a call of ``run`` may begin.

        Raises:
            NsqError: An error that retries cannot fix.
            ClosedError: It is closed, or was not started.
            ConfigError: Another call is active.
        """
        self.check_open()
        if self._handlings:
            raise ConfigError(
                f"{self.name}: run() is active already: raise its concurrency= for more handlers at once, or make"
                f" another Consumer for another handler"
            )

    async def run(self, handling: Handling, concurrency: int, closed: asyncio.Event) -> None:
        """Let ``handling`` take messages until there are no more, or until ``closed`` is set."""
        self._handlings.add(handling)
        self._arrivals.wake()  # iterating tasks now get an error
        try:
            with self.backlog.used_by(handling, concurrency):
                await handling.run(concurrency, closed)
        finally:
            self._handlings.discard(handling)
            self.changed.set()

    def is_busy(self, task: asyncio.Task[object] | None) -> bool:
        """Return whether ``task`` is running a handler or giving up a message now."""
        return self._attempts.is_busy(task) or any(handling.is_busy(task) for handling in self._handlings)

    def take_back(self, message: Message, why: str) -> None:
        """Take back a handed-out message that has not failed, and hand it out again without counting an attempt.

        Args:
            message: The message. Nothing happens if it is answered.
            why: Completes "the message was given back because ...", for an answer that comes later.
        """
        if not message.answered:
            self._return(self._reopened(message, why), why)

    def interrupted(self, message: Message) -> bool:
        """Take back a message whose ``async with`` block was cancelled; return False if there is no event loop.

        If the consumer closes soon after, this was a shutdown and no failure. If not, it was a timeout or the like.
        """
        if self._loop is None:
            return False
        again = self._reopened(message, "the block around it was cancelled")
        if self.closing.is_set():
            self._return(again, CLOSED)
        else:
            self._interrupted[id(again)] = again, self._loop.call_later(_SOON, self._has_failed, again)
        return True

    def _has_failed(self, message: Message) -> None:
        del self._interrupted[id(message)]
        message.requeue()

    def _reopened(self, message: Message, why: str) -> Message:
        """Return an unanswered copy, so that late answers to the original have no effect."""
        again = copy.copy(message)
        message.answered = True
        message.source = Returned(message.source, why)
        return again

    def _return(self, message: Message, why: str) -> None:
        if not getattr(message.source, "is_alive", True):
            return
        if self.closing.is_set():
            self._attempts.spare(message, CLOSED)
            self.changed.set()
        elif self.backlog.take_back(message):
            self.backoff.taken_back(message)
            self._arrivals.wake()
        else:
            self._attempts.give_back(message, why)

    # -- what iterators ask (consumer.messages.Owner, consumer.batches.Source)

    def is_exhausted(self) -> bool:
        """Return whether no message will come until one is answered."""
        return not self.waiting and (self.flow.is_full or self.backoff.is_in_test)

    def check_iterable(self) -> None:
        """Check that ``run`` does not take the messages.

        Raises:
            ConfigError: It does.
        """
        if self._handlings and not self.closing.is_set():
            raise ConfigError(
                f"{self.name} cannot be iterated while run() hands its messages to a handler: iterate before or after"
                f" run(), or make another Consumer"
            )

    def next_arrival(self) -> asyncio.Future[None]:
        """Return a future to await until there may be a message.

        Raises:
            StopAsyncIteration: The consumer was closed.
        """
        loop = self._loop
        if loop is None or not self._is_open:
            if self.closing.is_set() and self._failure is None and self.died is None:
                raise StopAsyncIteration
            loop = self.check_open()
        self.backlog.emptied()
        return self._arrivals.wait(loop)

    async def may_be_handled(self, message: Message) -> bool:
        """Return whether to hand out a message; if not, it is answered or will be redelivered."""
        backlog = self.backlog
        arrived_at = backlog.next_arrived_at()
        try:
            await self.clock.turn_if_hogged()
            if self.closing.is_set():
                backlog.drop(message)  # the close returns it to nsqd
                return False
            if not backlog.is_wanted(message, arrived_at):
                return False
            if message.attempts >= self._attempts.fine_below and not await self._attempts.may_be_handled(message):
                return False
        except asyncio.CancelledError:
            if self.closing.is_set():
                backlog.drop(message)  # the close returns it to nsqd
            elif not message.answered and getattr(message.source, "is_alive", True):
                backlog.put_back(message, arrived_at)  # for the next caller
                self._arrivals.wake()
            raise
        if self.backoff.is_active and not self.backoff.admits(message, arrived_at):
            return False
        header = message.ext
        if self._is_expanding and header is not None and MARK in header and not await self._expanded(message, header):
            return False
        backlog.hand_out(message, arrived_at)
        return True

    async def _expanded(self, message: Message, ext: bytes) -> bool:
        """Decompress the body of a message if it is compressed; return False if it counts as failed."""
        try:
            found = decompress_body(message.body, ext, self._max_decompressed_bytes)
        except ValueError as error:
            failure = BodyError(
                "cannot be decompressed",
                f"it {error}",
                topic=message.topic,
                partition=message.partition,
                message_id=message.internal_id,
            )
            await self._attempts.failed(message, failure, "not handing out")
            return False
        if found is not None:
            message.compressed = (message.body, ext)
            message.body, message.ext = found
            self.flow.seen(len(message.body))
        return True

    # -- closing

    def abandon(self, task: asyncio.Task[object] | None, *, has_failed: bool) -> None:
        """Mark the messages of ``task``, which waits for the close, and of ended tasks to be returned to nsqd.

        Args:
            task: The task.
            has_failed: An exception leaves the block, which counts as a failed attempt; a close does not.
        """
        messages = self._iterations.take(task)
        if has_failed:
            self._abandoned += messages
        else:
            self._left += messages
        self.changed.set()

    def close(self) -> None:
        """Hand out no more messages, and ask for no more."""
        self._close()
        self._queue = deque((*self.backoff.close(), *self.waiting))
        self.waiting.clear()
        for message, handle in self._interrupted.values():
            handle.cancel()
            self._left.append(message)
        self._interrupted.clear()
        self.wake()
        self.flow.stop()

    def ended(self) -> None:
        """Record that the consumer's own task has ended."""
        self._close()
        self.wake()

    def _close(self) -> None:
        self._is_open = False
        self.closing.set()

    def wake(self) -> None:
        """Wake all waiting tasks, so that they check again."""
        self._arrivals.wake()
        self.changed.set()

    async def drain(self) -> None:
        """Return messages that nobody will answer, and wait until the rest is answered; see :func:`drain`."""
        await drain(self.subscriptions.values(), self._queue, self.changed, self, self._attempts)

    def cut_off(self, delivery: Delivery) -> None:
        """Requeue the unanswered messages of ``delivery``, whose connection is about to end."""
        held = (*self._left, *self._abandoned, *self._held(), *self._iterations.take(None))
        interrupted = (message for message, _ in self._interrupted.values())
        for message in (*self._queue, *self.backoff.parked, *interrupted, *held):
            if not message.answered and delivery_of(message) is delivery:
                self._attempts.give_back(message, CLOSED)

    def end(self) -> None:
        """Forget all messages: their answers come too late from now on."""
        self.clock.stop()
        if self._touching is not None:
            self._touching.stop()
        self.late.are_lost = True
        self._iterations.forget()
        self._abandoned.clear()
        self._left.clear()

    def tasks(self) -> list[asyncio.Task[object]]:
        """Return the tasks that iterate."""
        return self._iterations.tasks()

    def _held(self) -> list[Message]:
        """Return the unanswered messages of running handlers and tasks."""
        handled = [message for handling in self._handlings for message in handling.messages]
        return handled + self._iterations.held()

    def may_answer(self) -> bool:
        """Return whether a running handler or task may answer a message."""
        return bool(self._handlings) or self._attempts.is_giving_up or self._iterations.is_any_held()

    def returned(self) -> list[Message]:
        """Return the unanswered messages of tasks that leave or have ended, each message once."""
        messages = [*self._left, *self._iterations.take(None)]
        self._left.clear()
        return [message for message in messages if not message.answered]

    def failed(self) -> list[Message]:
        """Return the unanswered messages of a task that an exception ended, each message once."""
        messages, self._abandoned = self._abandoned, []
        return [message for message in messages if not message.answered]
