"""The async consumer, with what threads need besides: functions of the application run in threads that are known."""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import TYPE_CHECKING, Final

import nsq_ha
from nsq_ha.base.threads import is_async
from nsq_ha.consumer.handlers import Batch, Batches, check_handler
from nsq_ha.process.signals import StopSignals

if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from collections.abc import Awaitable, Callable

    from nsq_ha.dead_letters.letter import Publishes
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig

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
            install_signal_handlers: A thread waits in :meth:`signals`, and this call does not end before the close.
        """
        check_handler(handler)
        known = handler if is_async(handler) else self._known(handler)
        await super().run(known, concurrency=concurrency)
        if install_signal_handlers:
            await self._wait_stopped()

    def signals(self, loop: asyncio.AbstractEventLoop) -> StopSignals:
        """Return what closes the consumer at a signal, for the main thread.

        Args:
            loop: The consumer's event loop.

        Raises:
            ConfigError: This is not the main thread.
        """
        return StopSignals(loop, self._stop_gently, self._stop_at_once)

    async def take_into(self, ready: deque[Message], most: int) -> None:
        """Wait for a message and append it to ``ready``, with those that can be handed out at once.

        Args:
            ready: Takes the messages.
            most: The number of messages at most.

        Raises:
            StopAsyncIteration: The consumer was closed.
            NsqError: As for an iteration.
        """
        messages = self._messages_of_task()
        ready.append(await anext(messages))
        for _ in range(most - 1):
            message = messages.take_now()
            if message is None:
                return
            ready.append(message)

    async def take_batch(self, max_messages: int, max_wait: float) -> Batch:
        """Wait for a batch, see :meth:`nsq_ha.Consumer.batches`.

        Raises:
            StopAsyncIteration: The consumer was closed.
            NsqError: As for an iteration.
        """
        return await anext(Batches(self._messages_of_task, self._hands, max_messages, max_wait))

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
