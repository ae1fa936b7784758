"""Read one channel in two clusters with one handler.

Owns the handlers' common limit, and the step from the previous cluster to the current one of an ordered migration.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from nsq_ha.checks import shown
from nsq_ha.consumer import Consumer
from nsq_ha.consumer.handlers import check_concurrency, check_handler
from nsq_ha.engine.single_use import Closing
from nsq_ha.errors import ClosedError, ConfigError
from nsq_ha.message import Message
from nsq_ha.migrate.draining import until_empty
from nsq_ha.migrate.pair import ClientPair
from nsq_ha.policy.migration import Cluster
from nsq_ha.signals import StopSignals
from nsq_ha.threads import is_async

Handler = Callable[[Message], Awaitable[object] | object]


log: logging.Logger = logging.getLogger("nsq_ha.migrate")


class MigratingConsumer(ClientPair[Consumer]):
    """Reads one channel of one topic in two clusters. Use it with ``async with``; it enters and closes both consumers.

    :meth:`run` calls one handler for the messages of both. To iterate, iterate ``previous`` and ``current`` in a task
    each.

    With ``order="together"`` it reads both clusters at once. Then a message of the current cluster can be handled
    before an older one of its key that still waits in the previous cluster. With ``order="previous_first"`` the
    current cluster keeps its messages until :meth:`finish_previous` has seen the previous one empty. This keeps the
    order of each key if shares only rise.

    If a cluster cannot be reached, the other one is read; the consumer of the first keeps trying.

    Args:
        previous: The consumer of the cluster to leave, not entered.
        current: The consumer of the cluster to move to, not entered; its topic may have another name.
        order: Whether to read both at once, or the current cluster only after the previous one.

    Attributes:
        previous: The consumer of the cluster to leave.
        current: The consumer of the cluster to move to.

    Raises:
        ConfigError: An argument is not valid, or both consumers are the same one.
    """

    def __init__(
        self, previous: Consumer, current: Consumer, *, order: Literal["together", "previous_first"] = "together"
    ) -> None:
        super().__init__(Consumer, previous, current)
        if order not in ("together", "previous_first"):
            raise ConfigError(f"order must be 'together' or 'previous_first', not {shown(order)}")
        if order == "previous_first" and not previous.config.lookupd:
            raise ConfigError("order='previous_first' asks the previous cluster's nsqlookupds: give it lookupd=")
        self._held: int | None = current.max_in_flight if order == "previous_first" else None
        self._clusters: dict[int, Cluster] = {}
        self._handlers: set[asyncio.Task[Any] | None] = set()
        self._close = Closing(self._close_both, self._close_both, "nsq_ha migrating consumer closes")

    async def _open(self) -> None:
        if self._held is not None:
            self.current.set_max_in_flight(0)  # it subscribes, so that the channel keeps the messages
        found = await asyncio.gather(self.previous.__aenter__(), self.current.__aenter__(), return_exceptions=True)
        for failure in found:
            if isinstance(failure, BaseException):
                raise failure

    async def aclose(self) -> None:
        """Drain and close both consumers, see :meth:`nsq_ha.Consumer.aclose`. May be called again.

        If a handler awaits this, it starts the close and returns at once.

        Raises:
            ConfigError: Called from another event loop than the one that entered it. Nothing was changed.
        """
        if self._loop is None or self._close.is_done:
            return
        self._check_loop()
        self._closing.set()
        self._close.begin()
        if asyncio.current_task() not in self._handlers:
            await self._close.wait()

    async def _close_both(self) -> None:
        await asyncio.gather(self.previous.aclose(), self.current.aclose())

    # -- order

    @property
    def is_holding(self) -> bool:
        """Whether the messages of the current cluster wait until the previous one is empty."""
        return self._held is not None

    async def finish_previous(self, timeout: float | None = None) -> None:
        """Wait until the previous cluster's channel is empty, then start to read the current cluster.

        Call it when every producer has moved (its share is 100) and its last publishes to the previous cluster are
        answered: what is published there later is not waited for. The previous consumer keeps reading. With
        ``order="together"`` it only waits.

        Args:
            timeout: Seconds. None waits without a limit.

        Raises:
            TimeoutError: The channel still has messages; the text says how many. The current cluster still waits.
            ClosedError: The consumer is closed.

        If cancelled, the current cluster still waits.
        """
        if self._loop is None:
            raise ClosedError("the consumer is not open: use it with 'async with'")
        self._check_loop()
        await until_empty(self.previous, self._closing, timeout)
        if self._closing.is_set():
            raise ClosedError("the consumer is closed")
        held, self._held = self._held, None
        if held is not None:
            self.current.set_max_in_flight(held)

    # -- handling

    def cluster_of(self, message: Message) -> Cluster:
        """Return which cluster delivered a message that a handler of :meth:`run` handles now.

        Raises:
            ConfigError: No handler handles the message now.
        """
        cluster = self._clusters.get(id(message))
        if cluster is None:
            raise ConfigError(f"no handler of this consumer handles {message!r} now")
        return cluster

    async def run(
        self,
        handler: Callable[[Message], Awaitable[object] | object],
        *,
        concurrency: int = 1,
        install_signal_handlers: bool = False,
    ) -> None:
        """Call ``handler`` for each message of both clusters until the consumer is closed.

        It works like :meth:`nsq_ha.Consumer.run`, which both consumers run; ``concurrency`` is the limit of both
        together. On an ordered topic the messages of one partition of one cluster are handled one at a time.

        Args:
            handler: A coroutine function or a plain one that takes a :class:`~nsq_ha.Message`.
            concurrency: Maximum number of handlers at a time, 1..10000.
            install_signal_handlers: During this call, SIGTERM or SIGINT closes both consumers, and a second signal at
                once. At the end the previous handlers are back.

        Raises:
            ConfigError: As for a consumer.
            ServerError: nsqd refused, and retrying cannot help. The other cluster's handlers are cancelled.
            ClosedError: The consumer was closed before this call, or not entered.
        """
        check_handler(handler)
        check_concurrency(concurrency)
        if not install_signal_handlers:
            await self._run(handler, concurrency)
            return
        with StopSignals(asyncio.get_running_loop(), self._signalled, self._close.hurry):
            await self._run(handler, concurrency)
            if self._close.has_begun:
                await self._close.wait()

    def _signalled(self, signal_name: str) -> None:
        name = f"{self.previous.topic}/{self.previous.channel}"
        log.info("%s: closing in both clusters after %s; a second signal closes at once", name, signal_name)
        self._closing.set()
        self._close.begin()

    async def _run(self, handler: Handler, concurrency: int) -> None:
        over = threading.Event()
        wrapped = self._awaiting(handler, concurrency)
        if not is_async(handler):
            wrapped = self._blocking(handler, concurrency, over)
        runs = [
            asyncio.create_task(_outcome(consumer.run(wrapped(cluster), concurrency=concurrency)))
            for consumer, cluster in self._both()
        ]
        try:
            while pending := [run for run in runs if not run.done()]:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for run in runs:
                    if run.done() and (error := run.result()) is not None:
                        raise error
        finally:
            over.set()
            for run in runs:
                run.cancel()
            await asyncio.wait(runs)

    def _both(self) -> tuple[tuple[Consumer, Cluster], ...]:
        return (self.previous, "previous"), (self.current, "current")

    def _awaiting(self, handler: Handler, concurrency: int) -> Callable[[Cluster], Handler]:
        """Return how to wrap a coroutine function for each cluster."""
        room = asyncio.Semaphore(concurrency)

        def wrapped(cluster: Cluster) -> Handler:
            @functools.wraps(handler)
            async def handle(message: Message) -> object:
                task = asyncio.current_task()
                async with room:
                    self._handlers.add(task)
                    try:
                        with self._handling(message, cluster):
                            return await handler(message)  # type: ignore[misc]  # is_async() says so
                    finally:
                        self._handlers.discard(task)

            return handle

        return wrapped

    def _blocking(self, handler: Handler, concurrency: int, over: threading.Event) -> Callable[[Cluster], Handler]:
        """Return how to wrap a plain function, which the consumers call in threads, for each cluster.

        A thread that waits for its turn when the run ends does not call the function: its message has gone back.
        """
        room = threading.Semaphore(concurrency)

        def wrapped(cluster: Cluster) -> Handler:
            @functools.wraps(handler)
            def handle(message: Message) -> object:
                with room:
                    if over.is_set():
                        return None
                    with self._handling(message, cluster):
                        return handler(message)

            return handle

        return wrapped

    @contextmanager
    def _handling(self, message: Message, cluster: Cluster) -> Iterator[None]:
        """Let :meth:`cluster_of` know a message during its handler."""
        self._clusters[id(message)] = cluster
        try:
            yield
        finally:
            self._clusters.pop(id(message), None)


async def _outcome(run: Awaitable[None]) -> BaseException | None:
    """Return the error of a run, also one that would end the event loop if it left a task."""
    try:
        await run
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - raised again by the caller
        return error
    return None
