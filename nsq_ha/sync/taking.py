"""Iterating over a consumer's messages in threads.

Each thread that iterates has an iterator of its own over the consumer's messages, as a task has. So the consumer knows
whose messages they are: it waits for those of a thread that still works, and gives back those of one that has left.

A thread that is quick gets several messages at a time, since each exchange between two threads costs more than a
message. The invariants: a message that the thread has not taken is given back when the consumer closes, and after
``FRESH`` seconds; a message whose connection has gone is not handed out.

A wait that ends early, by its limit or by the exception of a signal handler, withdraws nothing: the event loop goes on
taking, and the thread's next call gets what there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import nsq_ha
from nsq_ha.base.clock import monotonic
from nsq_ha.base.threads import is_async
from nsq_ha.consumer.handlers import Batch, Messages, check_handler
from nsq_ha.errors import ClosedError
from nsq_ha.message import State
from nsq_ha.process.signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsq_ha.dead_letters.letter import Publishes
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.process.loop_thread import CallFuture, Portal


_here: Final = threading.local()
"""Of each thread: ``engines``, the consumers whose functions run in it."""


class ThreadedConsumer(nsq_ha.Consumer):
    """A consumer whose messages threads take, and whose functions know which consumer calls them.

    Attributes:
        on_pause: Functions to call, in the event loop, when messages that no thread has seen must wait.
    """

    def __init__(
        self, topic: str, channel: str, *, producer: Publishes[Awaitable[object]] | None, config: ConsumerConfig
    ) -> None:
        """Take the arguments of :class:`nsq_ha.Consumer`."""
        if callable(config.on_give_up) and not is_async(config.on_give_up):
            check_handler(config.on_give_up, "on_give_up")
            config = dataclasses.replace(config, on_give_up=self._known(config.on_give_up))
        super().__init__(topic, channel, producer=producer, config=config)
        self.on_pause: set[Callable[[], None]] = self._shell.on_pause

    async def run(
        self,
        handler: Callable[[Message], Awaitable[object] | object],
        *,
        concurrency: int = 1,
        install_signal_handlers: bool = False,
    ) -> None:
        """Run handlers, see :meth:`nsq_ha.Consumer.run`; :func:`is_called_by` knows plain ones.

        Args:
            handler: The function.
            concurrency: Handlers at a time.
            install_signal_handlers: Ignored. A thread waits in :meth:`signals`.
        """
        check_handler(handler)
        known = handler if is_async(handler) else self._known(handler)
        await super().run(known, concurrency=concurrency)

    def signals(self, loop: asyncio.AbstractEventLoop) -> StopSignals:
        """Return what closes the consumer at a signal, for the main thread.

        Args:
            loop: The consumer's event loop.

        Raises:
            ConfigError: This is not the main thread.
        """
        return StopSignals(loop, self._stop_gently, self._stop_at_once)

    def messages(self) -> Messages:
        """Return an iterator over the messages, whose owner is known by it."""
        return Messages(self._shell)

    async def take_into(self, ready: deque[Message], messages: Messages, most: int) -> None:
        """Wait for a message and append it to ``ready``, with those that can be handed out at once.

        Args:
            ready: Takes the messages.
            messages: Iterates over them.
            most: The number of messages at most.

        Raises:
            StopAsyncIteration: The consumer was closed.
            NsqError: As for an iteration.
        """
        self._shell.check_iterable()
        ready.append(await anext(messages))
        for _ in range(most - 1):
            message = messages.take_now()
            if message is None:
                return
            ready.append(message)

    async def take_batch(self, messages: Messages, max_messages: int, max_wait: float) -> Batch:
        """Wait for a batch, see :meth:`nsq_ha.Consumer.batches`.

        Raises:
            StopAsyncIteration: The consumer was closed.
            NsqError: As for an iteration.
        """
        self._shell.check_iterable()
        return await messages.batch(max_messages, max_wait)

    def left(self, messages: Messages) -> None:
        """Take that an iterator's thread answers no more messages."""
        messages.is_over = True
        self._shell.changed.set()

    def take_back(self, message: Message, why: str) -> None:
        """Put a message that no thread has seen back to the head of the queue; ``why`` is for the log."""
        self._shell.take_back(message, why)

    def _known(self, function: Callable[[Message], object]) -> Callable[[Message], object]:
        @functools.wraps(function)
        def call(message: Message) -> object:
            engines = _engines()
            engines.append(self)
            try:
                return function(message)
            finally:
                engines.remove(self)

        if not hasattr(function, "__qualname__"):
            call.__qualname__ = type(function).__qualname__
        return call


def is_called_by(engine: nsq_ha.Consumer) -> bool:
    """Return whether this thread runs a function that the consumer has called."""
    return engine in _engines()


def _engines() -> list[ThreadedConsumer]:
    found: list[ThreadedConsumer] | None = getattr(_here, "engines", None)
    if found is None:
        found = _here.engines = []
    return found


MOST: Final = 64
"""Messages that a thread gets at a time; of more, the exchange no longer shows in the cost of one."""

QUICK: Final = 0.01
"""Seconds within which a thread must have handled what it got, to get more the next time."""

FRESH: Final = 0.25
"""Seconds after which messages that a thread has not taken are given back, so that the consumer checks their age."""

_NOT_TAKEN: Final = "the thread that iterates did not ask for it in time"


class ThreadTaker:
    """Takes messages for one thread."""

    def __init__(self, portal: Portal, engine: ThreadedConsumer) -> None:
        """Begin nothing yet: a signal handler may raise an exception before anybody knows of this.

        Args:
            portal: The event loop.
            engine: The consumer.
        """
        self._portal = portal
        self._engine = engine
        self._messages = engine.messages()
        self._ready: deque[Message] = deque()
        self._batches: deque[Batch] = deque()
        self._fresh_until = 0.0
        self._filling: CallFuture[None] | None = None
        self._most = 1
        self._is_timed = False
        self._is_over = False

    # ------------------------------------------------------------ in the thread

    def take(self, limit: float | None = None) -> Message:
        """Wait for the next message and return it, for at most ``limit`` seconds.

        Raises:
            StopIteration: The consumer was closed.
            TimeoutError: There is none in time.
            NsqError: As for an async iteration.
        """
        ready = self._ready
        until = None if limit is None else monotonic() + limit
        while True:
            if ready and monotonic() < self._fresh_until:
                try:
                    message = ready.popleft()
                except IndexError:  # the consumer closes, and has taken it back
                    continue
                if message.state is not State.ORPHANED:
                    return message
            else:
                self._ask(until=until)

    def take_batch(self, max_messages: int, max_wait: float) -> Batch:
        """Wait for the next batch and return it.

        Raises:
            StopIteration: The consumer was closed.
            NsqError: As for an async iteration.
        """
        while True:
            if not (self._batches and monotonic() < self._fresh_until):
                self._ask((max_messages, max_wait))
            with contextlib.suppress(IndexError):  # the consumer closes, and has taken it back
                return self._batches.popleft()

    def _ask(self, wish: tuple[int, float] | None = None, until: float | None = None) -> None:
        if self._filling is None or self._filling.done():  # else an earlier call did not wait for its end
            was_quick = monotonic() - (self._fresh_until - FRESH) < QUICK
            self._most = min(2 * self._most, MOST) if was_quick else 1
            self._filling = self._portal.submit(partial(self._fill, wish))
        try:
            self._filling.result(None if until is None else max(until - monotonic(), 0.0))
        except (StopAsyncIteration, ClosedError) as error:
            if isinstance(error, ClosedError) and not self._is_over:
                raise
            raise StopIteration from None

    # ------------------------------------------------------------ in the event loop

    def give_back(self) -> None:
        """Give back what the thread has not taken, in its order."""
        while self._ready:
            with contextlib.suppress(IndexError):  # the thread takes it just now
                self._engine.take_back(self._ready.pop(), _NOT_TAKEN)
        while self._batches:
            with contextlib.suppress(IndexError):
                for message in reversed(self._batches.pop()):
                    self._engine.take_back(message, _NOT_TAKEN)

    def _give_back_late(self) -> None:
        """Give back what the thread has not taken in time: others may wait for it."""
        left = self._fresh_until - monotonic()
        self._is_timed = bool(self._ready or self._batches) and left > 0
        if self._is_timed:
            self._portal.loop.call_later(left, self._give_back_late)
        elif left <= 0:
            self.give_back()

    async def end(self) -> None:
        """End: the messages that the thread has not answered go back when the consumer closes."""
        self.drop()
        if self._filling is not None:
            await asyncio.gather(asyncio.wrap_future(self._filling), return_exceptions=True)

    def drop(self) -> None:
        """Begin to end: the thread has ended, or leaves."""
        self._is_over = True
        self.give_back()
        self._engine.left(self._messages)
        self._engine.on_pause.discard(self._pause)
        if self._filling is not None:
            self._filling.abandon()

    def _pause(self) -> None:
        self._fresh_until = 0.0  # the thread gives back what it has not seen

    async def _fill(self, wish: tuple[int, float] | None) -> None:
        self.give_back()
        if self._is_over:
            raise StopAsyncIteration
        self._engine.on_pause.add(self._pause)
        try:
            if wish is None:
                await self._engine.take_into(self._ready, self._messages, self._most)
            else:
                self._batches.append(await self._engine.take_batch(self._messages, *wish))
        finally:
            self._fresh_until = monotonic() + FRESH
        if not self._is_timed:
            self._give_back_late()


class Handle:
    """Belongs to one thread, which drops it when it ends; then nothing is taken for it any more.

    Attributes:
        taker: The thread's.
    """

    def __init__(self, taker: ThreadTaker, dropped: Callable[[ThreadTaker], None], portal: Portal) -> None:
        self.taker: ThreadTaker = taker
        self._dropped = dropped
        self._portal = portal

    def __del__(self) -> None:
        """Take nothing more for the thread."""
        with contextlib.suppress(ClosedError):
            self._portal.post(partial(self._dropped, self.taker))
