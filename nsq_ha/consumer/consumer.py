"""The consumer: what an application holds to read a channel of a topic.

Owns the public calls, the queue of delivered messages and the sharing of
``max_in_flight``. Which partitions are read is ``consumer.partitions``', each
one's connection ``consumer.subscription``'s.

The invariant: what is handed out came over a connection that still lives at
that moment; messages of a connection that has gone are dropped from the queue,
since the server delivers them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from nsq_ha.config import ConsumerConfig
from nsq_ha.consumer.backlog import Backlog
from nsq_ha.consumer.clock import Heartbeats, LoopClock
from nsq_ha.consumer.closing import LateAnswers, drain, supervisor_ended
from nsq_ha.consumer.flow import Flow
from nsq_ha.consumer.giving_up import GiveUpPublisher, Publisher
from nsq_ha.consumer.handling import Handling, Tries, check_concurrency
from nsq_ha.consumer.messages import Iterations
from nsq_ha.consumer.partitions import Partitions
from nsq_ha.consumer.waking import Arrivals
from nsq_ha.discovery.watcher import Directory
from nsq_ha.errors import ClosedError, ConfigError, NsqError
from nsq_ha.names import check_channel, check_partition, check_topic
from nsq_ha.transport.closing import Closing
from nsq_ha.transport.entering import EnteredOnce
from nsq_ha.transport.options import options_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable

    from nsq_ha.consumer.messages import Messages
    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.discovery.watcher import TopicWatch
    from nsq_ha.message import Message
    from nsq_ha.policy.topology import TopicView

log = logging.getLogger("nsq_ha.consumer")


class Consumer(EnteredOnce):
    """Reads one channel of one topic, all partitions or some. Use it with ``async with``.

    Iterating hands out messages and answers nothing by itself; :meth:`run`
    calls a handler and answers by its outcome.

    Entering subscribes: it returns when all partitions are subscribed, or after
    ``start_timeout`` with a warning. A new channel gets only what is published
    after this. It raises a ServerError for a refusal that no retry cures
    (permission, a channel that must be registered first).

    Args:
        topic: The topic.
        channel: The channel; it is made on first use and starts at the end of the topic.
        lookupd: One nsqlookupd's HTTP address or several; the others are found from it.
        producer: Publishes for ``on_give_up="republish"`` and ``"dead_letter"``.
        config: Options as a value. None to take them from ``options``.
        **options: The fields of :class:`~nsq_ha.config.ConsumerConfig`.

    Raises:
        ConfigError: An option is unknown or out of range, a name is not legal,
            no lookupd is given, or what is given up could not be published.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        lookupd: str | Iterable[str] = (),
        producer: Publisher | None = None,
        config: ConsumerConfig | None = None,
        **options: Any,  # noqa: ANN401 - checked against the fields of ConsumerConfig
    ) -> None:
        """Check the options; connects nothing before ``async with``."""
        self.config = options_of(ConsumerConfig, config, lookupd, options)
        self.topic = check_topic(topic)
        self.channel = check_channel(channel)
        for partition in self.config.partitions or ():
            check_partition(partition)
        if self.config.partitions == ():
            raise ConfigError("partitions must name one at least; None takes all")
        self._give_up_publisher = GiveUpPublisher(self.config, self.topic, producer)
        self._tries = Tries(self.config, self._give_up_publisher)
        self._subscriptions: dict[int, Subscription] = {}
        self._flow = Flow(self.config.max_in_flight, self.config.max_in_flight_bytes, self._subscriptions)
        self._open_inbox: deque[Message] = deque()
        self._inbox = self._open_inbox  # until it closes: then nothing more is handed out
        self._arrivals = Arrivals()
        self._iterations = Iterations(self._open_inbox, self._tries.fine_below, self, self._check_loop)
        self._abandoned: list[Message] = []  # of tasks that close the consumer, and so cannot answer
        self.gives_up = self._tries.gives_up
        self.late = LateAnswers(self._tries.is_exempt)
        self.heartbeats = Heartbeats(f"{self.topic}/{self.channel}", self.config.heartbeat_interval)
        self._clock = LoopClock(self.heartbeats.blocked)
        self._backlog = Backlog(
            f"{self.topic}/{self.channel}", self._open_inbox, self._iterations, self._tries, self._flow, self._clock
        )
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self._close = Closing(self._close_gently, self._end, f"nsq_ha consumer {self.topic} closes")
        self._over = asyncio.Event()
        self._handlings: set[Handling] = set()
        self._absent = asyncio.Event()
        self._failure: NsqError | None = None
        self._directory: Directory | None = None
        self._watch: TopicWatch | None = None
        self._partitions: Partitions | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None

    async def _open(self) -> None:
        await self._give_up_publisher.check()
        self._directory = Directory(self.config, access="r")
        self._clock.start()
        self._backlog.start()
        await self._directory.start()
        self._watch = self._directory.watch(self.topic)
        self._partitions = Partitions(self._watch, self.channel, self.config, self._subscriptions, self)
        self._watch.add_listener(self._view_changed)
        started = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise(started), name=f"nsq_ha consumer {self.topic}")
        await started.wait()
        self._watch.refresh_soon()
        try:
            async with asyncio.timeout(self.config.start_timeout):
                await self.wait_subscribed()
        except TimeoutError:
            self._partitions.warn_at_start(asyncio.get_running_loop().time())

    async def wait_subscribed(self) -> None:
        """Wait until every wanted partition is subscribed; put your own time limit around it.

        Raises:
            ClosedError: The consumer is closed.
            ServerError: A refusal that no retry cures.
            ConfigError: Called from another event loop than the one that entered it.
        """
        self._check_loop()
        while True:
            self._check_open()
            if self._partitions is not None and self._partitions.are_subscribed():
                return
            self._changed.clear()
            await self._changed.wait()

    async def aclose(self) -> None:
        """Drain and close; takes ``close_timeout`` at most. May be called again.

        No new message is handed out. Unanswered messages:

        * Those that were not handed out, or that the calling task got by iterating, are requeued at once: the task
          cannot answer while it waits here. So finish them before, and also those that it passed on to other tasks.
        * Those of another task that iterates, and those of handlers of :meth:`run`, may be answered until the limit,
          as long as that task runs. If it ends, they are requeued at once.

        Leaving the block does the same, by its end, ``break``, ``return`` or an exception.

        Awaited by a handler, or by ``on_give_up``, it begins all this and
        returns at once: to wait would be to wait for the very message that is
        being handled. That one is answered as ever, :meth:`run` returns after
        the last handler, and leaving the block waits for the end. Only the
        handler's own task is known for one: in a task that it starts, and in one
        that another thread brings into this loop, this waits for the handler, so let that not wait for it.

        Cancelled, it does not wait for answers, and closes.

        Raises:
            ConfigError: Called from another event loop than the one that entered it. Nothing was changed.
        """
        if self._directory is None or self._close.is_done:
            return
        self._check_loop()
        task = asyncio.current_task()
        is_awaited = self._is_awaited(task)
        if not is_awaited:
            self._abandoned += self._iterations.take(task)
            self._changed.set()
        if not self._close.has_begun:
            self._begin_to_close()
        self._close.begin()
        if not is_awaited:
            await self._close.wait()

    def _is_awaited(self, task: asyncio.Task[Any] | None) -> bool:
        """Tell whether closing waits for ``task``."""
        return self._tries.is_busy(task) or any(handling.is_busy(task) for handling in self._handlings)

    def _begin_to_close(self) -> None:
        self._closing.set()
        self._inbox = deque(self._open_inbox)
        self._open_inbox.clear()
        self._arrivals.wake()
        self._changed.set()
        self._flow.stop()

    async def _close_gently(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.config.close_timeout
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await drain(self._subscriptions.values(), self._inbox, self._changed, self, self._tries.give_back)
            except TimeoutError:
                log.warning("%s/%s: closed with messages unanswered", self.topic, self.channel)
            for subscription in self._subscriptions.values():
                await subscription.aclose_connection(max(deadline - loop.time(), 0.0))
        except asyncio.CancelledError:  # the close is hurried this way
            return

    # -- what draining asks (consumer.closing.Holders)

    def tasks(self) -> list[asyncio.Task[object]]:
        """Return the tasks that iterate."""
        return self._iterations.tasks()

    def may_answer(self) -> bool:
        """Return whether a running handler or task may answer a message."""
        return bool(self._handlings) or self._tries.is_giving_up or self._iterations.is_any_held()

    def returned(self) -> list[Message]:
        """Return, once each, the unanswered messages of tasks that leave or have ended."""
        messages = [*self._abandoned, *self._iterations.take(None)]
        self._abandoned.clear()
        return [message for message in messages if not message.answered]

    async def _end(self) -> None:
        """End everything, even with messages unanswered; may be called again."""
        self._clock.stop()
        self.late.are_lost = True
        self._iterations.forget()
        self._abandoned.clear()
        if self._partitions is not None:
            self._partitions.cancel()
        await self._tries.aclose()
        await supervisor_ended(self._supervisor, f"{self.topic}/{self.channel}")
        if self._directory is not None:
            await self._directory.aclose()
        self._over.set()

    async def _supervise(self, started: asyncio.Event) -> None:
        """Hold the subscriptions' tasks; ends when closed, or by a bug of ours."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                started.set()
                if self._watch is not None and self._watch.view is not None and not self._closing.is_set():
                    self._view_changed(self._watch.view)
                if self._partitions is not None:
                    seeking = group.create_task(self._partitions.seek(self._absent))
                    await self._closing.wait()
                    seeking.cancel()
        finally:
            self._closing.set()
            self._arrivals.wake()
            self._changed.set()

    def _check_open(self) -> asyncio.AbstractEventLoop:
        if self._failure is not None:
            raise self._failure
        loop = self._loop
        if self._directory is None or loop is None:
            raise ClosedError("use the consumer with 'async with'")
        if self._closing.is_set():
            closed = ClosedError("the consumer is closed")
            supervisor = self._supervisor
            if supervisor is not None and supervisor.done() and not supervisor.cancelled():
                closed.__cause__ = supervisor.exception()
            raise closed
        return loop

    def _view_changed(self, view: TopicView) -> None:
        if self._partitions is None or self._closing.is_set():
            return
        refusal = self._give_up_publisher.refusal(self.topic, view.meta) if view.meta is not None else None
        if refusal is not None:
            self.refused(refusal)
        else:
            self._partitions.follow(view, self._group)
        if not view.exists:
            self._absent.set()
        self._changed.set()

    # -- what subscriptions report (consumer.subscription.Inbox)

    def arrived(self, messages: list[Message]) -> None:
        """Take the messages of one read."""
        self._flow.seen(len(messages[-1].body))
        is_blocked = self._backlog.arrived(len(messages))
        self._inbox.extend(messages)
        messages.clear()  # or their bodies would stay until the next read
        if is_blocked:  # heartbeats are answered first
            self._arrivals.wake()
        else:
            self._arrivals.wake_now()

    def freed(self) -> None:
        """Note that a message was answered."""
        self._flow.freed()
        self._backlog.freed()
        if self._closing.is_set():
            self._changed.set()

    def joined(self, subscription: Subscription) -> None:
        """Note that it is subscribed."""
        self._changed.set()
        self._backlog.joined(self._subscriptions.values())
        self._flow.share()

    def left(self, subscription: Subscription) -> None:
        """Note that it is not subscribed any more."""
        self._changed.set()
        alive = [message for message in self._inbox if getattr(message.source, "is_alive", True)]
        self._inbox.clear()
        self._inbox.extend(alive)
        if not self._closing.is_set():
            self._backlog.lost()
            self._flow.share()

    def refused(self, error: NsqError) -> None:
        """Note a refusal that no retry cures; the next call of the application raises it."""
        self._failure = error
        self._changed.set()
        self._arrivals.wake()

    # -- RDY

    @property
    def max_in_flight(self) -> int:
        """Messages that may be unanswered over all partitions."""
        return self._flow.max_in_flight

    def set_max_in_flight(self, count: int) -> None:
        """Change ``max_in_flight`` while running; 0 pauses.

        Raises:
            ConfigError: ``count`` is no int of 0 or more, or this is another event loop than the one that entered it.
        """
        self._check_loop()
        self._flow.set(count)

    # -- handing out

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages until the consumer is closed.

        Raises:
            ConfigError: :meth:`run` is active, or this is another event loop than the one that entered it.
        """
        return self._messages_of_task()

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        """Hand out the next message; await what this returns.

        Cancelled, no message is lost.

        Raises:
            StopAsyncIteration: The consumer was closed.
            ServerError: A refusal that no retry cures.
            ClosedError: The supervisor died, or the consumer was not entered.
            ConfigError: As for iterating.
        """
        # Not a coroutine function: the messages belong to the task that calls this, not to one that asyncio.wait_for
        # may make for the coroutine.
        return self._messages_of_task().__anext__()

    def _messages_of_task(self) -> Messages:
        self._check_loop()
        if self._loop is None:
            return self._iterations.new()
        self.check_iterable()
        return self._iterations.of_task()

    def check_iterable(self) -> None:
        """Check that no call of :meth:`run` takes the messages.

        Raises:
            ConfigError: One does.
        """
        if self._handlings and not self._closing.is_set():
            raise ConfigError(
                f"{self.topic}/{self.channel} cannot be iterated while run() hands its messages to a handler: iterate"
                f" before or after run(), or make another Consumer"
            )

    # -- what handing out asks (consumer.messages.Owner)

    def next_arrival(self) -> asyncio.Future[None]:
        """Return what to await until there may be a message.

        Raises:
            StopAsyncIteration: The consumer was closed.
        """
        if self._closing.is_set() and self._failure is None:
            self._raise_if_died()
            raise StopAsyncIteration
        self._backlog.emptied()
        return self._arrivals.wait(self._check_open())

    async def may_be_handled(self, message: Message) -> bool:
        """Return whether to hand out a message; if not, it is answered or will be redelivered."""
        backlog = self._backlog
        arrived_at = backlog.next_arrived_at()
        try:
            await self._clock.turn_if_hogged()
            if self._closing.is_set():
                backlog.drop(message)  # closing gives it back
                return False
            if not backlog.is_wanted(message, arrived_at):
                return False
            if message.attempts >= self._tries.fine_below and not await self._tries.may_be_handled(message):
                return False
        except asyncio.CancelledError:
            if self._closing.is_set():
                backlog.drop(message)  # closing gives it back
            elif not message.answered and getattr(message.source, "is_alive", True):
                backlog.put_back(message, arrived_at)  # for the next caller
                self._arrivals.wake()
            raise
        backlog.hand_out(message, arrived_at)
        return True

    def _raise_if_died(self) -> None:
        supervisor = self._supervisor
        if supervisor is not None and supervisor.done() and not supervisor.cancelled() and supervisor.exception():
            self._check_open()

    async def run(self, handler: Callable[[Message], Awaitable[object] | object], *, concurrency: int = 1) -> None:
        """Call ``handler`` for each message until the consumer is closed.

        A handler that returns finishes its message, one that raises requeues it by ``requeue_backoff``; one that
        answered the message itself is left alone. One that raises what is no ``Exception`` (``SystemExit``) gives its
        message back and ends this call. A plain function runs in a thread; this call has ``concurrency`` of its own.
        On an ordered topic the messages of one partition are handled one at a time, in order, whatever ``concurrency``
        is.

        Args:
            handler: Takes a :class:`~nsq_ha.Message`; a coroutine function or a plain one.
            concurrency: Handlers that run at once, 1 or more.

        Raises:
            ConfigError: ``concurrency`` is no int of 1 or more, ``handler`` is no function of one argument, or this is
                another event loop than the one that entered it.
            ServerError: A refusal that no retry cures.
            ClosedError: The supervisor died.

        Cancelled, the handlers that run are cancelled and their messages requeued at once. When
        the consumer is closed, handlers that still run at ``close_timeout`` are cancelled; a plain
        function in a thread runs on, and its result is dropped. The thread is a daemon, so the process can exit.
        """
        self._check_loop()
        handling = Handling(self._iterations.new(), handler, self._backlog, self._tries)
        check_concurrency(concurrency)
        if 0 < self.max_in_flight < concurrency:
            log.warning(
                "%s/%s: only %d of %d handlers can run at once: raise max_in_flight=%d to concurrency or more",
                self.topic,
                self.channel,
                self.max_in_flight,
                concurrency,
                self.max_in_flight,
            )
        self._handlings.add(handling)
        self._arrivals.wake()  # tasks that iterate get an error now
        try:
            with self._backlog.used_by(handling, concurrency):
                await handling.run(concurrency, self._over)
        finally:
            self._handlings.discard(handling)
            self._changed.set()
