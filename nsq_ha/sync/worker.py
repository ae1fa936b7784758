"""The worker for threads: handlers for several topics and channels, while one thread waits in ``run``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Self, TypeVar, Unpack, cast

import nsq_ha
import nsq_ha.sync.producer
from nsq_ha.base.forks import OfOneProcess
from nsq_ha.dead_letters.letter import Publishes
from nsq_ha.engine.single_use import options_of
from nsq_ha.errors import ClosedError
from nsq_ha.message import Message
from nsq_ha.options.config import ConsumerConfig
from nsq_ha.options.environment import config_from_env
from nsq_ha.options.keywords import ConsumerOptions
from nsq_ha.policy.timing import FIRST_WARNING
from nsq_ha.process import loop_thread
from nsq_ha.process.loop_thread import Portal
from nsq_ha.process.signals import StopSignals, check_main_thread, wait_here
from nsq_ha.stats import Health, WorkerStats
from nsq_ha.sync.consumer import Consumer
from nsq_ha.sync.facade import Begun, check_thread, client_of

_Handler = TypeVar("_Handler", bound=Callable[[Message], Awaitable[object] | object])


class WorkerConsumer(Consumer):
    """A consumer of a worker, which starts it and runs its handler."""

    def prepare(self) -> nsq_ha.Consumer:
        """Start the producer for what is given up, and return the async consumer to run."""
        self._start_producer()
        return self._client

    def adopt(self, portal: Portal) -> None:
        """Be started, since the worker starts and closes the async client in this loop."""
        done: Future[None] = Future()
        done.set_result(None)
        self._begun, self._portal = Begun(portal, done), portal

    def _start(self, call: str, limit: float | None = None) -> Portal:
        if self._begun is None:
            name = f"{self.topic}/{self.channel}"
            raise ClosedError(f"Consumer.{call}() of {name}: its worker starts it, so call Worker.run() before")
        return super()._start(call, limit)


class _Engine(nsq_ha.Worker):
    """The async worker; its consumers are those of clients for threads."""

    def __init__(self, *, producer: Publishes[Awaitable[object]] | None, config: ConsumerConfig) -> None:
        super().__init__(producer=producer, config=config)
        self.facades: list[WorkerConsumer] = []

    def _new_consumer(
        self, topic: str, channel: str, producer: Publishes[Awaitable[object]] | None, config: ConsumerConfig
    ) -> nsq_ha.Consumer:
        facade = WorkerConsumer(topic, channel, producer=producer, config=config)
        self.facades.append(facade)
        return client_of(facade)

    def prepare(self) -> None:
        """Start the producers that the consumers need.

        Raises:
            ConfigError: There is nothing to do, or the worker's producer is not used.
            ClosedError: The worker was run before.
        """
        self._check_runnable()
        for facade in self.facades:
            self._jobs[facade.topic, facade.channel].consumer = facade.prepare()

    def signals(self, loop: asyncio.AbstractEventLoop) -> StopSignals:
        """Return what stops the worker at a signal, for the main thread."""
        return StopSignals(loop, self._signalled, self._stop_at_once)


class Worker(OfOneProcess):
    """Runs handlers for any number of topics and channels in threads: :class:`nsq_ha.Worker` whose ``run`` waits.

    Takes the same options. Add handlers, then call :meth:`run` in a thread that has nothing else to do. Plain functions
    run in threads of their own, coroutine functions in the background event loop.

    Args:
        producer: Publishes for all consumers with ``on_give_up="republish"`` or ``"dead_letter"``; :meth:`run` starts
            it.
        config: The options of all consumers in one object. None takes them from ``options``.
        **options: The same as fields of :class:`~nsq_ha.ConsumerConfig`, such as ``lookupd``.

    Raises:
        ConfigError: An option is unknown or out of range, or ``lookupd`` is missing.
    """

    def __init__(
        self,
        *,
        producer: nsq_ha.sync.producer.Producer | Publishes[Awaitable[object]] | None = None,
        config: ConsumerConfig | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        checked = options_of(ConsumerConfig, config, options)
        # The engine only passes producers on, to the consumers of this module.
        self._engine = _Engine(producer=cast("Publishes[Awaitable[object]] | None", producer), config=checked)
        self._portal: Portal | None = None
        self._over = asyncio.Event()

    @classmethod
    def from_env(
        cls,
        *,
        producer: nsq_ha.sync.producer.Producer | Publishes[Awaitable[object]] | None = None,
        **overrides: Unpack[ConsumerOptions],
    ) -> Self:
        """Create a worker from the environment, see :meth:`nsq_ha.Worker.from_env`."""
        return cls(producer=producer, config=config_from_env(ConsumerConfig, overrides))

    @property
    def config(self) -> ConsumerConfig:
        """The options of all consumers."""
        return self._engine.config

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers, in the order in which they were added."""
        return tuple(self._engine.facades)

    def add(
        self,
        topic: str,
        channel: str,
        handler: Callable[[Message], Awaitable[object] | object],
        *,
        concurrency: int = 1,
        producer: nsq_ha.sync.producer.Producer | Publishes[Awaitable[object]] | None = None,
        **overrides: Unpack[ConsumerOptions],
    ) -> Consumer:
        """See :meth:`nsq_ha.Worker.add`."""
        publisher = cast("Publishes[Awaitable[object]] | None", producer)
        self._engine.add(topic, channel, handler, concurrency=concurrency, producer=publisher, **overrides)
        return self._engine.facades[-1]

    def handler(
        self,
        topic: str,
        channel: str,
        *,
        concurrency: int = 1,
        producer: nsq_ha.sync.producer.Producer | Publishes[Awaitable[object]] | None = None,
        **overrides: Unpack[ConsumerOptions],
    ) -> Callable[[_Handler], _Handler]:
        """See :meth:`nsq_ha.Worker.handler`."""
        publisher = cast("Publishes[Awaitable[object]] | None", producer)
        return self._engine.handler(topic, channel, concurrency=concurrency, producer=publisher, **overrides)

    def run(self, *, install_signal_handlers: bool = False) -> None:
        """See :meth:`nsq_ha.Worker.run`."""
        if install_signal_handlers:
            check_main_thread()
        check_thread(self._portal or loop_thread.shared(), "Worker", "run")
        engine, portal = self._engine, loop_thread.shared()
        engine.prepare()
        with loop_thread.mutex:
            if self._portal is not None:
                raise ClosedError("a Worker can be run only once: create a new one")
            self._portal = portal
        for consumer in engine.facades:
            consumer.adopt(portal)
        limit = max(consumer.config.close_timeout for consumer in engine.facades)
        portal.close_at_exit(self, lambda: self._close, limit)
        wait_here(
            portal, partial(self._serve, portal), engine.signals(portal.loop) if install_signal_handlers else None
        )

    async def _serve(self, portal: Portal) -> None:
        try:
            await self._engine.run()
        finally:
            self._over.set()
            portal.forget(self)

    async def _close(self) -> None:
        """Stop at the interpreter's exit."""
        self._engine.stop()
        await self._over.wait()

    def stop(self) -> None:
        """See :meth:`nsq_ha.Worker.stop`."""
        if self._portal is None or not self._portal.is_inherited:
            self._engine.stop()

    def stats(self) -> WorkerStats:
        """See :meth:`nsq_ha.Worker.stats`."""
        return self._engine.stats()

    def health(self, *, patience: float = FIRST_WARNING) -> Health:
        """See :meth:`nsq_ha.Worker.health`."""
        return self._engine.health(patience=patience)

    @property
    def is_healthy(self) -> bool:
        """Whether :meth:`health` finds nothing wrong."""
        return self._engine.is_healthy


for _method in (Worker.add, Worker.handler, Worker.run, Worker.stop, Worker.stats, Worker.health):
    _method.__doc__, _method.__module__ = getattr(nsq_ha.Worker, _method.__name__).__doc__, "nsq_ha.sync"
