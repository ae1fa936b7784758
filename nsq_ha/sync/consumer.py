"""The consumer for threads."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Self, Unpack

import nsq_ha.sync.producer
from nsq_ha.consumer.handlers import Batch
from nsq_ha.dead_letters.letter import Publishes
from nsq_ha.engine.single_use import options_of
from nsq_ha.errors import ClosedError, ConfigError, NsqError
from nsq_ha.message import Message
from nsq_ha.options.checks import check_timeout
from nsq_ha.options.config import ConsumerConfig
from nsq_ha.options.environment import config_from_env
from nsq_ha.options.keywords import ConsumerOptions
from nsq_ha.process import loop_thread
from nsq_ha.process.loop_thread import AsyncCall, Portal
from nsq_ha.process.signals import check_main_thread, wait_here
from nsq_ha.sync.facade import Facade, client_of, described, does, method, reads, waits
from nsq_ha.sync.producer import Producer
from nsq_ha.sync.taking import Handle, ThreadedConsumer, ThreadTaker, is_called_by


class Consumer(Facade[ThreadedConsumer]):
    """Reads one channel of one topic in threads: :class:`nsq_ha.Consumer` whose methods wait.

    Takes the same options. Use it with ``with``. Iterating hands out messages and answers nothing by itself; any thread
    may answer them, and ``with message:`` finishes it at the end of the block, or requeues it after an exception.
    :meth:`run` calls a handler in threads. Meanwhile heartbeats are answered in the background.

    The first use starts it: it returns when all partitions are subscribed, or after ``start_timeout`` with a warning.

    Messages that a thread got by iterating may be answered until ``close_timeout`` after :meth:`stop`, as long as that
    thread runs. If the thread itself stops the consumer, or leaves the ``with`` block, those that it has not answered
    go back at once; only an exception counts as a failed attempt.

    Args:
        topic: The topic.
        channel: The channel; it is made on first use and starts at the end of the topic.
        producer: Publishes for ``on_give_up="republish"`` and ``"dead_letter"``; starting the consumer starts it.
        config: Options as a value. None to take them from ``options``.
        **options: The fields of :class:`~nsq_ha.ConsumerConfig`, such as ``lookupd``, the HTTP address of one
            nsqlookupd or several. The client discovers the others.

    Raises:
        ConfigError: An option is unknown or out of range, a name is not valid, no lookupd is given, or what is given up
            could not be published.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        *,
        producer: nsq_ha.sync.producer.Producer | Publishes[Awaitable[object]] | None = None,
        config: ConsumerConfig | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Check the options; connect to nothing yet."""
        checked = options_of(ConsumerConfig, config, options)
        if isinstance(producer, nsq_ha.Producer):
            raise ConfigError(
                "producer= of a nsq_ha.sync.Consumer must be a nsq_ha.sync.Producer: a nsq_ha.Producer has a"
                " loop of its own"
            )

        def make() -> ThreadedConsumer:
            self._publisher = client_of(producer) if isinstance(producer, Producer) else producer
            return ThreadedConsumer(topic, channel, producer=self._publisher, config=checked)

        super().__init__(make)
        self._close_limit = self.config.close_timeout
        # A start that fails closes what it has opened.
        self._own_limit = self.config.start_timeout + self.config.close_timeout
        self._producer = producer if isinstance(producer, Producer) else None
        self._local = threading.local()  # "handle": of each thread that iterates
        self._takers: set[ThreadTaker] = set()

    @classmethod
    def from_env(
        cls,
        topic: str,
        channel: str,
        *,
        producer: nsq_ha.sync.producer.Producer | Publishes[Awaitable[object]] | None = None,
        **overrides: Unpack[ConsumerOptions],
    ) -> Self:
        """Create a consumer from the environment, see :meth:`nsq_ha.Consumer.from_env`."""
        return cls(topic, channel, producer=producer, config=config_from_env(ConsumerConfig, overrides))

    def _run(
        self,
        handler: Callable[[Message], Awaitable[object] | object],
        *,
        concurrency: int = 1,
        install_signal_handlers: bool = False,
    ) -> None:
        if install_signal_handlers:
            check_main_thread()
        portal = self._started("run")
        engine = self._client
        run = partial(engine.run, handler, concurrency=concurrency)
        wait_here(portal, run, engine.signals(portal.loop) if install_signal_handlers else None)

    @method(described(_run, nsq_ha.Consumer.run))
    def run(self) -> None: ...

    @method(waits(nsq_ha.Consumer.wait_ready))
    def wait_ready(self) -> None: ...

    @method(reads(nsq_ha.Consumer.stats))
    def stats(self) -> None: ...

    @method(reads(nsq_ha.Consumer.health))
    def health(self) -> None: ...

    @method(waits(nsq_ha.Consumer.wait_subscribed))
    def wait_subscribed(self) -> None: ...

    @method(does(nsq_ha.Consumer.set_max_in_flight))
    def set_max_in_flight(self) -> None: ...

    @method(does(nsq_ha.Consumer.set_max_rate))
    def set_max_rate(self) -> None: ...

    @property
    def is_healthy(self) -> bool:
        """Whether :meth:`health` finds nothing wrong."""
        return self._client.is_healthy

    @property
    def config(self) -> ConsumerConfig:
        """All options."""
        return self._client.config

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._client.topic

    @property
    def channel(self) -> str:
        """Name of the channel."""
        return self._client.channel

    @property
    def max_in_flight(self) -> int:
        """Messages that may be unanswered over all partitions."""
        return self._client.max_in_flight

    @property
    def max_rate(self) -> float | None:
        """Messages that are handed out a second, at most. None for no limit."""
        return self._client.max_rate

    # ------------------------------------------------------------ iterating

    def __iter__(self) -> Self:
        """Iterate over messages until the consumer is closed; several threads may, and share the messages."""
        return self

    def __next__(self) -> Message:
        """Wait for the next message and return it.

        If KeyboardInterrupt ends the wait, no message is lost.

        Raises:
            StopIteration: The consumer was closed.
            ServerError: A refusal that no retry cures.
            ConfigError: :meth:`run` is active.
        """
        return self._taker("__next__").take()

    def _get(self, *, timeout: float | None = None) -> Message:
        limit = None if timeout is None else check_timeout(timeout)
        try:
            return self._taker("get").take(limit)
        except StopIteration:
            raise ClosedError("the consumer is closed") from None
        except TimeoutError as error:
            if isinstance(error, NsqError):
                raise
            raise TimeoutError(f"{self.topic}/{self.channel}: no message came within {limit:g} s") from None

    @method(described(_get, nsq_ha.Consumer.get, returns=Message))
    def get(self) -> None: ...

    def _batches(self, max_messages: int = 100, max_wait: float = 1.0) -> Iterator[Batch]:
        self._client.batches(max_messages, max_wait)  # checks the arguments, and warns
        # Not a generator: each thread that uses it gets batches of its own, at the same time.
        return iter(lambda: self._taker("batches").take_batch(max_messages, max_wait), None)

    @method(described(_batches, nsq_ha.Consumer.batches, returns=Iterator[Batch]))
    def batches(self) -> None: ...

    def _taker(self, call: str) -> ThreadTaker:
        """Return what takes messages for this thread.

        Raises:
            StopIteration: The consumer was closed.
        """
        handle: Handle | None = getattr(self._local, "handle", None)
        if handle is None or self._portal is None or self._portal.is_inherited:
            if self._is_stopped:
                raise StopIteration
            handle = self._new_handle(self._started(call))
        return handle.taker

    def _new_handle(self, portal: Portal) -> Handle:
        taker = ThreadTaker(portal, self._client)
        self._takers.add(taker)
        handle = self._local.handle = Handle(taker, self._dropped, portal)
        return handle

    def _dropped(self, taker: ThreadTaker) -> None:
        taker.drop()
        self._takers.discard(taker)

    # ------------------------------------------------------------ life

    def _start(self, call: str, limit: float | None = None) -> Portal:
        self._start_producer()
        return super()._start(call, limit)

    def _start_producer(self) -> None:
        """Start the producer for what is given up."""
        if self._producer is not None:
            self._producer.start()
            with loop_thread.mutex:
                # One that has failed to start has another client now.
                if self._begun is None and client_of(self._producer) is not self._publisher:
                    self._client = self._make()

    def _stop(self, error: BaseException | None) -> None:
        begun = self._begun
        if begun is not None and not begun.portal.is_inherited and is_called_by(self._client):
            # To wait would be to wait for the message that this thread handles.
            self._is_stopped = True
            begun.portal.submit(self._closing(error)).add_done_callback(lambda _: begun.portal.forget(self))
        else:
            super()._stop(error)

    def _closing(self, error: BaseException | None) -> AsyncCall[None]:
        handle: Handle | None = getattr(self._local, "handle", None)
        return partial(self._close, error, None if handle is None else handle.taker)

    async def _close(self, error: BaseException | None, leaving: ThreadTaker | None = None) -> None:
        if leaving is not None:
            await leaving.end()
        for taker in [*self._takers]:  # threads add theirs meanwhile
            taker.give_back()
        # From here to the end of the inbox nothing else runs, so that nobody takes what was given back.
        await super()._close(error)
        for taker in [*self._takers]:
            await taker.end()
        self._takers.clear()
