"""Calling handlers, and giving up on messages that were tried too often."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol

from nsq_ha.consumer.closing import Returned
from nsq_ha.consumer.threads import HandlerThreads
from nsq_ha.errors import ConfigError, LocalProtocolError, NsqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsq_ha.config import ConsumerConfig
    from nsq_ha.consumer.giving_up import GiveUpPublisher
    from nsq_ha.consumer.messages import Messages
    from nsq_ha.message import Message

log = logging.getLogger("nsq_ha.consumer")

_LONG: Final = 0.05
"""Handling for this many seconds is reported immediately."""

_MANY: Final = 64
"""Number of messages whose handling times are reported together."""


class Desk(Protocol):
    """Receives handling times; ``consumer.backlog`` implements it."""

    def handled(self, count: int, seconds: float) -> None:
        """Record that one handler took ``seconds`` for ``count`` messages."""

    def took_long(self, message: Message, began: float, handler: str) -> None:
        """Record that handling of ``message`` took long, before it is answered."""


class Tries:
    """Decides what becomes of a message by the number of its deliveries.

    Attributes:
        fine_below: A message with fewer attempts needs no check.
    """

    def __init__(self, config: ConsumerConfig, publisher: GiveUpPublisher) -> None:
        self._config = config
        self._publisher = publisher
        self._busy: set[asyncio.Task[Any] | None] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._exempt: set[int] = set()  # ids of messages whose requeue is one, however often they were tried
        warn = config.warn_attempts or 65536
        self.fine_below = min(warn, (config.max_attempts or 65535) + 1)

    def is_busy(self, task: asyncio.Task[Any] | None) -> bool:
        """Tell whether ``task`` gives a message up at this moment."""
        return task in self._busy

    async def may_be_handled(self, message: Message) -> bool:
        """Warn about a message that keeps coming, or give it up; tell whether it is to be handled."""
        attempts, warn = message.attempts, self._config.warn_attempts
        limit = self._config.max_attempts
        if limit is None or attempts <= limit:
            if warn and attempts >= warn and attempts % warn == 0 and _is_power_of_two(attempts // warn):
                log.warning("%r keeps coming: delivery %d", message, attempts)
            return True
        # It was lost, timed out or could not be given up after its last failure.
        log.warning("giving up %r unhandled: delivery %d, max_attempts=%d", message, attempts, limit)
        await self._give_up(message)
        return False

    async def failed(self, message: Message, error: BaseException) -> None:
        """Requeue a message whose handler failed, or give it up if that was its last attempt."""
        log.warning("handler failed on %r: %r", message, error, exc_info=error)
        if message.answered:
            return
        if not self._was_last(message):
            message.requeue()
            return
        self._log_last(message)
        try:
            await self._give_up(message)
        except asyncio.CancelledError:
            if not message.answered:
                self.give_back(message, "giving it up was cancelled")
            raise

    def gives_up(self, message: Message) -> bool:
        """Start to give up a requeued message if that was its last attempt; return whether it was."""
        if not self._was_last(message):
            return False
        # A copy, since the end of the caller's block must not finish this one while it is given up.
        again = copy.copy(message)
        again.answered = False
        self._log_last(message)
        task = asyncio.create_task(self._give_up(again), name=f"nsq_ha gives up {message!r}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def give_back(self, message: Message, why: str) -> None:
        """Requeue a message that has not failed, without delay.

        Args:
            message: The message, unanswered.
            why: Completes "the message was requeued because ...", for an answer that comes later.
        """
        self._exempt.add(id(message))
        try:
            message.requeue(0)
        finally:
            self._exempt.discard(id(message))
        message.source = Returned(message.source, why)

    def is_exempt(self, message: Message) -> bool:
        """Return whether the message is being requeued, or given up, by this library."""
        return id(message) in self._exempt

    @property
    def is_giving_up(self) -> bool:
        """Whether a message is being given up now."""
        return bool(self._busy or self._tasks)

    async def aclose(self) -> None:
        """Cancel pending work; its messages are redelivered."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _was_last(self, message: Message) -> bool:
        limit = self._config.max_attempts
        return (
            limit is not None
            and message.attempts >= limit
            and id(message) not in self._exempt
            and getattr(message.source, "is_alive", True)
        )

    def _log_last(self, message: Message) -> None:
        limit = self._config.max_attempts
        log.warning("giving up %r: attempt %d of %s failed", message, message.attempts, limit)

    async def _give_up(self, message: Message) -> None:
        task = asyncio.current_task()
        self._busy.add(task)
        self._exempt.add(id(message))
        try:
            await self._apply(message)
        except (Exception, asyncio.CancelledError) as error:  # the application's function: nothing may be lost
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            log.warning("%r could not be given up, it comes again: %s", message, error)
            if not message.answered:
                message.requeue()
        except BaseException:  # ends the iteration or the run: not to be given up once more on its way
            if not message.answered:
                message.requeue(0)
            raise
        else:
            if not message.answered:
                message.finish()
        finally:
            self._busy.discard(task)
            self._exempt.discard(id(message))

    async def _apply(self, message: Message) -> None:
        policy = self._config.on_give_up
        if callable(policy):
            outcome = policy(message)
            if inspect.isawaitable(outcome):
                await outcome
        else:
            await self._publisher.publish(message)


def check_concurrency(concurrency: object) -> None:
    """Check the option.

    Raises:
        ConfigError: ``concurrency`` is not an int of 1 or more.
    """
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ConfigError(f"concurrency must be an int of 1 or more, not {concurrency!r}")


def check_handler(handler: object) -> None:
    """Check that ``handler`` can be called with a message, and does something then.

    Raises:
        ConfigError: It is no function, a generator function, or takes another number of arguments.
    """
    if not callable(handler):
        raise ConfigError(f"handler must be a function of a message, not {type(handler).__name__}")
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    # Of an object the method __call__ says what a call does.
    for called in (handler, type(handler).__call__):
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise ConfigError(f"handler must be a function of a message, not a generator: {name} would never run")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(f"handler must take one argument, the message; {name}{signature} does not: {error}") from None


class Handling:
    """Runs one handler over what a consumer hands out."""

    def __init__(
        self,
        messages: Messages,
        handler: Callable[[Message], Awaitable[object] | object],
        desk: Desk,
        tries: Tries,
    ) -> None:
        """Check the handler.

        Raises:
            ConfigError: ``handler`` is not a function.
        """
        check_handler(handler)
        self._messages = messages
        self._handler = handler
        self._desk = desk
        self._tries = tries
        self._name: str = getattr(handler, "__qualname__", type(handler).__qualname__)
        # An object whose call is a coroutine function counts as one, too.
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        # A message that came again by another connection while its partition's handler still runs waits here.
        self._parked: dict[int, deque[Message]] = {}
        self._busy: dict[asyncio.Task[object], Message] = {}
        self._ended = 0.0
        self._count = 0
        self._seconds = 0.0
        self._threads = HandlerThreads(1)
        self._is_failing = False

    def is_busy(self, task: asyncio.Task[Any] | None) -> bool:
        """Tell whether ``task`` calls the handler at this moment."""
        return task in self._busy

    def handled(self, message_id: bytes) -> Message | None:
        """Return the message of that id for which the handler runs."""
        for message in self._busy.values():
            if message.id == message_id:
                return message
        return None

    async def run(self, concurrency: int, closed: asyncio.Event) -> None:
        """Run ``concurrency`` workers until the messages end.

        Args:
            concurrency: How many, 1 or more.
            closed: Set when answers can no longer be sent; running handlers are cancelled then.

        Raises:
            NsqError: What the messages' source raised.
        """
        # __anext__ may await inside: one worker at a time takes messages, in their order.
        turn = asyncio.Lock() if concurrency > 1 else None
        self._threads = HandlerThreads(concurrency)
        try:
            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(self._work(turn)) for _ in range(concurrency)]
                end = group.create_task(closed.wait())
                while not end.done() and not all(worker.done() for worker in workers):
                    await asyncio.wait({end, *workers}, return_when=asyncio.FIRST_COMPLETED)
                for task in (end, *self._busy):  # workers that only wait for messages end by themselves
                    task.cancel()
        except BaseExceptionGroup as errors:
            ours = errors.subgroup(NsqError)
            if ours is not None:
                raise _first(ours) from None
            raise
        finally:
            self._threads.close()

    async def _work(self, turn: asyncio.Lock | None) -> None:
        worker = asyncio.current_task()
        if worker is None:
            raise LocalProtocolError("a handler is called by a task")
        self._ended = monotonic()
        while True:
            # While another worker takes a message, or waits for one, this one waits for its turn.
            is_free = turn is None or not (turn.locked() or self._is_failing)
            message = self._messages.take_now() if is_free else None
            if message is None:
                try:
                    message = await (anext(self._messages) if turn is None else self._take(turn))
                except StopAsyncIteration:
                    return
                except BaseException:
                    self._is_failing = True
                    raise
                self._ended = monotonic()
            if turn is None or not getattr(message.source, "is_ordered", False):
                await self._handle(message, worker)
            else:
                await self._handle_in_order(message, worker)

    async def _take(self, turn: asyncio.Lock) -> Message:
        async with turn:
            if self._is_failing:  # the group that ends all workers is told a turn later
                raise StopAsyncIteration
            return await anext(self._messages)

    async def _handle_in_order(self, message: Message, worker: asyncio.Task[object]) -> None:
        partition = message.partition
        if partition in self._parked:
            self._parked[partition].append(message)
            return
        parked = self._parked[partition] = deque((message,))
        try:
            while parked:
                current = parked.popleft()
                if getattr(current.source, "is_alive", True):
                    await self._handle(current, worker)
        finally:
            del self._parked[partition]

    async def _handle(self, message: Message, worker: asyncio.Task[object]) -> None:
        self._busy[worker] = message
        began = self._ended  # the previous handler ended, or the message was taken, just now
        try:
            try:
                if self._is_async:
                    await self._handler(message)  # type: ignore[misc]
                else:
                    await self._call_in_thread(message)
            finally:
                self._ended = now = monotonic()
                self._seconds += now - began
                self._count += 1
                if self._seconds > _LONG or self._count >= _MANY:
                    self._report(message, began)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                self._give_back(message, "its handler was cancelled")
                raise
            # Nobody cancelled the worker: the handler awaited something that somebody else cancelled.
            await self._tries.failed(message, error)
        except Exception as error:  # noqa: BLE001 - whatever the application raises
            await self._tries.failed(message, error)
        except BaseException as error:
            self._give_back(message, f"its handler raised {type(error).__name__}")
            raise
        else:
            if not message.answered:
                message.finish()
        finally:
            del self._busy[worker]

    def _give_back(self, message: Message, why: str) -> None:
        if not message.answered:
            self._tries.give_back(message, why)

    async def _call_in_thread(self, message: Message) -> None:
        outcome = await self._threads.call(self._in_thread, message)
        if inspect.isawaitable(outcome):
            await outcome

    def _report(self, message: Message, began: float) -> None:
        if self._ended - began > _LONG:
            self._desk.took_long(message, began, self._name)
        self._desk.handled(self._count, self._seconds)
        self._count, self._seconds = 0, 0.0

    def _in_thread(self, message: Message) -> object:
        try:
            return self._handler(message)
        except StopIteration as error:
            # A future cannot hold one, and whoever awaits it would wait for ever.
            raise RuntimeError(f"handler raised {error!r}") from error


def _is_cancelled() -> bool:
    """Tell whether somebody cancels the task that runs; else a CancelledError comes from what it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _first(errors: BaseExceptionGroup[NsqError]) -> NsqError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, NsqError):
        raise TypeError(f"{error!r} in a group of NsqError")
    return error
