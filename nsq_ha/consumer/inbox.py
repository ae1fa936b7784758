"""Where a consumer's parts meet: takes messages from subscriptions, and hands them to iterators and handlers.

The invariants: a message is handed out only while its connection is open. Messages of a lost connection are removed
from the queue, since the server delivers them again. There is no costly check for each message: the running event loop
is checked once, when an iteration begins.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakKeyDictionary, WeakSet

from nsq_ha.base.threads import in_thread
from nsq_ha.consumer.clock import Heartbeats, LoopClock
from nsq_ha.consumer.delivery import CLOSED, Delivery, delivery_of, give_back, is_open
from nsq_ha.consumer.giving_up import GiveUpPublisher, GivingUp, checked_from
from nsq_ha.consumer.ledger import AutoTouch, Ledger
from nsq_ha.consumer.pace import ConsumerPace
from nsq_ha.consumer.queue import MessageQueue
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.errors import BodyError, ClosedError, ConfigError, NsqError
from nsq_ha.policy.consumer_backoff import PauseState
from nsq_ha.protocol.body_codec import AT_ONCE_BYTES, MARK, PackedBody, packed_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig


_MANY: Final = 32
"""Messages to keep before the answered ones are removed."""

_MANY_BYTES: Final = 1024 * 1024
"""The same, in bytes of their bodies: a finished message is forgotten soon."""


class Messages:
    """An iterator over a consumer's messages.

    Args:
        queue: The messages.
        inbox: Checks messages that need it, and returns the future to wait for.
        check_loop: Raises if the running event loop is not the consumer's.
        is_of_task: One task iterates and answers, so keep track of its unanswered messages.
    """

    def __init__(
        self, queue: MessageQueue, inbox: ConsumerInbox, check_loop: Callable[[], None], *, is_of_task: bool = False
    ) -> None:
        self.is_of_task: bool = is_of_task
        self._check_loop = check_loop
        self._queue = queue
        self._messages = queue.messages
        self._inbox = inbox
        self._last: Message | None = None
        self._kept: deque[Message] = deque()  # handed out before the last one, and unanswered at the next request
        self._most = _MANY
        self._room = _MANY_BYTES

    def __aiter__(self) -> Self:
        """Iterate."""
        return self

    def take_now(self) -> Message | None:
        """Return the next message. None if there is none or it needs a check."""
        return self._messages.popleft() if self._queue.is_next_fine else None

    async def __anext__(self) -> Message:
        """Hand out the next message, see :meth:`nsq_ha.Consumer.__anext__`."""
        last = self._last
        if last is not None and not last.answered:
            self._keep(last)
        messages, queue = self._messages, self._queue
        while True:
            while messages:
                message = messages.popleft()
                if message.attempts >= queue.fine_below or message.id in queue.suspects:
                    self._last = None
                    if (turn := self._inbox.turn(message)) is not None:
                        await turn
                        continue
                    if not await self._inbox.may_be_handled(message):
                        continue
                self._last = message
                return message
            self._last = None
            if self.is_of_task:
                self._inbox.check_iterable()
                if self._kept:
                    self._forget_answered()
            waiter = self._inbox.next_arrival()
            try:
                await waiter
            except RuntimeError:  # checking the running loop each time would cost more than the rest
                waiter.cancel()
                self._check_loop()
                raise

    def unanswered(self) -> list[Message]:
        """Return the messages that were handed out and can still be answered."""
        return [message for message in (*self._kept, self._last) if message is not None and is_open(message)]

    def forget(self) -> None:
        """Drop references to messages."""
        self._last = None
        self._kept = deque()

    def forget_first(self) -> bool:
        """Drop references to the first messages, as far as they are answered; return whether others are left."""
        kept = self._kept
        while kept and not is_open(kept[0]):
            kept.popleft()
        if self._last is not None and not is_open(self._last):
            self._last = None
        return bool(kept or self._last)

    def _keep(self, message: Message) -> None:
        if self.is_of_task:
            if not self._kept:
                self._inbox.ledger.keeping.add(self)
            self._kept.append(message)
            self._room -= len(message.body)
            if len(self._kept) > self._most or self._room < 0:
                self._forget_answered()

    def _forget_answered(self) -> None:
        self._kept = deque(message for message in self._kept if is_open(message))
        self._most = 2 * len(self._kept) + _MANY
        self._room = max(_MANY_BYTES, sum(len(message.body) for message in self._kept) // 4)


class Iterations:
    """One iterator per task, so that the messages of an ended task are known. Args are those of :class:`Messages`."""

    def __init__(self, queue: MessageQueue, inbox: ConsumerInbox, check_loop: Callable[[], None]) -> None:
        self._queue = queue
        self._inbox = inbox
        self._check_loop = check_loop
        self._all: WeakSet[Messages] = WeakSet()
        self._by_task: WeakKeyDictionary[asyncio.Task[object], Messages] = WeakKeyDictionary()
        self._orphans: list[Message] = []  # unanswered messages of tasks that have ended; nothing else may hold those
        self._most_orphans = _MANY

    def new(self, *, is_of_task: bool = False) -> Messages:
        """Return an iterator; with ``is_of_task`` it keeps track of unanswered messages."""
        iterator = Messages(self._queue, self._inbox, self._check_loop, is_of_task=is_of_task)
        self._all.add(iterator)
        return iterator

    def of_task(self) -> Messages:
        """Return the current task's iterator."""
        task = asyncio.current_task()
        if task is None:
            return self.new()
        found = self._by_task.get(task)
        if found is None:
            found = self._by_task[task] = self.new(is_of_task=True)
            task.add_done_callback(self._ended)
        return found

    def _ended(self, task: asyncio.Task[object]) -> None:
        iterator = self._by_task.pop(task, None)
        if iterator is None:
            return
        self._orphans += iterator.unanswered()
        if len(self._orphans) > self._most_orphans:
            self._orphans = [message for message in self._orphans if is_open(message)]
            self._most_orphans = 2 * len(self._orphans) + _MANY
        self._inbox.changed.set()

    def held(self) -> list[Message]:
        """Return the unanswered messages of the tasks that have not ended."""
        while True:
            with contextlib.suppress(RuntimeError):  # another thread reads statistics while a task begins to iterate
                running = [iterator for task, iterator in self._by_task.items() if not task.done()]
                return [message for iterator in running for message in iterator.unanswered()]

    def take(self, leaving: asyncio.Task[object] | None) -> list[Message]:
        """Remove and return the unanswered messages of ``leaving`` and of all tasks that have ended."""
        taken, self._orphans = [message for message in self._orphans if is_open(message)], []
        for task, iterator in self._by_task.items():
            if task is leaving or task.done():
                taken += iterator.unanswered()
                iterator.forget()
        return taken

    def forget(self) -> None:
        """Drop references; the garbage collector does not look inside messages, so it finds no cycle."""
        for iterator in self._all:
            iterator.forget()
        self._orphans.clear()
        for task in self._by_task:
            task.remove_done_callback(self._ended)


class ConsumerInbox:
    """The messages that a consumer has received, and the tasks that take them.

    Args:
        name: Topic and channel.
        config: The consumer's options.
        publisher: Publishes given-up messages.
        check_loop: Raises if the running event loop is not the consumer's.
        observer: The consumer's.

    Attributes:
        name: Topic and channel.
        subscriptions: One for each partition that is read.
        queue: Messages that arrived and were not handed out.
        pace: Asks for messages.
        giving_up: Decides whether a message is given up.
        ledger: The messages in flight.
        clock: The event loop's.
        heartbeats: How often nsqd should send heartbeats.
        iterations: The tasks that iterate.
        closing: Set when no more messages are handed out.
        changed: Set when a subscription or the unanswered messages have changed.
        failure: An error that retrying cannot fix. None if there is none.
        died: Why the consumer's own task died. None if it did not.
    """

    def __init__(
        self,
        name: str,
        config: ConsumerConfig,
        publisher: GiveUpPublisher,
        check_loop: Callable[[], None],
        observer: Observer = SILENT,
    ) -> None:
        self.name = name
        self.subscriptions: dict[int, Subscription] = {}
        self.heartbeats: Heartbeats = Heartbeats(name, config.heartbeat_interval, observer)
        self.clock: LoopClock = LoopClock(self.heartbeats.blocked)
        self.queue: MessageQueue = MessageQueue()
        self.pace: ConsumerPace = ConsumerPace(
            name, config, self.queue, self.subscriptions, self._share_with_new_ones, observer
        )
        self.giving_up: GivingUp = GivingUp(config, publisher, self.pace.backoff, observer)
        self.ledger: Ledger = Ledger(name, config, self.queue, self.pace, self.giving_up, self.clock, observer)
        self.closing: asyncio.Event = self.ledger.closing
        self.changed: asyncio.Event = self.ledger.changed
        self.failure: NsqError | None = None
        self.died: BaseException | None = None
        self._is_open = False  # started, and neither closing nor refused
        self._is_run = False  # handlers take the messages
        self._looks = False  # for compressed bodies among the messages that arrive
        self._is_expanding = False
        self._checked_from = checked_from(config)
        self._max_decompressed_bytes = config.max_decompressed_bytes
        self._expanding_bytes = 0  # what bodies may become that are being expanded in threads
        self.iterations: Iterations = Iterations(self.queue, self, check_loop)
        # Messages of tasks that close the consumer and so cannot answer: requeue the first ones; the others go back
        # without counting an attempt.
        self._abandoned: list[Message] = []
        self._left: list[Message] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._touching: AutoTouch | None = None
        if config.auto_touch is not False:
            seconds = None if config.auto_touch is True else config.auto_touch
            self._touching = AutoTouch(name, seconds, self._held, self.ledger, self.pace)

    @property
    def waiting(self) -> deque[Message]:
        """Messages that arrived and were not handed out. Empty while closing."""
        return self.queue.messages

    def start(self) -> None:
        """Start, in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._is_open = True
        self.clock.start()
        self.pace.review()
        if self._touching is not None:
            self._touching.start()

    def check_open(self) -> asyncio.AbstractEventLoop:
        """Return the event loop.

        Raises:
            NsqError: nsqd refused, and retrying cannot help.
            ClosedError: The consumer is closed, or was not started.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # or it would grow with each call
        if self._loop is None:
            raise ClosedError("use the consumer with 'async with'")
        if self.closing.is_set():
            raise ClosedError("the consumer is closed") from self.died
        return self._loop

    # -- what subscriptions report

    def arrived(self, messages: list[Message]) -> None:
        """Take the messages of one read."""
        self.pace.flow.seen(len(messages[-1].body))
        if self._looks and any(message.ext is not None and MARK in message.ext for message in messages):
            self._looks = False  # looking at each arrival is over: each message is looked at when it is handed out
            self._is_expanding = True
            self.pace.check_all()
        is_blocked = self.ledger.arrived(messages)
        messages.clear()  # else their bodies would stay in memory until the next read
        if is_blocked:  # answer heartbeats first
            self.queue.wake()
        else:
            self.queue.wake_now()

    def look_for_compressed(self) -> None:
        """Decompress bodies, since messages of the topic have headers, which may say that a body is compressed."""
        self._looks = not self._is_expanding

    def joined(self) -> None:
        """Record that a subscription succeeded, perhaps over another connection; RDY is still 0."""
        self.changed.set()
        if not self.pace.flow.gathers():
            self._share_with_new_ones()

    def _share_with_new_ones(self) -> None:
        self.pace.joined()
        if self._touching is not None:
            self._touching.joined()

    def left(self) -> None:
        """Record that a connection is no longer subscribed, or that a replaced one has ended."""
        self.changed.set()
        self.ledger.left()

    def refused(self, error: NsqError) -> None:
        """Record an error that retrying cannot fix; the application's next call raises it."""
        self.failure = error
        self._is_open = False
        self.changed.set()
        self.queue.wake()

    # -- handing out messages

    def iterate(self) -> Messages:
        """Return the current task's iterator.

        Raises:
            ConfigError: ``run`` takes the messages.
        """
        if self._loop is None:
            return self.iterations.new()
        self.check_iterable()
        return self.iterations.of_task()

    def check_free(self) -> None:
        """Check that a call of ``run`` may begin.

        Raises:
            NsqError: An error that retries cannot fix.
            ClosedError: It is closed, or was not started.
            ConfigError: Another call is active.
        """
        self.check_open()
        if self._is_run:
            raise ConfigError(
                f"{self.name}: run() is active already: raise its concurrency= for more handlers at once, or make"
                f" another Consumer for another handler"
            )

    @contextlib.contextmanager
    def running(self, handlers: int) -> Iterator[None]:
        """Hand the messages to so many handlers while the block runs."""
        self._is_run = True
        self.pace.flow.hold(is_held=False)
        self.queue.wake()  # iterating tasks now get an error
        self.pace.used_by(handlers)
        try:
            yield
        finally:
            self._is_run = False
            self.pace.used_by(-handlers)
            self.changed.set()

    def is_busy(self, task: asyncio.Task[object] | None) -> bool:
        """Return whether ``task`` is running a handler or giving up a message now."""
        return self.giving_up.is_busy(task) or task in self.ledger.handled

    # -- what iterators ask

    def is_exhausted(self) -> bool:
        """Return whether no message will come until one is answered."""
        return not self.waiting and (self.pace.flow.is_full or self.pace.backoff.state is PauseState.IN_TEST)

    def check_iterable(self) -> None:
        """Check that ``run`` does not take the messages.

        Raises:
            ConfigError: It does.
        """
        if self._is_run and not self.closing.is_set():
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
            if self.closing.is_set() and self.failure is None and self.died is None:
                raise StopAsyncIteration
            loop = self.check_open()
        if not self._is_run:
            self.pace.flow.hold(is_held=False)
        self.pace.emptied()
        return self.queue.arrival(loop)

    def turn(self, message: Message) -> Awaitable[None] | None:
        """Put a message that must wait back into the queue, and return what to await; None to go on.

        It waits for its turn by ``max_rate``, and while other tasks run. In the queue, a close finds it.
        """
        waits: Awaitable[None]
        if self.clock.has_run_long:
            waits = self.clock.let_others_run()
        elif self.pace.is_due(message):
            return None
        else:
            waits = self.queue.arrival(asyncio.get_running_loop())
        self.queue.put_back(message, self.queue.next_arrived_at())
        return waits

    async def may_be_handled(self, message: Message) -> bool:
        """Return whether to hand out a message; if not, it is answered or will be redelivered."""
        queue, backoff = self.queue, self.pace.backoff
        arrived_at = queue.next_arrived_at()
        try:
            if not self.ledger.is_wanted(message, arrived_at):
                return False
            if message.attempts >= self._checked_from and not await self.giving_up.may_be_handled(message):
                return False
        except asyncio.CancelledError:
            if is_open(message) and self.closing.is_set():
                self.ledger.return_at_close(message)
            elif is_open(message):
                queue.put_back(message, arrived_at)  # for the next caller
                queue.wake()
            raise
        if backoff.is_active and not backoff.admits(message, arrived_at):
            self.pace.unmeasured()
            return False
        header = message.ext
        if self._is_expanding and header is not None and MARK in header and not await self._expanded(message, header):
            return False
        if self.pace.is_careful:
            self._watch(message, arrived_at)
        return True

    def _watch(self, message: Message, arrived_at: float) -> None:
        self.ledger.handed_out(message, arrived_at)
        if self._touching is not None:
            self._touching.handed_out(message, arrived_at)

    async def _expanded(self, message: Message, ext: bytes) -> bool:
        """Decompress the body of a message if it is compressed; return False if it counts as failed."""
        try:
            packed = packed_body(message.body, ext, self._max_decompressed_bytes)
            if packed is None:
                return True
            body = await self._expand(packed, message)
        except ValueError as error:
            await self.giving_up.unreadable(message, _unreadable(message, error))
            return False
        if self.closing.is_set():
            self.ledger.take_back(message, CLOSED)
            return False
        if not is_open(message):  # its connection was lost meanwhile
            return False
        message.compressed = (message.body, ext)
        message.body, message.ext = body, packed.ext
        self.pace.flow.seen(len(body))
        return True

    async def _expand(self, packed: PackedBody, message: Message) -> bytes:
        """Expand a body once it has room, in a thread if it is large.

        RDY cannot limit what bodies expand to. So they wait here, as they would wait at nsqd if they were that large.
        A cancellation leaves the message to the next caller.
        """
        try:
            while self._is_crowded(packed.bound) and not self.closing.is_set():
                self.ledger.is_watched = True
                self.changed.clear()
                await self.changed.wait()
            if packed.bound <= AT_ONCE_BYTES:
                return packed.expand()
            self._expanding_bytes += packed.bound
            try:
                return await in_thread(packed.expand)
            finally:
                self._expanding_bytes -= packed.bound
        except asyncio.CancelledError:
            self.ledger.take_back(message, "the task that waited for its body was cancelled")
            raise

    def _is_crowded(self, more: int) -> bool:
        expanded = sum(len(message.body) for message in self._held() if message.compressed and not message.answered)
        expanded += self._expanding_bytes
        return expanded > 0 and expanded + more > self.pace.flow.max_bytes

    def held_bytes(self) -> int:
        """Return the bytes of all bodies that wait here, or were handed out and are unanswered as far as is known.

        Compressed bodies count as they are, and expanded ones as they became.
        """
        waiting = (*tuple(self.queue.unseen), *self.pace.backoff.parked)
        back = (*self._left, *self._abandoned, *self.giving_up.messages, *self.ledger.cancelled)
        all_messages = {id(message): message for message in (*waiting, *back, *self._held())}
        held = sum(len(message.body) for message in all_messages.values() if not message.answered)
        return held + self._expanding_bytes

    # -- closing

    def abandon(self, task: asyncio.Task[object] | None, *, has_failed: bool) -> None:
        """Mark the messages of ``task``, which waits for the close, and of ended tasks to be returned to nsqd.

        Args:
            task: The task.
            has_failed: An exception leaves the block, which counts as a failed attempt; a close does not.
        """
        messages = self.iterations.take(task)
        if has_failed:
            self._abandoned += messages
        else:
            self._left += messages
        self.changed.set()

    def close(self) -> None:
        """Hand out no more messages, and ask for no more."""
        self._close()
        self.queue.close(self.pace.backoff.close())
        self._left += self.ledger.uninterrupted()
        self.wake()
        self.pace.stop()

    def ended(self) -> None:
        """Record that the consumer's own task has ended."""
        self._close()
        self.wake()

    def _close(self) -> None:
        self._is_open = False
        self.ledger.close()

    def wake(self) -> None:
        """Wake all waiting tasks, so that they check again."""
        self.queue.wake()
        self.changed.set()

    def cut_off(self, delivery: Delivery) -> None:
        """Requeue the unanswered messages of ``delivery``, whose connection is about to end."""
        self._left += self.iterations.take(None)
        held = (*self._left, *self._abandoned, *self.giving_up.messages, *self._held(), *self.ledger.cancelled)
        # The copy of a message whose own connection was lost is kept for the answer to that message.
        copies = [copy for each in held if (by := delivery_of(each)) is not None for copy in by.open_copies(each.watch)]
        for message in (*self.queue.unseen, *self.pace.backoff.parked, *held, *copies):
            if not message.answered and delivery_of(message) is delivery:
                give_back(message, CLOSED)
        self.ledger.left()  # what went back is not handed out

    def end(self) -> None:
        """Forget all messages: their answers come too late from now on."""
        self.clock.stop()
        if self._touching is not None:
            self._touching.stop()
        self.ledger.are_lost = True
        self.iterations.forget()
        self._abandoned.clear()
        self._left.clear()

    def _held(self) -> list[Message]:
        """Return the unanswered messages of running handlers and tasks."""
        return [*self.ledger.handled.values(), *self.iterations.held()]

    def may_answer(self) -> bool:
        """Return whether a running handler or task may answer a message."""
        return self._is_run or self.giving_up.is_giving_up or bool(self.iterations.held())

    def returned(self) -> list[Message]:
        """Return the unanswered messages of tasks that leave or have ended, each message once."""
        messages = [*self._left, *self.iterations.take(None)]
        self._left.clear()
        return [message for message in messages if not message.answered]

    def failed(self) -> list[Message]:
        """Return the unanswered messages of a task that an exception ended, each message once."""
        messages, self._abandoned = self._abandoned, []
        return [message for message in messages if not message.answered]


def _unreadable(message: Message, error: ValueError) -> BodyError:
    return BodyError(
        "cannot be decompressed",
        f"it {error}",
        topic=message.topic,
        partition=message.partition,
        message_id=message.internal_id,
    )
