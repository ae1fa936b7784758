"""The consumer: the object with which an application reads a channel of a topic.

This module has the public calls, and starts and ends everything else: ``consumer.machine`` decides about messages and
connections, ``consumer.shell`` and ``consumer.connecting`` do what it wants, ``consumer.handlers`` hands messages out.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, ClassVar, Final, Self, Unpack

from nsq_ha.base.clock import monotonic
from nsq_ha.consumer.connecting import CUT_OFF_TIMEOUT, Connecting
from nsq_ha.consumer.giving_up import GiveUpPublisher
from nsq_ha.consumer.handlers import (
    Batch,
    Batches,
    Handling,
    Iterators,
    Messages,
    check_batches,
    check_handler,
)
from nsq_ha.consumer.shell import ConsumerShell
from nsq_ha.consumer.statistics import consumer_notes, consumer_stats
from nsq_ha.dead_letters.letter import Publishes
from nsq_ha.engine.lookups import Lookups
from nsq_ha.engine.single_use import Closing, SingleUseClient, options_of
from nsq_ha.engine.waiting import is_foreign
from nsq_ha.errors import ClosedError, ConfigError, NsqError, ResponseTimeoutError
from nsq_ha.message import Message
from nsq_ha.options.checks import check_channel, check_timeout, check_topic
from nsq_ha.options.config import ConsumerConfig
from nsq_ha.options.environment import config_from_env
from nsq_ha.options.keywords import ConsumerOptions
from nsq_ha.options.language import declared
from nsq_ha.policy.health import Trouble
from nsq_ha.process.clients import clients
from nsq_ha.process.signals import StopSignals
from nsq_ha.stats import ConsumerStats

_AT_EXIT: Final = 1.5
"""Seconds that an exiting process waits for the event loop of a consumer that nobody has closed."""

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Consumer(SingleUseClient):
    """Reads one channel of one topic, all partitions or some. Use it with ``async with``.

    Iterate to get the messages, and answer each one yourself. :meth:`run` calls
    a handler instead, and finishes or requeues by its outcome.

    Entering subscribes. It returns when all partitions are subscribed; after
    ``start_timeout`` it logs a warning and continues in the background. A new
    channel gets only the messages published after this; the warning names the
    partitions that may not have it yet. Entering raises a
    ServerError if retrying cannot help (no permission, or a channel that must
    be registered first).

    Args:
        topic: The topic.
        channel: The channel. nsqd creates it on first use; it starts at the end of the topic.
        producer: Publishes for ``on_give_up="republish"`` and ``"dead_letter"``.
        config: All options in one object. None takes them from ``options``.
        **options: The fields of :class:`~nsq_ha.ConsumerConfig`, such as ``lookupd``, the HTTP address of one
            nsqlookupd or several. The client discovers the others.

    Raises:
        ConfigError: An option is unknown or out of range, a name is not valid,
            ``lookupd`` is missing, or given-up messages could not be published.
    """

    _shell_type: ClassVar[type[ConsumerShell]] = ConsumerShell

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        producer: Publishes[Awaitable[object]] | None = None,
        config: ConsumerConfig | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self.config: ConsumerConfig = options_of(ConsumerConfig, config, options)
        self.topic: str = check_topic(topic)
        self.channel: str = check_channel(channel)
        if self.config.partitions == ():
            raise ConfigError("partitions must name at least one partition; None reads all of them")
        if callable(self.config.on_give_up):
            check_handler(self.config.on_give_up, "on_give_up")
        self._give_up_publisher = GiveUpPublisher(self.config, self.topic, producer)
        self._shell = self._shell_type(f"{topic}/{channel}", self.config, self._give_up_publisher, self._check_loop)
        self._iterators = Iterators(self._shell)
        self._close = Closing(self._close_gently, self._end, f"nsq_ha consumer {self.topic} closes")
        self._lookups = Lookups(self.config, access="r", observer=self._shell.observer, channel=self.channel)
        self._connecting: Connecting | None = None
        self._is_signalled = False

    @classmethod
    def from_env(
        cls,
        topic: str,
        channel: str,
        *,
        producer: Publishes[Awaitable[object]] | None = None,
        **overrides: Unpack[ConsumerOptions],
    ) -> Self:
        """Create a consumer with the options of ``NSQ_HA_*`` variables and of the TOML file of ``NSQ_HA_CONFIG``.

        Args:
            topic: The topic.
            channel: The channel.
            producer: Publishes for ``on_give_up="republish"`` and ``"dead_letter"``.
            **overrides: Options that win over both.

        Raises:
            ConfigError: A name or a value is wrong, or no address is given. The error names the variable, or the key
                and the file.
        """
        return cls(topic, channel, producer=producer, config=config_from_env(ConsumerConfig, overrides))

    async def _open(self) -> None:
        await self._give_up_publisher.check()
        self._shell.start()
        await self._lookups.start()
        watch = self._lookups.watch(self.topic)
        self._connecting = connecting = Connecting(watch, self._shell)
        connecting.begin()
        clients.opened("consumer", self, on_exit=self._left_open)
        try:
            async with asyncio.timeout(self.config.start_timeout):
                # A plain topic that no nsqd has keeps its messages for its first channel: nothing is missed.
                await self._wait_until(lambda: self._is_subscribed() or watch.is_nowhere)
        except TimeoutError:
            connecting.partitions.warn_at_start(monotonic())

    async def wait_subscribed(self) -> None:
        """Wait until all partitions to read are subscribed, without a time limit.

        Raises:
            ClosedError: The consumer is closed.
            ServerError: nsqd refused, and retrying cannot help.
            ConfigError: Called from another event loop than the one that entered it.
        """
        self._check_loop()
        await self._wait_until(self._is_subscribed)

    async def wait_ready(self, *, timeout: float | None = None) -> None:
        """Wait until all partitions to read are subscribed, as :meth:`wait_subscribed` does, for a limited time.

        Args:
            timeout: Seconds. None for no limit.

        Raises:
            ResponseTimeoutError: Not all partitions were subscribed in time; the text says why. It is a TimeoutError,
                too.
            ClosedError: The consumer is closed.
            ServerError: nsqd refused, and retrying cannot help.
            ConfigError: ``timeout`` is not valid, or this is another event loop than the one that entered it.
        """
        limit = None if timeout is None else check_timeout(timeout)
        try:
            async with asyncio.timeout(limit):
                await self.wait_subscribed()
        except TimeoutError as error:
            if isinstance(error, NsqError):
                raise
            why = "" if self._connecting is None else f": {self._connecting.partitions.why_not()}"
            raise ResponseTimeoutError(
                f"{self._shell.name}: not all partitions are subscribed after {timeout:g} s{why}"
            ) from None

    def stats(self) -> ConsumerStats:
        """Return the counts and states of all partitions. It may be called at any time, from any thread."""
        watch = None if self._connecting is None else self._connecting.partitions.watch
        return consumer_stats(self._shell, watch, self._lookups.counts)

    def _stopped(self) -> str | None:
        if self._shell.failure is not None:
            return str(self._shell.failure)
        return super()._stopped()

    def _troubles(self) -> list[Trouble]:
        return [] if self._connecting is None else self._connecting.partitions.troubles(monotonic())

    def _notes(self) -> list[str]:
        return consumer_notes(self._shell.machine)

    def _is_subscribed(self) -> bool:
        return self._connecting is not None and self._connecting.partitions.are_subscribed()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while True:
            self._shell.check_open()
            if condition():
                return
            self._shell.changed.clear()
            await self._shell.changed.wait()

    async def aclose(self) -> None:
        """Drain and close within ``close_timeout``. May be called again.

        No new message is handed out. Unanswered messages:

        * Messages that were not handed out, or that the calling task got by iterating, go back to nsqd at once, since
          the task cannot answer while it waits here. Finish them first, also those that it passed on to other tasks.
        * Messages of another iterating task, and of handlers of :meth:`run`, may be answered until the limit, as long
          as that task runs. If it ends, they go back.

        Leaving the block does the same, at its end and by ``break``, ``return``, an exception or a cancellation. Only
        an exception counts as a failed attempt.

        If a handler or ``on_give_up`` awaits this, it starts the close and
        returns at once, since waiting would be a deadlock. The current message
        is answered as usual, :meth:`run` returns after the last handler, and
        leaving the block waits for the end. This works only in the handler's
        own task: a task that the handler started must not await this while the
        handler waits for that task.

        If cancelled, it closes without waiting for answers.

        Raises:
            ConfigError: Called from another event loop than the one that entered it. Nothing was changed.
        """
        await self._shut(has_failed=False)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close, see :meth:`aclose`."""
        await self._shut(has_failed=error is not None and is_foreign(error))

    async def _shut(self, *, has_failed: bool) -> None:
        if self._loop is None or self._close.is_done:
            return
        self._check_loop()
        task = asyncio.current_task()
        if self._shell.is_busy(task):  # it would wait for itself
            self._begin_close()
            return
        self._iterators.leave(task, has_failed=has_failed)
        self._begin_close()
        await self._close.wait()

    async def _close_gently(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + self.config.close_timeout
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._shell.drained()
            except TimeoutError:
                log.warning("%s: closed with messages unanswered: %s", self._shell.name, self._unanswered_by_nsqd())
                await self._cut_off(max(began + CUT_OFF_TIMEOUT - loop.time(), 0.0))
            if self._connecting is not None:
                await self._connecting.aclose(deadline)
        except asyncio.CancelledError:  # aclose() was cancelled: close without waiting
            return

    def _unanswered_by_nsqd(self) -> str:
        """Return how many messages of which nsqds are unanswered."""
        counts = Counter(message.nsqd for message in self._shell.machine.unanswered)
        named = ", ".join(f"{count} of {nsqd}" for nsqd, count in sorted(counts.items()))
        return named or "none, but an nsqd did not answer CLS"

    async def _end(self) -> None:
        """End everything, even with messages unanswered; may be called again."""
        await self._cut_off()
        self._shell.end()
        self._iterators.forget()
        if self._connecting is not None:
            await self._connecting.end()
        await self._shell.giving_up.aclose()
        await self._lookups.aclose()
        self._shell.observer.flush()
        clients.closed(self)
        # Their answers can no longer be sent; workers that wait for a message end by themselves.
        for task in tuple(self._shell.busy):
            task.cancel()

    async def _cut_off(self, timeout: float = CUT_OFF_TIMEOUT) -> None:
        """Requeue the messages in flight that a plain nsqd would keep until their timeout."""
        if self._connecting is not None:
            await self._connecting.cut_off(self._shell.machine.conns, timeout)

    def _left_open(self) -> Callable[[], None] | None:
        """Begin to requeue what a plain nsqd would keep until its timeout; called as the process exits.

        That takes an event loop that still runs, in another thread. Without one, log how many messages there are.

        Returns:
            Waits for the end.
        """
        loop = self._loop
        kept = sorted((conn.node.address, *conn.kept) for conn in self._shell.machine.conns if conn.kept[1])
        if not kept or loop is None:
            return None
        done: concurrent.futures.Future[None] | None = None
        if loop.is_running():
            cutting_off = self._cut_off()
            try:
                done = asyncio.run_coroutine_threadsafe(cutting_off, loop)
            except RuntimeError:  # closed in this moment
                cutting_off.close()

        def wait() -> None:
            if done is None or not concurrent.futures.wait([done], _AT_EXIT).done:
                log.warning(
                    "%s: the process exits without closing the consumer: %s messages stay in flight until nsqd's"
                    " message timeout: %s. Use the consumer with `async with`, or await aclose()",
                    self._shell.name,
                    _number(sum(least for _, least, _ in kept), sum(most for _, _, most in kept)),
                    ", ".join(f"{_number(least, most)} of {nsqd}" for nsqd, least, most in kept),
                )

        return wait

    # -- RDY

    @property
    def max_in_flight(self) -> int:
        """Maximum number of unanswered messages over all partitions."""
        return self._shell.machine.flow.max_in_flight

    def set_max_in_flight(self, count: int) -> None:
        """Change ``max_in_flight`` while running; 0 pauses.

        Raises:
            ConfigError: ``count`` is out of the option's range, or this is another event loop than the one that
                entered it.
        """
        self._check_loop()
        checked = declared(ConsumerConfig)["max_in_flight"].check(count)
        self._shell.machine.set_max_in_flight(checked, monotonic())
        self._shell.due()

    @property
    def max_rate(self) -> float | None:
        """Maximum number of messages handed out a second. None for no limit."""
        rate = self._shell.machine.flow.rate
        return None if rate is None else rate.per_second

    def set_max_rate(self, rate: float | None) -> None:
        """Change ``max_rate`` while running.

        Args:
            rate: Messages a second. None for no limit.

        Raises:
            ConfigError: ``rate`` is out of the option's range, or this is another event loop than the one that
                entered it.
        """
        self._check_loop()
        self._shell.machine.limit_rate(declared(ConsumerConfig)["max_rate"].check(rate), monotonic())
        self._shell.due()

    # -- handing out

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages until the consumer is closed.

        Raises:
            ConfigError: :meth:`run` is active, or this is another event loop than the one that entered it.
        """
        return self._messages_of_task()

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        """Return an awaitable for the next message.

        Cancelling it loses no message.

        Raises:
            StopAsyncIteration: The consumer was closed.
            ServerError: nsqd refused, and retrying cannot help.
            ClosedError: The consumer was not entered.
            ConfigError: As for iterating.
        """
        # Not a coroutine function: the messages belong to the task that calls this, not to one that asyncio.wait_for
        # may create for the coroutine.
        return self._messages_of_task().__anext__()

    def get(self, *, timeout: float | None = None) -> Coroutine[Any, Any, Message]:
        """Return an awaitable for the next message, as iterating does, for a limited time.

        That nothing came in time does not mean that the channel is empty: see "Read until the channel is empty".

        Cancelling it loses no message.

        Args:
            timeout: Seconds to wait for a message. None for no limit.

        Raises:
            TimeoutError: No message came in time. It is no NsqError, and the next call goes on.
            ServerError: nsqd refused, and retrying cannot help.
            ClosedError: The consumer is closed, or was not entered.
            ConfigError: ``timeout`` is not valid; or as for iterating.
        """
        limit = None if timeout is None else check_timeout(timeout)
        return self._get(self._messages_of_task(), limit)  # not a coroutine function: see __anext__

    async def _get(self, messages: Messages, limit: float | None) -> Message:
        try:
            async with asyncio.timeout(limit):
                return await anext(messages)
        except StopAsyncIteration:
            raise ClosedError("the consumer is closed") from None
        except TimeoutError as error:
            if isinstance(error, NsqError):
                raise
            raise TimeoutError(f"{self._shell.name}: no message came within {limit:g} s") from None

    def _messages_of_task(self) -> Messages:
        self._check_loop()
        return self._iterators.of_task()

    def batches(self, max_messages: int = 100, max_wait: float = 1.0) -> AsyncIterator[Batch]:
        """Iterate over batches of messages until the consumer is closed.

        A batch is handed out when it is full, ``max_wait`` seconds after its first message, when the consumer closes,
        or when no message will come before one is answered. The last means at most ``max_in_flight`` messages, on an
        ordered topic at most one message of each partition, and one message after a failure.

        What is said of a single message holds for each one of a batch: answer it, and ``break``, an exception or a
        close treat it as they do in an iteration over messages. Several tasks may iterate; they share the messages.

        Args:
            max_messages: Most messages of a batch.
            max_wait: Longest time between the first message and handing out the batch, in seconds. 0 takes what is
                there.

        Raises:
            ConfigError: An argument is wrong, :meth:`run` is active, or this is another event loop than the one that
                entered the consumer.
        """
        check_batches(max_messages, max_wait)
        self._warn_of_batches(max_messages)
        return Batches(lambda: self._messages_of_task().batch(max_messages, max_wait))

    def _warn_of_batches(self, max_messages: int) -> None:
        """Warn if batches can never be full."""
        if 0 < self.max_in_flight < max_messages:
            log.warning(
                "%s: batches get at most max_in_flight=%d messages: raise it to max_messages=%d or more",
                self._shell.name,
                self.max_in_flight,
                max_messages,
            )

    async def run(
        self,
        handler: Callable[[Message], Awaitable[object] | object],
        *,
        concurrency: int = 1,
        install_signal_handlers: bool = False,
    ) -> None:
        """Call ``handler`` for each message until the consumer is closed; one call at a time.

        When a handler returns, whatever it returns, its message is finished. If it raises, the message is requeued
        after ``requeue_backoff``. If the handler answered the message itself, nothing is added. If it raises
        ``SystemExit`` or another ``BaseException`` that is no ``Exception``, this call asks for no more messages,
        requeues this one at once, cancels the other handlers and raises it. Plain functions run in threads; this call
        starts up to ``concurrency`` of its own. On an ordered topic the messages of one partition are handled one at a
        time, in order, whatever ``concurrency`` is.

        Args:
            handler: A coroutine function or a plain one that takes a :class:`~nsq_ha.Message`.
            concurrency: Maximum number of handlers at a time, 1..10000.
            install_signal_handlers: During this call, SIGTERM or SIGINT closes the consumer: running handlers may end
                within ``close_timeout``, then this call returns. A second signal cancels them and closes at once. At
                the end the previous handlers are back.

        Raises:
            ConfigError: ``concurrency`` is not an int of 1..10000, ``handler`` is not a function of one argument,
                another call is active, this is another event loop than the one that entered it, or signal handlers
                are asked for outside the main thread.
            ServerError: nsqd refused, and retrying cannot help.
            ClosedError: The consumer was closed before this call, or not entered.

        If cancelled, it cancels the running handlers. That is no failed attempt: their messages wait in the consumer
        for the next call or iteration, or go back to nsqd when the consumer closes. When the consumer is closed,
        handlers that still run at ``close_timeout`` are cancelled. A plain function in a thread runs on, and its
        result is dropped. The threads are daemons, so the process can exit.
        """
        self._check_loop()
        handling = Handling(self._shell, handler, concurrency)
        self._shell.check_free()
        if 0 < self.max_in_flight < concurrency:
            log.warning(
                "%s: only %d of %d handlers can run at once: raise max_in_flight=%d to concurrency or more",
                self._shell.name,
                self.max_in_flight,
                concurrency,
                self.max_in_flight,
            )
        loop = asyncio.get_running_loop()
        stop_signals = StopSignals(loop, self._stop_gently, self._stop_at_once) if install_signal_handlers else None
        with stop_signals or contextlib.nullcontext():
            with self._shell.running(concurrency):
                await handling.run()
            if self._is_signalled:
                await self._close.wait()

    def _stop_gently(self, signal_name: str) -> None:
        """Close the consumer after a signal."""
        log.info("%s: closing after %s; a second signal closes at once", self._shell.name, signal_name)
        self._is_signalled = True
        self._begin_close()

    def _begin_close(self) -> None:
        if not self._close.has_begun:
            self._shell.close()
        self._close.begin()

    def _stop_at_once(self) -> None:
        log.warning("%s: closing at once: running handlers are cancelled", self._shell.name)
        self._close.hurry()


def _number(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"


def begin_stop(consumer: Consumer) -> None:
    """Start to close an entered consumer gently; return at once."""
    consumer._begin_close()  # noqa: SLF001 - the class is this module's


def stop_at_once(consumer: Consumer) -> None:
    """Cancel the running handlers of a consumer that is closing."""
    consumer._close.hurry()  # noqa: SLF001 - the class is this module's
