"""Handlers for several topics and channels in one program: they start, stop and fail together.

The invariants: if a consumer fails, the others finish what they are handling before :meth:`Worker.run` raises; and when
it returns or raises, all of them are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Self, TypeVar, Unpack

from nsq_ha.base.forks import OfOneProcess
from nsq_ha.consumer import Consumer
from nsq_ha.consumer.consumer import begin_stop, stop_at_once
from nsq_ha.consumer.handlers import check_concurrency, check_handler
from nsq_ha.dead_letters.letter import Publishes
from nsq_ha.engine.single_use import options_of
from nsq_ha.errors import ClosedError, ConfigError, NsqError, WorkerError
from nsq_ha.message import Message
from nsq_ha.options.config import ConsumerConfig
from nsq_ha.options.environment import config_from_env
from nsq_ha.options.keywords import ConsumerOptions
from nsq_ha.policy.health import health_of_parts
from nsq_ha.policy.timing import FIRST_WARNING
from nsq_ha.process.signals import StopSignals
from nsq_ha.stats import Health, WorkerStats

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

_Handler = TypeVar("_Handler", bound="Callable[[Message], Awaitable[object] | object]")

_SUMMED: Final = tuple(entry.name for entry in dataclasses.fields(WorkerStats) if entry.name != "consumers")


@dataclass(slots=True)
class _Job:
    """One consumer and its handler.

    Attributes:
        consumer: The consumer.
        handler: Called for each message.
        concurrency: Handlers at a time.
        is_open: It has been entered.
        task: Runs it. None before the start.
    """

    consumer: Consumer
    handler: Callable[[Message], Awaitable[object] | object]
    concurrency: int
    is_open: bool = False
    task: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Topic and channel."""
        return f"{self.consumer.topic}/{self.consumer.channel}"


class Worker(OfOneProcess):
    """Runs handlers for any number of topics and channels. Add them, then await :meth:`run`.

    Args:
        producer: Publishes for all consumers with ``on_give_up="republish"`` or ``"dead_letter"``.
        config: The options of all consumers in one object. None takes them from ``options``.
        **options: The same as fields of :class:`~nsq_ha.ConsumerConfig`, such as ``lookupd``.

    Raises:
        ConfigError: An option is unknown or out of range, or ``lookupd`` is missing.
    """

    def __init__(
        self,
        *,
        producer: Publishes[Awaitable[object]] | None = None,
        config: ConsumerConfig | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self.config: ConsumerConfig = options_of(ConsumerConfig, config, options)
        self._producer = producer
        self._is_producer_used = False
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._is_over = False
        self._failures: list[BaseException] = []

    @classmethod
    def from_env(
        cls, *, producer: Publishes[Awaitable[object]] | None = None, **overrides: Unpack[ConsumerOptions]
    ) -> Self:
        """Create a worker with the options of ``NSQ_HA_*`` variables and of the TOML file of ``NSQ_HA_CONFIG``.

        Args:
            producer: Publishes for all consumers with ``on_give_up="republish"`` or ``"dead_letter"``.
            **overrides: Options that win over both.

        Raises:
            ConfigError: A name or a value is wrong, or no address is given. The error names the variable, or the key
                and the file.
        """
        return cls(producer=producer, config=config_from_env(ConsumerConfig, overrides))

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers, in the order in which they were added."""
        return tuple(job.consumer for job in self._jobs.values())

    def add(
        self,
        topic: str,
        channel: str,
        handler: Callable[[Message], Awaitable[object] | object],
        *,
        concurrency: int = 1,
        producer: Publishes[Awaitable[object]] | None = None,
        **overrides: Unpack[ConsumerOptions],
    ) -> Consumer:
        """Add a handler for one channel of one topic.

        Args:
            topic: The topic.
            channel: The channel.
            handler: A coroutine function or a plain one that takes a :class:`~nsq_ha.Message`, as for
                :meth:`nsq_ha.Consumer.run`.
            concurrency: Maximum number of handlers at a time, 1..10000.
            producer: Publishes for this consumer instead of the worker's producer.
            **overrides: Options of this consumer that win over the worker's.

        Returns:
            Its consumer, for example for ``set_max_in_flight``. The worker enters and runs it.

        Raises:
            ConfigError: A name, an option or the handler is wrong, the channel of the topic was added before, or the
                worker runs already.
        """
        if self._loop is not None:
            raise ConfigError(f"the worker runs already: add {topic}/{channel} before run()")
        if (topic, channel) in self._jobs:
            raise ConfigError(f"{topic}/{channel} was added before: raise its concurrency for more handlers at once")
        check_handler(handler)
        check_concurrency(concurrency)
        common = {entry.name: getattr(self.config, entry.name) for entry in dataclasses.fields(self.config)}
        config = ConsumerConfig.of({**common, **overrides}) if overrides else self.config
        if producer is None and config.on_give_up in ("republish", "dead_letter"):
            producer = self._producer
            self._is_producer_used = True
        consumer = self._new_consumer(topic, channel, producer, config)
        self._jobs[topic, channel] = _Job(consumer, handler, concurrency)
        return consumer

    def _new_consumer(
        self, topic: str, channel: str, producer: Publishes[Awaitable[object]] | None, config: ConsumerConfig
    ) -> Consumer:
        return Consumer(topic, channel, producer=producer, config=config)

    def handler(
        self,
        topic: str,
        channel: str,
        *,
        concurrency: int = 1,
        producer: Publishes[Awaitable[object]] | None = None,
        **overrides: Unpack[ConsumerOptions],
    ) -> Callable[[_Handler], _Handler]:
        """Return a decorator that adds a handler, and returns it unchanged; see :meth:`add`.

        Args:
            topic: The topic.
            channel: The channel.
            concurrency: Maximum number of handlers at a time, 1..10000.
            producer: Publishes for this consumer instead of the worker's producer.
            **overrides: Options of this consumer that win over the worker's.
        """

        def add(function: _Handler) -> _Handler:
            self.add(topic, channel, function, concurrency=concurrency, producer=producer, **overrides)
            return function

        return add

    def stop(self) -> None:
        """Close all consumers gently: running handlers may end within ``close_timeout``, then :meth:`run` returns.

        This returns at once. It may be called from any thread, by a handler, and again.
        """
        self._is_stopping = True  # before the look at the loop: a run that begins now sees one of both
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so are the consumers
                self._loop.call_soon_threadsafe(self._begin_stop)

    def stats(self) -> WorkerStats:
        """Return the counts and states of all consumers. It may be called at any time, from any thread."""
        found = tuple(consumer.stats() for consumer in self.consumers)
        return WorkerStats(consumers=found, **{name: sum(getattr(each, name) for each in found) for name in _SUMMED})

    def health(self, *, patience: float = FIRST_WARNING) -> Health:
        """Return whether the worker works, and why not. It makes no request, and any thread may call it.

        The worker is unhealthy if it does not run, is closing or has failed, and if one of its consumers is unhealthy,
        see :meth:`nsq_ha.Consumer.health`. A consumer that its own handler has closed is no trouble, but named.

        Args:
            patience: Seconds of trouble after which a consumer is unhealthy. The default is the time after which the
                log warns: a change of a leader takes less.
        """
        stopped = self._stopped()
        if stopped is not None:
            return Health(is_healthy=False, reason=stopped)
        return health_of_parts([(job.name, _health_of(job, patience)) for job in tuple(self._jobs.values())])

    @property
    def is_healthy(self) -> bool:
        """Whether :meth:`health` finds nothing wrong."""
        return self.health().is_healthy

    def _stopped(self) -> str | None:
        """Return why the worker cannot work at all. None if it can."""
        if self._loop is None:
            return "not started yet"
        if self._failures:
            # Only errors of this library have texts without secrets and bodies.
            return str(self._failures[0]) if isinstance(self._failures[0], NsqError) else "failed"
        if self._is_over:
            return "closed"
        if self._loop.is_closed():
            return "closed, since its event loop is closed"
        return "closing" if self._is_stopping else None

    async def run(self, *, install_signal_handlers: bool = False) -> None:
        """Subscribe to all topics and call the handlers, until :meth:`stop` or a signal.

        The consumers start at the same time. If one of them fails, the others close gently first. A consumer that its
        handler closes ends alone; this call returns when all have ended.

        Args:
            install_signal_handlers: SIGTERM or SIGINT stops the worker, see :meth:`stop`. A second signal cancels
                running handlers and closes at once. At the end the previous handlers are back.

        Raises:
            WorkerError: A consumer failed, and retrying cannot help; names its topic and channel.
            ConfigError: No handler was added, no consumer uses ``producer``, or signal handlers are asked for outside
                the main thread.
            ClosedError: It was run before.

        If cancelled, it cancels the running handlers, which is no failed attempt, and closes the consumers.
        """
        self._check_runnable()
        loop = asyncio.get_running_loop()
        stop_signals = StopSignals(loop, self._signalled, self._stop_at_once) if install_signal_handlers else None
        self._loop = loop
        try:
            with stop_signals or contextlib.nullcontext():
                await self._run_all()
        finally:
            self._is_over = True

    def _check_runnable(self) -> None:
        if self._loop is not None:
            raise ClosedError("a Worker can be run only once: create a new one")
        if not self._jobs:
            raise ConfigError("the worker has nothing to do: add() a handler before run()")
        if self._producer is not None and not self._is_producer_used:
            raise ConfigError(
                "producer= would not be used, since no consumer has on_give_up='dead_letter' or 'republish': give"
                " one of them, or no producer"
            )

    async def _run_all(self) -> None:
        if self._is_stopping:
            return
        for job in self._jobs.values():
            job.task = asyncio.create_task(self._consume(job), name=f"nsq_ha worker {job.name}")
        await asyncio.gather(*(job.task for job in self._jobs.values() if job.task), return_exceptions=True)
        for later in self._failures[1:]:
            log.warning("%s", later)
        if self._failures:
            raise self._failures[0]

    async def _consume(self, job: _Job) -> None:
        """Run a consumer; if it fails, stop the others. An error that left this task might end the event loop."""
        try:
            async with job.consumer as consumer:
                job.is_open = True
                await consumer.run(job.handler, concurrency=job.concurrency)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - run() raises it
            self._failures.append(_failure(error, job))
            self._begin_stop()

    def _signalled(self, signal_name: str) -> None:
        names = ", ".join(job.name for job in self._jobs.values())
        log.info("worker of %s: closing after %s; a second signal closes at once", names, signal_name)
        self._begin_stop()

    def _begin_stop(self) -> None:
        """Close all consumers gently."""
        self._is_stopping = True
        for job in self._jobs.values():
            if job.is_open:
                begin_stop(job.consumer)
            elif job.task is not None:
                job.task.cancel()  # it has no message yet

    def _stop_at_once(self) -> None:
        log.warning("worker: closing at once: running handlers are cancelled")
        for job in self._jobs.values():
            stop_at_once(job.consumer)


def _health_of(job: _Job, patience: float) -> Health:
    if job.task is not None and job.task.done():  # its handler closed it: a failure stops the whole worker
        return Health(is_healthy=True, reason="closed")
    return job.consumer.health(patience=patience)


def _failure(error: BaseException, job: _Job) -> BaseException:
    """Return what to raise for a consumer that failed: errors that are bugs get a note, others a WorkerError."""
    if not isinstance(error, NsqError):
        error.add_note(f"in the worker's consumer of {job.name}")
        return error
    failure = WorkerError(f"consumer of {job.name} failed: {error}", job.consumer.topic, job.consumer.channel)
    failure.retriable = error.retriable
    failure.__cause__ = error
    return failure
