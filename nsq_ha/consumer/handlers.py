"""Hand out messages: to tasks that iterate, one by one or in batches, and to handlers, in the event loop or in threads.

The running event loop is checked when an iteration begins and when it waits, not for each message.

The invariant of batches: a message is in a batch that the application got, or with the consumer. A batch that is being
filled goes back to the consumer if the task is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from itertools import filterfalse
from typing import TYPE_CHECKING, Any, Final, Self, overload
from weakref import WeakKeyDictionary

from nsq_ha.base.clock import monotonic
from nsq_ha.base.threads import HandlerThreads, is_async
from nsq_ha.consumer.clock import LONGEST_RUN
from nsq_ha.consumer.inflight import Recipient
from nsq_ha.engine import observe
from nsq_ha.engine.waiting import is_foreign
from nsq_ha.errors import ConfigError, NsqError
from nsq_ha.message import Message, State
from nsq_ha.options.checks import is_number, is_whole, shown
from nsq_ha.options.values import check_takes_one
from nsq_ha.protocol.body_codec import MARK

if TYPE_CHECKING:
    from nsq_ha.consumer.shell import ConsumerShell

_watched: Final = observe.watched

_MANY: Final = 64
"""Number of messages whose handling times are reported together."""


MOST_WORKERS: Final = 10_000
"""Each worker is a task that is started at once: 100,000 of them held the event loop for 8.6 s."""


def check_concurrency(concurrency: object) -> None:
    """Check the option.

    Raises:
        ConfigError: ``concurrency`` is not an int of 1..10000.
    """
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MOST_WORKERS:
        raise ConfigError(f"concurrency must be an int of 1..{MOST_WORKERS}, not {shown(concurrency)}")


def check_handler(handler: object, option: str = "handler") -> None:
    """Check that ``handler`` can be called with a message.

    Raises:
        ConfigError: It is not a function, is a generator function, or takes another number of arguments.
    """
    if not callable(handler):
        raise ConfigError(f"{option} must be a function of a message, not {type(handler).__name__}")
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    # If an object is callable, its method __call__ shows what a call does.
    for called in (handler, type(handler).__call__):
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise ConfigError(f"{option} must be a function of a message, not a generator: {name} would never run")
    check_takes_one(handler, f"{option} must take one argument, the message")


class Messages(Recipient):
    """An iterator over a consumer's messages.

    Args:
        shell: The consumer's.
        is_handler: Handlers take the messages.
    """

    def __init__(self, shell: ConsumerShell, *, is_handler: bool = False) -> None:
        super().__init__(is_handler=is_handler)
        self._shell, self._clock = shell, shell.clock
        self._take, self._queue = shell.machine.take, shell.machine.queue

    def __aiter__(self) -> Self:
        """Iterate."""
        return self

    def take_now(self) -> Message | None:
        """Return the next message. None if there is none, or it needs time."""
        shell, now = self._shell, monotonic()
        if not self._queue or now - self._clock.turned > LONGEST_RUN:
            return None
        first = self._queue[0]
        if first.attempts >= shell.checked_from or (first.ext is not None and shell.expands and MARK in first.ext):
            return None
        return self._take(self, now)

    async def __anext__(self) -> Message:
        """Hand out the next message, see :meth:`nsq_ha.Consumer.__anext__`."""
        shell, clock = self._shell, self._clock
        while True:
            message = None
            if self._queue:
                if monotonic() - clock.turned > LONGEST_RUN:
                    await clock.let_others_run()
                message = self._take(self, monotonic())
            if message is None:
                loop = asyncio.get_running_loop()
                if not (self.is_handler and shell.is_open and loop is shell.loop):
                    shell.check_waits(self)
                if not shell.is_due:
                    shell.due()
                waiter = loop.create_future()
                # Without cancelled ones; otherwise they would pile up while nothing arrives.
                shell.waiters = [*filterfalse(asyncio.Future.done, shell.waiters), waiter]
                await waiter
                continue
            ext = message.ext
            is_ready = message.attempts < shell.checked_from and not (ext and shell.expands and MARK in ext)
            if is_ready or await shell.may_be_handled(message):
                return message

    async def batch(self, max_messages: int, max_wait: float) -> Batch:
        """Hand out the next batch. Cancelling this loses no message.

        Args:
            max_messages: Most messages of it.
            max_wait: Seconds to wait for more after the first message.

        Raises:
            StopAsyncIteration: The consumer was closed.
        """
        while True:
            taken = [await anext(self)]
            await self._fill(taken, max_messages, max_wait)
            alive = [message for message in taken if message.state is not State.ORPHANED]
            if alive:  # else their connection was lost, and nsqd delivers them again
                return Batch(alive)

    async def _fill(self, taken: list[Message], max_messages: int, max_wait: float) -> None:
        try:
            async with asyncio.timeout(max_wait):
                while len(taken) < max_messages and not self._shell.is_exhausted():
                    taken.append(await anext(self))
        except (TimeoutError, StopAsyncIteration, NsqError):  # the next call raises the last two again
            return
        except asyncio.CancelledError:
            for message in reversed(taken):
                self._shell.take_back(message, "the wait for the rest of its batch was cancelled")
            raise


class Iterators:
    """The iterators of the tasks that iterate over one consumer's messages.

    Args:
        shell: The consumer's.
    """

    def __init__(self, shell: ConsumerShell) -> None:
        self._shell = shell
        self._by_task: WeakKeyDictionary[asyncio.Task[object], Messages] = WeakKeyDictionary()

    def of_task(self) -> Messages:
        """Return the current task's iterator, so that the messages of an ended task are known.

        Raises:
            ConfigError: ``run`` takes the messages.
        """
        task = asyncio.current_task()
        if not self._shell.is_open and not self._shell.closing.is_set():
            return Messages(self._shell)
        self._shell.check_iterable()
        if task is None:
            return Messages(self._shell)
        found = self._by_task.get(task)
        if found is None:
            found = self._by_task[task] = Messages(self._shell)
            task.add_done_callback(self._ended)
        return found

    def _ended(self, task: asyncio.Task[object]) -> None:
        iterator = self._by_task.pop(task, None)
        if iterator is not None:
            iterator.is_over = True
            self._shell.changed.set()

    def leave(self, task: asyncio.Task[object] | None, *, has_failed: bool) -> None:
        """Record that ``task`` answers no more messages.

        Args:
            task: The task, which waits for the close.
            has_failed: An exception leaves the block, which counts as a failed attempt; a close does not.
        """
        iterator = None if task is None else self._by_task.get(task)
        if iterator is not None:
            iterator.is_over, iterator.has_failed = True, has_failed
        self._shell.changed.set()

    def forget(self) -> None:
        """Forget all tasks."""
        for task in tuple(self._by_task):
            task.remove_done_callback(self._ended)
        self._by_task.clear()


class Handling:
    """Runs one handler over the messages of a consumer.

    Args:
        shell: The consumer's.
        handler: Called for each message.
        concurrency: Number of workers, 1..10000.

    Raises:
        ConfigError: ``handler`` is not a function, or ``concurrency`` not such a number.
    """

    def __init__(
        self, shell: ConsumerShell, handler: Callable[[Message], Awaitable[object] | object], concurrency: int
    ) -> None:
        check_handler(handler)
        check_concurrency(concurrency)
        self._messages = Messages(shell, is_handler=True)
        self._handler = handler
        self._shell = shell
        self._name: str = getattr(handler, "__qualname__", type(handler).__qualname__)
        self._is_async = is_async(handler)
        # A message that is redelivered over another connection while its partition's handler still runs waits here.
        self._parked: dict[int, deque[Message]] = {}
        self._ended = 0.0
        self._count = 0
        self._seconds = 0.0
        self._concurrency = concurrency
        self._threads = HandlerThreads(concurrency)
        # __anext__ may await: let one worker at a time take messages, to keep their order.
        self._taking = asyncio.Lock()
        self._context = contextvars.copy_context()
        self._workers: set[asyncio.Task[Any]] = set()
        self._ended_by: BaseException | None = None

    async def run(self) -> None:
        """Run the workers until the messages end.

        Raises:
            NsqError: The iterator over messages raised it.
            BaseException: A handler raised it, and it is no ``Exception``.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    self._begin_worker(group)
            if self._ended_by is not None:
                raise self._ended_by
        finally:
            self._threads.close()
            if self._count:
                self._report()

    def _begin_worker(self, group: asyncio.TaskGroup) -> None:
        self._workers.add(group.create_task(self._work(group), context=self._context.copy()))

    async def _work(self, group: asyncio.TaskGroup) -> None:
        """Handle messages until a handler changed the context variables, of which the next one must see nothing.

        An error ends all workers at once, and :meth:`run` raises it: a SystemExit that left a task would end the event
        loop, with the consumer open.
        """
        worker: asyncio.Task[Any] | None = asyncio.current_task()
        assert worker is not None  # noqa: S101 - for the type
        messages, queue, taking = self._messages, self._shell.machine.queue, self._taking
        before = contextvars.copy_context()  # a task factory may have set variables in it
        self._ended = monotonic()
        try:
            while _is_clean(before):
                # If another worker takes a message or waits for one, wait for the lock.
                message = messages.take_now() if queue and not taking.locked() else None
                if message is None:
                    async with taking:
                        message = await anext(messages)
                    self._ended = monotonic()
                if message.source.conn.is_ordered:  # type: ignore[attr-defined]  # as conn_of(), without a call
                    await self._handle_in_order(message, worker, before)
                else:
                    await self._handle(message, worker)
            self._begin_worker(group)
        except StopAsyncIteration:
            return
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - run() raises it
            self._ended_by = self._ended_by or error
            for each in self._workers - {worker}:
                each.cancel()
        finally:
            self._workers.discard(worker)

    async def _handle_in_order(self, message: Message, worker: asyncio.Task[Any], before: contextvars.Context) -> None:
        partition = message.partition
        if partition in self._parked:
            self._parked[partition].append(message)
            return
        parked = self._parked[partition] = deque((message,))
        try:
            while parked and _is_clean(before):
                current = parked.popleft()
                if current.state is not State.ORPHANED:
                    await self._handle(current, worker)
        finally:
            del self._parked[partition]
            for unseen in reversed(parked):
                self._shell.take_back(unseen, "the handler of its partition was cancelled")

    async def _handle(self, message: Message, worker: asyncio.Task[Any]) -> None:
        self._shell.busy.add(worker)
        began = self._ended  # set just now: the previous handler ended, or the message was taken
        try:
            try:
                call = self._handler if self._is_async and not _watched.is_any else self._call
                outcome = await call(message)  # type: ignore[misc]  # if it is async
            finally:
                self._ended = now = monotonic()
                self._seconds += now - began
                self._count += 1
                if self._seconds > LONGEST_RUN or self._count >= _MANY:
                    if now - began > LONGEST_RUN and self._shell.clock.blocked_for(now):
                        self._shell.clock.suspect = self._name
                    self._report()
        except BaseException as error:
            if not is_foreign(error):
                self._left(message, error)
                raise
            await self._shell.giving_up.failed(message, error)
        else:
            if not message.answered:
                if outcome is False:
                    self._shell.machine.warn_once(
                        f"{self._name} returned False",
                        f"the handler {self._name} returned False, and the message was finished, as after any return:"
                        f" to requeue a message, raise an exception or call message.requeue()",
                    )
                message.finish()
        finally:
            self._shell.busy.discard(worker)

    def _left(self, message: Message, error: BaseException) -> None:
        """Return a message whose handler was cancelled, or has ended :meth:`run`: that is no failed attempt."""
        if isinstance(error, asyncio.CancelledError):
            self._shell.take_back(message, "its handler was cancelled")
            return
        # Else nsqd would deliver the message to this consumer again.
        self._shell.machine.flow.hold(self._ended, is_held=True)
        if not message.answered:
            self._shell.give_back(message, f"its handler raised {type(error).__name__}")

    async def _call(self, message: Message) -> object:
        """Call a handler that is watched, or is a plain function."""
        with observe.processing((message,)) if _watched.is_any else contextlib.nullcontext():
            outcome = self._handler(message) if self._is_async else await self._threads.call(self._handler, message)
            return await outcome if inspect.isawaitable(outcome) else outcome

    def _report(self) -> None:
        self._shell.machine.flow.handled(self._count, self._seconds, self._ended)
        self._shell.due()
        self._count, self._seconds = 0, 0.0


MOST_MESSAGES: Final = 1_000_000

LONGEST_WAIT: Final = 86_400.0


class Batch(Sequence["Message"]):
    """Messages that were handed out together.

    Answer them one by one, or all at once. ``async with batch:``, or ``with batch:`` in threads, finishes all at the
    end of the block, and requeues all after an exception; it leaves alone those that were answered in the block.

    Args:
        messages: The messages.

    Attributes:
        messages: The messages, in the order in which they arrived.
    """

    __slots__ = ("messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages: tuple[Message, ...] = tuple(messages)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        """Return one message or several."""
        return self.messages[index]

    def finish(self) -> None:
        """Finish all messages that are not answered, see :meth:`Message.finish() <nsq_ha.Message.finish>`."""
        for message in self._open():
            message.finish()

    def requeue(self, delay: float | None = None) -> None:
        """Requeue all messages that are not answered, see :meth:`Message.requeue() <nsq_ha.Message.requeue>`.

        Args:
            delay: Seconds until the redelivery. None uses the consumer's ``requeue_backoff``, and counts as a failure.

        Raises:
            ConfigError: ``delay`` is not a number, is negative or too large. The messages stay unanswered.
        """
        for message in self._open():
            message.requeue(delay)

    def touch(self) -> None:
        """Restart the message timeout of all messages that are not answered."""
        for message in self._open():
            message.touch()

    def _open(self) -> list[Message]:
        # Those that the library gave back warn that an answer comes too late.
        return [each for each in self.messages if not each.answered or each.returned is not None]

    def __enter__(self) -> Self:
        """Return the batch; for threads, see :mod:`nsq_ha.sync`."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Answer all messages, as the end of ``with message:`` does."""
        for message in self.messages:
            message.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        """Return the batch; at the end of the block it is finished, or requeued after an exception."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Answer all messages, as the end of ``async with message:`` does."""
        for message in self.messages:
            await message.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        """Show the number of messages."""
        return f"<Batch of {len(self.messages)} messages>"


class Batches(AsyncIterator[Batch]):
    """An iterator over batches.

    Args:
        next_one: Returns an awaitable for the next batch of the current task, see :meth:`Messages.batch`.
    """

    def __init__(self, next_one: Callable[[], Coroutine[Any, Any, Batch]]) -> None:
        self._next_one = next_one

    def __anext__(self) -> Coroutine[Any, Any, Batch]:
        """Return an awaitable for the next batch. Cancelling it loses no message.

        Raises:
            StopAsyncIteration: The consumer was closed.
        """
        # Not a coroutine function: the messages belong to the task that calls this, see Consumer.__anext__.
        return self._next_one()


def check_batches(max_messages: object, max_wait: object) -> None:
    """Check the arguments of ``batches``.

    Raises:
        ConfigError: One is wrong.
    """
    if not is_whole(max_messages) or not 1 <= max_messages <= MOST_MESSAGES:
        raise ConfigError(f"max_messages must be an int of 1..{MOST_MESSAGES}, not {shown(max_messages)}")
    if not is_number(max_wait) or not 0 <= max_wait <= LONGEST_WAIT:
        raise ConfigError(f"max_wait must be 0..{LONGEST_WAIT:g} seconds, not {shown(max_wait)}")


def _is_clean(before: contextvars.Context) -> bool:
    """Return whether no handler has changed the context variables of the running worker since its beginning."""
    now = contextvars.copy_context()
    if not before:
        return not now
    # Not `==`: the values are the application's.
    return len(now) == len(before) and all(now.get(key) is each for key, each in before.items())
